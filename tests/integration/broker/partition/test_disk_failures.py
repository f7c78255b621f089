"""Disks that fill up and fail under a partition, which goes offline and comes back."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import GoqError, PartitionOffline, StorageFailed, StorageFull, TimedOut
from goq.frame.encoder import ProducerMark
from goq.model import Message
from goq.storage.disk import RealDisk
from goq.storage.disk_space import DiskSpace
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    frame,
    leased,
    options,
    publish,
    quick_broker_on,
    quiet,
    receipts,
    reopened,
    run,
)
from tests.support.broker.partition_internals import state_of
from tests.support.delivery.model import canonical
from tests.support.eventually import until


async def _back_online(topic: Topic, number: int = 0) -> None:
    await until(lambda: topic.partitions[number].is_online)


def test_a_failed_sync_of_messages_takes_one_partition_offline_until_the_disk_works(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"kept")
            disk.fail("sync", "0/messages", errno.EIO)
            crowd = [topic.partitions[0].appender.publish(frame(b"%d" % n)) for n in range(20)]
            for each in crowd:
                with pytest.raises((StorageFailed, TimedOut)):
                    await each
            with pytest.raises(PartitionOffline):
                await publish(topic, b"x")
            await publish(topic, b"y", partition=1)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"y")]
            (stored,) = await topic.publisher.publish_messages([RoutedMessage(None, Message(b"z"))])
            assert stored.partition == 1  # keyless messages go where they can
            assert not topic.partitions[0].is_online
            disk.heal()
            await _back_online(topic)
            await publish(topic, b"after")
            received = leased(await topic.receiver.receive("h", options(100)))
            assert {b"kept", b"after"} <= {value for _, _, value in received}

    run(main())


def test_a_full_disk_refuses_messages_and_takes_them_when_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            disk.fail("append", "messages")
            mark = ProducerMark(7, 1, 0)
            with pytest.raises(StorageFull):
                await topic.publisher.publish_frames([(0, frame(b"a", b"b", mark=mark))])
            disk.heal()
            (stored,) = await topic.publisher.publish_frames([(0, frame(b"a", b"b", mark=mark))])
            assert (stored.offset, stored.duplicate) == (0, False)
            (again,) = await topic.publisher.publish_frames([(0, frame(b"a", b"b", mark=mark))])
            assert (again.offset, again.duplicate) == (0, True)

    run(main())


def test_a_disk_that_is_full_before_that_is_known_keeps_no_partition_from_its_events(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        space = DiskSpace(tmp_path)
        async with quick_broker_on(tmp_path, disk=RealDisk(space=space)) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"stored")
            space.is_given_up = True  # no room for what is not vital
            with pytest.raises(StorageFull):
                await publish(topic, b"x")
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"stored")]
            assert topic.partitions[0].is_online

    run(main())


def test_a_disk_that_is_full_before_that_is_known_takes_what_is_leased_as_it_is_written(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        space = DiskSpace(tmp_path)
        disk, is_known = RealDisk(space=space), partial(getattr, space, "is_full")
        async with broker_on(tmp_path, disk=disk, journaled=True, is_disk_full=is_known) as broker:
            topic = await broker.topic_admin.create("t")
            space.is_given_up = True  # no room for what is not vital
            asked = partial(topic.receiver.receive, "g", options(wait_ms=60_000))
            waiting = asyncio.ensure_future(asked())
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            await publish(topic, b"taken")
            assert leased(await waiting) == [(0, 1, b"taken")]
            waiting = asyncio.ensure_future(asked())
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            space.is_full = True
            with pytest.raises(StorageFull):
                await publish(topic, b"refused")
            waiting.cancel()
            assert topic.partitions[0].is_online

    run(main())


@pytest.mark.parametrize(
    ("operation", "code"),
    [("append", errno.ENOSPC), ("append", errno.EIO), ("sync", errno.EIO)],
)
def test_a_partition_whose_events_were_lost_is_built_anew_from_the_disk(
    tmp_path: Path, operation: str, code: int
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"%d" % n for n in range(10)])
            first = await topic.receiver.receive("g", options(4))
            await ack(topic, "g", first)
            failed = topic.partitions[0]
            disk.fail(operation, "events/0", code)
            with pytest.raises(GoqError):
                await topic.receiver.receive("g", options(3))
            with pytest.raises(PartitionOffline):
                await topic.receiver.receive("g", options(3)) or failed.check_room()
            disk.heal()
            await _back_online(topic)
            assert topic.partitions[0] is not failed
            found = []
            while more := await topic.receiver.receive("g", options(3, visibility_ms=60_000)):
                found += [offset for offset, _, _ in leased(more)]
                await ack(topic, "g", more)
            # what was in the failed sync may be in the log: leased, and back at its deadline
            assert found == [4, 5, 6, 7, 8, 9] or (operation == "sync" and found == [7, 8, 9])
            await quiet(topic.partitions[0])
            state = canonical(state_of(topic.partitions[0]))
        assert canonical(reopened(tmp_path / "topics/t/0").state) == state

    run(main())


def test_a_partition_on_a_full_disk_stays_open_and_refuses_what_it_could_not_record(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock, is_full = ManualClock(), False
        async with quick_broker_on(tmp_path, clock=clock, is_disk_full=lambda: is_full) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            (partition,) = topic.partitions
            held = await topic.receiver.receive("g", options(1, visibility_ms=1000))
            given = receipts(held, topic.id)
            await quiet(partition)
            recorded, is_full = partition.event_high_watermark, True
            for refused in (
                topic.receiver.receive("g", options()),
                topic.settler.acknowledge("g", given),
                topic.settler.nack("g", given, 0, ""),
                topic.settler.extend("g", given, 10**15),
                partition.reset("g", 0),
            ):
                with pytest.raises(StorageFull):
                    await refused
            with pytest.raises(StorageFull):
                partition.leases.undo_receive("g", held[0].token, held[0].spans)
            with pytest.raises(StorageFull):
                partition.leases.end_leases("g", [held[0].token], "gone")
            clock.advance_ms(1000)
            partition._timers._on_time()
            await quiet(partition)
            assert partition.event_high_watermark == recorded
            assert topic.partitions[0] is partition
            assert partition.is_online
            is_full = False
            partition._timers._on_time()
            found = leased(await topic.receiver.receive("g", options()))
            assert sorted(found) == [(0, 2, b"a"), (1, 1, b"b")]
            is_full = True
            await partition.delete_group("g")  # which may be what keeps the disk full
            assert not partition.group_names

    run(main())


def test_a_partition_is_tried_until_there_is_room_to_open_it_and_leaks_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            disk.fault = lambda o, p: (
                errno.ENOSPC if o in ("append", "replace", "open") and "events" in str(p) else None
            )
            with pytest.raises(StorageFull):
                await topic.receiver.receive("g", options())
            opened = disk.count("open", "events")
            await until(lambda: disk.count("open", "events") > opened + 10)
            before = len(list(Path("/proc/self/fd").iterdir()))
            opened = disk.count("open", "events")
            await until(lambda: disk.count("open", "events") > opened + 30)
            assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10
            disk.heal()
            await _back_online(topic)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"x")]

    run(main())


def test_a_topic_deleted_while_a_partition_is_reopened_leaves_no_folder(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            disk.fail("append", "events")
            disk.hold("t/0/messages", operation="open")
            with pytest.raises(StorageFull):
                await topic.receiver.receive("g", options())
            disk.heal()
            await until(disk.holding.is_set)
            deleting = asyncio.ensure_future(broker.topic_admin.delete("t"))
            for _ in range(20):
                await asyncio.sleep(0.001)
            disk.release()
            await deleting
        assert not (tmp_path / "topics" / "t").exists()

    run(main())


def test_a_node_stops_cleanly_while_a_partition_is_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            disk.fail("append", "events")
            with pytest.raises(StorageFull):
                await topic.receiver.receive("g", options())
        disk.heal()
        assert reopened(tmp_path / "topics/t/0").messages.end_offset == 1

    run(main())


def test_a_disk_that_cannot_be_read_in_one_partition_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", partition=0)
            await publish(topic, b"b", partition=1)
            disk.fail("read", "0/messages", errno.EACCES)
            found = await topic.receiver.receive("g", options())
            assert [(d.partition, leased([d])) for d in found] == [(1, [(0, 1, b"b")])]
            with pytest.raises(OSError, match="Permission"):
                await topic.receiver.receive("g", options())
            disk.heal()
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"a")]

    run(main())


def test_when_one_of_two_leases_is_not_durable_the_other_is_handed_over(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", partition=0)
            await publish(topic, b"b", partition=1)
            disk.fail("append", "0/events")
            found = await topic.receiver.receive("g", options())
            assert [(d.partition, leased([d])) for d in found] == [(1, [(0, 1, b"b")])]
            disk.heal()
            await _back_online(topic)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"a")]

    run(main())


def test_publishing_is_refused_as_a_whole_when_a_partition_is_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            disk.fail("sync", "1/messages", errno.EIO)
            with pytest.raises(TimedOut):
                await publish(topic, b"x", partition=1)
            with pytest.raises(PartitionOffline):
                await topic.publisher.publish_messages(
                    [RoutedMessage(n, Message(b"x")) for n in range(2)]
                )
            with pytest.raises(PartitionOffline):
                await topic.publisher.publish_frames([(n, frame(b"x")) for n in range(2)])
            await quiet(topic.partitions[0])
            assert topic.partitions[0].end_offset == 0

    run(main())


def test_settling_is_refused_as_a_whole_when_a_partition_is_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", partition=0)
            await publish(topic, b"b", partition=1)
            found = sorted(await topic.receiver.receive("g", options()))
            assert [delivery.partition for delivery in found] == [0, 1]
            disk.fail("append", "1/events")
            with pytest.raises(StorageFull):
                await topic.partitions[1].reset("h", 0)
            with pytest.raises(PartitionOffline):
                await ack(topic, "g", found)
            disk.heal()
            await _back_online(topic, 1)
            assert await ack(topic, "g", found) == 2

    run(main())


def test_receives_go_on_while_the_disk_syncs_messages_slowly(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            disk.hold("messages")
            slow = asyncio.ensure_future(publish(topic, b"b"))
            await until(disk.holding.is_set)
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"a")]
            assert not slow.done()  # and what is not durable is not delivered
            disk.release()
            await slow
            assert leased(await topic.receiver.receive("g", options())) == [(1, 1, b"b")]

    run(main())
