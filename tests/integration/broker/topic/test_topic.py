"""Topics: creating, changing and deleting them, and what a crash in between leaves."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from msgspec.structs import astuple

from goq import limits
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.broker.partition.partition import Partition
from goq.broker.runtime.metrics import GroupCounters, Rates, RecentTotals, TopicCounts
from goq.broker.topic import topic as topic_module
from goq.broker.topic.publisher import ANY_PARTITION, RoutedMessage
from goq.clock import ManualClock
from goq.config.topic import TopicSettings
from goq.errors import (
    GoqError,
    InvalidInput,
    NodeFull,
    PartitionNotFound,
    StorageFull,
    TopicExists,
    TopicNotFound,
)
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import partition_of
from goq.frame.view import FrameView
from goq.model import Message, Receipt
from goq.storage.disk import RealDisk
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    frame,
    leased,
    nack,
    options,
    publish,
    run,
    settle_acked,
)
from tests.support.eventually import until


def test_a_group_is_stored_at_its_first_receive_and_counts_in_each_partition(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 3)
            for group in ("a", "b"):
                assert await topic.receiver.receive(group, options()) == []
            assert metadata.group_settings == {("t", "a"): {}, ("t", "b"): {}}
            each_bytes = limits.PARTITION_BYTES + 2 * limits.GROUP_BYTES
            assert broker.capacity.used_bytes == 3 * each_bytes

    run(main())


def test_acks_that_no_partition_can_record_fail_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t", 2)
            await publish(topic, b"a", partition=0)
            await publish(topic, b"b", partition=1)
            found = await topic.receiver.receive("g", options())
            found += await topic.receiver.receive("g", options())
            assert {each.partition for each in found} == {0, 1}
            disk.fault = lambda _operation, _path: errno.ENOSPC
            with pytest.raises(StorageFull):
                await ack(topic, "g", found)
            disk.heal()

    run(main())


def test_topics_groups_and_progress_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for turn in range(3):
            broker = Broker(
                tmp_path / "topics",
                LocalMetadata(tmp_path, RealDisk()),
                RealDisk(),
                ManualClock(),
                defaults=TopicSettings(),
                partitions=2,
                auto_create=True,
            )
            await broker.start()
            topic = await broker.topic_admin.topic_for_publish("t")
            await publish(topic, b"%d" % turn, partition=1)
            await broker.group_admin.remember(topic, "g")
            found = await topic.receiver.receive("g", options())
            assert leased(found) == [(turn, 1, b"%d" % turn)]
            await ack(topic, "g", found)
            assert topic.groups == {"g": {}}
            await broker.close()

    run(main())


def test_a_topic_can_get_more_partitions_but_not_fewer(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"a")
            await broker.topic_admin.alter("t", {"retention.age": "1h"}, 3)
            await publish(topic, b"b", partition=2)
            assert len(leased(await topic.receiver.receive("g", options()))) == 2
            with pytest.raises(InvalidInput):
                await broker.topic_admin.alter("t", {}, 2)
            with pytest.raises(PartitionNotFound):
                topic.partitions[3]
        async with broker_on(tmp_path, metadata=metadata) as broker:
            assert broker.topic("t").partitions.count == 3
            assert broker.topic("t").settings.retention_age_ms == 3_600_000

    run(main())


def test_a_crash_after_the_row_was_written_leaves_a_topic_that_opens(tmp_path: Path) -> None:
    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()
        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            disk.fail("open", "t/1")
            with pytest.raises((OSError, GoqError)):
                await broker.topic_admin.create("t", 3)
            assert "t" not in broker.topics
            disk.heal()
            topic = await broker.topic_admin.create("t", 3)  # once more, now with room
            await publish(topic, b"x", partition=2)
        async with broker_on(tmp_path, metadata=metadata) as broker:
            assert broker.topic("t").partitions[2].end_offset == 1

    run(main())


@pytest.mark.parametrize("step", ["remove_dir", "delete_topic"])
def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(
    tmp_path: Path, step: str
) -> None:
    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()

        def broken(change: str) -> None:
            if change == step:
                raise OSError(errno.EIO, "EIO")

        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"old")
            metadata.before = broken
            if step == "remove_dir":
                disk.fail("remove_dir", "t", errno.EIO)
            with pytest.raises(OSError, match=r"EIO|Input"):
                await broker.topic_admin.delete("t")
            with pytest.raises(TopicNotFound):
                broker.topic("t")
        metadata.before = lambda _change: None
        async with broker_on(tmp_path, metadata=metadata) as broker:
            assert not broker.topics
            assert not metadata.rows
            assert not (tmp_path / "topics" / "t").exists()

    run(main())


def test_a_topic_made_anew_after_a_failed_deletion_is_empty(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"old")
            disk.fail("remove_dir", "t", errno.EIO)
            with pytest.raises(OSError, match="Input"):
                await broker.topic_admin.delete("t")
            with pytest.raises(OSError, match="Input"):
                await broker.topic_admin.create("t")
            disk.heal()
            topic = await broker.topic_admin.create("t")
            assert await topic.receiver.receive("g", options()) == []
            assert await publish(topic, b"new") == [0]

    run(main())


def test_folders_that_the_database_lost_are_taken_up_and_other_names_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("orders", 3)
            await publish(topic, b"x", partition=2)
        (tmp_path / "topics" / "stray-file").write_text("not a topic")
        (tmp_path / "topics" / "no-partitions").mkdir()
        (tmp_path / "topics" / "lost+found").mkdir()
        async with broker_on(tmp_path, metadata=LocalMetadata(tmp_path, RealDisk())) as broker:
            assert list(broker.topics) == ["orders"]
            assert broker.topics["orders"].partitions.count == 3
            assert leased(await broker.topics["orders"].receiver.receive("g", options())) == [
                (0, 1, b"x")
            ]
        assert "orders" in caplog.text

    run(main())


def test_deleting_a_topic_in_full_traffic_hangs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = await broker.topic_admin.create("t", 3)

            async def produce() -> None:
                while True:
                    await topic.publisher.publish_messages([RoutedMessage(None, Message(b"x"))])

            async def consume() -> None:
                while True:
                    await ack(
                        topic, "g", await topic.receiver.receive("g", options(wait_ms=60_000))
                    )

            tasks = [asyncio.ensure_future(work()) for work in [produce, consume] * 8]
            await until(lambda: topic.stats.delivered_messages > 200)
            await broker.topic_admin.delete("t")
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, GoqError) for result in results), results
            assert not (tmp_path / "topics" / "t").exists()
            assert not metadata.rows
            topic = await broker.topic_admin.create("t")
            assert await publish(topic, b"first") == [0]

    run(main())


def test_creating_twice_at_once_makes_one_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            made = await asyncio.gather(
                *[broker.topic_admin.create("t") for _ in range(5)], return_exceptions=True
            )
            assert sum(isinstance(m, TopicExists) for m in made) == 4
            first, second = await asyncio.gather(
                broker.topic_admin.topic_for_publish("u"), broker.topic_admin.topic_for_publish("u")
            )
            assert first is second

    run(main())


def test_so_many_topics_and_groups_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    monkeypatch.setattr(limits, "GROUPS_PER_TOPIC_MAX", 1)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            with pytest.raises(NodeFull):
                await broker.topic_admin.create("u")
            await broker.group_admin.remember(topic, "g")
            with pytest.raises(NodeFull):
                await broker.group_admin.remember(topic, "h")
            with pytest.raises(InvalidInput):
                await broker.topic_admin.create("v", 0)
            with pytest.raises(InvalidInput):
                await broker.topic_admin.create("no/name")

    run(main())


def test_a_deleted_group_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 2)
            await broker.group_admin.remember(topic, "g")
            for partition in range(2):
                await publish(topic, b"x", partition=partition)
            found = await topic.receiver.receive("g", options())
            await broker.group_admin.delete(topic, "g")
            given = [Receipt(d.partition, d.token, 0, 1) for d in found]
            done, lost = await settle_acked(topic, "g", given)
            assert (done, len(lost)) == (0, 2)
            assert topic.groups == {}
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert topic.groups == {}
            assert [a for _, a, _ in leased(await topic.receiver.receive("g", options()))] == [1, 1]

    run(main())


@pytest.mark.parametrize(
    ("sticky_s", "expected"),
    [(60.0, [0, 0, 1, 1, 2, 2, 3, 3, 0]), (0.0, [0, 1, 2, 3, 0, 1, 2, 3, 0])],
)
def test_keys_stay_together_and_keyless_messages_go_round_by_bytes_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sticky_s: float, expected: list[int]
) -> None:
    monkeypatch.setattr(limits, "STICKY_S", sticky_s)

    async def main() -> None:
        async with broker_on(tmp_path, partitions=4) as broker:
            topic = await broker.topic_admin.create("t")
            placed = [RoutedMessage(None, Message(b"v", key=b"k%d" % n)) for n in range(50)]
            for stored, (_, message) in zip(
                await topic.publisher.publish_messages(placed), placed, strict=True
            ):
                assert stored.partition == partition_of(message.key or b"", 4)
            share = Message(b"v" * (limits.STICKY_BYTES // 2))
            keyless = [
                (await topic.publisher.publish_messages([RoutedMessage(None, share)]))[0].partition
                for _ in range(9)
            ]
            first = keyless[0]
            assert [(n - first) % 4 for n in keyless] == expected
            keyed = FrameView.parse(encode_frame(Columns([b"v"], keys=[b"k"])))
            with pytest.raises(InvalidInput):
                await topic.publisher.publish_frames([(ANY_PARTITION, keyed)])

    run(main())


def test_receipts_of_partitions_that_are_not_there_are_lost_not_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            receipt = Receipt(7, 1, 0, 1)
            answer = await settle_acked(topic, "g", [receipt])
            assert answer == (0, [receipt])

    run(main())


def test_retention_goes_on_with_the_other_topics_when_one_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock, disk = ManualClock(), BrokenDisk()
        async with broker_on(
            tmp_path, clock=clock, disk=disk, segment__age="1h", retention__age="1h"
        ) as broker:
            for name in ("a", "b"):
                await publish(await broker.topic_admin.create(name), b"x")
            clock.advance_ms(8_000_000)
            disk.fail("remove", "a/0/messages", errno.EIO)
            await broker.retention_manager.apply()
            disk.heal()
            assert broker.topic("b").partitions[0].log_start_offset == 1
            assert "a" in caplog.text

    run(main())


def test_a_partition_with_more_urgent_messages_is_asked_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 3)
            for partition, lane in ((0, 2), (1, 0), (2, 1)):
                placed = [
                    RoutedMessage(partition, Message(b"%d" % lane, lane=lane)) for _ in range(2)
                ]
                await topic.publisher.publish_messages(placed)
            got = [leased(await topic.receiver.receive("g", options(1)))[0][2] for _ in range(6)]
            assert got == [b"0", b"0", b"1", b"1", b"2", b"2"]

    run(main())


def test_new_partitions_are_made_several_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            disk.hold("/0/", operation="make_dir")
            creating = asyncio.ensure_future(broker.topic_admin.create("t", 4))
            await until(disk.holding.is_set)
            await until(lambda: disk.count("make_dir", "/3/events"))
            disk.release()
            topic = await creating
            assert [each.identity.number for each in topic.partitions] == [0, 1, 2, 3]

    run(main())


def test_partitions_that_could_not_be_made_are_made_by_the_next_try(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t", 1)
            disk.fail("make_dir", "/2/")
            with pytest.raises(GoqError):
                await broker.topic_admin.alter("t", {}, 6)
            assert list(topic.partitions.numbers()) == [0, 1]
            assert topic.partitions.count == 2
            disk.heal()
            await broker.topic_admin.alter("t", {}, 6)
            for partition in range(6):
                await publish(topic, b"x", partition=partition)
            assert len(await topic.receiver.receive("g", options())) == 6

    run(main())


def test_a_topic_counts_what_is_published_delivered_and_settled_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            assert (topic.stats.last_append_ms, set(astuple(TopicCounts()))) == (0, {0})
            view, again = frame(b"a", b"b", b"c"), frame(b"d", mark=ProducerMark(7, 1, 0))
            for each in (view, again, again):
                await topic.publisher.publish_frames([(0, each)])
            for count in (2, 1, 1):
                found = await topic.receiver.receive("g", options(count, visibility_ms=20))
                if count == 2:
                    await ack(topic, "g", found)
                elif topic.stats.nacked_messages == 0:
                    await nack(topic, "g", found)
            clock.advance_ms(20)
            await until(lambda: topic.stats.expired_messages == 1)
            size_bytes = view.header.frame_bytes + again.header.frame_bytes
            counts = TopicCounts(
                published_messages=4,
                published_bytes=size_bytes,
                duplicate_frames=1,
                delivered_messages=4,
                acked_messages=2,
                nacked_messages=1,
                expired_messages=1,
            )
            assert astuple(topic.stats)[: len(astuple(counts))] == astuple(counts)
            assert topic.stats.groups == {"g": GroupCounters(4, 2, 1, 1)}
            assert topic.stats.last_append_ms == clock.wall_ms() - 20
            rates = topic.stats.rates(asyncio.get_running_loop().time())
            assert rates.published_per_s == pytest.approx(4 / rates.window_s)
            assert rates.published_bytes_per_s == pytest.approx(size_bytes / rates.window_s)
            assert rates.delivered_per_s == pytest.approx(4 / rates.window_s)
            assert rates.acked_per_s == pytest.approx(2 / rates.window_s)

    run(main())


def test_publishes_deliveries_and_acks_each_count_in_the_rates_of_a_topic_at_rest(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)

            def rates_of_rest() -> Rates:
                rates = topic.stats.rates(asyncio.get_running_loop().time())
                topic.stats._recent = RecentTotals()  # as after a minute without events
                return rates

            await publish(topic, b"a", b"b")
            rates = rates_of_rest()
            assert rates.published_per_s == pytest.approx(2 / rates.window_s)
            found = await topic.receiver.receive("g", options(2))
            rates = rates_of_rest()
            assert rates.delivered_per_s == pytest.approx(2 / rates.window_s)
            await ack(topic, "g", found)
            rates = rates_of_rest()
            assert rates.acked_per_s == pytest.approx(2 / rates.window_s)

    run(main())


def test_a_topic_closes_few_partitions_at_a_time_and_all_though_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, under_way, most, closed = Partition.close, list[int](), list[int](), list[int]()

    async def watched(partition: Partition, *, is_needed: bool = True) -> None:
        under_way.append(partition.identity.number)
        most.append(len(under_way))
        await close(partition, is_needed=is_needed)
        under_way.remove(partition.identity.number)
        closed.append(partition.identity.number)
        if partition.identity.number == 1:
            raise ZeroDivisionError

    monkeypatch.setattr(topic_module, "_CLOSED_AT_ONCE", 2)
    monkeypatch.setattr(Partition, "close", watched)

    async def main() -> None:
        async with broker_on(tmp_path, metadata=MemoryMetadata()) as broker:
            topic = await broker.topic_admin.create("t", 5)
            with pytest.raises(ZeroDivisionError):
                await topic.close(TopicNotFound("deleted"), is_deleted=True)
            assert sorted(closed) == [0, 1, 2, 3, 4]
            assert max(most) == 2
            monkeypatch.setattr(Partition, "close", close)

    run(main())
