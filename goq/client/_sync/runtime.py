"""Waiting, locking and working beside the caller, with threads.

The names are those of the asynchronous twin, which the code is written against.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Lock = threading.Lock
sleep = time.sleep

Monitor = threading.Condition
"""A guard of some state, and a place to wait for it to change: both are the condition's own."""


class Worker:
    """A thread beside the caller's; it does not keep a program from ending."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the work has returned of itself."""
        self._thread.join()

    def wait(self, timeout: float) -> None:
        """Wait until the work has returned of itself, for ``timeout`` seconds at most."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Wait for the end of work whose waits have been ended before: none can be from here."""
        self._thread.join()
