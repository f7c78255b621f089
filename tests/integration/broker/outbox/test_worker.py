"""What leaves a partition arrives once, wherever the process ends and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from goq import limits
from goq.broker.broker import Broker
from goq.broker.dlq.redrive import RemovalRequest, RemovalResult, purge, redrive
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch, FoundDeadLetter
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import StorageFull
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.model import Receipt
from tests.support.broker.harness import (
    QUICK,
    BrokenDisk,
    MemoryMetadata,
    broker_on,
    leased,
    nack,
    options,
    publish,
    quick_broker_on,
    quiet,
    receipts,
    run,
    settle_nacked,
    trim,
)
from tests.support.broker.partition_internals import state_of
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.folder_copy import copy_in_use

ALL = RemovalRequest(DeadLetterQuery(), (-1, -1), 10_000)


async def reject_all(topic: Topic, found: list[LeasedBatch], reason: str = "bad") -> int:
    done, _ = await topic.settler.reject("g", receipts(found), reason)
    return done


async def died(broker: Broker, count: int, name: str = "t") -> list[FoundDeadLetter]:
    """Wait for so many dead letters, and for nothing to be on its way any more."""
    await settled(broker)
    topic = broker.topics.get(f"{name}.dlq")
    found = [f async for f in DeadLetterSearch(topic, DeadLetterQuery()).run()] if topic else []
    assert len(found) == count
    return found


async def settled(broker: Broker) -> None:
    await until(
        lambda: not any(p.outbox_entries for t in broker.topics.values() for p in t.partitions)
    )


async def put_back(broker: Broker, taking: RemovalRequest = ALL) -> RemovalResult:
    return await redrive(broker.topic("t.dlq"), broker.topic("t"), 0, taking)


def values(found: list[FoundDeadLetter]) -> list[bytes | None]:
    return [each.message.value for each in found]


async def copies(broker: Broker) -> Counter[bytes]:
    """Count the visible copies of each message: dead, or put back and not given up again."""
    count: Counter[bytes] = Counter()
    dead = broker.topics.get("t.dlq")
    if dead is not None:
        count.update(
            [f.message.value or b"" async for f in DeadLetterSearch(dead, DeadLetterQuery()).run()]
        )
    partition = broker.topic("t").partitions[0]
    for view in partition.read(0, messages_max=10_000).frames:
        messages = view.messages(0, view.header.message_count)
        for offset, message in enumerate(messages, view.header.base_offset):
            if read_dead_letter(message.headers).redrives and not given_up(partition, offset):
                count[message.value or b""] += 1
    return count


def given_up(partition: Partition, offset: int) -> bool:
    """Whether the group is done with a message; it acks none."""
    group = state_of(partition).group("g")
    held = any(part.start <= offset < part.end for part in group.outstanding())
    return offset in group.taken and not held


async def _live(broker: Broker) -> None:
    """Let messages die, put some back, and let some of those die again."""
    topic = broker.topic("t")
    found = await topic.receiver.receive("g", options(3))
    await reject_all(topic, found)
    found = await topic.receiver.receive("g", options(3))
    await reject_all(topic, found)
    await settled(broker)
    await put_back(broker, RemovalRequest(DeadLetterQuery(), (-1, -1), 4))
    await settled(broker)
    await purge(broker.topic("t.dlq"), RemovalRequest(DeadLetterQuery(), (-1, -1), 1, dry_run=True))
    found = await topic.receiver.receive("g", options(1))
    await reject_all(topic, found)
    await settled(broker)


def _check_all_crashes(seed: int, *, power: bool, step: int, frame_messages: int) -> int:
    """Crash at every ``step``-th operation of the disk; return how many crashes that were."""
    crashes = 0
    small = replace(QUICK, outbox_frame_messages=frame_messages)
    small_broker_on = partial(broker_on, Path("/simulated"), topic_parameters=small)

    async def begin(disk: SimulatedDisk, metadata: MemoryMetadata) -> None:
        async with small_broker_on(disk=disk, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1, {"delivery.max_attempts": 4})
            await publish(topic, *[b"%d" % n for n in range(6)])

    async def attempt(disk: SimulatedDisk, metadata: MemoryMetadata) -> bool:
        async with small_broker_on(disk=disk, metadata=metadata) as broker:
            live = asyncio.ensure_future(_live(broker))
            await until(lambda: live.done() or disk._crashing)
            live.cancel()
            await asyncio.wait([live])
            if not disk._crashing:
                live.result()
                assert sum((await copies(broker)).values()) == 6
            return disk._crashing

    async def check(disk: SimulatedDisk, metadata: MemoryMetadata) -> None:
        async with small_broker_on(disk=disk, metadata=metadata) as broker:
            await settled(broker)
            count = await copies(broker)
            for offset in range(6):
                gave_up = given_up(broker.topic("t").partitions[0], offset)
                assert count[b"%d" % offset] == gave_up, (offset, count)

    async def main() -> None:
        nonlocal crashes
        first, metadata = SimulatedDisk(random.Random(seed)), MemoryMetadata()
        await begin(first, metadata)
        at = 1 + seed % step
        while True:
            disk, known = first.copy(), _copied(metadata)
            disk.crash_at = disk.operations + at
            try:
                crashed = await attempt(disk, known)
            except Exception:
                if not disk._crashing:
                    raise
                crashed = True
            if not crashed:
                return
            disk.crash(power=power)
            await check(disk, known)
            crashes += 1
            at += step

    run(main())
    return crashes


def _copied(metadata: MemoryMetadata) -> MemoryMetadata:
    other = MemoryMetadata()
    other.epoch, other.rows = metadata.epoch, dict(metadata.rows)
    return other


@pytest.mark.parametrize("power", first_of([True, False], quick=1))
@pytest.mark.parametrize("small_segments", [False, True])
def test_wherever_the_process_ends_each_message_has_one_visible_copy(
    power: bool, small_segments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small_segments:
        monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 500)
        monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    assert _check_all_crashes(1, power=power, step=5, frame_messages=2) > 8


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_wherever_the_process_ends_at_length(seed: int) -> None:
    _check_all_crashes(seed, power=bool(seed % 2), step=1, frame_messages=1 + seed % 4)


def test_a_redrive_is_answered_when_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            await reject_all(topic, await topic.receiver.receive("g", options()))
            await died(broker, 1)
            disk.hold("")
            redriving = asyncio.ensure_future(put_back(broker))
            await until(disk.holding.is_set)
            assert not redriving.done()
            disk.release()
            assert (await redriving).removed == 1

    run(main())


def test_a_search_of_dead_letters_goes_on_behind_a_position(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            dead = await broker.topic_admin.create("t.dlq", 3)
            for number in range(3):
                await publish(dead, b"0", b"1", b"2", partition=number)
            query = DeadLetterQuery()
            search = DeadLetterSearch(dead, query, (1, 1)).run()
            found = [(each.partition, each.offset) async for each in search]
            assert found == [(1, 2), (2, 0), (2, 1), (2, 2)]

    run(main())


def test_dead_letters_wait_for_their_topic_and_none_is_lost(tmp_path: Path) -> None:
    disk, metadata, refused = BrokenDisk(), MemoryMetadata(), list[str]()

    def refuse(change: str) -> None:
        refused.append(change)
        raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, disk=disk, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b", b"c")
            metadata.before = refuse
            await reject_all(topic, await topic.receiver.receive("g", options(2)))
            await until(lambda: len(refused) > 3)
            disk.fail("append", "t.dlq", errno.ENOSPC)
            metadata.before = lambda _change: None
            await reject_all(topic, await topic.receiver.receive("g", options(2)))
            await until(lambda: "t.dlq" in broker.topics)
            await until(lambda: disk.count("append", "t.dlq") > 3)
            disk.heal()
            assert values(await died(broker, 3)) == [b"a", b"b", b"c"]

    run(main())


def test_what_was_under_way_goes_on_when_the_node_starts_again(
    tmp_path: Path,
) -> None:
    metadata = MemoryMetadata()

    def refuse(_change: str) -> None:
        raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            metadata.before = refuse
            await reject_all(topic, await topic.receiver.receive("g", options()))
        metadata.before = lambda _change: None
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            [letter] = await died(broker, 1)
            assert letter.letter.origin
            assert letter.letter.origin.reason == "bad"

    run(main())


def test_what_was_under_way_goes_on_when_its_partition_is_built_anew(tmp_path: Path) -> None:
    disk = BrokenDisk()

    async def main() -> None:
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            disk.fail("append", "t.dlq", errno.ENOSPC)
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
            await until(lambda: disk.count("append", "t.dlq") > 0)
            before = topic.partitions[0]
            disk.fail("append", "t/0/events", errno.ENOSPC)
            with pytest.raises(StorageFull):
                await reject_all(topic, await topic.receiver.receive("g", options(1)))
            disk.heal()
            await until(lambda: topic.partitions[0] is not before)
            assert values(await died(broker, 1)) == [b"a"]

    run(main())


def test_nothing_leaves_before_it_is_certain_that_it_does(tmp_path: Path) -> None:
    disk = BrokenDisk()

    async def main() -> None:
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            dead = await broker.topic_admin.create("t.dlq")
            found = await topic.receiver.receive("g", options())
            disk.hold("t/0/events")
            rejecting = asyncio.ensure_future(reject_all(topic, found))
            await until(disk.holding.is_set)
            for _ in range(5):  # time enough for the dead letter to get between
                await publish(dead, b"other")
            end_offset = dead.partitions[0].end_offset
            disk.release()
            assert end_offset == 5
            await rejecting
            assert values(await died(broker, 6)) == [b"other"] * 5 + [b"a"]

    run(main())


def test_a_message_that_cannot_be_read_any_more_leaves_a_trace(tmp_path: Path) -> None:
    metadata = MemoryMetadata()

    def refuse(_change: str) -> None:
        raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            for value in (b"a" * 1000, b"b" * 1000, b"c" * 1000):
                await publish(topic, value)
            metadata.before = refuse
            await reject_all(topic, await topic.receiver.receive("g", options()))
        [log] = (tmp_path / "topics/t/0/messages").glob("*.log")
        data = bytearray(log.read_bytes())
        at = data.index(b"b" * 1000)
        data[at + 500] ^= 1
        log.write_bytes(data)
        metadata.before = lambda _change: None
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            found = await died(broker, 3)
            assert values(found) == [b"a" * 1000, b"", b"c" * 1000]
            assert [each.letter.lost for each in found] == ["", "damaged", ""]
            assert [each.letter.origin.id for each in found if each.letter.origin] == [
                "t:0:0",
                "t:0:1",
                "t:0:2",
            ]
            took = await put_back(broker)
            assert (took.matched, took.removed, took.lost) == (3, 2, 1)
            await died(broker, 1)

    run(main())


def test_a_message_that_retention_deleted_on_its_way_leaves_a_trace(tmp_path: Path) -> None:
    metadata = MemoryMetadata()

    def refuse(_change: str) -> None:
        raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            await topic.partitions[0].trimmer.roll()
            await publish(topic, b"b")
            metadata.before = refuse
            await reject_all(topic, await topic.receiver.receive("g", options()))
            await trim(topic.partitions[0], 1)
            metadata.before = lambda _change: None
            found = await died(broker, 2)
            assert values(found) == [b"", b"b"]
            assert found[0].letter.lost == "deleted by retention"

    run(main())


def test_numbers_given_again_after_a_power_cut_are_not_taken_for_the_old_ones(
    tmp_path: Path,
) -> None:
    """The source lost its latest events; its topic of dead letters lost nothing."""
    metadata = MemoryMetadata()

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b", b"c")
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
            await died(broker, 1)
            await quiet(topic.partitions[0])
            copy_in_use(topic.directory / "0" / "events", tmp_path / "kept")
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
            await died(broker, 2)
        shutil.rmtree(tmp_path / "topics/t/0/events")
        shutil.move(tmp_path / "kept", tmp_path / "topics/t/0/events")
        async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = broker.topic("t")
            for expected in (b"b", b"c"):
                found = await topic.receiver.receive("g", options(1))
                assert [value for _, _, value in leased(found)] == [expected]
                await reject_all(topic, found)
            assert values(await died(broker, 4)) == [b"a", b"b", b"b", b"c"]

    run(main())


def test_dead_letters_go_on_where_their_topic_lost_some_to_a_power_cut(tmp_path: Path) -> None:
    metadata = MemoryMetadata()

    def refuse(_change: str) -> None:
        raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b", b"c", b"d")
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
            await died(broker, 1)
            await quiet(broker.topic("t.dlq").partitions[0])
            copy_in_use(tmp_path / "topics/t.dlq", tmp_path / "kept")
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
            await died(broker, 2)
            await broker.topic("t.dlq").close(StorageFull("gone"))
            await reject_all(topic, await topic.receiver.receive("g", options(1)))
        shutil.rmtree(tmp_path / "topics/t.dlq")
        shutil.move(tmp_path / "kept", tmp_path / "topics/t.dlq")
        for expected in ([b"a", b"c"], [b"a", b"c", b"d"]):
            async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
                topic = broker.topic("t")
                if len(expected) == 3:
                    await reject_all(topic, await topic.receiver.receive("g", options(1)))
                assert values(await died(broker, len(expected))) == expected

    run(main())


def test_a_topic_of_dead_letters_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            for expected in (b"a", b"b"):
                await reject_all(topic, await topic.receiver.receive("g", options(1)))
                assert values(await died(broker, 1)) == [expected]
                await broker.topic_admin.delete("t.dlq")

    run(main())


def test_a_topic_can_be_deleted_while_its_dead_letters_wait(tmp_path: Path) -> None:
    metadata = MemoryMetadata()

    def refuse(change: str) -> None:
        if change == "put_topic" and "t.dlq" not in metadata.rows:
            raise StorageFull("no room for a topic")

    async def main() -> None:
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            metadata.before = refuse
            await reject_all(topic, await topic.receiver.receive("g", options()))
            metadata.before = lambda _change: None
            await broker.topic_admin.delete("t")
            assert "t" not in broker.topics

    run(main())


def test_lane_and_tenant_go_along_and_times_stay_behind(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            now_ms = clock.wall_ms()
            columns = Columns(
                [b"a", b"b"],
                keys=[b"k", None],
                deliver_at_ms=[0, now_ms - 1],
                expires_at_ms=[now_ms + 60_000, 0],
                client_time_ms=[7, 8],
                dedup_ids=[b"1" * 16, bytes(16)],
                tenants=["x", None],
                lanes=[2, 0],
            )
            await _publish_frame(topic, FrameView.parse(encode_frame(columns)))
            await publish(topic, b"c")
            await reject_all(topic, await topic.receiver.receive("g", options()))
            await died(broker, 3)
            found: dict[bytes | None, tuple[object, ...]] = {}
            for view in broker.topic("t.dlq").partitions[0].read(0, messages_max=10).frames:
                got = view.columns(0, view.header.message_count)
                assert got.deliver_at_ms is got.expires_at_ms is got.dedup_ids is None
                for n, value in enumerate(got.values):
                    assert got.lanes is not None
                    assert got.tenants is not None
                    assert got.client_time_ms is not None
                    key = got.keys[n] if got.keys else None
                    found[value] = (key, got.lanes[n], got.tenants[n], got.client_time_ms[n])
            assert found == {
                b"a": (b"k", 2, "x", 7),
                b"b": (None, 0, None, 8),
                b"c": (None, 1, None, 0),
            }

    run(main())


async def _publish_frame(topic: Topic, view: FrameView) -> None:
    await topic.partitions[0].appender.publish(view)


def test_many_dead_letters_share_frames_and_large_ones_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"%d" % n for n in range(3000)])
            for _ in range(300):
                await reject_all(topic, await topic.receiver.receive("g", options(10)))
            found = await died(broker, 3000)
            assert values(found) == [b"%d" % n for n in range(3000)]
            large = bytes(6 * limits.MIB)
            for _ in range(3):
                await publish(topic, large)
            await reject_all(topic, await topic.receiver.receive("g", options(3, bytes_max=2**26)))
            await settled(broker)
            took = await put_back(broker)
            assert took.removed == 3003
            await settled(broker)
            await until(lambda: topic.partitions[0].end_offset == 6006)

    run(main())


def test_two_redrives_at_once_put_nothing_back_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"%d" % n for n in range(50)])
            await reject_all(topic, await topic.receiver.receive("g", options(50)))
            await died(broker, 50)
            took = await asyncio.gather(
                *(put_back(broker) for _ in range(3)), purge(broker.topic("t.dlq"), ALL)
            )
            assert sum(each.removed for each in took) == 50
            await settled(broker)
            back = took[0].removed + took[1].removed + took[2].removed
            assert sum((await copies(broker)).values()) == back

    run(main())


def test_a_message_that_expires_after_an_attempt_dies_with_its_past(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        settings = {"dead_letters.expired": "true", "delivery.backoff.initial": 0}
        async with quick_broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1, settings)
            columns = Columns([b"a"], expires_at_ms=[clock.wall_ms() + 1000])
            await _publish_frame(topic, FrameView.parse(encode_frame(columns)))
            found = await topic.receiver.receive("g", options())
            await nack(topic, "g", found)
            clock.advance_ms(2000)
            assert await topic.receiver.receive("g", options()) == []
            [letter] = await died(broker, 1)
            assert letter.letter.origin
            assert (letter.letter.origin.cause, letter.letter.origin.attempts) == ("ttl", 1)
            assert [f.reason for f in letter.letter.origin.failures] == ["busy"]

    run(main())


def test_each_of_many_tells_its_own_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1, {"delivery.ordering": "none"})
            await publish(topic, *[b"%d" % n for n in range(20)])
            for number in range(20):
                found = await topic.receiver.receive("g", options(20))
                some = [r for r in _single(found) if r.start < number]
                rest = [r for r in _single(found) if r.start >= number]
                await settle_nacked(topic, "g", some, reason="later")
                await settle_nacked(topic, "g", rest, reason="first")
            found = await topic.receiver.receive("g", options(20))
            await reject_all(topic, found)
            for letter in await died(broker, 20):
                assert letter.letter.origin
                reasons = [f.reason for f in letter.letter.origin.failures]
                firsts = max(0, min(9, letter.offset + 1 - 11))
                assert reasons == ["first"] * firsts + ["later"] * (9 - firsts) + ["bad"]

    run(main())


def _single(found: list[LeasedBatch]) -> list[Receipt]:
    return [Receipt(0, r.token, n, n + 1) for r in receipts(found) for n in range(r.start, r.end)]


def test_a_node_may_stop_while_a_topic_of_dead_letters_is_made(tmp_path: Path) -> None:
    disk, metadata = BrokenDisk(), MemoryMetadata()

    async def main() -> None:
        async with quick_broker_on(tmp_path, disk=disk, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            disk.hold("t.dlq", operation="make_dir")
            await reject_all(topic, await topic.receiver.receive("g", options()))
            await until(disk.holding.is_set)
            asyncio.get_running_loop().call_later(0.02, disk.release)
        async with quick_broker_on(tmp_path, disk=disk, metadata=metadata) as broker:
            assert values(await died(broker, 1)) == [b"a"]

    run(main())
