"""Ctrl-C and SIGTERM where work must not be cut in half."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived: end as for Ctrl-C. The option parser knows that one, and not this."""


class Interrupts:
    """Holds interrupts back while something is under way, and lets them through while waiting.

    A second interrupt is let through at once: whatever is under way, the user means it.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._pending: type[BaseException] | None = None

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Take over both signals until the end of the block."""
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
        """Say that from now on nothing is under way; raise what has been held back."""
        self._waiting = True
        self.check()

    def work(self) -> None:
        """Say that something is under way again; raise what arrived before."""
        self._waiting = False
        self.check()

    def check(self) -> None:
        """Raise what has been held back."""
        if self._pending is not None:
            raise self._pending

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        kind: type[BaseException] = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._waiting or self._pending is not None:
            raise kind
        self._pending = kind
