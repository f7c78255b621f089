"""Time, as a parameter.

Wall time is for points in time (append times, deadlines, due times); monotonic time is for
durations (timers, timeouts). Nothing below the composition root reads a clock itself, except to
share the event loop.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

SLICE_S: Final = 0.004  # of the event loop, for work that takes longer in all
_SAME_MOMENT_US: Final = 1_000


class Clock(Protocol):
    """The source of wall time for a component."""

    def wall_us(self) -> int:
        """Return microseconds since the Unix epoch."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, rounded down."""
        ...

    def uptime_us(self) -> int:
        """Return microseconds since the boot of the machine, with its sleep; nobody sets them."""
        ...


class SystemClock:
    """The machine's own clock."""

    def wall_us(self) -> int:
        """Return microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, rounded down."""
        return time.time_ns() // 1_000_000

    def uptime_us(self) -> int:
        """Return microseconds since the boot of the machine, with its sleep."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class WallSteps:
    """Notices that the wall clock was set: it and the uptime, which nobody sets, go apart."""

    __slots__ = ("_ahead_us", "_clock", "_least_ms")

    def __init__(self, clock: Clock, least_ms: int) -> None:
        self._clock = clock
        self._least_ms = least_ms
        wall_us, uptime_us = _read_together(clock)
        self._ahead_us = wall_us - uptime_us

    def read(self) -> tuple[int, int]:
        """Return the wall time in microseconds, and the step since the last call in milliseconds.

        The step is by how much the clock was set ahead: negative for a clock that was set back, and
        0 up to ``least_ms`` in all.
        """
        wall_us, uptime_us = _read_together(self._clock)
        step_ms = (wall_us - uptime_us - self._ahead_us) // 1000
        if abs(step_ms) <= self._least_ms:
            return wall_us, 0
        self._ahead_us += step_ms * 1000
        return wall_us, step_ms


def _read_together(clock: Clock) -> tuple[int, int]:
    """Return the wall time and the uptime of one moment.

    A process may stand still between two reads. Without another read after them, such a pause
    would look like a clock that was set.
    """
    while True:
        before_us = clock.uptime_us()
        wall_us = clock.wall_us()
        if clock.uptime_us() - before_us <= _SAME_MOMENT_US:
            return wall_us, before_us


class TimeSlice:
    """A share of the event loop's time for long work: others get a turn between two slices.

    The state that the work reads may change in each turn.
    """

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether the work should let others go before it goes on."""
        return time.perf_counter() >= self._until_s

    async def next(self) -> None:
        """Yield to all other work that is due, then begin a new slice."""
        import asyncio  # clients without a loop do not pay for it

        await asyncio.sleep(0)
        self._until_s = time.perf_counter() + SLICE_S


def beat_delay_s(now_s: float, period_s: float) -> float:
    """Return the time until a multiple of a period: from half of one to one and a half.

    Work that is due at multiples of its period shares its wakes, which cost more than short work.
    """
    delay_s = period_s - now_s % period_s
    return delay_s if delay_s >= period_s / 2 else delay_s + period_s


async def next_beat(period_s: float) -> None:
    """Wait for the next multiple of a period, by the event loop's clock."""
    import asyncio

    await asyncio.sleep(beat_delay_s(asyncio.get_running_loop().time(), period_s))


class ManualClock:
    """A clock that changes only when it is moved: for tests and simulations."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = now_us
        self.jumped_us = 0
        """How much of the time did not pass: the clock was set."""

    def wall_us(self) -> int:
        """Return the current setting, in microseconds."""
        return self.now_us

    def wall_ms(self) -> int:
        """Return the current setting, in milliseconds, rounded down."""
        return self.now_us // 1000

    def uptime_us(self) -> int:
        """Return the time that has passed, in microseconds."""
        return self.now_us - self.jumped_us

    def jump_ms(self, step_ms: int) -> None:
        """Set the clock ahead by ``step_ms``, or back."""
        self.now_us += step_ms * 1000
        self.jumped_us += step_ms * 1000

    def advance_ms(self, step_ms: int) -> None:
        """Advance the time by ``step_ms``; a negative step sets the clock back."""
        if step_ms < 0:
            self.jump_ms(step_ms)
        else:
            self.now_us += step_ms * 1000
