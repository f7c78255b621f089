"""What producers call themselves: told once, kept, found again for old messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.events.replay import read_events
from goq.broker.partition.partition import Partition
from goq.broker.partition.producers import recorded_name
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.delivery.events.event import Named, Reset
from goq.frame.encoder import ProducerMark, named_producer
from goq.frame.header import NAMED_ONLY_EPOCH, FrameHeader
from goq.model import Message
from tests.support.broker.harness import BrokenDisk, MemoryMetadata, broker_on, frame, quiet, run
from tests.support.broker.partition_internals import event_log, event_writer, state_of
from tests.support.eventually import until


async def tell(topic: Topic, client_id: str | None, *values: bytes) -> None:
    placed = [RoutedMessage(0, Message(value)) for value in values]
    await topic.publisher.publish_messages(placed, client_id)


def headers(partition: Partition) -> list[FrameHeader]:
    return [v.header for v in partition.read(0, messages_max=1000).frames]


def named(partition: Partition) -> list[Named]:
    log = event_log(partition)
    stored = [s for s in read_events(log.reader, 0, log.end_offset) if s is not None]
    return [s.event for s in stored if isinstance(s.event, Named)]


def test_a_producer_is_named_once_however_much_it_publishes(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            await asyncio.gather(*(tell(topic, "shop", b"a") for _ in range(20)))
            await tell(topic, "shop", b"a", b"b")
            await tell(topic, "till", b"c")
            await tell(topic, None, b"d")
            await quiet(partition)
            assert [event.client_id for event in named(partition)] == ["shop", "till"]
            names = [partition.producers.name(header) for header in headers(partition)]
            assert names == ["shop"] * 2 + ["till", None]  # the twenty share a frame

    run(main())


def test_the_messages_of_a_name_share_writes_as_those_of_nobody_do(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            before = disk.count("append", "messages")
            await asyncio.gather(*(tell(topic, "shop", b"a") for _ in range(20)))
            assert disk.count("append", "messages") - before <= 2

    run(main())


def test_a_numbered_batch_keeps_its_identity_and_is_named_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            for first in (0, 1, 1):
                view = frame(b"x", mark=ProducerMark(2**63 + 5, 0, first))
                await topic.publisher.publish_frames([(0, view)], "shop")
            assert [h.producer_id for h in headers(partition)] == [2**63 + 5] * 2
            assert state_of(partition).producer_names == {2**63 + 5: "shop"}
            await topic.publisher.publish_frames([(0, frame(b"y"))], "till")
            last = headers(partition)[-1]
            assert last.producer_id == named_producer("till").producer_id
            assert last.producer_epoch == NAMED_ONLY_EPOCH
            assert partition.producers.name(last) == "till"

    run(main())


def test_a_producer_that_takes_another_name_is_known_by_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            for number, name in enumerate(("one", "two", "two")):
                view = frame(b"x", mark=ProducerMark(77, 0, number))
                await topic.publisher.publish_frames([(0, view)], name)
                await quiet(partition)
                clock.advance_ms(1000)
            assert [event.client_id for event in named(partition)] == ["one", "two"]
            events = partition.event_reader
            found = [recorded_name(events, header) for header in headers(partition)]
            assert found == ["one", "two", "two"]

    run(main())


def test_names_outlive_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await tell(topic, "shop", b"a")
        async with broker_on(tmp_path, metadata=metadata) as broker:
            partition = broker.topic("t").partitions[0]
            [header] = headers(partition)
            assert partition.producers.name(header) == "shop"
            await tell(broker.topic("t"), "shop", b"b")
            await quiet(partition)
            assert len(named(partition)) == 1

    run(main())


def test_a_name_that_was_lost_with_the_disk_is_told_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            disk.fail("append", "events")
            await tell(topic, "shop", b"a")  # is stored, and says so
            await broken(topic.partitions[0])
            disk.heal()
            partition = await mended(broker)
            [header] = headers(partition)
            assert partition.producers.name(header) == f"{header.producer_id:016x}"
            await tell(broker.topic("t"), "shop", b"b")
            assert partition.producers.name(header) == "shop"

    run(main())


def test_a_name_is_found_also_where_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 300)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 2)  # the first names are forgotten

    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            names = [f"shop-{number}" for number in range(20)]
            clock.advance_ms(1_000_000)
            for name in names:
                clock.advance_ms(-10_000)
                await tell(topic, name, b"a")
                await quiet(partition)  # its events are in a segment before the next one's
            assert len(event_log(partition).segments) > 5
            events = partition.event_reader
            assert [recorded_name(events, header) for header in headers(partition)] == names

    run(main())


async def broken(partition: Partition) -> None:
    await until(lambda: not partition.is_online)


async def mended(broker: Broker) -> Partition:
    await until(lambda: broker.topic("t").partitions[0].is_online)
    return broker.topic("t").partitions[0]


def test_what_is_refused_names_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            disk.fail("append", "messages")
            [refused] = await asyncio.gather(tell(topic, "shop", b"a"), return_exceptions=True)
            assert isinstance(refused, Exception)
            disk.heal()
            assert (partition.is_online, state_of(partition).producer_names) == (True, {})

    run(main())


def test_the_names_of_old_messages_are_in_the_events_of_their_time(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            for name in ("first", "second", "third"):
                await tell(topic, name, name.encode())
                clock.advance_ms(1000)
                await tell(topic, name, b"once more")
                clock.advance_ms(1000)
                await quiet(partition)
                event_writer(partition)._record_snapshot(begins_segment=True)
                await quiet(partition)
                clock.advance_ms(1000)
                await partition.record([Reset("g", 0)])
                state_of(partition).producer_names.clear()  # as if so many others had come since
            assert len(event_log(partition).segments) == 4
            found = [partition.producers.name(header) for header in headers(partition)]
            assert found == ["first", "first", "second", "second", "third", "third"]
            unknown = headers(partition)[0]._replace(producer_id=2**64 - 1)
            assert partition.producers.name(unknown) == "ffffffffffffffff"

    run(main())
