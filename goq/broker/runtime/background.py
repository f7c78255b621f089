"""Background reads: reads of old messages that do not delay live traffic.

A node runs at most one background read at a time, in a thread of its own, in small pieces. During
live traffic the pause after a piece is three times the piece's duration, at least 20 ms, so
background reads take at most a quarter of the time. Without live traffic there is no pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from goq import limits
from goq.errors import ShuttingDown, TooManyRequests

T = TypeVar("T")

BUSY_SHARE: Final = 0.25
"""The share of the time for background reads during live traffic."""
BUSY_FOR_S: Final = 1.0
"""The time after a write during which traffic counts as live."""
PAUSE_S_MIN: Final = 0.02
"""The shortest pause: to send and to process a piece takes time too."""
LATE_S: Final = 0.005
"""The lag of the event loop from which it counts as busy."""


class ReadPacer:
    """Computes the start of the next piece. All times are seconds of a monotonic clock.

    ``writes`` is the number of writes to the node's logs. Publish, receive and settle write, reads
    do not. So the measure of traffic costs the traffic nothing.
    """

    def __init__(self) -> None:
        self._writes: int | None = None
        self._busy_until_s = float("-inf")
        self._next_s = float("-inf")

    def look(self, now_s: float, writes: int, late_s: float) -> None:
        """Record the number of writes so far, and the lag of the event loop."""
        if (self._writes is not None and writes != self._writes) or late_s >= LATE_S:
            self._busy_until_s = now_s + BUSY_FOR_S
        self._writes = writes

    def worked(self, now_s: float, seconds: float) -> None:
        """Record the end and the duration of a piece."""
        pause_s = max(seconds * (1 - BUSY_SHARE) / BUSY_SHARE, PAUSE_S_MIN)
        self._next_s = now_s + (pause_s if now_s < self._busy_until_s else 0.0)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next piece may start."""
        return max(0.0, self._next_s - now_s)


class BackgroundReads:
    """Runs pieces of background reads, one at a time, in order of request."""

    def __init__(self, writes: Callable[[], int]) -> None:
        self._writes = writes
        self._pace = ReadPacer()
        self._turn = asyncio.Lock()
        self._asked = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="goq-background")

    async def run(self, piece: Callable[[], T]) -> T:
        """Run one piece in its turn; raise ``TooManyRequests`` if too many wait."""
        if self._asked > limits.BACKGROUND_READS_WAITING_MAX:
            raise TooManyRequests(
                f"{limits.BACKGROUND_READS_WAITING_MAX} background reads wait for their turn;"
                " read again later, or without background",
                retry_after_ms=1000,
            )
        self._asked += 1
        try:
            async with self._turn:
                return await self._run(piece)
        finally:
            self._asked -= 1

    async def _run(self, piece: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        await self._look(loop)
        wait_s = self._pace.wait_s(loop.time())
        if wait_s:
            await asyncio.sleep(wait_s)
        began_s = loop.time()
        try:
            return await loop.run_in_executor(self._thread, piece)
        finally:
            now_s = loop.time()
            self._pace.look(now_s, self._writes(), 0.0)
            self._pace.worked(now_s, now_s - began_s)

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        asked_s = loop.time()
        await asyncio.sleep(0)
        now_s = loop.time()
        self._pace.look(now_s, self._writes(), now_s - asked_s)

    def close(self) -> None:
        """Stop the thread after its current piece."""
        self._thread.shutdown()


_REST_S_MAX = 0.05


class ThreadThrottle:
    """Called between pieces of work: sleeps for a share of the last piece's duration.

    Even a sleep of 0 lets waiting threads run first. Raises ``ShuttingDown`` once ``is_over`` is
    true: the work is no longer needed.
    """

    def __init__(
        self,
        share: float,
        is_over: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._is_over = is_over
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock()

    def __call__(self) -> None:
        """Sleep, or end the work."""
        if self._is_over():
            raise ShuttingDown("the node is stopping; ask another, or this one later")
        worked_s = self._clock() - self._began_s
        self._sleep(min(worked_s * self._share, _REST_S_MAX))
        self._began_s = self._clock()
