"""Waiting, locking and working beside the caller, with asyncio.

The synchronous twin of this module has the same names, with threads. Code between awaits is
never interrupted here, so what guards state there costs nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Lock = asyncio.Lock
sleep = asyncio.sleep


class Monitor:
    """A guard of some state, and a place to wait for it to change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass

    async def wait(self, timeout: float | None = None) -> None:
        """Return after the next ``notify_all`` or after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    def notify_all(self) -> None:
        """Wake everyone who waits."""
        for waiter in self._waiters:
            _wake(waiter)


class Worker:
    """A task beside the caller's."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._task = asyncio.create_task(work(*arguments))

    async def join(self) -> None:
        """Wait until the work has returned of itself."""
        await self._task

    async def wait(self, timeout: float) -> None:
        """Wait until the work has returned of itself, for ``timeout`` seconds at most."""
        await asyncio.wait([self._task], timeout=timeout)

    async def stop(self) -> None:
        """End the work where it waits."""
        self._task.cancel()
        await asyncio.wait([self._task])


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
