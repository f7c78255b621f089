"""Settings that change under leases, receipts that fit nothing, and what a restart keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.clock import ManualClock
from goq.model import Message, Receipt
from tests.support.broker.harness import (
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    nack,
    options,
    receipts,
    run,
    settle_acked,
    settle_nacked,
)

HOUR_MS = 3_600_000


async def publish_keyed(topic: Topic, *values: bytes, key: bytes = b"k") -> None:
    await topic.publisher.publish_messages([RoutedMessage(0, Message(v, key)) for v in values])


def values(found: list[LeasedBatch]) -> list[bytes]:
    return [value for _, _, value in leased(found)]


@pytest.mark.parametrize("scope", ["topic", "group"])
def test_what_was_held_back_flows_when_the_ordering_changes(tmp_path: Path, scope: str) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            await publish_keyed(topic, b"a", b"b", b"c")
            first = await topic.receiver.receive("g", options(1))
            assert await topic.receiver.receive("g", options()) == []
            if scope == "topic":
                await broker.topic_admin.alter("t", {"delivery.ordering": "none"})
            else:
                await broker.group_admin.configure(topic, "g", {"ordering": "none"})
            others = await topic.receiver.receive("g", options())
            assert values(others) == [b"b", b"c"]
            await ack(topic, "g", first)
            await ack(topic, "g", others)
            assert await topic.receiver.receive("g", options()) == []

    run(main())


def test_through_every_ordering_nothing_is_lost_or_stuck(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 2)
            await broker.group_admin.remember(topic, "g")
            sent = [b"%d" % n for n in range(30)]
            for number, value in enumerate(sent):
                await publish_keyed(topic, value, key=b"k%d" % (number % 3))
            seen: list[bytes] = []
            for ordering in ("none", "partition", "key", "partition", "none", "key"):
                found = await topic.receiver.receive("g", options(4))
                seen += values(found[:1])
                await ack(topic, "g", found[:1])
                await broker.group_admin.configure(topic, "g", {"ordering": ordering})
                await nack(topic, "g", found[1:])
            while found := await topic.receiver.receive("g", options()):
                seen += values(found)
                await ack(topic, "g", found)
            assert sorted(seen, key=int) == sent

    run(main())


def test_partitions_added_under_a_group_that_shares_them_are_shared_too(tmp_path: Path) -> None:
    def of(consumer: str) -> ReceiveRequest:
        return ReceiveRequest(consumer, 10, 2**23, 0, None)

    async def main() -> None:
        async with broker_on(tmp_path, delivery__ordering="partition") as broker:
            topic = await broker.topic_admin.create("t", 2)
            await broker.group_admin.remember(topic, "g")
            for consumer in ("ann", "bob"):
                topic.coordinator.join("g", consumer)
            for number in range(2):
                await topic.publisher.publish_messages(
                    [RoutedMessage(number, Message(b"%d" % number))]
                )
            held = await topic.receiver.receive("g", of("ann"))
            await broker.topic_admin.alter("t", {}, 5)
            for number in range(2, 5):
                await topic.publisher.publish_messages(
                    [RoutedMessage(number, Message(b"%d" % number))]
                )
            seen = values(held)
            await ack(topic, "g", held)
            for _ in range(2):
                for consumer in ("ann", "bob"):
                    found = await topic.receiver.receive("g", of(consumer))
                    seen += values(found)
                    await ack(topic, "g", found)
            assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]

    run(main())


def test_leases_and_retries_survive_a_restart_with_the_time_they_have_left(tmp_path: Path) -> None:
    async def main() -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            await topic.publisher.publish_messages(
                [
                    RoutedMessage(0, Message(b"a")),
                    RoutedMessage(0, Message(b"b")),
                    RoutedMessage(0, Message(b"c")),
                ]
            )
            kept = await topic.receiver.receive("g", options(1, visibility_ms=HOUR_MS))
            lost = await topic.receiver.receive("g", options(1, visibility_ms=10_000))
            await nack(topic, "g", await topic.receiver.receive("g", options(1)), 20_000)
        clock.advance_ms(9_999)
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = broker.topic("t")
            assert await topic.receiver.receive("g", options()) == []
            clock.advance_ms(1)
            topic.partitions[0]._timers._on_time()
            assert leased(await topic.receiver.receive("g", options(visibility_ms=HOUR_MS))) == [
                (1, 2, b"b")
            ]
            assert await settle_acked(topic, "g", receipts(lost)) == (0, receipts(lost))
            clock.advance_ms(9_999)
            topic.partitions[0]._timers._on_time()
            assert await topic.receiver.receive("g", options()) == []
            clock.advance_ms(1)
            topic.partitions[0]._timers._on_time()
            assert leased(await topic.receiver.receive("g", options())) == [(2, 2, b"c")]
            assert await ack(topic, "g", kept) == 1

    run(main())


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_set_repeats_nothing_that_is_done(tmp_path: Path, step_ms: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            due_ms = clock.wall_ms() + 1000
            await topic.publisher.publish_messages(
                [
                    RoutedMessage(0, Message(b"late", deliver_at_ms=due_ms)),
                    RoutedMessage(0, Message(b"a")),
                ]
            )
            found = await topic.receiver.receive("g", options(1))
            await ack(topic, "g", found)
            clock.advance_ms(step_ms)
            topic.partitions[0]._timers._on_time()
            seen = values(await topic.receiver.receive("g", options()))
            assert seen == ([b"late"] if step_ms > 0 else [])
            clock.advance_ms(1000 - step_ms)
            topic.partitions[0]._timers._on_time()
            seen += values(await topic.receiver.receive("g", options()))
            assert seen == [b"late"]

    run(main())


def test_receipts_that_fit_nothing_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 2)
            for group in ("g", "other"):
                await broker.group_admin.remember(topic, group)
            await topic.publisher.publish_messages([RoutedMessage(0, Message(b"a"))])
            [mine] = receipts(await topic.receiver.receive("g", options()))
            await topic.receiver.receive("other", options())
            foreign = [
                mine._replace(partition=1),
                mine._replace(partition=2**40),
                mine._replace(token=2**62),
                mine._replace(token=0),
                Receipt(0, mine.token, 2**40, 2**41),
                Receipt(0, mine.token, 1, 2**62),
            ]
            assert await settle_acked(topic, "other", [mine]) == (0, [mine])
            assert await settle_acked(topic, "nobody", [mine]) == (0, [mine])
            for settle in (settle_acked, settle_nacked):
                done, lost = await settle(topic, "g", foreign)
                assert (done, sorted(lost)) == (0, sorted(foreign))
            done, lost = await settle_acked(topic, "g", [mine, mine, *foreign])
            assert (done, sorted(lost)) == (1, sorted(foreign))

    run(main())


def test_ten_thousand_receipts_twice_count_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await topic.publisher.publish_messages([RoutedMessage(0, Message(b""))] * 10_000)
            found = await topic.receiver.receive("g", options(10_000))
            [whole] = receipts(found)
            each = [whole._replace(start=n, end=n + 1) for n in range(whole.start, whole.end)]
            first, second = await asyncio.gather(
                settle_acked(topic, "g", each + each), settle_acked(topic, "g", each)
            )
            assert (first, second) == ((10_000, []), (10_000, [])), "an ack is settled again"
            assert topic.stats.acked_messages == 10_000

    run(main())


def test_a_key_that_was_leased_without_order_is_in_hand_once_keys_are_ordered(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, delivery__ordering="none") as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            await publish_keyed(topic, b"a", b"b")
            await topic.receiver.receive("g", options(1))
            await broker.group_admin.configure(topic, "g", {"ordering": "key"})
            assert await topic.receiver.receive("g", options()) == []

    run(main())


def test_a_receipt_that_is_twice_in_one_request_settles_once_and_is_not_lost(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await topic.publisher.publish_messages([RoutedMessage(0, Message(b""))] * 2_500)
            found = await topic.receiver.receive("g", options(2_500))
            each = [
                whole._replace(start=n, end=n + 1)
                for whole in receipts(found)
                for n in range(whole.start, whole.end)
            ]
            assert await settle_acked(topic, "g", each + each) == (2_500, [])

    run(main())
