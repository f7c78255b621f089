"""Quotas: the token bucket, what is admitted, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.access.quota import Quota, format_quota, is_quota, parse_quotas, quota_texts
from goq.access.quota_bucket import DebtBucket, InFlightRoom, TenantAmount
from goq.access.quota_table import QuotaTable
from goq.access.rule import Principal, parse_rule
from goq.access.spent_amounts import SpentAmount, SpentAmounts
from goq.errors import InvalidInput, QuotaExceeded, TooManyRequests


def principal(**quotas: int) -> Principal:
    return Principal("aaaaaaaa", "team", [], quotas=quotas)


def test_a_bucket_gives_its_rate_and_a_burst_of_a_second() -> None:
    bucket = DebtBucket(10, now_s=0)
    for _ in range(10):
        assert bucket.wait_s(0) == 0
        bucket.take(1, 0)
    assert bucket.wait_s(0) == pytest.approx(0.001)
    assert bucket.wait_s(0.05) == 0
    bucket.take(25, 0.05)
    wait_s = bucket.wait_s(0.05)
    assert wait_s == pytest.approx(2.451)
    assert bucket.wait_s(0.05 + wait_s) == 0
    assert bucket.wait_s(100) == 0
    bucket.take(10, 100)
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
            bucket.take(amount, now_s)
            given_ += amount
            largest = max(largest, amount)
            assert given_ <= rate * (now_s + 1) + largest + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = DebtBucket(1, now_s=100)
    bucket.take(2, 100)
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


def test_a_tenant_beyond_its_rate_does_not_keep_others_out() -> None:
    table, sender = QuotaTable(), principal(tenant_publish_messages_per_s=10)
    loud, quiet = TenantAmount("loud", 50, 0), TenantAmount("quiet", 1, 0)
    table.check_tenants(sender, [loud, quiet], now_s=0)
    table.take_tenants(sender, [loud, quiet], now_s=0)
    table.check_tenants(sender, [quiet], now_s=0)
    with pytest.raises(TooManyRequests, match="tenant 'loud'") as refused:
        table.check_tenants(sender, [quiet, loud], now_s=0)
    assert refused.value.retry_after_ms == pytest.approx(4001, abs=1)
    table.check_tenants(sender, [loud], now_s=4.1)
    assert table.usages[sender.id].refused == {Quota.TENANT_MESSAGES: 1}


def test_the_bytes_of_a_tenant_are_bounded() -> None:
    table, sender = QuotaTable(), principal(tenant_publish_bytes_per_s=100)
    table.take_tenants(sender, [TenantAmount("a", 1, 300)], now_s=0)
    with pytest.raises(TooManyRequests, match="tenant_publish_bytes_per_s of 100B"):
        table.check_tenants(sender, [TenantAmount("a", 1, 1)], now_s=1)
    table.check_tenants(sender, [TenantAmount("a", 1, 1)], now_s=2.1)


def test_a_bounded_number_of_tenants_is_known_and_those_in_debt_stay() -> None:
    table, sender = QuotaTable(), principal(tenant_publish_messages_per_s=1)
    table.take_tenants(sender, [TenantAmount("loud", 100, 0)], now_s=0)
    for number in range(3 * limits.QUOTA_TENANTS_MAX):
        table.take_tenants(sender, [TenantAmount(str(number), 1, 0)], now_s=number / 1000)
    with pytest.raises(TooManyRequests):
        table.check_tenants(sender, [TenantAmount("loud", 1, 0)], now_s=40)


def test_no_more_is_leased_than_there_is_room_for() -> None:
    leased, counts, now_s = [0], [0], [100.0]

    def count() -> int:
        counts[0] += 1
        return leased[0]

    room = InFlightRoom(lambda: 10, count, lambda: now_s[0])
    for _ in range(10):
        assert room.left() > 0
        room.take(1)
        leased[0] += 1
    assert (room.left(), counts[0]) == (0, 1)
    leased[0] -= 4
    now_s[0] += 0.006
    assert (room.left(), counts[0]) == (4, 2)
    leased[0] = 10  # by others
    now_s[0] += 0.06
    assert room.left() == 0


def test_a_sender_without_room_is_told_to_settle() -> None:
    table, sender = QuotaTable(), principal(in_flight=1)
    room = InFlightRoom(lambda: 1, lambda: 1, lambda: 0.0)
    with pytest.raises(TooManyRequests, match="in_flight"):
        table.check_in_flight(sender, room, now_s=0)
    assert table.usages[sender.id].refused == {Quota.IN_FLIGHT: 1}


NODES, RATE = 3, 10


@given(
    st.lists(
        st.tuples(st.integers(0, NODES - 1), st.integers(1, 30), st.floats(0, 0.05)),
        min_size=100,
        max_size=300,
    )
)
def test_nodes_that_tell_each_other_give_a_rate_once_and_a_burst_each(
    asked: list[tuple[int, int, float]],
) -> None:
    team, now_s, given_ = principal(requests_per_s=RATE), 0.0, 0
    tables = [QuotaTable() for _ in range(NODES)]
    for table in tables:
        table.spent = SpentAmounts()
    for node, times, pause_s in asked:
        for _ in range(times):
            try:
                tables[node].admit(team, None, now_s)
                given_ += 1
            except TooManyRequests:
                break
        for table in tables:
            assert table.spent is not None
            for spent in table.spent.take(limits.SPENT_AMOUNTS_MAX):
                for other in tables:
                    if other is not table:
                        other.take_remote(team, spent, now_s)
        now_s += pause_s
    assert given_ <= RATE * now_s + NODES * (RATE + 1)


def test_a_use_on_another_node_counts_for_the_quota_and_the_tenant_that_it_was_of() -> None:
    team = principal(
        publish_bytes_per_s=10, tenant_publish_bytes_per_s=10, tenant_publish_messages_per_s=10
    )
    table, other = QuotaTable(), QuotaTable()
    table.spent = SpentAmounts()
    table.admit(team, 50, 0)
    table.take_tenants(team, [TenantAmount("t", 50, 70)], 0)
    told = table.spent.take(10)
    assert told == [
        SpentAmount(team.id, Quota.PUBLISH_BYTES, "", 50),
        SpentAmount(team.id, Quota.TENANT_MESSAGES, "t", 50),
        SpentAmount(team.id, Quota.TENANT_BYTES, "t", 70),
    ]
    assert not table.spent
    for spent in told:
        other.take_remote(team, spent, 0)
    with pytest.raises(TooManyRequests) as bytes_used:
        other.check(team, 0)
    assert bytes_used.value.retry_after_ms == pytest.approx(4_000, abs=5)
    with pytest.raises(TooManyRequests) as tenant_used:
        other.check_tenants(team, [TenantAmount("t", 1, 1)], 0)
    assert tenant_used.value.retry_after_ms == pytest.approx(6_000, abs=5)
    other.check_tenants(team, [TenantAmount("u", 1, 1)], 0)
    other.admit(team, None, 0)


def test_amounts_are_summed_until_they_are_taken_and_have_a_bound() -> None:
    called: list[int] = []
    amounts = SpentAmounts(lambda: called.append(1))
    for number in range(limits.SPENT_AMOUNTS_MAX + 10):
        amounts.add(("p", "q", str(number)), 1)
    amounts.add(("p", "q", "0"), 2)
    assert called == [1]
    assert amounts.take(1) == [SpentAmount("p", "q", "0", 3)]
    assert len(amounts.take(10**6)) == limits.SPENT_AMOUNTS_MAX - 1
    amounts.add(("p", "q", "0"), 1)
    assert called == [1, 1]
