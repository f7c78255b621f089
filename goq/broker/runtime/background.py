"""Background reads: reads of old messages that do not delay live traffic.

A node runs at most one background read at a time, in a thread of its own, in small pieces. The
pause after a piece follows the load: the rate of writes, as a share of ``FULL_WRITES_PER_S``. At
full load it is three times the piece's duration and at least 20 ms, so background reads take at
most a quarter of the time. While the event loop is late, the load is full from a tenth of the
rate on, and the pause at least 80 ms: the machine is short of CPU time, and reading faster would
take it from live traffic. Without load there is no pause, so a machine that is busy with something
else does not hold up a node without traffic.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from goq import limits
from goq.errors import ShuttingDown, TooManyRequests

T = TypeVar("T")

BUSY_SHARE: Final = 0.25
"""The share of the time for background reads at full load."""
FULL_WRITES_PER_S: Final = 360.0
"""The rate of writes from which the load is full: 120 messages a second, each published, delivered
and acknowledged alone."""
RATE_MEMORY_S: Final = 1.0
"""The time constant of the measured rate: its weight falls to 1/e."""
LATE_WRITES_PER_S: Final = FULL_WRITES_PER_S / 10
"""The rate of writes from which the load is full while the event loop is late."""
BUSY_FOR_S: Final = 1.0
"""The time after a late event loop during which it counts as late."""
PAUSE_S_MIN: Final = 0.02
"""The shortest pause at full load: to send and to process a piece takes time too."""
LATE_PAUSE_S_MIN: Final = 0.08
"""The shortest pause at full load while the event loop is late."""
LATE_S: Final = 0.005
"""The lag of the event loop from which it counts as late."""


class ReadPacer:
    """Computes the start of the next piece. All times are seconds of a monotonic clock.

    ``writes`` is the number of writes to the node's logs. Publish, receive and settle write, reads
    do not. So the measure of traffic costs the traffic nothing.
    """

    def __init__(self) -> None:
        self._writes = 0
        self._seen_s: float | None = None
        self._writes_per_s = 0.0
        self._late_until_s = float("-inf")
        self._next_s = float("-inf")

    def look(self, now_s: float, writes: int, late_s: float) -> None:
        """Record the number of writes so far, and the lag of the event loop."""
        if late_s >= LATE_S:
            self._late_until_s = now_s + BUSY_FOR_S
        if self._seen_s is not None:
            passed_s = now_s - self._seen_s
            if passed_s <= 0:
                return
            kept = math.exp(-passed_s / RATE_MEMORY_S)
            rate = (writes - self._writes) / passed_s
            self._writes_per_s = kept * self._writes_per_s + (1 - kept) * rate
        self._writes, self._seen_s = writes, now_s

    @property
    def load(self) -> float:
        """The load of live traffic, from 0 to 1."""
        return min(1.0, self._writes_per_s / FULL_WRITES_PER_S)

    def worked(self, now_s: float, seconds: float) -> None:
        """Record the end and the duration of a piece."""
        share_s = seconds * (1 - BUSY_SHARE) / BUSY_SHARE
        if now_s < self._late_until_s:
            load = min(1.0, self._writes_per_s / LATE_WRITES_PER_S)
            pause_s = max(share_s, LATE_PAUSE_S_MIN) * load
        else:
            pause_s = max(share_s, PAUSE_S_MIN) * self.load
        self._next_s = now_s + pause_s

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

    @property
    def load(self) -> float:
        """The load of live traffic, from 0 to 1, when the last piece ended."""
        return self._pace.load

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
            due_s = loop.time() + wait_s
            await asyncio.sleep(wait_s)
            self._pace.look(loop.time(), self._writes(), loop.time() - due_s)
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
