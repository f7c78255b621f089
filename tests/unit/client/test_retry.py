from __future__ import annotations

from math import inf

import pytest

from goq.client.arguments import retry_policy
from goq.client.retry import BackoffPolicy, RequestFailure, RetryAttempts
from goq.errors import GoqError, Unavailable

REFUSED = RequestFailure(Unavailable("refused"), maybe_done=False, is_refused=True)
BROKEN = RequestFailure(Unavailable("broken"), maybe_done=False)


class Time:
    """Seconds that pass when told."""

    now_s = 100.0


def attempts_of(policy: BackoffPolicy, time: Time) -> RetryAttempts:
    return RetryAttempts(policy, draw=lambda: 0.5, now_s=lambda: time.now_s)


def failing_s(policy: BackoffPolicy, failure: RequestFailure, most_s: float = 1000) -> float:
    """Return for how long a failure is retried, at most ``most_s``."""
    time = Time()
    attempts = attempts_of(policy, time)
    while (pause_s := attempts.pause_s(failure, repeatable=True)) is not None:
        time.now_s += pause_s
        if time.now_s - 100 > most_s:
            return inf
    return time.now_s - 100


def test_retries_end_with_their_time_or_never() -> None:
    assert 8 < failing_s(BackoffPolicy(10_000), BROKEN) <= 10
    assert failing_s(retry_policy("forever", "forever", None), BROKEN) == inf
    assert failing_s(retry_policy(0, "forever", None), BROKEN) == 0


def test_a_refused_connection_has_a_time_of_its_own() -> None:
    policy = retry_policy("10s", "1s", None)
    assert failing_s(policy, REFUSED) <= 1
    assert failing_s(policy, BROKEN) > 8


def test_who_is_told_of_retries_can_end_them() -> None:
    told: list[float] = []

    def on_retry(error: GoqError, since_s: float) -> bool:
        assert error is BROKEN.error
        told.append(since_s)
        return since_s < 30

    assert 30 <= failing_s(retry_policy("forever", "forever", on_retry), BROKEN) < 35
    assert told[0] == 0
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("failure", "held_s", "is_new"),
    [(BROKEN, 15.0, True), (BROKEN, 0.5, False), (BROKEN, 40.0, False), (REFUSED, 5.0, False)],
)
def test_a_long_poll_that_a_node_held_begins_the_time_of_retries_anew(
    failure: RequestFailure, held_s: float, is_new: bool
) -> None:
    time = Time()
    attempts = attempts_of(BackoffPolicy(10_000), time)
    assert attempts.pause_s(REFUSED, repeatable=True) is not None
    time.now_s += 8 + held_s
    attempts.note_held(failure, held_s, 20_000)
    found = attempts.pause_s(failure, repeatable=True)
    assert (found is not None) == (is_new or 8 + held_s < 10)


def test_retries_and_their_end_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    attempts = attempts_of(BackoffPolicy(10_000), time)
    with caplog.at_level("INFO", "goq.client"):
        attempts.note_answer()
        assert caplog.messages == []
        for _ in range(2):
            attempts.pause_s(BROKEN, repeatable=True)
            time.now_s += 1.5
        attempts.note_answer()
        attempts.note_answer()
    assert caplog.messages == [
        "attempt 1 failed, the next is in 25 ms: broken",
        "attempt 2 failed, the next is in 50 ms: broken",
        "a node answered after 3.0 s",
    ]


def test_a_request_is_not_sent_again_once_it_is_of_no_use() -> None:
    time = Time()
    policy = retry_policy("forever", "forever", None)
    attempts = RetryAttempts(policy, draw=lambda: 0.5, now_s=lambda: time.now_s, until_s=107)
    while (pause_s := attempts.pause_s(BROKEN, repeatable=True)) is not None:
        time.now_s += pause_s
    assert 105 < time.now_s < 107


def test_an_attempt_leaves_time_for_another() -> None:
    time = Time()
    policy = BackoffPolicy(10_000)
    assert attempts_of(policy, time).timeout_ms() is None
    attempts = RetryAttempts(policy, draw=lambda: 0.5, now_s=lambda: time.now_s, until_s=130)
    assert attempts.timeout_ms() == 15_000
    time.now_s = 140  # it is not cut short, though it may be too late
    assert attempts.timeout_ms() == 5_000
