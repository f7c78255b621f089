"""Locks, waits and workers of the asynchronous client, over asyncio.

The synchronous module has the same names, over threads. No task is interrupted between awaits, so
entering a monitor does nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Lock = asyncio.Lock
sleep = asyncio.sleep


class Monitor:
    """A lock of some state, with a condition to wait for its change."""

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
        """Wake all waiters."""
        for waiter in self._waiters:
            _wake(waiter)


class Worker:
    """A task that runs beside the caller."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._task = asyncio.create_task(work(*arguments))

    async def join(self) -> None:
        """Wait until the work has returned."""
        await self._task

    async def wait(self, timeout: float) -> None:
        """Wait until the work has returned, or for ``timeout`` seconds."""
        await asyncio.wait([self._task], timeout=timeout)

    async def stop(self) -> None:
        """Cancel the work where it waits; return when it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
