"""Locks, waits and workers of the asynchronous client, over asyncio.

The synchronous module has the same names, over threads. No task is interrupted between awaits, so
entering a monitor does nothing here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, TypeVar

Item = TypeVar("Item")

sleep = asyncio.sleep
_TICK_S: Final = 0.25


class Lock:
    """A lock for one event loop after the other: each finds it free."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        await self._lock.acquire()

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release()


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

    @property
    def has_ended(self) -> bool:
        """Whether the work has returned, or its event loop cancelled it."""
        return self._task.done()

    async def join(self) -> None:
        """Wait until the work has returned."""
        await self._task

    async def wait(self, timeout: float) -> None:
        """Wait until the work has returned, or for ``timeout`` seconds."""
        await asyncio.wait([self._task], timeout=timeout)

    def cancel(self) -> None:
        """Cancel the work where it waits."""
        self._task.cancel()

    async def stop(self) -> None:
        """Cancel the work where it waits; return when it has ended."""
        self.cancel()
        await asyncio.wait([self._task])


class _DroppedLoop(AsyncGenerator[Item, None]):
    """A generator that tells when its caller drops it, as ``break`` in ``async for`` does.

    The event loop closes the generator itself later, in another task.
    """

    def __init__(
        self, generator: AsyncGenerator[Item, None], on_dropped: Callable[[], None]
    ) -> None:
        self._generator = generator
        self._on_dropped = on_dropped

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        return self._generator.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Item]:
        return self._generator.asend(value)

    def athrow(self, *exc: Any) -> Coroutine[Any, Any, Item]:
        return self._generator.athrow(*exc)

    def aclose(self) -> Coroutine[Any, Any, None]:
        return self._generator.aclose()

    def __del__(self) -> None:
        self._on_dropped()


def notify_dropped(
    generator: AsyncGenerator[Item, None], on_dropped: Callable[[], None]
) -> AsyncGenerator[Item, None]:
    """Return the generator, such that ``on_dropped`` is called when its caller drops it."""
    return _DroppedLoop(generator, on_dropped)


class ArrivalClock:
    """Tells when data that was just read came at the earliest.

    While a handler blocks the event loop, nothing is read. A timer shows how long that was.
    """

    def __init__(self) -> None:
        self._ticks_s = (time.monotonic(), time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def since_s(self) -> float:
        """Return the earliest time, in monotonic seconds; now, if the loop is not blocked."""
        before_s, last_s = self._ticks_s
        now_s = time.monotonic()
        if now_s - last_s >= 2 * _TICK_S:
            return last_s
        return before_s if last_s - before_s >= 2 * _TICK_S else now_s

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._ticks_s = (self._ticks_s[1], time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
