"""Interrupts: signals that end a blocked call, and that wait where work must not be cut in half."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WAKES_AFTER_S = (0.01, 0.05, 0.25)
"""The delays between a signal and its reminders."""


class Terminated(BaseException):
    """SIGTERM arrived. Not a ``KeyboardInterrupt``: the option parser would handle that."""


class Interrupts:
    """Defers interrupts during work, and raises them while waiting.

    A second interrupt is raised at once. Besides signals, :meth:`end` interrupts.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._pending: type[BaseException] | None = None
        self.is_repeated = False
        """Whether another signal came after the first interrupt: the user insists."""

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Handle both signals until the end of the block."""
        before = {
            number: signal.signal(number, self._arrived)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        before[signal.SIGURG] = signal.signal(signal.SIGURG, self._reminded)
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

    def end(self, kind: type[BaseException]) -> None:
        """Interrupt the main thread by ``kind``, from another thread; repeat until it has ended.

        A call that the main thread enters at that moment is interrupted by the next repetition.
        """
        if self._pending is None:
            self._pending = kind
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGURG)

    @property
    def is_pending(self) -> bool:
        """Whether an interrupt was deferred or raised."""
        return self._pending is not None

    def check(self) -> None:
        """Raise a deferred interrupt."""
        if self._pending is not None:
            self._waiting = False
            raise self._pending

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        kind: type[BaseException] = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.is_repeated = self._pending is not None
        is_raised = self._waiting or self.is_repeated
        self._waiting, self._pending = False, kind
        if is_raised:
            raise kind

    def _reminded(self, _number: int, _frame: FrameType | None) -> None:
        if self._waiting:
            self.check()


@contextmanager
def noted_signals(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call ``on_signal`` before SIGINT or SIGTERM is handled, until the end of the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        on_signal()
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remind_of_signals() -> None:
    """Make a signal end a system call that the main thread entered just after the signal came.

    Python runs a signal's handler between two instructions of the main thread. A signal that comes
    between the last check and a system call only sets a flag, and the call then blocks: a Ctrl-C
    would wait for the server's answer. A thread reads the numbers of signals from a pipe and
    interrupts the main thread a little later. SIGURG does that: its handler does nothing.
    """
    numbers, written = os.pipe()
    os.set_blocking(written, False)
    signal.signal(signal.SIGURG, lambda _number, _frame: None)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    threading.Thread(target=_remind, args=(numbers,), name="signals", daemon=True).start()


def _remind(numbers: int) -> None:
    main = threading.main_thread()
    while number := os.read(numbers, 1):
        if number[0] == signal.SIGURG:
            continue
        for delay_s in _WAKES_AFTER_S:
            time.sleep(delay_s)
            if main.ident is not None and main.is_alive():
                signal.pthread_kill(main.ident, signal.SIGURG)
