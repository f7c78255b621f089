"""Traces of messages that compaction has removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.retention.tiered_log import tiered_logs
from tests.support.broker.archived_topics import (
    BY_HEADER,
    BY_KEY,
    COMPACT,
    World,
    names,
    pages,
    put,
    retire,
    sealed_keys,
    take,
    trace_of,
)
from tests.support.broker.harness import quiet, run
from tests.support.broker.partition_internals import event_log, message_log


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
