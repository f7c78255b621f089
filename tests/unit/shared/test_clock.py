"""Work that is due at multiples of its period, and clocks that were set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.clock import ManualClock, WallSteps, beat_delay_s


@given(now_s=st.floats(0, 1e6), period_s=st.floats(0.01, 10))
def test_a_beat_is_a_multiple_of_its_period_half_of_one_ahead_at_least(
    now_s: float, period_s: float
) -> None:
    delay_s = beat_delay_s(now_s, period_s)
    assert period_s / 2 <= delay_s <= period_s * 1.5
    beats = (now_s + delay_s) / period_s
    assert beats == pytest.approx(round(beats), abs=1e-3)


def test_a_wake_that_is_a_little_early_is_not_one_beat_more() -> None:
    assert beat_delay_s(0.9995, 1) == pytest.approx(1.0005)
    assert beat_delay_s(1.0, 1) == 1


class StandingClock(ManualClock):
    """The clock of a process that stands still for a while after its next read."""

    still_ms = 0

    def wall_us(self) -> int:
        return self._then_still(super().wall_us())

    def uptime_us(self) -> int:
        return self._then_still(super().uptime_us())

    def _then_still(self, read_us: int) -> int:
        still_ms, self.still_ms = self.still_ms, 0
        self.advance_ms(still_ms)
        return read_us


def test_a_process_that_stands_still_between_two_reads_sees_no_clock_that_was_set() -> None:
    clock = StandingClock()
    clock.still_ms = 5000
    steps = WallSteps(clock, 200)
    for still_ms in (0, 5000, 0):
        clock.still_ms = still_ms
        assert steps.read() == (clock.wall_us(), 0)


def test_a_clock_that_was_set_is_told_once() -> None:
    clock = ManualClock()
    steps = WallSteps(clock, 200)
    for step_ms in (3000, -7000):
        clock.jump_ms(step_ms)
        clock.advance_ms(10_000)
        assert steps.read() == (clock.wall_us(), step_ms)
        assert steps.read() == (clock.wall_us(), 0)
