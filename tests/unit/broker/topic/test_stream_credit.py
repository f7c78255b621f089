from __future__ import annotations

import asyncio
import random

import pytest

from goq import limits
from goq.broker.topic.stream_credit import CreditAccount, StreamCredits


class Leases:
    """The naive twin: how much is left of each lease."""

    def __init__(self) -> None:
        self.left: dict[tuple[int, int], int] = {}

    def count(self, _group: str, partition: int, token: int) -> int:
        return self.left.get((partition, token), 0)


def test_credit_in_use_is_what_is_left_of_the_leases_over_random_histories() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        leases = Leases()
        credits = StreamCredits(leases.count)
        accounts = [CreditAccount(100), CreditAccount(5)]
        owner: dict[tuple[int, int], CreditAccount] = {}
        expired: dict[CreditAccount, dict[tuple[int, int], int]] = {a: {} for a in accounts}
        for account in accounts:
            credits.opened(account)
        for token in range(60):
            key = draw.randrange(3), token
            leases.left[key] = draw.randrange(4)
            if draw.random() < 0.8:
                account = owner[key] = draw.choice(accounts)
                credits.leased("g", account, key, [(0, leases.left[key], 1)])
            key = draw.choice(list(leases.left))
            count = draw.randint(0, leases.left[key])
            leases.left[key] -= count
            chance = draw.random()
            if chance < 0.5:
                credits.on_settled(*key, count)
            elif chance < 0.6:
                resigned = {k for k in leases.left if k[0] == key[0]}
                had_expired = any(resigned & kept.keys() for kept in expired.values())
                assert bool(credits.on_resigned(key[0])) == had_expired
                for gone in resigned:  # another leader settles them
                    leases.left[gone] = 0
                    for kept in expired.values():
                        kept.pop(gone, None)
            elif chance < 0.9:
                credits.on_settled(*key, count, has_expired=True)
                if key in owner and count:
                    kept = expired[owner[key]]
                    kept[key] = kept.get(key, 0) + count
            else:
                credits.on_settled(key[0], None, 0)
            if draw.random() < 0.2:
                key = draw.choice(list(leases.left))
                credits.on_life([key])
                if key in owner and (leases.left[key] or key in expired[owner[key]]):
                    expired[owner[key]].clear()
            for account in accounts:
                expected = {k: leases.left[k] for k, a in owner.items() if a is account}
                assert account.in_flight == sum(expected.values()), f"seed {seed}"
                assert account.expired_count == sum(expired[account].values())
                assert account.room == account.credit - account.in_flight - account.expired_count
                assert set(account.spans) == {k for k, left in expected.items() if left}
        assert set(credits.expired) == {key for kept in expired.values() for key in kept}
        if seed % 2:
            for number in range(3):
                credits.on_resigned(number)
            assert [account.room for account in accounts] == [100, 5]
        for account in accounts:
            credits.closed(account)
        assert not credits.expired
        for key, left in leases.left.items():
            credits.on_settled(*key, left)


def test_what_is_settled_after_the_end_of_a_stream_is_nobodys() -> None:
    credits = StreamCredits(lambda _group, _partition, _token: 3)
    account = CreditAccount(5)
    credits.opened(account)
    credits.leased("g", account, (0, 7), [(0, 3, 1)])
    credits.closed(account)
    credits.on_settled(0, 7, 1)
    credits.on_settled(0, None, 0)
    assert account.in_flight == 3


def test_a_partition_that_another_node_leads_keeps_no_credit_here() -> None:
    async def scenario() -> None:
        credits = StreamCredits(lambda _group, _partition, _token: 3)
        account = CreditAccount(9, "g")
        credits.opened(account)
        for partition in (0, 1):
            credits.leased("g", account, (partition, 7), [(0, 3, 1)])
            credits.on_settled(partition, 7, 2, has_expired=True)
        waiting = asyncio.ensure_future(account.changed())
        await asyncio.sleep(0)
        assert credits.on_resigned(0) == {"g"}
        await waiting
        assert (account.in_flight, account.expired_count) == (1, 2)
        assert credits.on_resigned(0) == set()
        assert credits.on_life([(0, 7)]) == set()
        assert credits.on_life([(1, 7)]) == {"g"}
        assert account.room == 8
        assert [*account.moved] == [(0, 7)]

    asyncio.run(scenario())


def test_the_leases_of_partitions_that_moved_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_MOVED_LEASES_MAX", 2)
    credits = StreamCredits(lambda _group, _partition, _token: None)
    account = CreditAccount(9)
    credits.opened(account)
    for token in (7, 8, 9):
        credits.leased("g", account, (0, token), [(0, 1, 1)])
    assert [*account.moved] == [(0, 8), (0, 9)]


def test_a_lease_that_was_over_before_it_was_noted_uses_credit_until_a_sign_of_life() -> None:
    credits = StreamCredits(lambda _group, _partition, _token: 1)
    account = CreditAccount(5, "g")
    credits.leased("g", account, (0, 7), [(0, 2, 1), (4, 5, 1)])
    assert (account.in_flight, account.expired_count, account.room) == (1, 2, 2)
    assert credits.on_life([(0, 7)]) == {"g"}
    assert account.room == 4
    credits.on_settled(0, 7, 1)
    assert (account.room, account.spans, credits.expired) == (5, {}, {})


def test_a_lease_whose_partition_moved_before_it_was_noted_uses_no_credit() -> None:
    credits = StreamCredits(lambda _group, _partition, _token: None)
    account = CreditAccount(5)
    credits.leased("g", account, (0, 7), [(0, 3, 1)])
    assert (account.room, account.spans, credits.expired) == (5, {}, {})


def test_a_stream_that_waits_for_room_hears_of_it() -> None:
    async def scenario() -> None:
        account = CreditAccount(1)
        account.add((0, 1), [(0, 1, 1)], 1)
        waiting = asyncio.ensure_future(account.changed())
        await asyncio.sleep(0)
        assert not account.reduce((0, 1), 0)
        await waiting
        assert account.room == 1
        waiting = asyncio.ensure_future(account.changed())
        await asyncio.sleep(0)
        account.grant(9)
        account.grant(8)
        await waiting
        assert account.room == 8

    asyncio.run(scenario())
