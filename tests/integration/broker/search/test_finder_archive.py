"""Searches over segments that are archived or compacted, before and meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.search.finder import TopicSearch
from goq.broker.search.partition_search import MessageQuery
from goq.clock import ManualClock
from tests.support.broker.archived_topics import (
    ARCHIVE,
    BY_HEADER,
    BY_KEY,
    COMPACT,
    HOUR_MS,
    World,
    pages,
    put,
    sealed_keys,
)
from tests.support.broker.harness import run
from tests.support.effort import first_of

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
