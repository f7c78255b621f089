from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from goq.delivery.group.retry_policy import RetryPolicy


def test_the_wait_doubles_up_to_its_bound() -> None:
    policy = RetryPolicy(initial_ms=1000, max_ms=10_000, jitter=0.0)
    assert [policy.wait_ms(n, 0.5) for n in range(1, 7)] == [1000, 2000, 4000, 8000, 10_000, 10_000]
    assert policy.wait_ms(10**9, 0.5) == 10_000
    assert policy.wait_ms(0, 0.5) == 1000


@given(
    st.integers(0, 2000), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.integers(0, 10**9)
)
def test_chance_adds_or_takes_no_more_than_its_share(
    attempt: int, luck: float, jitter: float, initial_ms: int
) -> None:
    policy = RetryPolicy(None, initial_ms, 60_000, jitter)
    plain_ms = policy._replace(jitter=0.0).wait_ms(attempt, 0.0)
    wait_ms = policy.wait_ms(attempt, luck)
    assert wait_ms >= 0
    assert abs(wait_ms - plain_ms) <= plain_ms * jitter + 1


def test_luck_spreads_over_the_whole_share() -> None:
    policy = RetryPolicy(initial_ms=1000, max_ms=1000, jitter=0.2)
    assert (policy.wait_ms(1, 0.0), policy.wait_ms(1, 0.5)) == (800, 1000)
    assert 1199 <= policy.wait_ms(1, 0.9999) <= 1200


def test_a_message_is_given_up_after_its_last_attempt_and_never_without_a_bound() -> None:
    assert [RetryPolicy(attempts_max=3).is_last(n) for n in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not RetryPolicy(attempts_max=None).is_last(10**9)
