"""Retention comes when it is due, and leaves what is protected."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.retention_manager import RetentionManager
from goq.broker.retention.retention_policy import first_protected_offset
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import StorageFull
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage
from tests.support.broker.harness import BrokenDisk, ack, broker_on, nack, options, publish, run
from tests.support.broker.partition_internals import message_log, state_of
from tests.support.eventually import until

SECOND_US = 1_000_000
HOUR_MS = 3_600_000


class Pauses:
    """The manager's sleep, which ends when the test says so or when the manager is woken."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lengths: list[float] = []
        self.is_over = asyncio.Event()

    async def wait(self, woken: asyncio.Event, timeout_s: float) -> None:
        self.lengths.append(timeout_s)
        ended = [asyncio.ensure_future(e.wait()) for e in (woken, self.is_over)]
        try:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ended:
                task.cancel()
        self.is_over.clear()

    async def next(self) -> float:
        """Return how long the manager sleeps after the pause before."""
        count = len(self.lengths)
        await until(lambda: len(self.lengths) > count)
        return self.lengths[-1]

    async def end(self) -> float:
        """Let the pause end when it would; return the next one."""
        self.clock.now_us += int(self.lengths[-1] * SECOND_US) + 1
        self.is_over.set()
        return await self.next()


async def with_retention_manager(
    broker: Broker,
    clock: ManualClock,
    work: Callable[[Pauses], Awaitable[None]],
    replica_start_offset: Callable[[Partition], int | None] = lambda _partition: None,
) -> None:
    """Run a manager whose sleep the test ends, in the place of the broker's own."""
    assert broker._retention_task is not None
    assert broker._context is not None
    broker._retention_task.cancel()
    pauses = Pauses(clock)
    broker.retention_manager = manager = RetentionManager(
        broker.topics,
        broker._context,
        broker.metadata,
        broker.archive,
        replica_start_offset=replica_start_offset,
        wait=pauses.wait,
    )
    for topic in broker.topics.values():
        manager.wake_topic(topic)
    task = asyncio.ensure_future(manager.run())
    try:
        await pauses.next()
        await work(pauses)
    finally:
        task.cancel()


def test_a_message_of_an_idle_topic_goes_when_it_is_too_old_and_not_before(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        settings = {"retention__age": "1h", "segment__age": "30m"}
        async with broker_on(tmp_path, clock=clock, **settings) as broker:
            topic = await broker.topic_admin.create("t", 1)
            messages = message_log(topic.partitions[0])
            published_us = clock.now_us
            await publish(topic, b"x")

            async def work(pauses: Pauses) -> None:
                while len(messages.segments) == 1:
                    assert await pauses.end() <= 60
                sealed_us = clock.now_us - published_us
                assert 1800 * SECOND_US <= sealed_us < 1801 * SECOND_US
                while messages.start_offset == 0:
                    assert await pauses.end() <= 60
                deleted_us = clock.now_us - published_us
                assert 3600 * SECOND_US < deleted_us < 3601 * SECOND_US
                assert len(pauses.lengths) < 80

            await with_retention_manager(broker, clock, work)

    run(main())


def test_a_clock_that_is_set_forward_is_noticed_within_a_minute(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="7d") as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"x")
            await topic.partitions[0].trimmer.roll()

            async def work(pauses: Pauses) -> None:
                assert pauses.lengths[-1] == 60
                clock.advance_ms(8 * 24 * HOUR_MS)
                await pauses.end()
                assert topic.partitions[0].log_start_offset == 1

            await with_retention_manager(broker, clock, work)

    run(main())


