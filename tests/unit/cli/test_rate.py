from __future__ import annotations

import pytest

from goq.errors import UsageError
from goq_cli.rate import RateLimiter, TokenBucket, parse_rate


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def clock_s(self) -> float:
        return self.now_s

    def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now_s += delay_s


@pytest.mark.parametrize("rate", [0.5, 1.0, 7.0, 1000.0])
@pytest.mark.parametrize("count", [1, 10])
def test_no_more_pass_than_the_rate_and_what_was_saved_up_allow(rate: float, count: int) -> None:
    time = Time()
    pace = RateLimiter(rate, time.clock_s, time.sleep)
    for number in range(1, 200):
        pace.wait(count)
        allowed = max(1.0, rate / 10) + (time.now_s - 100.0) * rate
        assert number * count <= allowed + 1e-6
    expected_s = 199 * count / rate
    assert time.now_s - 100.0 == pytest.approx(expected_s, abs=max(1 / rate, 0.1) + 1e-6)


def test_without_a_rate_nothing_waits() -> None:
    time = Time()
    pace = RateLimiter(None, time.clock_s, time.sleep)
    for _ in range(10):
        pace.wait(1000)
    assert (time.slept, pace.batch) == ([], None)


def test_an_idle_time_saves_up_a_tenth_of_a_second_and_no_more() -> None:
    bucket = TokenBucket(100.0, 0.0)
    assert bucket.take(10, 50.0) == 0.0
    assert bucket.take(1, 50.0) == pytest.approx(0.01)
    assert bucket.batch == 10


def test_a_clock_that_stands_or_falls_back_lets_nothing_more_through() -> None:
    bucket = TokenBucket(10.0, 5.0)
    assert bucket.take(1, 5.0) == 0.0
    assert bucket.take(1, 3.0) == pytest.approx(0.1)
    assert bucket.take(1, 5.0) == pytest.approx(0.2)


def test_what_is_pending_goes_out_before_a_pause_and_only_then() -> None:
    time, flushed = Time(), []
    pace = RateLimiter(1.0, time.clock_s, time.sleep)
    pace.wait(before_sleep=lambda: flushed.append(time.now_s))
    assert flushed == []
    pace.wait(before_sleep=lambda: flushed.append(time.now_s))
    assert flushed == [100.0]


@pytest.mark.parametrize(("text", "rate"), [("100", 100.0), ("100/s", 100.0), ("0.5/s", 0.5)])
def test_a_rate_is_messages_a_second(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "10/m", "inf", "nan", "1e999", "/s"])
def test_anything_else_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="--rate"):
        parse_rate(text)
