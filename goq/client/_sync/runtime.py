"""Locks, waits and workers of the synchronous client, over threads.

The names are those of the asynchronous module, which the client is written against.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

Item = TypeVar("Item")

Lock = threading.Lock
sleep = time.sleep


class Monitor(type(threading.RLock())):  # type: ignore[misc]
    """A lock of some state, with a condition to wait for its change.

    A signal handler may raise at any moment in the thread that has the lock, or takes it. The lock
    is free afterwards. ``threading.Condition`` keeps it if that happens as it is entered, because
    its ``__enter__`` is Python code; here it is the lock's own.
    """

    def __init__(self) -> None:
        self._waiters: list[threading.Lock] = []

    def wait(self, timeout: float | None = None) -> None:
        """Return after the next ``notify_all`` or after ``timeout`` seconds; not when nested."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            self.release()
            waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            try:
                self._take_again()
            except BaseException:
                self._take_again()
                raise
        if waiter in self._waiters:  # the time is over
            self._waiters.remove(waiter)

    def _take_again(self) -> None:
        if not self._is_owned():
            self.acquire()

    def notify_all(self) -> None:
        """Wake all waiters."""
        while self._waiters:
            waiter = self._waiters[-1]
            if waiter.locked():  # else an interrupted call has woken it
                waiter.release()
            self._waiters.pop()


class Worker:
    """A thread that runs beside the caller. It does not keep the program from ending."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the work has returned."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until the work has returned."""
        self._thread.join()

    def wait(self, timeout: float) -> None:
        """Wait until the work has returned, or for ``timeout`` seconds."""
        self._thread.join(timeout)

    def cancel(self) -> None:
        """Do nothing: the caller has ended the waits of the work, and the thread ends by itself."""

    def stop(self) -> None:
        """Wait for the end of the work. The caller has ended its waits before: a thread cannot."""
        self._thread.join()


def notify_dropped(
    generator: Generator[Item, None, None], _on_dropped: Callable[[], None]
) -> Generator[Item, None, None]:
    """Return the generator as it is: Python closes one that its caller drops at once."""
    return generator


class ArrivalClock:
    """Tells when data that was just read came at the earliest: now, as a thread reads at once."""

    since_s = staticmethod(time.monotonic)

    def stop(self) -> None:
        """Do nothing."""