def test_messages_go_again_by_age_once_a_clock_that_was_ahead_is_set_right(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        settings = {"retention__age": "2h", "segment__age": "1h"}
        async with broker_on(tmp_path, clock=clock, **settings) as broker:
            clock.jump_ms(400 * 24 * HOUR_MS)
            topic = await broker.topic_admin.create("t", 1)
            messages = message_log(topic.partitions[0])
            await publish(topic, b"by a clock that is ahead")

            async def work(pauses: Pauses) -> None:
                clock.jump_ms(-400 * 24 * HOUR_MS)
                for _ in range(3):
                    await pauses.end()
                assert len(messages.segments) == 2, "what the clock ahead began is sealed"
                assert messages.start_offset == 0
                published_us = clock.now_us
                await publish(topic, b"by the right one")
                while messages.start_offset == 0 and len(pauses.lengths) < 300:
                    await pauses.end()
                deleted_us = clock.now_us - published_us
                assert 7200 * SECOND_US < deleted_us < 7300 * SECOND_US
                while messages.start_offset == 1 and len(pauses.lengths) < 500:
                    await pauses.end()
                deleted_us = clock.now_us - published_us
                assert messages.start_offset == 2
                assert deleted_us < 4 * 3600 * SECOND_US

            await with_retention_manager(broker, clock, work)

    run(main())


def test_nothing_is_looked_at_while_nothing_is_due(tmp_path: Path) -> None:
    async def main() -> None:
        clock, disk = ManualClock(), BrokenDisk()
        async with broker_on(tmp_path, clock=clock, disk=disk) as broker:
            topic = await broker.topic_admin.create("t", 5)
            await publish(topic, b"x")

            async def work(pauses: Pauses) -> None:
                before = len(disk.operations)
                for _ in range(50):
                    assert await pauses.end() == 60
                assert len(disk.operations) == before

            await with_retention_manager(broker, clock, work)

    run(main())


def test_a_sealed_segment_changed_settings_and_new_topics_wake_the_keeper(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)

            async def work(pauses: Pauses) -> None:
                (partition,) = topic.partitions
                await publish(topic, bytes(100_000))
                await partition.trimmer.roll()
                await pauses.next()
                await broker.topic_admin.alter("t", {"retention.bytes": "64KiB"})
                await until(lambda: partition.log_start_offset == 1)
                await publish(topic, bytes(100_000))
                await partition.trimmer.roll()  # one more is too much by itself
                await until(lambda: partition.log_start_offset == 2)
                await broker.topic_admin.create("other", 1)
                await broker.topic_admin.alter("other", {"segment.age": "7s"})
                await until(lambda: pauses.lengths[-1] == 7)

            await with_retention_manager(broker, clock, work)

    run(main())


def test_what_replicas_need_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        clock, needed = ManualClock(), [1]
        async with broker_on(tmp_path, clock=clock, retention__age="1h") as broker:
            topic = await broker.topic_admin.create("t", 1)
            for _ in range(3):
                await publish(topic, b"x")
                await topic.partitions[0].trimmer.roll()
            clock.advance_ms(2 * HOUR_MS)

            async def work(pauses: Pauses) -> None:
                assert topic.partitions[0].log_start_offset == 1
                assert pauses.lengths[-1] == 60
                needed[0] = 3
                await pauses.end()
                assert topic.partitions[0].log_start_offset == 3

            await with_retention_manager(broker, clock, work, lambda _partition: needed[0])

    run(main())


async def six_segments(topic: Topic) -> Partition:
    for number in range(6):
        await publish(topic, b"%d" % number * 40_000)
        await topic.partitions[0].trimmer.roll()
    return topic.partitions[0]


@pytest.mark.parametrize("bound", ["age", "bytes"])
@pytest.mark.parametrize(("state", "kept_from"), [("ready", 3), ("leased", 1), ("retry", 2)])
def test_what_a_protected_group_has_not_done_is_kept(
    bound: str, state: str, kept_from: int, tmp_path: Path
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await broker.group_admin.remember(topic, "careless")
            await broker.group_admin.configure(topic, "g", {"retention.protect_unread": "true"})
            partition = await six_segments(topic)
            for offset in range(3):
                found = await topic.receiver.receive("g", options(1, visibility_ms=100 * HOUR_MS))
                if state == "leased" and offset == 1:
                    continue
                if state == "retry" and offset == 2:
                    await nack(topic, "g", found, 100 * HOUR_MS)
                else:
                    await ack(topic, "g", found)
            if bound == "age":
                clock.advance_ms(8 * 24 * HOUR_MS // 2)
                await broker.topic_admin.alter("t", {"retention.age": "1h"})
            else:
                await broker.topic_admin.alter("t", {"retention.bytes": "64KiB"})
            await broker.retention_manager.apply()
            assert partition.log_start_offset == kept_from
            await broker.group_admin.configure(topic, "g", {"retention.protect_unread": "false"})
            await broker.retention_manager.apply()
            assert partition.log_start_offset >= 5

    run(main())


def test_protection_is_the_topics_setting_where_a_group_has_none_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        settings = {"retention__age": "1h", "retention__protect_unread": "true"}
        async with broker_on(tmp_path, clock=clock, **settings) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await broker.group_admin.configure(topic, "own", {"retention.protect_unread": "false"})
            partition = await six_segments(topic)
            clock.advance_ms(2 * HOUR_MS)
            await broker.retention_manager.apply()
            assert partition.log_start_offset == 6, "nobody is protected"
            partition = await six_segments(topic)
            await broker.group_admin.remember(topic, "g")
            clock.advance_ms(2 * HOUR_MS)
            await broker.retention_manager.apply()
            assert partition.log_start_offset == 6, "the group has not begun"
            await ack(topic, "g", await topic.receiver.receive("g", options(4)))
            await broker.retention_manager.apply()
            assert partition.log_start_offset == 10
            await broker.group_admin.delete(topic, "g")
            await broker.retention_manager.apply()
            assert partition.log_start_offset == 12

    run(main())


@pytest.mark.parametrize("seed", range(15))
def test_the_first_unread_is_what_looking_at_every_message_finds(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)

    def naive(topic: Topic, partition: Partition) -> int | None:
        state, found = state_of(partition), []
        for name in topic.groups:
            if not topic.settings_of(name).protect_unread:
                continue
            group = state.group(name)
            held = {o for part in group.outstanding() for o in range(part.start, part.end)}
            for offset in range(state.start_offset, state.end_offset):
                damaged = any(r.start <= offset < r.end for r in state.corrupt)
                if not damaged and (offset in held or offset not in group.taken):
                    found.append(offset)
                    break
        return min(found, default=None)

    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, fsync="never") as broker:
            topic = await broker.topic_admin.create("t", 1)
            (partition,) = topic.partitions
            for name in ("a", "b", "c"):
                protect = str(chance.random() < 0.6).lower()
                await broker.group_admin.configure(
                    topic, name, {"retention.protect_unread": protect}
                )
            for _ in range(40):
                group = chance.choice(["a", "b", "c"])
                kind = chance.random()
                if kind < 0.3:
                    await publish(topic, *[b"x"] * chance.randint(1, 5))
                elif kind < 0.35:
                    at = chance.randint(0, partition.end_offset)
                    partition.note_damage(Damage(Path(), 0, 0, at, at + 2, "test"))
                elif kind < 0.4:
                    await partition.reset(group, chance.randint(0, partition.end_offset))
                elif found := await topic.receiver.receive(group, options(chance.randint(1, 6))):
                    if kind < 0.8:
                        await ack(topic, group, found)
                    elif kind < 0.9:
                        await nack(topic, group, found, 1000)
                assert first_protected_offset(topic, partition) == naive(topic, partition)

    run(main())


def test_without_room_for_the_archive_nothing_is_deleted_and_one_warning_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock, disk = ManualClock(), BrokenDisk()
        settings = {"retention__bytes": "64KiB", "archive": "true"}
        async with broker_on(tmp_path, clock=clock, disk=disk, **settings) as broker:
            topic = await broker.topic_admin.create("t", 1)
            disk.fail("append", ".log.zst.part", errno.ENOSPC)

            async def work(pauses: Pauses) -> None:
                partition = await six_segments(topic)
                await until(lambda: topic.stats.retention_stalls > 0)
                while topic.stats.retention_stalls < 2:
                    await pauses.end()
                assert partition.log_start_offset == 0
                assert caplog.text.count("the disk is full") == 1
                disk.heal()
                while partition.log_start_offset != 5:
                    await pauses.end()

            await with_retention_manager(broker, clock, work)

    run(main())


def test_files_that_a_full_disk_left_are_removed_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            partition = await six_segments(topic)
            log = message_log(partition)
            folder, deleted_count = log.directory, log.segments[5].base_offset
            delete_segments, refusals = broker.metadata.delete_segments, [StorageFull("no room")]

            async def refuse_once(keys: Any) -> None:
                if refusals:
                    raise refusals.pop()
                await delete_segments(keys)

            monkeypatch.setattr(broker.metadata, "delete_segments", refuse_once)

            async def work(pauses: Pauses) -> None:
                await broker.topic_admin.alter("t", {"retention.bytes": "64KiB"})
                await until(lambda: topic.stats.retention_stalls > 0)
                assert partition.log_start_offset == 5
                assert topic.stats.deleted_messages == deleted_count
                assert len(list(folder.glob("*.log"))) == 7
                while len(list(folder.glob("*.log"))) != 2:
                    assert await pauses.end() <= 60
                assert topic.stats.deleted_messages == deleted_count

            await with_retention_manager(broker, clock, work)

    run(main())


def test_a_topic_that_is_archived_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="none") as broker:
            topics = {
                name: await broker.topic_admin.create(name, 1) for name in ("a", "b", "plain")
            }
            for name, topic in topics.items():
                for _ in range(1 if name == "b" else 3):
                    await publish(topic, b"x")
                    await topic.partitions[0].trimmer.roll()
            turns: list[str] = []
            gate = asyncio.Event()

            async def slowly(identity: PartitionId, log: str, segment: Segment) -> Any:
                if log == "messages":
                    turns.append(identity.topic)
                    await gate.wait()
                return await Archiver.archive_segment(broker.archive, identity, log, segment)

            monkeypatch.setattr(broker.archive, "archive_segment", slowly)
            clock.advance_ms(2 * HOUR_MS)
            try:
                for name in topics:
                    settings = {"retention.age": "1h", "archive": str(name != "plain").lower()}
                    await broker.topic_admin.alter(name, settings)
                    await until(lambda: turns == ["a"])
                await until(lambda: topics["plain"].partitions[0].log_start_offset == 3)
                assert turns == ["a"]
            finally:
                gate.set()
            await until(lambda: topics["a"].partitions[0].log_start_offset == 3)
            assert topics["b"].partitions[0].log_start_offset == 1
            assert turns == ["a", "b", "a", "a"]

    run(main())


def test_a_segment_that_is_sealed_makes_room_without_waiting_for_the_next_check(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        sizes = {"retention__bytes": "64KiB", "segment__bytes": "64KiB"}
        async with broker_on(tmp_path, **sizes) as broker:
            topic = await broker.topic_admin.create("t")
            (partition,) = topic.partitions
            for _ in range(4):
                await publish(topic, bytes(70_000))
            await until(lambda: partition.log_start_offset == 3)

    run(main())


def test_a_partition_or_topic_that_is_gone_keeps_the_others_from_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        sizes = {"retention__bytes": "64KiB", "segment__bytes": "64KiB"}
        async with broker_on(tmp_path, **sizes) as broker:
            topic = await broker.topic_admin.create("t")
            (partition,) = topic.partitions
            for gone in (PartitionId("t", 7, topic.id), PartitionId("none", 0, 9)):
                broker.retention_manager.wake(gone)
            for _ in range(2):
                await publish(topic, bytes(70_000))
            await until(lambda: partition.log_start_offset == 1)
            await broker.retention_manager.apply()

    run(main())


@pytest.mark.parametrize("is_closed", [False, True], ids=["there", "gone"])
def test_a_failure_in_a_partition_that_is_there_is_logged_and_tried_again_in_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")

            async def fail() -> int | None:
                if is_closed:
                    await broker.topic_admin.delete("t")
                raise RuntimeError("a segment is not as it was")

            (partition,) = topic.partitions
            again_us = await broker.retention_manager._run_logged(topic, partition, fail)
            assert again_us == clock.wall_us() + 60 * SECOND_US
            logged = [each for each in caplog.messages if "retention failed" in each]
            assert len(logged) == (not is_closed)

    run(main())
