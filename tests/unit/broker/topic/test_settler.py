"""Settlements over partitions: what fails alone, what fails as one, and who hears of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.log.pending_appends import Appended
from goq.broker.topic import settler as settler_module
from goq.broker.topic.settler import TopicSettler, UnsettledReceipt
from goq.delivery.settlement import Settlement
from goq.errors import GoqError, LeaseLost, PartitionOffline, TimedOut, TooManyRequests
from goq.model import Receipt, fenced_id_of

OWN = fenced_id_of(7)


def receipt(partition: int, start: int = 0, *, token: int = 5, fenced_id: int = OWN) -> Receipt:
    return Receipt(partition, token, start, start + 1, fenced_id)


class Leases:
    """The leases of one partition; a settlement settles one message a receipt but the void ones."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[list[Receipt]] = []
        self.void = set[Receipt]()
        self.full: GoqError | None = None
        self.refused: GoqError | None = None
        self.lost: BaseException | None = None
        self.repeated = set[Receipt]()
        self.split_error: GoqError | None = None

    def check_room(self) -> None:
        if self.full is not None:
            raise self.full

    def members(self, _group: str, tokens: set[int]) -> set[str]:
        return {f"member of {token}" for token in tokens}

    def acknowledge(self, _group: str, some: Sequence[Receipt]) -> Any:
        self.asked.append(list(some))
        if self.refused is not None:
            raise self.refused
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self.lost is None:
            done.set_result(Appended(0, 0))
        else:
            done.set_exception(self.lost)
        void = [each for each in some if each in self.void]
        return Settlement([], len(some) - len(void), void), [done]

    def nack(self, group: str, some: Sequence[Receipt], delay_ms: int | None, reason: str) -> Any:
        self.node.settled.append((delay_ms, reason))
        return self.acknowledge(group, some)

    def reject(self, group: str, some: Sequence[Receipt], reason: str) -> Any:
        self.node.settled.append((reason,))
        return self.acknowledge(group, some)

    def extend(self, group: str, some: Sequence[Receipt], deadline_ms: int) -> Any:
        self.node.settled.append((deadline_ms,))
        return self.acknowledge(group, some)

    def release(self, group: str, some: Sequence[Receipt]) -> Any:
        return self.acknowledge(group, some)

    async def split_recorded(
        self, _group: str, void: Sequence[Receipt]
    ) -> tuple[int, list[Receipt]]:
        if self.split_error is not None:
            raise self.split_error
        lost = [each for each in void if each not in self.repeated]
        return len(void) - len(lost), lost


class Node:
    """A topic of two partitions, and all that a settler tells."""

    def __init__(self, partitions: int = 2) -> None:
        self.leases = [Leases(self) for _ in range(partitions)]
        self.touched: list[tuple[str, str]] = []
        self.lives: list[list[tuple[int, int]]] = []
        self.settled: list[tuple[Any, ...]] = []
        self.woken: list[str | None] = []
        self.groups: dict[str, Any] = {}
        self.count = partitions
        self.expired, self.owners = False, False
        self.stats = SimpleNamespace(
            begin=lambda _now_s: None,
            acked_messages=0,
            nacked_messages=0,
            groups=defaultdict(lambda: SimpleNamespace(acked_messages=0, nacked_messages=0)),
        )
        given: Any = self
        receiver: Any = SimpleNamespace(
            wake=lambda: self.woken.append(None),
            waiters=SimpleNamespace(wake_silent=self.woken.append),
        )
        self.settler = TopicSettler(7, given, given, given, receiver, given.stats)

    def __getitem__(self, number: int) -> Any:
        return SimpleNamespace(leases=self.leases[number])

    def touch(self, group: str, member: str) -> None:
        self.touched.append((group, member))

    def on_settled(self, *what: object) -> None:
        self.settled.append(what)

    def on_life(self, leases: Any) -> list[str]:
        self.lives.append(list(leases))
        return ["g", "h"]

    def on_resigned(self, _number: int) -> list[str]:
        return ["r"]

    def on_grant(self, _account: object) -> list[str]:
        return ["c"]

    def on_heartbeat(self, group: str, _consumer: str) -> list[str]:
        return [group]

    def acknowledge(self, *receipts: Receipt) -> tuple[int, list[UnsettledReceipt]]:
        return asyncio.run(self.settler.acknowledge("g", receipts))


def lost(*receipts: Receipt) -> list[UnsettledReceipt]:
    return [UnsettledReceipt(each, LeaseLost.code) for each in receipts]


OFFLINE = PartitionOffline("partition 1 is offline")


def test_each_partition_settles_its_own_and_what_is_not_of_the_topic_is_lost() -> None:
    node = Node()
    here = [receipt(0), receipt(1), receipt(0, 1)]
    foreign, beyond = receipt(0, fenced_id=OWN + 1), receipt(2)
    count, failed = node.acknowledge(*here, foreign, beyond)
    assert (count, sorted(failed)) == (3, sorted(lost(foreign, beyond)))
    assert node.leases[0].asked == [[here[0], here[2]]]
    assert node.leases[1].asked == [[here[1]]]
    assert node.stats.acked_messages == node.stats.groups["g"].acked_messages == 3


def test_nothing_is_settled_if_a_partition_has_no_room_for_it() -> None:
    node = Node()
    node.leases[1].full = TooManyRequests("too many events wait")
    with pytest.raises(TooManyRequests):
        node.acknowledge(receipt(0), receipt(1))
    assert node.leases[0].asked == []


