"""Forks of the process: what a child has of its parent's clients.

A child has copies of the parent's sockets, locks and numbers, but none of its threads. A client in
it begins anew: with its own connections and locks, another producer id, and without open loops. A
producer or a loop of the parent is refused there: its messages and its worker are the parent's.

In a child all of this runs before any other code, while it has one thread.

A module that a thread imports during a fork stays locked in the child for ever. So requests import
nothing: what a first connection would import is imported here.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - of the first look-up of a host
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from goq.errors import InvalidInput

Thing = TypeVar("Thing")
_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def renew_in_children(thing: Thing, renew: Callable[[Thing], None]) -> None:
    """Call ``renew(thing)`` in each child that this process forks, while the thing exists."""
    _renewals[thing] = renew


def _renew_all() -> None:
    for thing, renew in list(_renewals.items()):
        renew(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Owner:
    """The process that may use an object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise ``InvalidInput`` in any other process."""
        if os.getpid() != self._pid:
            raise InvalidInput(
                f"this {self._what} belongs to process {self._pid}, which forked this one:"
                " make another here, with the same client"
            )
