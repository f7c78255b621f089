"""A clock that is wrong by as much as a test says."""

from __future__ import annotations

from goq.clock import SystemClock


class ShiftedClock(SystemClock):
    """The machine's clock, ahead by so many milliseconds."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.jumped_ms = 0
        """How much of that is because the clock was set, and not because time passed."""

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_ms * 1000

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def uptime_us(self) -> int:
        return self.wall_us() - self.jumped_ms * 1000
