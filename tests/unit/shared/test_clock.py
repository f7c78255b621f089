"""Work that is due at multiples of its period."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.clock import beat_delay_s


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
