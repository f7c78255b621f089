"""Features that were built apart: what each says of what the others did."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goq import limits
from goq.api.schemas.groups import GroupOut
from goq.api.views.group_at_time import GroupAtTimeView
from goq.broker.broker import Broker
from goq.broker.dlq.redrive import RemovalRequest, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.retention.tiered_log import tiered_logs
from goq.broker.search.finder import TopicSearch
from goq.broker.search.partition_search import MessageQuery
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.broker.trace.trace import Trace
from goq.broker.trace.tracer import Tracer
from goq.clock import ManualClock
from goq.errors import CorruptData, GroupNotFound, HistoryNotRetained, MessageNotFound
from goq.model import Message, MessageId, Receipt
from goq.storage.log.reader import LogReader
from goq.storage.log.time_range_reader import TimeRange, read_time_range
from goq.units import format_time_us
from tests.support.broker.harness import (
    MemoryMetadata,
    ack,
    broker_on,
    options,
    quiet,
    receipts,
    run,
    settle_acked,
    settle_nacked,
)
from tests.support.broker.partition_internals import event_log, event_writer, message_log, state_of
from tests.support.effort import first_of
from tests.support.eventually import until

HOUR_MS = 3_600_000
ARCHIVE = {"retention__age": "1h", "segment__bytes": "64KiB", "archive": "true"}


@pytest.fixture
def _small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events, and blocks of their index, that a few steps fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 600)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    monkeypatch.setattr(limits, "EVENT_INDEX_BLOCK_BYTES", 300)


class World:
    """A broker that may be started again, with its clock and its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.metadata = MemoryMetadata()

    @asynccontextmanager
    async def broker(self, **settings: Any) -> AsyncIterator[Broker]:
        """Run the broker; nothing is compacted or deleted but when it is told to."""
        async with broker_on(
            self.path, clock=self.clock, metadata=self.metadata, **settings
        ) as broker:
            assert broker.compaction_manager._task is not None
            broker.compaction_manager._task.cancel()
            yield broker


async def put(topic: Topic, value: bytes, client_id: str | None = None, **more: Any) -> int:
    """Publish a message; return its offset."""
    placed = [RoutedMessage(0, Message(value, **more))]
    (stored,) = await topic.publisher.publish_messages(placed, client_id)
    return stored.offset


async def take(topic: Topic, group: str = "g", count: int = 10) -> int:
    """Receive and acknowledge; return how many."""
    return await ack(topic, group, await topic.receiver.receive(group, options(count)))


async def rejected(topic: Topic, group: str, given: Sequence[Receipt]) -> None:
    """Reject what was received."""

    await topic.settler.reject(group, given, "")


async def refuse(topic: Topic, group: str = "g") -> None:
    """Receive and reject, and have the dead letters arrive."""
    await rejected(topic, group, receipts(await topic.receiver.receive(group, options())))
    await settled(topic)


async def settled(topic: Topic) -> None:
    """Return when all that leaves has arrived, and everything is written."""
    await until(lambda: not any(p.outbox_entries for p in topic.partitions))
    for partition in topic.partitions:
        await quiet(partition)


async def retire(broker: Broker, clock: ManualClock, topic: Topic) -> None:
    """Seal what there is, and let retention have it."""
    await topic.partitions[0].trimmer.roll()
    clock.advance_ms(2 * HOUR_MS)
    await broker.retention_manager.apply()


def names(trace: Trace) -> list[str]:
    return [str(each.step.name) for each in trace.steps]


async def trace_of(broker: Broker, offset: int, topic: str = "t") -> Trace:
    return await Tracer(broker).trace(MessageId(topic, 0, offset))


WHOLE_LIFE = ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED", "ARCHIVED"]


