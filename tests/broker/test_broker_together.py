"""Features that were built apart: what each says of what the others did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.broker_harness import (
    MemoryMetadata,
    ack,
    broker_on,
    options,
    quiet,
    receipts,
    run,
    until,
)

from goq import limits
from goq.api.bodies import GroupOut
from goq.api.past import PastViews
from goq.broker.broker import Broker
from goq.broker.finding import Search
from goq.broker.partition import Partition
from goq.broker.publishing import Placed
from goq.broker.searching import Wanted
from goq.broker.topic import Topic
from goq.broker.traced import Trace
from goq.broker.tracing import Tracing
from goq.clock import ManualClock
from goq.delivery.settling import Settled, reject
from goq.errors import MessageNotFound, PastNotKept
from goq.model import Message, MessageId
from goq.units import format_time_us

HOUR_MS = 3_600_000
ARCHIVE = {"retention__age": "1h", "segment__bytes": "64KiB", "archive": "true"}


@pytest.fixture
def _small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events, and blocks of their index, that a few steps fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 600)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    monkeypatch.setattr(limits, "SPANS_BLOCK_BYTES", 300)


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
            assert broker.compacting._task is not None
            broker.compacting._task.cancel()
            yield broker


async def put(topic: Topic, value: bytes, client_id: str | None = None, **more: Any) -> int:
    """Publish a message; return its offset."""
    placed = [Placed(0, Message(value, **more))]
    (stored,) = await topic.publishing.publish_messages(placed, client_id)
    return stored.offset


async def take(topic: Topic, group: str = "g", count: int = 10) -> int:
    """Receive and acknowledge; return how many."""
    return await ack(topic, group, await topic.receive(group, options(count)))


async def refuse(topic: Topic, group: str = "g") -> None:
    """Receive and reject, and have the dead letters arrive."""

    def decide(partition: Partition, some: list[Any]) -> Settled:
        return reject(partition.state, group, some, partition.failing(group))

    await topic.settle(group, receipts(await topic.receive(group, options())), decide)
    await until(lambda: not any(p.state.outbox.departures for p in topic.partitions))
    for partition in topic.partitions:
        await quiet(partition)


async def retire(broker: Broker, clock: ManualClock, topic: Topic) -> None:
    """Seal what there is, and let retention have it."""
    await topic.partitions[0].keeping.roll()
    clock.advance_ms(2 * HOUR_MS)
    await broker.apply_retention()


def names(trace: Trace) -> list[str]:
    return [str(each.step.name) for each in trace.steps]


async def trace_of(broker: Broker, offset: int, topic: str = "t") -> Trace:
    return await Tracing(broker).trace(MessageId(topic, 0, offset))


WHOLE_LIFE = ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED", "ARCHIVED"]


@pytest.mark.usefixtures("_small_events")
def test_an_archived_message_is_told_of_in_full(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**ARCHIVE) as broker:
            topic = await broker.create_topic("t")
            for number in range(12):
                await put(topic, b"%d" % number, "shop")
                await take(topic)
                await retire(broker, world.clock, topic)
            partition = topic.partitions[0]
            assert partition.messages.start_offset == 12
            assert partition.events.start_offset > 0, "events have gone to the archive"
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
            topic = await broker.create_topic("t")
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
                    + ["ARCHIVED"] * (broker.topic("t.dlq").partitions[0].messages.start_offset > 0)
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
    topic = await broker.create_topic("t")
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
            found = await broker.finder.find(broker.topic("t"), Wanted(key=b"k0"), 10, None)
            assert [each.offset for each in found.found] == [4, 0]
            assert found.unreadable == (harm is Path.unlink)

    run(main())


@pytest.mark.usefixtures("_small_events")
def test_what_was_deleted_before_there_was_an_archive_is_not_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.broker(**{**ARCHIVE, "archive": "false"}) as broker:
            await life(world, broker, 6)
            await broker.alter_topic("t", {"archive": "true"})
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
            await broker.alter_topic("t", {"archive": "false"})
            for number in range(8):
                gone = await put(topic, b"%d" % number)
                await take(topic)
                await retire(broker, world.clock, topic)
            await broker.alter_topic("t", {"archive": "true"})
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


async def pages(broker: Broker, wanted: Wanted, limit: int) -> list[int]:
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


BY_KEY, BY_HEADER = Wanted(key=b"k"), Wanted(header=("h", b"1"))
BY_DEDUP_ID = Wanted(dedup_id=b"d" * 16)


async def searchable(world: World, broker: Broker) -> None:
    """Publish 24 messages in as many segments, of which each third is looked for."""
    topic = await broker.create_topic("t")
    for number in range(24):
        if number % 3:
            await put(topic, b"other", key=b"other")
        else:
            await put(topic, b"x", key=b"k", headers=(("h", b"1"),), dedup_id=b"d" * 16)
        await topic.partitions[0].keeping.roll()
        world.clock.advance_ms(HOUR_MS)


@pytest.mark.parametrize("wanted", [BY_KEY, BY_HEADER, BY_DEDUP_ID])
def test_searches_go_on_from_the_live_log_into_the_archive(tmp_path: Path, wanted: Wanted) -> None:
    async def main() -> None:
        world = World(tmp_path)
        settings = {**ARCHIVE, "retention__age": "none", "dedup__window": "none"}
        async with world.broker(**settings) as broker:
            await searchable(world, broker)
            expected = list(range(0, 24, 3))[::-1]
            for age in ("20h", "10h", "1h"):
                await broker.alter_topic("t", {"retention.age": age})
                await broker.apply_retention()
                for limit in (1, 2, 3, 100):
                    assert await pages(broker, wanted, limit) == expected
            assert broker.topic("t").partitions[0].messages.start_offset >= 22
        for path in list((tmp_path / "archive/t/0/messages").glob("*.keys"))[::2]:
            path.unlink()
        async with world.broker(**settings) as broker:
            assert await pages(broker, wanted, 3) == expected
            from_us = ManualClock().wall_us() + 10 * HOUR_MS * 1000
            later = Wanted(wanted.key, wanted.dedup_id, wanted.header, from_us)
            assert await pages(broker, later, 3) == [o for o in expected if o >= 10]

    run(main())


@pytest.mark.parametrize("wanted", [BY_KEY, BY_HEADER, BY_DEDUP_ID])
@pytest.mark.parametrize("moved_at", range(9))
def test_what_is_archived_in_the_middle_of_a_search_is_found_once(
    tmp_path: Path, wanted: Wanted, moved_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        settings = {**ARCHIVE, "retention__age": "none", "dedup__window": "none"}
        async with world.broker(**settings) as broker:
            await searchable(world, broker)
            await broker.alter_topic("t", {"retention.age": "16h"})
            await broker.apply_retention()
            loop, steps = asyncio.get_running_loop(), 0
            run_on = Search.run

            def run_and_move(search: Search, _steps: int) -> bool:
                nonlocal steps
                steps += 1
                if steps == moved_at:
                    asyncio.run_coroutine_threadsafe(move(), loop).result()
                return run_on(search, 1)

            async def move() -> None:
                await broker.alter_topic("t", {"retention.age": "1h"})
                await broker.apply_retention()

            monkeypatch.setattr(Search, "run", run_and_move)
            assert await pages(broker, wanted, 5) == list(range(0, 24, 3))[::-1]

    run(main())


async def group_at(broker: Broker, time_us: int, group: str = "g") -> GroupOut:
    views = PastViews(broker.clock, broker.archive)
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
            topic = await broker.create_topic("t")
            seen = []
            for number in range(10):
                for value in (b"a", b"b", b"c"):
                    await put(topic, value)
                await take(topic, count=2 if number % 3 else 10)
                await topic.receive("g", options(1, visibility_ms=1000))
                seen.append((world.clock.wall_us(), await group_now(broker, world.clock)))
                await retire(broker, world.clock, topic)
            assert topic.partitions[0].messages.start_offset == 30
            assert topic.partitions[0].events.start_offset > 0
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
                await broker.alter_topic("t", {"archive": setting})
                for _ in range(6):
                    await put(topic, b"x")
                    await take(topic)
                    after_us, after = world.clock.wall_us(), await group_now(broker, world.clock)
                    await retire(broker, world.clock, topic)
            with pytest.raises(PastNotKept):
                await group_at(broker, before_us)
            assert await group_at(broker, after_us) == after

    run(main())
