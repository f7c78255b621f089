"""Compacted topics at work: what stays, what groups get, what is said of what is gone."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goq.broker.broker import Broker
from goq.broker.events.replay import read_events
from goq.broker.log.pending_appends import PendingAppends
from goq.broker.partition.compactor import CompactionResources
from goq.broker.topic.publisher import PublishedMessage, RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.config.topic import Cleanup, TopicSettings
from goq.delivery.events.event import Cause, Compacted, Skipped
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import dedup_hash
from goq.frame.view import FrameView
from goq.model import Message
from goq.storage.compaction.checkpoint import (
    CleanerCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.verification import verify_log
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    nack,
    options,
    quiet,
    run,
    trim,
)
from tests.support.broker.partition_internals import event_log, message_log, state_of
from tests.support.eventually import until

Pair = tuple[bytes | None, bytes | None]
HOUR_US = 3_600_000_000
COMPACT = {"cleanup": "compact", "segment__bytes": "64KiB", "compaction__tombstone_retention": "1h"}


@asynccontextmanager
async def by_hand(path: Path, **given: Any) -> AsyncIterator[Broker]:
    """Run a broker that compacts only when it is told to."""
    async with broker_on(path, **given) as broker:
        assert broker.compaction_manager._task is not None
        broker.compaction_manager._task.cancel()
        yield broker


async def put(topic: Topic, *pairs: Pair, deliver_at_ms: int = 0) -> list[int]:
    """Publish messages, each in a frame of its own; return their offsets."""
    offsets = []
    for key, value in pairs:
        message = Message(value, key, deliver_at_ms=deliver_at_ms)
        (stored,) = await topic.publisher.publish_messages([RoutedMessage(0, message)])
        offsets.append(stored.offset)
    return offsets


async def seal(topic: Topic) -> None:
    await topic.partitions[0].trimmer.roll()


def served(topic: Topic) -> dict[int, Pair]:
    """Return every message that reading the log gives, by offset."""
    log, found = message_log(topic.partitions[0]), dict[int, Pair]()
    offset = log.start_offset
    while offset < log.end_offset:
        reading = log.reader.read(offset, log.end_offset)
        assert not reading.damage
        assert reading.next_offset > offset
        for view in reading.frames:
            found.update(kept_of(view))
        offset = reading.next_offset
    return found


def kept_of(view: FrameView) -> dict[int, Pair]:
    count, base = view.header.message_count, view.header.base_offset
    kept = zip(view.messages(0, count), view.kept(0, count), strict=True)
    return {base + row: (m.key, m.value) for row, (m, is_kept) in enumerate(kept) if is_kept}


async def got(topic: Topic, group: str, count: int = 10) -> list[tuple[int, bytes]]:
    """Receive, acknowledge, and return offsets and values until there is nothing more."""
    found: list[tuple[int, bytes]] = []
    while deliveries := await topic.receiver.receive(group, options(count)):
        found += [(offset, value) for offset, _, value in leased(deliveries)]
        await ack(topic, group, deliveries)
    return found


async def compacted(broker: Broker) -> int:
    return await broker.compaction_manager.apply()


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
            events = partition.event_end_offset
            assert await got(topic, "g") == [(500_000, b"last")]
            await quiet(partition)
            assert partition.event_end_offset - events < 20
            assert state_of(partition).group("g").taken.floor == 500_001

    run(work())


def test_what_was_leased_may_be_settled_although_it_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, delivery__ordering="none", **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
            held = await topic.receiver.receive("g", options(1))
            given = await topic.receiver.receive("g", options(1))
            assert [o for o, _, _ in leased([*held, *given])] == [0, 1]
            await put(topic, (b"a", b"2"), (b"b", b"2"))
            await seal(topic)
            assert await compacted(broker) == 2
            assert await ack(topic, "g", held) == 1
            assert await nack(topic, "g", given) == 1
            assert await got(topic, "g") == [(2, b"1"), (3, b"2"), (4, b"2")]
            assert not len(state_of(topic.partitions[0]).group("g").retries)
            assert state_of(topic.partitions[0]).group("g").taken.floor == 5

    run(work())


def test_a_delayed_message_that_is_gone_is_neither_delivered_nor_waited_for(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        due_ms = clock.wall_ms() + 10_000
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"late"), (b"b", b"late"), deliver_at_ms=due_ms)
            await put(topic, (b"a", b"now"))
            await seal(topic)
            assert await compacted(broker) == 1
            assert await got(topic, "g") == [(2, b"now")]
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = broker.topic("t")
            assert topic.partitions[0].delayed_count == 1
            assert await got(topic, "g") == []
            clock.advance_ms(10_000)
            topic.partitions[0]._timers._on_time()
            assert await got(topic, "g") == [(1, b"late")]
            assert state_of(topic.partitions[0]).group("g").taken.floor == 3

    run(work())


def test_nothing_is_left_of_old_generations(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(3):
                await put(topic, *[(b"%d" % n, bytes(20 << number)) for n in range(20)])
                await seal(topic)
                await compacted(broker)
            log = message_log(topic.partitions[0])
            logs = sorted(p.name for p in log.directory.glob("*.log*"))
            assert logs == [s.path.name for s in log.segments]
            assert all(s.index_path.exists() for s in log.segments[:-1])
            assert len(served(topic)) == 20
            report = verify_log(broker._disk, log.directory)
            assert not report.damage
            assert report.messages == 60

    run(work())


def test_small_segments_become_one_and_the_active_one_stays_apart(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for key in (b"a", b"b", b"c"):
                await put(topic, (key, b"1"))
                await seal(topic)
            await put(topic, (b"d", b"1"))
            await compacted(broker)
            found = message_log(topic.partitions[0]).segments
            assert [(s.base_offset, s.end_offset) for s in found] == [(0, 3), (3, 4)]
            assert len(served(topic)) == 4

    run(work())


@pytest.mark.parametrize("step", ["append", "replace", "rename"])
def test_what_is_deleted_while_it_is_merged_stays_deleted(tmp_path: Path, step: str) -> None:
    async def work() -> None:
        disk, metadata = BrokenDisk(), MemoryMetadata()
        async with by_hand(tmp_path, disk=disk, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for key in (b"a", b"b", b"c"):
                await put(topic, (key, b"1"))
                await seal(topic)
            disk.hold(f"t/0/messages/{0:020}.1.", operation=step)
            passing = asyncio.create_task(compacted(broker))
            await until(disk.holding.is_set)
            await trim(topic.partitions[0], 1)
            disk.release()
            assert await passing == 0
            assert served(topic) == {1: (b"b", b"1"), 2: (b"c", b"1")}
            log = message_log(topic.partitions[0])
            names = {path.name.partition(".")[0] for path in log.directory.glob("0*")}
            assert names == {segment.path.name.partition(".")[0] for segment in log.segments}
        async with by_hand(tmp_path, metadata=metadata, **COMPACT) as broker:
            assert served(broker.topic("t")) == {1: (b"b", b"1"), 2: (b"c", b"1")}

    run(work())


def test_neighbours_of_which_one_was_deleted_meanwhile_are_not_merged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        disk = BrokenDisk()
        async with by_hand(tmp_path, disk=disk, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(4):  # of which two fit into a segment
                await put(topic, (b"%d" % number, bytes(24_000)))
                await seal(topic)
            disk.hold(f"t/0/messages/{0:020}.1.", operation="rename")
            passing = asyncio.create_task(compacted(broker))
            await until(disk.holding.is_set)
            await trim(topic.partitions[0], 3)
            disk.release()
            assert await passing == 0
            assert list(served(topic)) == [3]
            assert "compaction failed" not in caplog.text

    run(work())


def test_what_is_not_on_all_replicas_yet_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for keys in ((b"a", b"b"), (b"c", b"d"), (b"e", b"f")):
                await put(topic, *[(key, b"1") for key in keys])
                await seal(topic)
            log = message_log(topic.partitions[0])
            for replicated_to, bases in ((3, [0, 2, 4, 6]), (4, [0, 4, 6]), (6, [0, 6])):
                monkeypatch.setattr(PendingAppends, "replicated_to", replicated_to)
                topic.partitions[0].compactor.progress = CleanerCheckpoint()
                await compacted(broker)
                assert [segment.base_offset for segment in log.segments] == bases
            assert len(served(topic)) == 6

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


def test_a_repeated_batch_is_known_although_all_of_it_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        metadata = MemoryMetadata()

        def batch(sequence: int) -> FrameView:
            mark = ProducerMark(7, 1, sequence)
            return FrameView.parse(encode_frame(Columns([b"v"], [b"k"]), producer=mark))

        async with by_hand(tmp_path, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for sequence in range(20):
                await topic.partitions[0].appender.publish(batch(sequence))
            await put(topic, (b"k", b"last"))
            await seal(topic)
            assert await compacted(broker) == 20
            assert (await topic.partitions[0].appender.publish(batch(19))).duplicate
        for path in (tmp_path / "topics" / "t" / "0" / "events").iterdir():
            path.unlink()  # so that producers are learned from the frames
        async with by_hand(tmp_path, metadata=metadata, **COMPACT) as broker:
            partition = broker.topic("t").partitions[0]
            again = await partition.appender.publish(batch(19))
            assert (again.offset, again.duplicate) == (19, True)
            assert (await partition.appender.publish(batch(20))).offset == 21

    run(work())


def test_a_dedup_id_is_known_for_its_window_although_its_message_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        given = {**COMPACT, "dedup__window": "2h"}
        first = Message(b"1", b"a", dedup_id=dedup_hash("once"))

        async def publish_it(topic: Topic) -> PublishedMessage:
            (stored,) = await topic.publisher.publish_messages([RoutedMessage(0, first)])
            return stored

        async with by_hand(tmp_path, clock=clock, metadata=metadata, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await publish_it(topic)
            await put(topic, (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 1
        clock.advance_ms(2 * 3_600_000 - 1)
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **given) as broker:
            stored = await publish_it(broker.topic("t"))
            assert (stored.offset, stored.is_repetition) == (0, True)
            clock.advance_ms(1)
            stored = await publish_it(broker.topic("t"))
            assert (stored.offset, stored.is_repetition) == (2, False)

    run(work())


def test_readers_and_consumers_go_on_while_segments_are_exchanged(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker_on(tmp_path, delivery__ordering="none", **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            log = message_log(topic.partitions[0])
            newest: dict[bytes, int] = {}
            is_over = False

            async def produce() -> None:
                nonlocal is_over
                for number in range(120):
                    pairs = [(b"%d" % (n % 7), b"%d" % number) for n in range(4)]
                    offsets = await put(topic, *pairs)
                    newest.update((pair[0], o) for pair, o in zip(pairs, offsets, strict=True))
                    if number % 10 == 9:
                        await seal(topic)
                is_over = True

            async def consume() -> list[int]:
                found = []
                while True:
                    was_over = is_over
                    some = [offset for offset, _ in await got(topic, "g", 5)]
                    found += some
                    if was_over and not some:
                        return found
                    await asyncio.sleep(0)

            async def read() -> int:
                rounds = 0
                while not is_over:
                    offsets = await asyncio.to_thread(lambda: list(served(topic)))
                    assert offsets == sorted(set(offsets))
                    rounds += 1
                return rounds

            _, found, rounds = await asyncio.gather(produce(), consume(), read())
            assert found == sorted(set(found))
            assert set(newest.values()) <= set(found)
            assert rounds > 1
            await until(lambda: any(s.generation for s in log.segments))
            assert state_of(topic.partitions[0]).group("g").taken.floor == log.end_offset

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


def test_what_is_given_up_after_it_has_gone_says_so_in_the_dead_letters(tmp_path: Path) -> None:
    async def work() -> None:
        given = {**COMPACT, "delivery__max_attempts": 1}
        async with by_hand(tmp_path, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"))
            held = await topic.receiver.receive("g", options(1))
            await put(topic, (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 1
            topic.partitions[0].leases._frames.clear()
            await nack(topic, "g", held)
            await until(lambda: "t.dlq" in broker.topics)
            dead = broker.topic("t.dlq")
            await until(lambda: dead.partitions[0].end_offset == 1)
            (view,) = dead.partitions[0].message_reader.read(0, 1).frames
            (message,) = view.messages(0, 1)
            assert (message.key, message.value) == (None, b"")
            assert b"compacted away" in [value for _, value in message.headers]
            assert dead.settings.cleanup is Cleanup.DELETE

    run(work())


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_retries_and_what_is_held_back_are_passed_over_when_they_are_gone(
    tmp_path: Path, ordering: str
) -> None:
    async def work() -> None:
        clock = ManualClock()
        given = {**COMPACT, "clock": clock, "delivery__ordering": ordering}
        async with by_hand(tmp_path, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"a", b"3"))
            first = await topic.receiver.receive("g", options(1))
            await topic.receiver.receive("other", options(2))
            await nack(topic, "g", first, delay_ms=1000)
            if ordering == "key":  # which puts the next of the key behind it
                assert [o for o, _ in await got(topic, "g")] == [2]
            await put(topic, (b"b", b"2"), (b"a", b"4"))
            await seal(topic)
            assert await compacted(broker) == 4
            topic.partitions[0].leases._frames.clear()
            clock.advance_ms(1000)
            topic.partitions[0]._timers._on_time()
            assert [o for o, _ in await got(topic, "g")] == [4, 5]
            group = state_of(topic.partitions[0]).group("g")
            assert (group.taken.floor, len(group.retries), group.locks.held_count) == (6, 0, 0)

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
