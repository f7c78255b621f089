"""Quotas: the token bucket, what is admitted, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.access.quota import (
    DebtBucket,
    Quota,
    QuotaTable,
    format_quota,
    is_quota,
    parse_quotas,
    quota_texts,
)
from goq.access.rule import Principal, parse_rule
from goq.errors import InvalidInput, QuotaExceeded, TooManyRequests


def principal(**quotas: int) -> Principal:
    return Principal("aaaaaaaa", "team", [], quotas=quotas)


def test_a_bucket_gives_its_rate_and_a_burst_of_a_second() -> None:
    bucket = DebtBucket(10, now_s=0)
    for _ in range(10):
        assert bucket.wait_s(0) == 0
        bucket.take(1)
    assert bucket.wait_s(0) == pytest.approx(0.001)
    assert bucket.wait_s(0.05) == 0
    bucket.take(25)
    wait_s = bucket.wait_s(0.05)
    assert wait_s == pytest.approx(2.451)
    assert bucket.wait_s(0.05 + wait_s) == 0
    assert bucket.wait_s(100) == 0
    bucket.take(10)
    assert bucket.wait_s(100) > 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 40)), max_size=60))
def test_no_more_is_given_than_the_rate_and_one_request_beyond(
    asked: list[tuple[float, int]],
) -> None:
    rate, now_s, given_, largest = 10.0, 0.0, 0, 0
    bucket = DebtBucket(rate, now_s)
    for pause_s, amount in asked:
        now_s += pause_s
        if bucket.wait_s(now_s) == 0:
            bucket.take(amount)
            given_ += amount
            largest = max(largest, amount)
            assert given_ <= rate * (now_s + 1) + largest + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = DebtBucket(1, now_s=100)
    bucket.take(2)
    assert bucket.wait_s(50) > 0
    assert bucket.wait_s(100) > 0


@pytest.mark.parametrize("name", ["requests_per_s", "publish_bytes_per_s"])
def test_requests_beyond_a_rate_are_told_when_to_come_again(name: str) -> None:
    table, sender = QuotaTable(), principal(**{name: 2})
    for _ in range(2):
        table.admit(sender, 1, now_s=0)
    with pytest.raises(TooManyRequests, match=name) as refused:
        table.admit(sender, 1, now_s=0)
    wait_ms = refused.value.retry_after_ms
    assert wait_ms is not None
    table.admit(sender, 1, now_s=wait_ms / 1000)
    usage = table.usages[sender.id]
    assert (usage.requests, usage.publish_bytes, usage.refused) == (3, 3, {Quota(name): 1})


def test_rates_of_publishing_do_not_bound_other_requests() -> None:
    table, sender = QuotaTable(), principal(publish_bytes_per_s=1, publish_messages_per_s=1)
    table.admit(sender, 100, now_s=0)
    table.take_messages(sender, 100, now_s=0)
    table.admit(sender, None, now_s=0)
    with pytest.raises(TooManyRequests):
        table.admit(sender, 0, now_s=1)


def test_what_is_refused_takes_nothing() -> None:
    table = QuotaTable()
    sender = principal(requests_per_s=1, publish_bytes_per_s=100)
    table.admit(sender, None, now_s=0)
    for _ in range(10):
        with pytest.raises(TooManyRequests):
            table.admit(sender, 1000, now_s=0)
        with pytest.raises(TooManyRequests):
            table.check(sender, now_s=0)
    table.admit(sender, 1, now_s=0.01 + 1 / 1)


def test_stored_bytes_are_bounded() -> None:
    table, sender = QuotaTable(), principal(stored_bytes=1000)
    table.check_stored(sender, 999, now_s=0)
    with pytest.raises(QuotaExceeded, match="stored_bytes"):
        table.check_stored(sender, 1000, now_s=0)
    table.check_stored(principal(), 10**12, now_s=0)


def test_quotas_are_stored_as_rules_that_an_earlier_version_cannot_read() -> None:
    texts = quota_texts({"publish_bytes_per_s": "10MB", "requests_per_s": 100})
    assert parse_quotas(("read:*", *texts, "quota:later=1", "quota:requests_per_s=x")) == {
        Quota.PUBLISH_BYTES: 10_000_000,
        Quota.REQUESTS: 100,
    }
    assert format_quota(Quota.PUBLISH_BYTES, 10_000_000) == "10MB"
    for text in texts:
        assert is_quota(text)
        with pytest.raises(InvalidInput):
            parse_rule(text)


@pytest.mark.parametrize(
    "quotas", [{"speed": 1}, {"requests_per_s": "1/s"}, {"requests_per_s": 0}, {"stored_bytes": -1}]
)
def test_quotas_that_are_wrong_are_refused(quotas: Mapping[str, str | int]) -> None:
    with pytest.raises(InvalidInput):
        quota_texts(quotas)