@pytest.mark.usefixtures("_small_events")
def test_an_archived_message_is_told_of_in_full(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(12):
                await put(topic, b"%d" % number, "shop")
                await take(topic)
                await retire(broker, world.clock, topic)
            partition = topic.partitions[0]
            assert partition.log_start_offset == 12
            assert event_log(partition).start_offset > 0, "events have gone to the archive"
            for _ in range(2):
                for offset in range(12):
                    await check_whole_life(broker, offset)
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(12):
                await check_whole_life(broker, offset)

    async def check_whole_life(broker: Broker, offset: int) -> None:
        trace = await trace_of(broker, offset)
        assert names(trace) == WHOLE_LIFE
        assert not trace.incomplete
        assert trace.message.state == "archived"
        assert trace.message.producer == "shop"
        assert trace.message.retained_until_us is None
        assert trace.message.message is not None
        assert trace.message.message.value == b"%d" % offset

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_the_dead_letter_of_an_archived_message_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, b"x")
            await refuse(topic)
            await retire(broker, world.clock, topic)
            await retire(broker, world.clock, broker.topic("t.dlq"))
        async with world.broker(**ARCHIVE) as broker:
            for asked in ("t", "t.dlq"):
                trace = await trace_of(broker, 0, asked)
                assert sorted(names(trace)) == sorted(
                    ["PUBLISHED", "DELIVERED", "REJECTED", "DEAD_LETTERED", "ARCHIVED"]
                    + ["PUBLISHED"]
                    + ["ARCHIVED"] * (broker.topic("t.dlq").partitions[0].log_start_offset > 0)
                )
                assert [each.id.topic for each in trace.copies] == [
                    "t.dlq" if asked == "t" else "t"
                ]

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("damage", ["no spans", "bad spans", "cut spans"])
def test_the_index_of_archived_events_may_be_missing_or_wrong(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 8)
        found = list((tmp_path / "archive/t/0/events").glob("*.spans"))
        assert found
        for path in found:
            data = path.read_bytes()
            path.unlink()
            if damage == "bad spans":
                path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
            elif damage == "cut spans":
                path.write_bytes(data[: len(data) // 2])
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(8):
                trace = await trace_of(broker, offset)
                assert names(trace) == WHOLE_LIFE
                assert not trace.incomplete

    run(main())


async def life(world: World, broker: Broker, count: int) -> None:
    topic = await broker.topic_admin.create("t")
    for number in range(count):
        await put(topic, b"%d" % number, "shop", key=b"k%d" % (number % 2))
        await take(topic)
        await retire(broker, world.clock, topic)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 0x40
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
@pytest.mark.parametrize("with_spans", [True, False])
def test_damaged_archives_of_events_leave_steps_out_and_say_so(
    tmp_path: Path, harm: Callable[[Path], object], with_spans: bool
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 8)
        events = tmp_path / "archive/t/0/events"
        files = sorted(events.glob("*.log.zst"))
        assert len(files) >= 2
        harm(files[1])
        if not with_spans:
            for path in events.glob("*.spans"):
                path.unlink()
        async with world.broker(**ARCHIVE) as broker:
            told = 0
            for offset in range(8):
                trace = await trace_of(broker, offset)
                assert trace.message.state == "archived"
                if trace.incomplete:
                    assert set(names(trace)) <= set(WHOLE_LIFE)
                    told += 1
                else:
                    assert names(trace) == WHOLE_LIFE
            assert told

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
def test_a_message_in_a_damaged_archive_is_told_of_as_damaged(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 5)
        harm(tmp_path / "archive/t/0/messages" / f"{2:020}.log.zst")
        async with world.broker(**ARCHIVE) as broker:
            for offset in range(5):
                trace = await trace_of(broker, offset)
                if offset == 2:
                    assert trace.message.state == "damaged"
                    assert names(trace) == WHOLE_LIFE[1:]
                else:
                    assert names(trace) == WHOLE_LIFE
            found = await broker.finder.find(broker.topic("t"), MessageQuery(key=b"k0"), 10, None)
            assert [each.offset for each in found.found] == [4, 0]
            assert found.unreadable == (harm is Path.unlink)

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_what_was_deleted_before_there_was_an_archive_is_not_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**{**ARCHIVE, "archive": "false"}) as broker:
            await life(world, broker, 6)
            await broker.topic_admin.alter("t", {"archive": "true"})
            topic = broker.topic("t")
            for number in range(6, 12):
                await put(topic, b"%d" % number, "shop")
                await take(topic)
                await retire(broker, world.clock, topic)
            with pytest.raises(MessageNotFound, match="retention deleted it before"):
                await trace_of(broker, 0)
            for offset in range(6, 12):
                trace = await trace_of(broker, offset)
                assert names(trace) == WHOLE_LIFE
                assert not trace.incomplete

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_steps_that_were_deleted_while_the_archive_was_off_are_said_to_lack(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 4)
            topic = broker.topic("t")
            kept = await put(topic, b"kept")
            await retire(broker, world.clock, topic)
            await broker.topic_admin.alter("t", {"archive": "false"})
            for number in range(8):
                gone = await put(topic, b"%d" % number)
                await take(topic)
                await retire(broker, world.clock, topic)
            await broker.topic_admin.alter("t", {"archive": "true"})
            for number in range(8):
                last = await put(topic, b"%d" % number)
                await take(topic)
                await retire(broker, world.clock, topic)
            trace = await trace_of(broker, kept)
            assert trace.message.state == "archived"
            assert names(trace) == WHOLE_LIFE or trace.incomplete
            for offset in range(kept, gone + 1):
                try:
                    trace = await trace_of(broker, offset)
                except MessageNotFound:
                    continue
                assert trace.message.state in ("deleted", "archived")
                assert trace.incomplete or "ACKNOWLEDGED" in names(trace)
            trace = await trace_of(broker, last)
            assert names(trace) == WHOLE_LIFE
            assert not trace.incomplete

    run(main())


async def pages(broker: Broker, wanted: MessageQuery, limit: int) -> list[int]:
    """Return the offsets that all pages of a search have."""
    found: list[int] = []
    cursor = None
    while True:
        page = await broker.finder.find(broker.topic("t"), wanted, limit, cursor)
        assert not page.unreadable
        found += [each.offset for each in page.found]
        cursor = page.next
        if cursor is None:
            return found


BY_KEY, BY_HEADER = MessageQuery(key=b"k"), MessageQuery(header=("h", b"1"))
BY_DEDUP_ID = MessageQuery(dedup_id=b"d" * 16)


async def searchable(world: World, broker: Broker) -> None:
    """Publish 24 messages in as many segments, of which each third is looked for."""
    topic = await broker.topic_admin.create("t")
    for number in range(24):
        if number % 3:
            await put(topic, b"other", key=b"other")
        else:
            await put(topic, b"x", key=b"k", headers=(("h", b"1"),), dedup_id=b"d" * 16)
        await topic.partitions[0].trimmer.roll()
        world.clock.advance_ms(HOUR_MS)


@pytest.mark.parametrize("wanted", [BY_KEY, BY_HEADER, BY_DEDUP_ID])
def test_searches_go_on_from_the_live_log_into_the_archive(
    tmp_path: Path, wanted: MessageQuery
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        settings = {**ARCHIVE, "retention__age": "none", "dedup__window": "none"}
        async with world.broker(**settings) as broker:
            await searchable(world, broker)
            expected = list(range(0, 24, 3))[::-1]
            for age in ("20h", "10h", "1h"):
                await broker.topic_admin.alter("t", {"retention.age": age})
                await broker.retention_manager.apply()
                for limit in (1, 2, 3, 100):
                    assert await pages(broker, wanted, limit) == expected
            assert broker.topic("t").partitions[0].log_start_offset >= 22
        for path in list((tmp_path / "archive/t/0/messages").glob("*.keys"))[::2]:
            path.unlink()
        async with world.broker(**settings) as broker:
            assert await pages(broker, wanted, 3) == expected
            from_us = ManualClock().wall_us() + 10 * HOUR_MS * 1000
            later = MessageQuery(wanted.key, wanted.dedup_id, wanted.header, from_us)
            assert await pages(broker, later, 3) == [o for o in expected if o >= 10]

    run(main())


@pytest.mark.parametrize("wanted", [BY_KEY, BY_HEADER, BY_DEDUP_ID])
@pytest.mark.parametrize("moved_at", first_of((3, 6, 1, 0, 2, 4, 5, 7, 8), quick=2))
def test_what_is_archived_in_the_middle_of_a_search_is_found_once(
    tmp_path: Path, wanted: MessageQuery, moved_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        settings = {**ARCHIVE, "retention__age": "none", "dedup__window": "none"}
        async with world.broker(**settings) as broker:
            await searchable(world, broker)
            await broker.topic_admin.alter("t", {"retention.age": "16h"})
            await broker.retention_manager.apply()
            loop, steps = asyncio.get_running_loop(), 0
            run_on = TopicSearch.run

            def run_and_move(search: TopicSearch, _steps: int) -> bool:
                nonlocal steps
                steps += 1
                if steps == moved_at:
                    asyncio.run_coroutine_threadsafe(move(), loop).result()
                return run_on(search, 1)

            async def move() -> None:
                await broker.topic_admin.alter("t", {"retention.age": "1h"})
                await broker.retention_manager.apply()

            monkeypatch.setattr(TopicSearch, "run", run_and_move)
            assert await pages(broker, wanted, 5) == list(range(0, 24, 3))[::-1]

    run(main())


async def group_at(broker: Broker, time_us: int, group: str = "g") -> GroupOut:
    views = GroupAtTimeView(broker.clock, broker.archive)
    return await views.group(broker.topic("t"), group, format_time_us(time_us))


async def group_now(broker: Broker, clock: ManualClock, group: str = "g") -> GroupOut:
    """Return the group as it is, once that is written and the moment is over."""
    partition = broker.topic("t").partitions[0]
    await quiet(partition)
    found = await group_at(broker, clock.wall_us(), group)
    clock.advance_ms(1)
    return found


@pytest.mark.usefixtures("_small_events")
def test_the_past_of_a_group_reaches_into_the_archive(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            seen = []
            for number in range(10):
                for value in (b"a", b"b", b"c"):
                    await put(topic, value)
                await take(topic, count=2 if number % 3 else 10)
                await topic.receiver.receive("g", options(1, visibility_ms=1000))
                seen.append((world.clock.wall_us(), await group_now(broker, world.clock)))
                await retire(broker, world.clock, topic)
            assert topic.partitions[0].log_start_offset == 30
            assert event_log(topic.partitions[0]).start_offset > 0
            for at_us, expected in seen:
                assert await group_at(broker, at_us) == expected
        async with world.broker(**ARCHIVE) as broker:
            for at_us, expected in seen:
                assert await group_at(broker, at_us) == expected

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_the_past_ends_where_something_was_deleted_without_an_archive(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            await life(world, broker, 4)
            topic = broker.topic("t")
            before_us = world.clock.wall_us()
            for setting in ("false", "true"):
                await broker.topic_admin.alter("t", {"archive": setting})
                for _ in range(6):
                    await put(topic, b"x")
                    await take(topic)
                    after_us, after = world.clock.wall_us(), await group_now(broker, world.clock)
                    await retire(broker, world.clock, topic)
            with pytest.raises(HistoryNotRetained):
                await group_at(broker, before_us)
            assert await group_at(broker, after_us) == after

    run(main())


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
@pytest.mark.parametrize("log", ["messages", "events"])
def test_the_past_in_a_damaged_archive_is_as_it_was_or_said_not_to_be(
    tmp_path: Path, harm: Callable[[Path], object], log: str
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            seen = []
            for _ in range(9):
                await put(topic, b"x")
                await put(topic, b"x")
                await take(topic, count=1)
                seen.append((world.clock.wall_us(), await group_now(broker, world.clock)))
                world.clock.advance_ms(100)
                await retire(broker, world.clock, topic)
        files = sorted((tmp_path / "archive/t/0" / log).glob("*.log.zst"))
        harm(files[1])
        for sidecar in files[1].parent.glob("*.index"):
            sidecar.unlink()
        async with world.broker(**ARCHIVE) as broker:
            damaged = 0
            for at_us, expected in seen:
                try:
                    found = await group_at(broker, at_us)
                except (CorruptData, GroupNotFound, HistoryNotRetained):
                    damaged += 1
                    continue
                damaged += bool(found.incomplete)
                assert found == expected or found.incomplete
            assert damaged < len(seen) or harm is Path.unlink

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_what_is_archived_while_it_is_traced_is_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, b"x")
            await take(topic)
            partition, tracing = topic.partitions[0], Tracer(broker)
            in_thread = partition.in_thread

            async def retire_first(work: Callable[[], Any]) -> Any:
                monkeypatch.undo()
                await retire(broker, world.clock, topic)
                return await in_thread(work)

            monkeypatch.setattr(partition, "in_thread", retire_first)
            trace = await tracing.trace(MessageId("t", 0, 0))
            assert partition.log_start_offset == 1
            assert (trace.message.state, names(trace)) == ("archived", WHOLE_LIFE)

    run(main())


COMPACT = {"cleanup": "compact", "segment__bytes": "64KiB", "compaction__tombstone_retention": "1h"}


async def sealed_keys(topic: Topic, *keys: bytes) -> None:
    """Publish a message of each key, and seal their segment."""
    for number, key in enumerate(keys):
        await put(topic, b"%d" % number, key=key, headers=(("h", b"1"),))
    await topic.partitions[0].trimmer.roll()


@pytest.mark.usefixtures("_small_events")
def test_a_compacted_message_is_told_of_and_is_not_found_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await sealed_keys(topic, b"k", b"l", b"k")
            await take(topic)
            await sealed_keys(topic, b"k", b"k")
            assert await pages(broker, BY_KEY, 10) == [4, 3, 2, 0]
            world.clock.advance_ms(5)
            await broker.compaction_manager.apply()
            await quiet(topic.partitions[0])
        async with world.broker(**COMPACT) as broker:
            for wanted in (BY_KEY, BY_HEADER):
                found = await pages(broker, wanted, 10)
                assert found == ([4] if wanted is BY_KEY else [4, 1])
            for offset in (0, 2):
                trace = await trace_of(broker, offset)
                assert names(trace) == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED", "COMPACTED"]
                assert trace.message.state == "compacted"
                assert not trace.incomplete
            assert names(await trace_of(broker, 1)) == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]

    run(main())


@pytest.mark.parametrize("wanted", [BY_KEY, BY_HEADER])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_search_over_segments_that_are_compacted_meanwhile_finds_what_stays(
    tmp_path: Path, at: int, wanted: MessageQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(6):
                await sealed_keys(topic, b"k", b"l%d" % number, b"k")
            loop, steps, run_on = asyncio.get_running_loop(), 0, TopicSearch.run

            def run_and_compact(search: TopicSearch, _steps: int) -> bool:
                nonlocal steps
                steps += 1
                if steps == at:
                    work = broker.compaction_manager.apply()
                    asyncio.run_coroutine_threadsafe(work, loop).result()
                return run_on(search, 1)

            monkeypatch.setattr(TopicSearch, "run", run_and_compact)
            found = await pages(broker, wanted, 4)
            stay = {17} if wanted is BY_KEY else {17, *range(1, 18, 3)}
            assert stay <= set(found)
            assert found == sorted(set(found), reverse=True)

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_a_topic_that_was_compacted_may_be_archived(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(2):
                await sealed_keys(topic, b"k", b"l", b"k")
                await take(topic)
                await broker.compaction_manager.apply()
            assert message_log(topic.partitions[0]).segments[0].path.name.count(".") == 2
            await broker.topic_admin.alter(
                "t", {"cleanup": "delete", "archive": "true", "retention.age": "1h"}
            )
            await retire(broker, world.clock, topic)
            assert topic.partitions[0].log_start_offset == 6
            await check(broker)
        async with world.broker(**COMPACT) as broker:
            await check(broker)

    async def check(broker: Broker) -> None:
        states = [(await trace_of(broker, offset)).message.state for offset in range(6)]
        assert states == ["compacted"] * 4 + ["archived"] * 2
        for offset in range(4):
            assert names(await trace_of(broker, offset))[-2:] == ["COMPACTED", "ARCHIVED"]
        assert await pages(broker, BY_KEY, 2) == [5]
        reader = tiered_logs(broker.archive, broker.topic("t").partitions[0]).messages
        assert not reader.read(0, 6).damage

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_the_past_of_a_group_is_the_same_after_a_compaction(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await sealed_keys(topic, b"k", b"l", b"k", b"k")
            await take(topic, count=1)
            at_us, before = world.clock.wall_us(), await group_now(broker, world.clock)
            world.clock.advance_ms(1000)
            await sealed_keys(topic, b"k", b"k")
            assert await broker.compaction_manager.apply()
            await take(topic)
            found = await group_at(broker, at_us)
            (incomplete,) = found.incomplete
            assert "compacted" in incomplete.reason
            assert msgspec.structs.replace(found, incomplete=[]) == before

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_the_past_of_what_was_scheduled_and_is_compacted_says_what_is_not_known(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, b"x", key=b"l")
            await put(topic, b"x", key=b"k", deliver_at_ms=world.clock.wall_ms() + HOUR_MS)
            await sealed_keys(topic, b"l")
            await take(topic, count=1)
            at_us, before = world.clock.wall_us(), await group_now(broker, world.clock)
            world.clock.advance_ms(1000)
            await sealed_keys(topic, b"k")
            assert await broker.compaction_manager.apply()
            found = await group_at(broker, at_us)
            assert (before.scheduled, found.lag + found.scheduled) == (1, 2)
            assert found.incomplete

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_a_message_that_is_compacted_longer_than_its_events_has_no_steps_and_says_so(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            began_us = world.clock.wall_us()
            for _ in range(20):
                await put(topic, b"x", key=b"k")
                await take(topic)
                world.clock.advance_ms(1000)
            await topic.partitions[0].trimmer.roll()
            await put(topic, b"x", key=b"k")
            await broker.compaction_manager.apply()
            await broker.retention_manager.apply()
            assert event_log(topic.partitions[0]).start_offset > 0
            trace = await trace_of(broker, 0)
            assert (trace.message.state, trace.message.published_us) == ("compacted", None)
            assert names(trace) == ["COMPACTED"]
            (gap,) = trace.incomplete
            assert gap.reason == "older events were deleted"
            assert gap.to_us is not None
            assert gap.to_us > began_us

    run(main())


def test_ranges_of_time_leave_out_what_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            times = []
            for number in range(6):
                times.append(world.clock.wall_us())
                await sealed_keys(topic, b"k", b"l%d" % number)
                world.clock.advance_ms(1000)
            await broker.compaction_manager.apply()
            reader = topic.partitions[0].message_reader
            for first in range(6):
                for last in range(first, 7):
                    until_us = times[last] if last < 6 else times[-1] + 1
                    found = read_range(reader, times[first], until_us)
                    assert [o for o in found if o % 2 or o == 10] == [
                        o for o in range(12) if first <= o // 2 < last and (o % 2 or o == 10)
                    ]
                    assert all(o % 2 or o == 10 for o in found)

    run(main())


# Groups with an end


@pytest.mark.usefixtures("_small_events")
def test_a_group_with_an_end_is_told_of_and_protects_nothing_behind_it(tmp_path: Path) -> None:
    settings = {**ARCHIVE, "retention__protect_unread": "true", "archive": "true"}

    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**settings) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(6):
                await put(topic, b"x")
                await topic.partitions[0].trimmer.roll()
            await topic.receiver.receive("g", options(4, visibility_ms=HOUR_MS * 24))
            world.clock.advance_ms(1)
            partition = topic.partitions[0]
            await partition.reset("g", 1, 3)
            world.clock.advance_ms(1)
            found = [names(await trace_of(broker, offset)) for offset in range(6)]
            assert found == [
                ["PUBLISHED", "DELIVERED", "RESET"],
                ["PUBLISHED", "DELIVERED", "RESET"],
                ["PUBLISHED", "DELIVERED", "RESET"],
                ["PUBLISHED", "DELIVERED", "RESET"],
                ["PUBLISHED", "RESET"],
                ["PUBLISHED", "RESET"],
            ]
            reasons = [(await trace_of(broker, o)).steps[-1].step.reason for o in range(6)]
            assert reasons == (
                ["passed over"] + ["to be delivered again"] * 2 + ["behind the group's end"] * 3
            )
            at_us, before = world.clock.wall_us(), await group_now(broker, world.clock)
            assert (before.lag, before.ready) == (2, 2)
            event_writer(partition).record_snapshot()
            await take(topic, count=1)
            await retire(broker, world.clock, topic)
            assert partition.log_start_offset == 2
            await take(topic, count=10)
            await retire(broker, world.clock, topic)
            assert partition.log_start_offset == 6
            assert await group_at(broker, at_us) == before
            assert names(await trace_of(broker, 4)) == ["PUBLISHED", "RESET", "ARCHIVED"]
        async with world.broker(**settings) as broker:
            assert await group_at(broker, at_us) == before
            assert names(await trace_of(broker, 4)) == ["PUBLISHED", "RESET", "ARCHIVED"]
            assert (await group_now(broker, world.clock)).lag == 0

    run(main())


def read_range(reader: LogReader, from_us: int, until_us: int) -> list[int]:
    """Return the offsets of all messages of a range of times."""
    found: list[int] = []
    offset, end = 0, reader.segments[-1].end_offset
    while offset < end:
        reading = read_time_range(reader, TimeRange(from_us, until_us), offset, end)
        assert not reading.damage
        for view in reading.frames:
            header = view.header
            kept = view.kept(0, header.message_count)
            found += [header.base_offset + row for row, is_kept in enumerate(kept) if is_kept]
        offset = reading.next_offset
    return found


# Everything at once

TOPICS = ("t", "c", "t.dlq", "c.dlq")
EVERYTHING = {
    **ARCHIVE,
    "compaction__tombstone_retention": "1h",
    "delivery__max_attempts": "3",
    "delivery__visibility_timeout": "10m",
}


class Everything:
    """An archived topic ``t`` and a compacted one ``c``, and what was done to them by chance."""

    def __init__(self, seed: int, world: World) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.values: dict[MessageId, bytes] = {}
        self.acked: set[MessageId] = set()

    async def act(self, broker: Broker) -> None:
        """Do one thing."""
        topic = broker.topic(self.chance.choice(("t", "t", "c")))
        partition = topic.partitions[0]
        kind = self.chance.choice(
            ("publish",) * 6 + ("receive",) * 6 + ("seal", "keep", "compact", "reset", "redrive")
        )
        group = self.chance.choice(("g", "h"))
        if kind == "publish":
            await self.publish(topic)
        elif kind == "receive":
            await self.receive(broker, topic, group)
        elif kind == "seal":
            await partition.trimmer.roll()
        elif kind == "keep":
            self.world.clock.advance_ms(self.chance.choice((1000, HOUR_MS)))
            await broker.retention_manager.apply()
        elif kind == "compact":
            await broker.compaction_manager.apply()
        elif kind == "reset":
            end = partition.end_offset
            start = self.chance.randint(state_of(partition).start_offset, end)
            bound = self.chance.choice((None, self.chance.randint(start, end)))
            await partition.reset(group, start, bound)
        elif topic.name + ".dlq" in broker.topics:
            dead = broker.topic(topic.name + ".dlq")
            await redrive(dead, topic, 0, RemovalRequest(DeadLetterQuery(), (-1, -1), 10))
            await settled(dead)
        self.world.clock.advance_ms(self.chance.randint(1, 2000))

    async def publish(self, topic: Topic) -> None:
        value = b"%d" % len(self.values)
        chosen = self.chance.choice
        due_ms = self.world.clock.wall_ms() + 5000 if self.chance.random() < 0.2 else 0
        more = {"key": chosen((None, b"a", b"b")), "lane": chosen((None, 0, 2))}
        offset = await put(topic, value, chosen((None, "shop")), deliver_at_ms=due_ms, **more)
        self.values[MessageId(topic.name, 0, offset)] = value

    async def receive(self, broker: Broker, topic: Topic, group: str) -> None:
        found = await topic.receiver.receive(group, options(self.chance.randint(1, 5)))
        given, kind = receipts(found), self.chance.choice(("ack", "ack", "nack", "reject"))
        if kind == "ack":
            _, lost = await settle_acked(topic, group, given)
            self.acked |= {
                MessageId(topic.name, 0, offset)
                for each in given
                if each not in lost
                for offset in range(each.start, each.end)
            }
        elif kind == "nack":
            await settle_nacked(topic, group, given)
        else:
            await rejected(topic, group, given)
        await settled(topic)

    async def check(self, broker: Broker) -> None:
        """Look whether everything is told of as it was."""
        for name in TOPICS:
            if name in broker.topics:
                await settled(broker.topic(name))
        tracing = Tracer(broker)
        for message_id, value in self.values.items():
            trace = await tracing.trace(message_id)
            told, is_acked = trace.message, message_id in self.acked
            own = [str(each.step.name) for each in trace.steps if each.id == message_id]
            assert ("ACKNOWLEDGED" in own) == is_acked or told.timeline.incomplete, (
                message_id,
                own,
            )
            if told.state != "compacted":
                assert not trace.incomplete, message_id
                assert own.count("PUBLISHED") == 1
            assert told.state in ("live", "archived" if message_id.topic == "t" else "compacted")
            assert own.count("ARCHIVED") == (told.state == "archived")
            assert own.count("COMPACTED") == (told.state == "compacted")
            assert "DELETED" not in own
            if told.state != "compacted":
                assert told.message is not None
                assert told.message.value == value
        for topic in (name for name in TOPICS if name in broker.topics):
            partition = broker.topic(topic).partitions[0]
            reader = tiered_logs(broker.archive, partition).messages
            found = await broker.archive.in_thread(partial(all_values, reader))
            there = {i.offset: v for i, v in self.values.items() if i.topic == topic}
            assert set(found) <= set(range(partition.end_offset))
            if topic != "c":
                assert set(found) == set(range(partition.end_offset))
            assert {o: v for o, v in found.items() if o in there} == {
                o: v for o, v in there.items() if o in found
            }


def all_values(reader: LogReader) -> dict[int, bytes | None]:
    """Return the values of all messages that are kept, by offset."""
    found: dict[int, bytes | None] = {}
    offset, end = 0, reader.segments[-1].end_offset
    while offset < end:
        reading = reader.read(offset, end)
        assert not reading.damage
        for view in reading.frames:
            base, count = view.header.base_offset, view.header.message_count
            kept = zip(view.values(0, count), view.kept(0, count), strict=True)
            found |= {base + row: v for row, (v, is_kept) in enumerate(kept) if is_kept}
        offset = reading.next_offset
    return found


@pytest.mark.usefixtures("_small_events")
@pytest.mark.parametrize("seed", range(4))
def test_everything_is_told_of_whatever_happened(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        world = World(tmp_path)
        life = Everything(seed, world)
        for turn in range(4):
            async with world.broker(**EVERYTHING) as broker:
                if not turn:
                    await broker.topic_admin.create("t")
                    compacted = {"cleanup": "compact", "archive": "false"}
                    await broker.topic_admin.create("c", settings=compacted)
                for _ in range(40):
                    await life.act(broker)
                await life.check(broker)
        assert any(row.topic == "t" for row in world.metadata.archive.values())

    run(main())
