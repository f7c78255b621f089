"""Deferred interrupts: Ctrl-C and SIGTERM where work must not be cut in half."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived. Not a ``KeyboardInterrupt``: the option parser would handle that."""


class Interrupts:
    """Defers interrupts during work, and raises them while waiting.

    A second interrupt is raised at once: the user insists.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._pending: type[BaseException] | None = None

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Handle both signals until the end of the block."""
        before = {
            number: signal.signal(number, self._arrived)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self) -> None:
        """Begin to wait; raise a deferred interrupt."""
        self._waiting = True
        self.check()

    def work(self) -> None:
        """Begin to work; raise an interrupt that arrived before."""
        self._waiting = False
        self.check()

    def check(self) -> None:
        """Raise a deferred interrupt."""
        if self._pending is not None:
            raise self._pending

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        kind: type[BaseException] = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._waiting or self._pending is not None:
            raise kind
        self._pending = kind
