"""Passes over compacted topics: what stays, when they run, what they write, how they end."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from goq.broker.events.replay import read_events
from goq.broker.partition.compactor import CompactionResources
from goq.clock import ManualClock
from goq.config.topic import TopicSettings
from goq.delivery.events.event import Cause, Compacted, Skipped
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import CleanerCheckpoint, read_checkpoint, write_checkpoint
from tests.support.broker.compacted_topics import (
    COMPACT,
    HOUR_US,
    by_hand,
    compacted,
    got,
    put,
    seal,
    served,
)
from tests.support.broker.harness import BrokenDisk, MemoryMetadata, broker_on, quiet, run
from tests.support.broker.partition_internals import event_log, message_log, state_of
from tests.support.eventually import until


def test_the_newest_message_of_a_key_stays_at_its_offset(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"b", b"1"), (None, b"x"), (b"a", b"2"), (b"c", b"1"))
            await seal(topic)
            await put(topic, (b"b", b"2"))
            assert await compacted(broker) == 2
            expected = {2: (None, b"x"), 3: (b"a", b"2"), 4: (b"c", b"1"), 5: (b"b", b"2")}
            assert served(topic) == expected
            assert topic.partitions[0].log_start_offset == 0
            assert await got(topic, "fresh") == [(2, b"x"), (3, b"2"), (4, b"1"), (5, b"2")]

    run(work())


def test_what_is_in_the_active_segment_is_left_alone_and_counts_as_newer(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"))
            await seal(topic)
            await put(topic, (b"a", b"2"), (b"a", b"3"))
            assert await compacted(broker) == 1
            assert served(topic) == {1: (b"a", b"2"), 2: (b"a", b"3")}

    run(work())


def test_a_tombstone_stays_for_its_time_and_goes_at_it(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", None), (b"b", b"1"))
            await seal(topic)
            assert await compacted(broker) == 1
            assert served(topic) == {1: (b"a", None), 2: (b"b", b"1")}
            clock.advance_ms(3_600_000 - 1)
            assert await compacted(broker) == 0
            assert broker.compaction_manager._due_in_s() == pytest.approx(0.001)
            clock.advance_ms(1)
            assert await compacted(broker) == 1
            assert served(topic) == {2: (b"b", b"1")}
            assert broker.compaction_manager._due_in_s() is None

    run(work())


def test_a_tombstone_stays_for_its_time_though_the_clock_jumps_ahead(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", None), (b"b", b"1"))
            await seal(topic)
            assert await compacted(broker) == 1
            clock.jump_ms(30 * 24 * 3_600_000)
            assert await compacted(broker) == 0
            assert served(topic) == {1: (b"a", None), 2: (b"b", b"1")}
            clock.jump_ms(-30 * 24 * 3_600_000)
            clock.advance_ms(3_600_000)
            assert await compacted(broker) == 1

    run(work())


@pytest.mark.parametrize("passes_ahead", [True, False])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_tombstone_of_a_clock_that_was_ahead_is_as_old_as_what_comes_after_its_segment(
    tmp_path: Path, passes_ahead: bool, is_quiet: bool
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT, segment__age="2h") as broker:
            topic = await broker.topic_admin.create("t")
            clock.jump_ms(30 * 24 * 3_600_000)
            await put(topic, (b"a", b"1"), (b"a", None), (b"b", b"1"))
            await seal(topic)
            if passes_ahead:
                assert await compacted(broker) == 1
            clock.jump_ms(-30 * 24 * 3_600_000)
            if not is_quiet:
                await put(topic, (b"c", b"1"))
            assert await compacted(broker) == (0 if passes_ahead else 1)
            if is_quiet:  # the next pass is later: nothing tells how old it is
                await put(topic, (b"c", b"1"))
            clock.advance_ms((3 if is_quiet else 1) * 3_600_000 - 1)
            assert await compacted(broker) == 0
            assert broker.compaction_manager._due_in_s() == pytest.approx(0.001)
            clock.advance_ms(1)
            assert await compacted(broker) == 1
            assert set(served(topic)) == {2, 3}
            if not is_quiet:  # the last message may have been sealed by its age, and is due then
                assert broker.compaction_manager._due_in_s() is None

    run(work())


def test_what_no_pass_has_read_of_a_clock_that_was_ahead_is_read_in_time(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT, segment__age="2h") as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, *[(b"%d" % n, b"x" * 1000) for n in range(40)])
            await seal(topic)
            assert await compacted(broker) == 0
            clock.jump_ms(30 * 24 * 3_600_000)
            await put(topic, (b"0", None))
            await seal(topic)
            clock.jump_ms(-30 * 24 * 3_600_000)
            await put(topic, (b"c", b"1"))
            assert await compacted(broker) == 0
            clock.advance_ms(2 * 3_600_000)
            assert await compacted(broker) == 2
            assert set(served(topic)) == {*range(1, 40), 41}

    run(work())


def test_the_oldest_tombstone_of_all_segments_says_when_the_next_pass_is_due(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for key in (b"a", b"b", b"c"):
                await put(topic, (key, None))
                await seal(topic)
                clock.advance_ms(60_000)
            assert await compacted(broker) == 0
            due_us = topic.partitions[0].compactor.due_us(topic.settings)
            assert due_us == clock.wall_us() - 3 * 60_000_000 + HOUR_US

    run(work())


def test_a_tombstone_of_a_quiet_topic_goes_although_little_is_new(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with by_hand(tmp_path, clock=clock, **COMPACT, segment__age="2h") as broker:
            topic = await broker.topic_admin.create("t")
            compactor = topic.partitions[0].compactor
            await put(topic, *[(b"%d" % n, b"x" * 1000) for n in range(40)])
            await seal(topic)
            assert await compacted(broker) == 0
            assert compactor.due_us(topic.settings) is None
            await put(topic, (b"0", None))
            clock.advance_ms(2 * 3_600_000 - 1)
            await broker.retention_manager.apply()
            assert await compacted(broker) == 0
            clock.advance_ms(1)
            await broker.retention_manager.apply()  # seals: the segment has its age
            assert await compacted(broker) == 2
            assert set(served(topic)) == set(range(1, 40))
            assert compactor.due_us(topic.settings) is None
            await put(topic, (b"1", None))
            await seal(topic)
            assert await compacted(broker) == 0
            assert compactor.due_us(topic.settings) == clock.wall_us() + 2 * HOUR_US
            clock.advance_ms(2 * 3_600_000)
            assert await compacted(broker) == 2

    run(work())


def test_progress_and_the_times_of_tombstones_outlive_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", None), (b"b", b"1"))
            await seal(topic)
            assert await compacted(broker) == 1
        clock.advance_ms(3_600_000 - 1)
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = broker.topic("t")
            assert served(topic) == {1: (b"a", None), 2: (b"b", b"1")}
            assert await compacted(broker) == 0
            assert await got(topic, "g") == [(1, b""), (2, b"1")]
            clock.advance_ms(1)
            assert await compacted(broker) == 1
            assert served(topic) == {2: (b"b", b"1")}

    run(work())


def test_a_pass_waits_until_half_of_what_is_sealed_is_new(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, *[(b"%d" % n, b"v" * 100) for n in range(40)])
            await seal(topic)
            assert await compacted(broker) == 0
            await put(topic, *[(b"%d" % n, b"w" * 100) for n in range(10)])
            await seal(topic)
            assert await compacted(broker) == 0
            await put(topic, *[(b"%d" % n, b"x" * 100) for n in range(10, 40)])
            await seal(topic)
            assert await compacted(broker) == 40
            assert len(served(topic)) == 40

    run(work())


def test_a_topic_that_is_not_to_be_compacted_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, segment__bytes="64KiB") as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 0
            assert len(served(topic)) == 2
            await broker.topic_admin.alter("t", {"cleanup": "compact"})
            await compacted(broker)
            assert served(topic) == {1: (b"a", b"2")}

    run(work())


def test_very_many_gone_messages_are_passed_in_a_few_events(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            columns = Columns([b""] * 50_000, keys=[b"k"] * 50_000)
            data = encode_frame(columns)
            for _ in range(10):
                await topic.partitions[0].appender.publish(FrameView.parse(data))
            await put(topic, (b"k", b"last"))
            await seal(topic)
            assert await compacted(broker) == 500_000
            partition = topic.partitions[0]
            assert partition.size_bytes < 100_000
            events = partition.event_high_watermark
            assert await got(topic, "g") == [(500_000, b"last")]
            await quiet(partition)
            assert partition.event_high_watermark - events < 20
            assert state_of(partition).group("g").taken.floor == 500_001

    run(work())


def test_sealing_a_segment_has_it_compacted_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker_on(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            await until(lambda: message_log(topic.partitions[0]).segments[0].generation == 1)
            assert served(topic) == {1: (b"a", b"2")}

    run(work())


def test_what_is_gone_is_written_as_skipped_with_the_cause_and_the_swap_as_compacted(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            await compacted(broker)
            await got(topic, "g")
            partition = topic.partitions[0]
            await quiet(partition)
            log = event_log(partition)
            stored = read_events(log.reader, 0, log.end_offset)
            events = [each.event for each in stored if each is not None]
            assert Compacted(0, 2) in events
            assert Skipped("g", [(0, 1)], Cause.COMPACTED) in events

    run(work())


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "compaction failed")]
)
def test_a_pass_that_fails_leaves_the_topic_as_it_was_and_the_next_one_does_it(
    code: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        disk = BrokenDisk()
        async with by_hand(tmp_path, disk=disk, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            disk.fail("append", ".1.log", code)
            assert await compacted(broker) == 0
            assert len(served(topic)) == 2
            assert said in caplog.text
            disk.heal()
            assert await compacted(broker) == 1
            assert await put(topic, (b"b", b"1")) == [2]

    run(work())


def test_a_topic_may_be_deleted_and_the_node_stopped_in_the_middle_of_a_pass(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        disk = BrokenDisk()
        async with by_hand(tmp_path, disk=disk, **COMPACT) as broker:
            for name in ("first", "second"):
                topic = await broker.topic_admin.create(name)
                await put(topic, (b"a", b"1"), (b"a", b"2"))
                await seal(topic)
            disk.hold("first/0/messages/00000000000000000000.1.log", operation="append")
            passing = asyncio.create_task(compacted(broker))
            await until(disk.holding.is_set)
            deleting = asyncio.create_task(broker.topic_admin.delete("first"))
            await asyncio.sleep(0)
            disk.release()
            await deleting
            await passing
            assert not (tmp_path / "topics" / "first").exists()
            assert served(broker.topic("second")) == {1: (b"a", b"2")}

    run(work())


def test_a_pass_that_is_stopped_ends_at_the_next_frame_and_is_the_last(tmp_path: Path) -> None:
    async def work() -> None:
        disk = BrokenDisk()
        async with by_hand(tmp_path, disk=disk, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            compactor = topic.partitions[0].compactor
            await put(topic, *[(b"a", bytes(1000))] * 20)
            await seal(topic)
            now_us = broker.clock.wall_us()
            means = CompactionResources(broker.executor, bytes(16), keys_max=100, now_us=now_us)
            assert await compactor.is_due(topic.settings, means)
            disk.hold("t/0/messages", operation="read")
            passing = asyncio.create_task(compactor.run(topic.settings, means))
            await until(disk.holding.is_set)
            stopping = asyncio.create_task(compactor.stop())
            await asyncio.sleep(0.01)
            assert not stopping.done(), "it waits for the pass"
            disk.release()
            await stopping
            assert await passing == 0
            assert message_log(topic.partitions[0]).segments[0].generation == 0
            assert not list(tmp_path.rglob("*.new"))
            assert not await compactor.is_due(topic.settings, means)
            assert await compactor.run(topic.settings, means) == 0
            assert len(served(topic)) == 20

    run(work())


def test_a_pass_without_progress_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            compactor, passes = topic.partitions[0].compactor, list[CleanerCheckpoint | None]()
            run_pass = compactor.run

            async def counted(settings: TopicSettings, means: CompactionResources) -> int:
                assert len(passes) < 3, "nothing is left to do"
                passes.append(compactor.progress)
                return await run_pass(settings, means)

            async def is_due(settings: TopicSettings, means: CompactionResources) -> bool:
                compactor.progress = compactor.progress or CleanerCheckpoint()
                return True

            monkeypatch.setattr(compactor, "run", counted)
            monkeypatch.setattr(compactor, "is_due", is_due)
            assert await compacted(broker) == 1
            assert passes == [CleanerCheckpoint(), CleanerCheckpoint(2)]

    run(work())


def test_more_keys_than_there_is_memory_for_take_more_passes(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            broker.compaction_manager._keys_max = 3
            topic = await broker.topic_admin.create("t")
            await put(topic, *[(b"%d" % (n % 10), b"%d" % n) for n in range(30)])
            await seal(topic)
            while await compacted(broker):
                pass
            partition = topic.partitions[0]
            assert partition.compactor.progress is not None
            assert partition.compactor.progress.compacted_to > 15
            left = served(topic)
            assert {left[o][0] for o in range(20, 30)} == {b"%d" % n for n in range(10)}
            assert len(left) < 30

    run(work())


def test_progress_of_another_log_is_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            log = message_log(topic.partitions[0])
            write_checkpoint(broker._disk, log.directory, CleanerCheckpoint(1000, 0))
            await put(topic, (b"a", b"1"), (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 1
            assert read_checkpoint(broker._disk, log.directory) == CleanerCheckpoint(2, 0)

    run(work())
