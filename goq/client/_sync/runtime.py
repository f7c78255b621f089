"""Locks, waits and workers of the synchronous client, over threads.

The names are those of the asynchronous module, which the client is written against.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Lock = threading.Lock
sleep = time.sleep

Monitor = threading.Condition
"""A lock of some state, with a condition to wait for its change."""


class Worker:
    """A thread that runs beside the caller. It does not keep the program from ending."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the work has returned."""
        self._thread.join()

    def wait(self, timeout: float) -> None:
        """Wait until the work has returned, or for ``timeout`` seconds."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Wait for the end of the work. The caller has ended its waits before: a thread cannot."""
        self._thread.join()


class ArrivalClock:
    """Tells when data that was just read came at the earliest: now, as a thread reads at once."""

    since_s = staticmethod(time.monotonic)

    def stop(self) -> None:
        """Do nothing."""
