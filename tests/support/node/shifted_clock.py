"""A clock that is wrong by as much as a test says."""

from __future__ import annotations

from goq.clock import SystemClock


class ShiftedClock(SystemClock):
    """The machine's clock, ahead by so many milliseconds."""

    def __init__(self) -> None:
        self._shift_ms = (0, 0)

    @property
    def ahead_ms(self) -> int:
        """How much it is ahead; a change alone is time that passes."""
        return self._shift_ms[0]

    @ahead_ms.setter
    def ahead_ms(self, ahead_ms: int) -> None:
        self._shift_ms = (ahead_ms, self.jumped_ms)

    @property
    def jumped_ms(self) -> int:
        """How much of that is because the clock was set, and not because time passed."""
        return self._shift_ms[1]

    @jumped_ms.setter
    def jumped_ms(self, jumped_ms: int) -> None:
        self._shift_ms = (self.ahead_ms, jumped_ms)

    def set_ahead_ms(self, ahead_ms: int) -> None:
        """Set the clock: no time passes, not for a moment."""
        self._shift_ms = (ahead_ms, self.jumped_ms + ahead_ms - self.ahead_ms)

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_ms * 1000

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def uptime_us(self) -> int:
        while True:
            shift_ms = self._shift_ms
            uptime_us = self.wall_us() - shift_ms[1] * 1000
            if self._shift_ms is shift_ms:  # else it was set meanwhile
                return uptime_us
