"""The state of a group at a time that only the archive has, or that compaction has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from goq.api.schemas.groups import GroupOut
from goq.api.views.group_at_time import GroupAtTimeView
from goq.broker.broker import Broker
from goq.clock import ManualClock
from goq.errors import CorruptData, GroupNotFound, HistoryNotRetained
from goq.units import format_time_us
from tests.support.broker.archived_topics import (
    ARCHIVE,
    COMPACT,
    HOUR_MS,
    World,
    flip,
    halve,
    life,
    names,
    put,
    retire,
    sealed_keys,
    take,
    trace_of,
)
from tests.support.broker.harness import options, quiet, run
from tests.support.broker.partition_internals import event_log, event_writer


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