def test_a_partition_that_refuses_first_refuses_all_and_a_later_one_fails_alone() -> None:
    node = Node()
    node.leases[0].refused = OFFLINE
    with pytest.raises(PartitionOffline):
        node.acknowledge(receipt(0), receipt(1))
    assert node.leases[1].asked == []
    node = Node()
    node.leases[1].refused = OFFLINE
    assert node.acknowledge(receipt(0), receipt(1)) == (
        1,
        [UnsettledReceipt(receipt(1), OFFLINE.code)],
    )


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ((TimedOut("first"), TimedOut("second")), TimedOut),
        ((TimedOut("first"), OFFLINE), None),
        ((None, OFFLINE), None),
        ((OFFLINE, KeyError("a bug")), KeyError),
    ],
)
def test_partitions_that_fail_alike_fail_as_one_and_a_bug_is_raised(
    errors: tuple[BaseException | None, ...], raised: type[BaseException] | None
) -> None:
    node = Node()
    for leases, error in zip(node.leases, errors, strict=True):
        leases.lost = error
    if raised is not None:
        with pytest.raises(raised):
            node.acknowledge(receipt(0), receipt(1))
        return
    count, failed = node.acknowledge(receipt(0), receipt(1))
    codes = [error.code for error in errors if isinstance(error, GoqError)]
    assert (count, [each.code for each in failed]) == (2 - len(codes), codes)


def test_void_receipts_are_lost_unless_an_earlier_ack_settled_them() -> None:
    node = Node()
    again, gone, elsewhere = receipt(0), receipt(0, 1), receipt(1)
    for leases, void in ((node.leases[0], {again, gone}), (node.leases[1], {elsewhere})):
        leases.void = void
    node.leases[0].repeated = {again}
    node.leases[1].split_error = OFFLINE
    fine, foreign = receipt(1, 1), receipt(0, fenced_id=OWN + 1)
    count, failed = node.acknowledge(again, gone, elsewhere, fine, foreign)
    assert count == 2
    assert sorted(failed) == sorted(
        [*lost(gone, foreign), UnsettledReceipt(elsewhere, OFFLINE.code)]
    )
    assert node.stats.acked_messages == 1, "what is acknowledged again counts once"


@pytest.mark.parametrize(("count", "slices"), [(4, [4]), (5, [2, 2, 1])])
def test_many_receipts_are_settled_in_slices_each_once(
    monkeypatch: pytest.MonkeyPatch, count: int, slices: list[int]
) -> None:
    monkeypatch.setattr(settler_module, "_SETTLED_AT_ONCE", 4)
    monkeypatch.setattr(settler_module, "_SLICES", 2)
    node = Node(1)
    receipts = [receipt(0, number) for number in range(count)]
    repeated = receipts if len(slices) == 1 else [*receipts, receipts[0]]
    found = asyncio.run(
        node.settler._settle("g", repeated, lambda leases, some: leases.acknowledge("g", some), 2)
    )
    assert found == (count, [])
    assert [len(some) for some in node.leases[0].asked] == slices


def test_a_settlement_is_a_sign_of_life_of_members_and_of_streams_that_lost_leases() -> None:
    node = Node()
    node.acknowledge(receipt(0))
    assert (node.touched, node.lives) == ([], [])
    node.groups["g"], node.expired = "members", True
    foreign = receipt(1, token=6, fenced_id=OWN + 1)
    node.acknowledge(receipt(0), foreign)
    assert node.touched == [("g", "member of 5")]
    assert node.lives == [[(0, 5), (1, 6)]]
    assert node.woken == ["g", "h"]


@pytest.mark.parametrize(
    ("how", "given", "is_woken", "nacked"),
    [
        ("nack", (700, "busy"), True, 2),
        ("release", (), True, 0),
        ("reject", ("bad",), False, 0),
        ("extend", (9_000,), False, 0),
    ],
)
def test_messages_that_come_back_wake_a_consumer_and_only_nacks_are_counted_as_such(
    how: str, given: tuple[Any, ...], is_woken: bool, nacked: int
) -> None:
    node = Node()
    settle = getattr(node.settler, how)
    assert asyncio.run(settle("g", [receipt(0), receipt(1)], *given)) == (2, [])
    assert node.settled == [given] * 2 * bool(given)
    assert node.woken == [None] * is_woken
    assert node.stats.nacked_messages == nacked
    assert {name: each.nacked_messages for name, each in node.stats.groups.items()} == (
        {"g": nacked} if nacked else {}
    )
    assert node.stats.acked_messages == 0


def test_streams_that_get_credit_back_are_woken_by_group() -> None:
    node = Node()
    account: Any = None
    node.settler.on_resigned(1)
    node.settler.on_grant(account)
    node.settler.on_heartbeat("b", "consumer")
    assert node.woken == ["r", "c", "b"]


@pytest.mark.parametrize(
    ("group", "told"), [("g", [("g", 1)]), ("other", []), (None, [("g", 1), ("h", 1)])]
)
def test_a_partition_is_handed_over_after_what_left_its_consumer_in_groups_that_share(
    group: str | None, told: list[tuple[str, int]]
) -> None:
    node = Node()
    node.groups = {"g": 1, "h": 1}
    node.settler.on_settled(1, group, 5, 3, True)
    assert node.settled == told
    node.settled.clear()
    node.owners = True
    node.settler.on_settled(1, group, 5, 3, True)
    assert node.settled == [(1, 5, 3, True), *told]
