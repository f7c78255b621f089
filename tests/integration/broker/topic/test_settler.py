"""Settlements over all partitions of a topic, against what each lease still has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.broker.topic import settler as settler_module
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.settler import UnsettledReceipt
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import GoqError, PartitionOffline, TimedOut
from goq.model import Message, Receipt, fenced_id_of
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    leased,
    options,
    publish,
    quick_broker_on,
    quiet,
    receipts,
    reopened,
    run,
    settle_nacked,
)
from tests.support.broker.partition_internals import state_of
from tests.support.delivery.model import canonical
from tests.support.eventually import until

GROUP = "g"
PARTITIONS = 3
COUNT = 40
FAR_MS = 10**9
Lease = tuple[int, int]


class Twin:
    """What each lease has, what was acknowledged of it, and what waits for another attempt."""

    def __init__(self, topic: Topic, clock: ManualClock) -> None:
        self.topic, self.clock = topic, clock
        self.held: dict[Lease, set[int]] = {}
        self.acked: dict[Lease, set[int]] = {}
        self.again: set[tuple[int, int]] = set()
        self.counts = dict.fromkeys(("acked", "nacked", "delivered"), 0)

    async def receive(self, count: int) -> None:
        for batch in await self.topic.receiver.receive(GROUP, options(count)):
            offsets = {offset for start, end, _ in batch.spans for offset in range(start, end)}
            assert all((batch.partition, offset) not in self.again for offset in offsets)
            self.held[batch.partition, batch.token] = offsets
            self.counts["delivered"] += len(offsets)

    def some(self, chance: Random) -> list[Receipt]:
        """Return receipts that do not overlap: right, in part, too long, foreign and made up."""
        own, found, used = fenced_id_of(self.topic.id), list[Receipt](), set[tuple[int, int]]()
        leases = [lease for lease in self.held if chance.random() < 0.6]
        for number, token in leases:
            start = chance.randrange(COUNT)
            end = min(COUNT, start + chance.randrange(1, 12))
            offsets = {(number, offset) for offset in range(start, end)}
            if offsets & used:
                continue
            used |= offsets
            kind = chance.random()
            if kind < 0.1:
                token += 2**41
            found.append(Receipt(number, token, start, end, own + (kind > 0.9)))
        if chance.random() < 0.2:
            found.append(Receipt(PARTITIONS, 5, 0, 3, own))
        return found

    def split(self, given: list[Receipt], *, is_ack: bool) -> tuple[set[tuple[int, int, int]], int]:
        """Return what is lost of receipts, and how many messages are settled."""
        lost, settled = set[tuple[int, int, int]](), 0
        for number, token, start, end, fenced_id in given:
            known = self.held.get((number, token), set[int]())
            if is_ack:
                known = known | self.acked.get((number, token), set())
            for offset in range(start, end):
                if fenced_id == fenced_id_of(self.topic.id) and offset in known:
                    settled += 1
                else:
                    lost.add((number, token, offset))
        return lost, settled

    def settle(self, given: list[Receipt], how: str) -> None:
        for number, token, start, end, fenced_id in given:
            held = self.held.get((number, token), set())
            if how == "extend" or fenced_id != fenced_id_of(self.topic.id):
                continue
            gone = held & set(range(start, end))
            held -= gone
            if how == "ack":
                self.acked.setdefault((number, token), set()).update(gone)
                self.counts["acked"] += len(gone)
            elif how == "nack":
                self.counts["nacked"] += len(gone)
                self.again |= {(number, offset) for offset in gone}


@pytest.mark.parametrize("at_once", [1000, 2])
@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_settled_by_its_lease_and_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int
) -> None:
    monkeypatch.setattr(settler_module, "_SETTLED_AT_ONCE", at_once)

    async def test() -> None:
        chance, clock = Random(seed), ManualClock()
        async with broker_on(tmp_path, clock=clock, partitions=PARTITIONS) as broker:
            topic = await broker.topic_admin.create(
                "t", PARTITIONS, {"delivery.dead_letters": False}
            )
            for number in range(PARTITIONS):
                await publish(topic, *[b"v"] * COUNT, partition=number)
            twin, settler = Twin(topic, clock), topic.settler
            for _ in range(25):
                await twin.receive(chance.randrange(1, 9))
                given = twin.some(chance)
                how = chance.choice(("ack", "ack", "nack", "reject", "extend"))
                lost, settled = twin.split(given, is_ack=how == "ack")
                if how == "ack":
                    count, failed = await settler.acknowledge(GROUP, given)
                elif how == "nack":
                    count, failed = await settler.nack(GROUP, given, FAR_MS, "busy")
                elif how == "reject":
                    count, failed = await settler.reject(GROUP, given, "bad")
                else:
                    count, failed = await settler.extend(GROUP, given, clock.wall_ms() + FAR_MS)
                assert count == settled
                assert {each.code for each in failed} <= {"lease_lost"}
                told = [
                    (r.partition, r.token, offset)
                    for r, _ in failed
                    for offset in range(r.start, r.end)
                ]
                assert len(set(told)) == len(told)
                assert set(told) == lost
                twin.settle(given, how)
                assert topic.stats.acked_messages == twin.counts["acked"]
            for stats in (topic.stats, topic.stats.groups[GROUP]):
                assert stats.acked_messages == twin.counts["acked"]
                assert stats.nacked_messages == twin.counts["nacked"]
                assert stats.delivered_messages == twin.counts["delivered"]

    run(test())


def test_what_was_released_is_ready_at_once_and_counts_no_attempt(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(2):
                await publish(topic, b"v", partition=number)
            batches = await topic.receiver.receive(GROUP, options())
            waiting = topic.receiver.receive(GROUP, options(wait_ms=60_000))
            assert await topic.settler.release(GROUP, receipts(batches)) == (2, [])
            again = leased(await waiting) + leased(await topic.receiver.receive(GROUP, options()))
            assert [(attempt, value) for _, attempt, value in again] == [(1, b"v")] * 2
            assert topic.stats.nacked_messages == 0

    run(test())


def test_a_nack_wakes_who_waits(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"v")
            batches = await topic.receiver.receive(GROUP, options())
            count, failed = await topic.settler.nack(GROUP, receipts(batches), 0, "busy")
            assert (count, failed) == (1, [])
            again = leased(await topic.receiver.receive(GROUP, options(wait_ms=60_000)))
            assert again == [(0, 2, b"v")]

    run(test())


@pytest.mark.parametrize("partitions", [1, 2])
def test_receipts_of_a_partition_that_fails_are_told_with_its_error(
    tmp_path: Path, partitions: int
) -> None:
    async def test() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(partitions):
                await publish(topic, b"v", partition=number)
            batches = await topic.receiver.receive(GROUP, options())
            batches += await topic.receiver.receive(GROUP, options())
            assert len(batches) == partitions
            disk.fail("sync", "0/events")
            given = receipts(batches)
            if partitions == 1:
                with pytest.raises(TimedOut):
                    await topic.settler.acknowledge(GROUP, given)
            else:
                count, failed = await topic.settler.acknowledge(GROUP, given)
                assert count == 1
                bad = next(each for each in given if each.partition == 0)
                assert failed == [UnsettledReceipt(bad, TimedOut.code)]
            await until(lambda: not topic.partitions[0].is_online)
            with pytest.raises(GoqError) as caught:
                await topic.settler.acknowledge(GROUP, given)
            assert isinstance(caught.value, PartitionOffline)
            disk.heal()

    run(test())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delivery__ordering": "key"}, Message(b"v", key=b"k")),
        ({"tenants__max_in_flight": 1}, Message(b"v", tenant="t")),
    ],
    ids=["behind its key", "beyond what its tenant may have"],
)
def test_an_ack_lets_go_on_who_waited_for_it(
    tmp_path: Path, settings: dict[str, str | int], message: Message
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, **settings) as broker:
            topic = await broker.topic_admin.create("t")
            await topic.publisher.publish_messages([RoutedMessage(0, message)] * 2)
            first = await topic.receiver.receive(GROUP, options(1))
            assert [offset for offset, _, _ in leased(first)] == [0]
            waiting = asyncio.ensure_future(
                topic.receiver.receive(GROUP, options(wait_ms=60_000_000))
            )
            await until(lambda: topic.receiver.waiters.count(GROUP) == 1)
            await ack(topic, GROUP, first)
            async with asyncio.timeout(10):
                assert [offset for offset, _, _ in leased(await waiting)] == [1]

    run(main())


def test_settling_very_many_leases_with_long_reasons_fits_into_frames(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            count = 5000
            await publish(topic, *[b"x"] * count)
            found = []
            for _ in range(count):
                found += await topic.receiver.receive("g", options(1))
            reason = "\U0001f4a5" * limits.REASON_CHARS_MAX
            done, lost = await settle_nacked(topic, "g", receipts(found), 10**10, reason)
            assert (done, lost) == (count, [])
            assert state_of(topic.partitions[0]).groups["g"].retries.message_count == count
            await quiet(topic.partitions[0])
            state = canonical(state_of(topic.partitions[0]))
        assert canonical(reopened(tmp_path / "topics/t/0").state) == state

    run(main())
