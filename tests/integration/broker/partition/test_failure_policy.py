"""Disks that fill up, fail and rot under a broker."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from goq import limits
from goq.broker.events.replay import read_events
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.delivery.events.event import Corrupted
from goq.errors import GoqError, PartitionOffline, StorageFailed, StorageFull, TimedOut, TooLarge
from goq.frame.encoder import ProducerMark
from goq.model import Message, Receipt
from goq.storage.disk import RealDisk
from goq.storage.disk_space import DiskSpace
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    frame,
    leased,
    nack,
    options,
    publish,
    quick_broker_on,
    quiet,
    receipts,
    reopened,
    run,
    settle_nacked,
)
from tests.support.broker.partition_internals import (
    cached_frames,
    event_writer,
    have_damage_repaired,
    state_of,
)
from tests.support.delivery.model import canonical
from tests.support.eventually import until


async def _back_online(topic: Topic, number: int = 0) -> None:
    await until(lambda: topic.partitions[number].is_online)


def _messages_log(path: Path, partition: int = 0) -> Path:
    return path / "topics" / "t" / str(partition) / "messages" / f"{0:020d}.log"


def _damage(path: Path, value: bytes) -> None:
    """Change a byte of a stored value."""
    log = _messages_log(path)
    data = bytearray(log.read_bytes())
    data[data.index(value)] ^= 0xFF
    log.write_bytes(data)


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
            recorded, is_full = partition.event_end_offset, True
            for refused in (
                topic.receiver.receive("g", options()),
                topic.settler.acknowledge("g", given),
                topic.settler.nack("g", given, 0, ""),
                topic.settler.extend("g", given, 10**15),
                partition.reset("g", 0),
            ):
                with pytest.raises(StorageFull):
                    await refused
            partition.leases.undo_receive("g", held[0].token, held[0].spans)
            partition.leases.end_lease("g", held[0].token, "gone")
            clock.advance_ms(1000)
            partition._timers._on_time()
            await quiet(partition)
            assert partition.event_end_offset == recorded
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


def test_a_damaged_frame_is_passed_over_and_the_others_are_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(5):
                await publish(topic, b"message-%d" % number, b"second-%d" % number)
            _damage(tmp_path, b"message-2")
            found = await topic.receiver.receive("g", options(10))
            offsets = [offset for offset, _, _ in leased(found)]
            assert offsets == [0, 1, 2, 3, 6, 7, 8, 9]
            assert [tuple(r) for r in state_of(topic.partitions[0]).corrupt] == [(4, 6)]
            await ack(topic, "g", found)
            assert await topic.receiver.receive("g", options(10)) == []
            assert [
                o for o, _, _ in leased(await topic.receiver.receive("h", options(10)))
            ] == offsets
            await quiet(topic.partitions[0])
            state = canonical(state_of(topic.partitions[0]))
        assert canonical(reopened(tmp_path / "topics/t/0").state) == state

    run(main())


def test_a_receive_that_meets_only_damage_goes_on_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"damaged" for _ in range(50)])
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            assert leased(await topic.receiver.receive("g", options(1))) == [(50, 1, b"sound")]

    run(main())


def test_damage_under_a_waiting_retry_does_not_hold_up_the_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(4):
                await publish(topic, b"message-%d" % number)
            await nack(topic, "g", await topic.receiver.receive("g", options(3)), 0)
            _damage(tmp_path, b"message-1")
            cached_frames(topic.partitions[0]).clear()  # else what was read before is at hand
            found = leased(await topic.receiver.receive("g", options(10)))
            assert [(o, a) for o, a, _ in found] == [(0, 2), (2, 2), (3, 1)]
            group = state_of(topic.partitions[0]).groups["g"]
            assert not group.retries.message_count

    run(main())


def test_damage_is_recorded_once_however_often_it_is_met(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            partition = topic.partitions[0]
            sequence = event_writer(partition).next_token
            for _ in range(5):
                reading = partition.read(0, messages_max=10)
                assert [v for f in reading.frames for v in f.values(0, 1)] == [b"sound"]
            assert event_writer(partition).next_token == sequence + 1
            assert any(r.start == 0 for r in state_of(partition).corrupt)

    run(main())


def test_damage_that_another_replica_may_repair_is_not_recorded_and_nothing_more_is_read(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            partition = topic.partitions[0]
            have_damage_repaired(partition)
            sequence = event_writer(partition).next_token
            with pytest.raises(PartitionOffline, match="another is to lead it"):
                partition.read(0, messages_max=10)
            assert not partition.is_online
            assert event_writer(partition).next_token == sequence
            assert not state_of(partition).corrupt

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


def test_messages_that_are_not_in_memory_are_fetched_by_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(6):
                await publish(topic, b"%d" % number)
            disk.cold = 1
            assert len(leased(await topic.receiver.receive("g", options(2)))) == 2
            assert not disk.cold
            disk.cold = 10**6  # what is fetched is gone again at once
            assert len(leased(await topic.receiver.receive("g", options(2)))) == 2
            found = await topic.receiver.receive("h", options(6))  # what is at hand, then the rest
            while more := await topic.receiver.receive("h", options(6)):
                found += more
            assert [o for o, _, _ in leased(found)] == list(range(6))
            group = state_of(topic.partitions[0]).groups["g"]
            assert [lease.parts.message_count for lease in group.leases.values()] == [2, 2]

    run(main())


def test_scattered_retries_that_are_not_in_memory_come_one_by_one_but_do_come(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(20):
                await publish(topic, b"%d" % number)
            for found in [await topic.receiver.receive("g", options(1)) for _ in range(20)]:
                await nack(topic, "g", found, 0 if found[0].spans[0][0] % 2 else 10**10)
            disk.cold = 10**6
            got: list[int] = []
            while found := await topic.receiver.receive("g", options(5)):
                got += [o for o, _, _ in leased(found)]
                await ack(topic, "g", found)
            assert sorted(got) == list(range(1, 20, 2))

    run(main())


def test_a_frame_asked_for_by_two_spans_is_sent_once(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        async with quick_broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(3):
                await publish(topic, *[b"%d" % number] * 4)
            found = await topic.receiver.receive("g", options(12))
            (delivery,) = found
            late = [Receipt(0, delivery.token, 9, 10)]
            rest = [Receipt(0, delivery.token, 0, 9)]
            for given, due_ms in ((late, 0), (rest, 5)):
                await settle_nacked(topic, "g", given, due_ms)
            clock.advance_ms(5)
            again = await topic.receiver.receive("g", options(12))
            assert len(leased(again)) == 10

    run(main())


def test_a_request_with_a_frame_too_large_stores_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 1000)

    async def main() -> None:
        async with quick_broker_on(tmp_path, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            placed = [RoutedMessage(0, Message(b"a")), RoutedMessage(1, Message(b"b" * 1000))]
            with pytest.raises(TooLarge):
                await topic.publisher.publish_messages(placed)
            assert [p.end_offset for p in topic.partitions] == [0, 0]
            assert not topic.partitions[0].appender.commit._busy

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


def test_the_corruption_event_is_in_the_log_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            _damage(tmp_path, b"damaged")
            assert await topic.receiver.receive("g", options()) == []
            partition = topic.partitions[0]
            await quiet(partition)
            events = [
                stored.event
                for stored in read_events(partition.event_reader, 0, partition.event_end_offset)
                if stored
            ]
            (corrupted,) = [e for e in events if isinstance(e, Corrupted)]
            assert (corrupted.start, corrupted.end) == (0, 1)
            assert "CRC32C" in corrupted.reason

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
