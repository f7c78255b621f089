"""The pace of refusals: a burst at once, then a rate, then a bound."""

from __future__ import annotations

import pytest

from goq.access.refusal_pace import RefusalPace


def test_a_burst_is_refused_at_once_and_the_others_at_the_rate() -> None:
    pace = RefusalPace(per_s=10, pause_s_max=60)
    assert [pace.pause_s("a", 100) for _ in range(10)] == [0.0] * 10
    held = [pace.pause_s("a", 100) for _ in range(5)]
    assert held == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert pace.pause_s("b", 100) == 0
    assert pace.pause_s("a", 100.5) == pytest.approx(0.1)
    assert [pace.pause_s("a", 200) for _ in range(10)] == [0.0] * 10


def test_no_refusal_is_held_longer_than_the_bound() -> None:
    pace = RefusalPace(per_s=1, pause_s_max=2)
    held = [pace.pause_s("a", 0) for _ in range(100)]
    assert max(held) == 2
    assert pace.pause_s("a", 5) == 0


def test_a_clock_that_goes_back_holds_nothing_longer() -> None:
    pace = RefusalPace(per_s=1, pause_s_max=2)
    pace.pause_s("a", 1000)
    assert pace.pause_s("a", 0) <= 2


def test_of_many_senders_those_at_work_are_kept() -> None:
    pace = RefusalPace(per_s=1, pause_s_max=60, senders_max=3)
    for _ in range(10):
        pace.pause_s("busy", 0)
    for number in range(6):
        pace.pause_s(f"once-{number}", float(number))
    assert pace.pause_s("busy", 5) > 0
    assert len(pace._turns_s) <= 3
    for number in range(20):  # all at once: they are forgotten together
        pace.pause_s(f"more-{number}", 20.0)
        assert len(pace._turns_s) <= 3
