"""What a standalone node is told of its topics, it knows after the next start."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from goq.access.token_record import TokenRecord
from goq.broker.metadata import DEFAULT_REPLICATION, LocalMetadata, TopicReplication
from goq.errors import Conflict, InvalidInput, NotFound
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicRow
from goq.storage.disk import RealDisk
from tests.support.broker.harness import run

TOPIC = TopicRow("t", 2, {"retention.age": "1d"}, id=7)
SCHEDULE = ScheduleRecord("s", "t", "[]", "", "", 60_000, "ann", 1, 1)
TOKEN = TokenRecord("id", "name", "digest", ("admin",), 1)


def sealed(base: int, *, partition: int = 0, log: str = "messages") -> SegmentRow:
    return SegmentRow("t", partition, log, base, base + 10, 100, 5)


def archived(base: int) -> ArchiveRow:
    return ArchiveRow("t", 0, "messages", base, base + 10, 100, 50, 1, 2, 3, 4)


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[LocalMetadata]:
    (path / "topics").mkdir(exist_ok=True)
    metadata = LocalMetadata(path, RealDisk())
    try:
        yield metadata
    finally:
        await metadata.close()


def test_topics_and_groups_are_known_after_a_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            assert await metadata.create_topic(TOPIC) == TOPIC
            await metadata.put_topic(TOPIC._replace(partitions=3))
            await metadata.put_group("t", "g", {"max_attempts": "3"})
            await metadata.put_group("t", "gone", {})
            await metadata.delete_group("t", "gone")
            await metadata.create_topic(TopicRow("gone", 1, {}, id=8))
            shutil.rmtree(tmp_path / "topics" / "gone")
            await metadata.delete_topic("gone", 8)
        async with started(tmp_path) as metadata:
            assert [(each.name, each.partitions) for each in await metadata.topics()] == [("t", 3)]
            assert await metadata.groups("t") == {"g": {"max_attempts": "3"}}
            assert list(metadata.problems) == []

    run(test())


def test_each_start_has_its_own_epoch(tmp_path: Path) -> None:
    async def test() -> None:
        epochs = []
        for _ in range(3):
            async with started(tmp_path) as metadata:
                epochs.append(await metadata.next_epoch())
        assert epochs == sorted(set(epochs))

    run(test())


def test_the_manifest_has_the_segments_that_are_there(tmp_path: Path) -> None:
    async def test() -> None:
        other, events = sealed(0, partition=1), sealed(0, log="events")
        async with started(tmp_path) as metadata:
            await metadata.create_topic(TOPIC)
            await metadata.put_partitions("t", 2)
            await metadata.put_segment(sealed(0))
            await metadata.add_segments([sealed(0)._replace(end_offset=99), sealed(10), sealed(20)])
            await metadata.add_segments([other, events])
            await metadata.delete_segments([sealed(10)[:4]])
        async with started(tmp_path) as metadata:
            manifest = await metadata.manifest_of("t")
            assert manifest.partitions == 2
            assert set(manifest.sealed) == {sealed(0), sealed(20), other, events}
            await metadata.delete_segments_of("t", 0, "messages")
        async with started(tmp_path) as metadata:
            assert set((await metadata.manifest_of("t")).sealed) == {other, events}

    run(test())


def test_the_manifest_of_the_archive_has_what_was_archived_and_not_expired(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            await metadata.create_topic(TOPIC)
            await metadata.put_archived([archived(0), archived(10)])
            await metadata.put_archived([archived(10)._replace(archived_bytes=60)])
            await metadata.delete_archived([archived(0)[:4]])
        async with started(tmp_path) as metadata:
            assert await metadata.archived() == [archived(10)._replace(archived_bytes=60)]

    run(test())


def test_a_topic_that_is_adopted_has_had_its_partitions(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            await metadata.adopt_topic(TOPIC, {}, 5)
        async with started(tmp_path) as metadata:
            assert [each.name for each in await metadata.topics()] == ["t"]
            assert (await metadata.manifest_of("t")).partitions == 2

    run(test())


def test_tokens_change_one_after_the_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            before = metadata.tokens
            await metadata.put_token(TOKEN)
            assert (dict(before), dict(metadata.tokens)) == ({}, {"id": TOKEN})
            changed = replace(TOKEN, name="other", version=2)
            await metadata.put_token(changed)
            for version in (1, 2, 4):
                with pytest.raises(Conflict):
                    await metadata.put_token(replace(TOKEN, version=version))
        async with started(tmp_path) as metadata:
            assert dict(metadata.tokens) == {"id": changed}

    run(test())


def test_schedules_and_their_runs_are_known_after_a_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            await metadata.put_schedule(SCHEDULE)
            await metadata.put_schedule(replace(SCHEDULE, name="gone"))
            with pytest.raises(Conflict):
                await metadata.put_schedule(SCHEDULE)
            await metadata.record_runs({"s": ScheduleRun(77, "why"), "unknown": ScheduleRun(1)})
            await metadata.delete_schedule("gone")
            with pytest.raises(NotFound):
                await metadata.delete_schedule("gone")
            known = dict(metadata.schedules)
            assert known.keys() == {"s"}
            assert (known["s"].last_due_ms, known["s"].problem) == (77, "why")
        async with started(tmp_path) as metadata:
            assert dict(metadata.schedules) == known

    run(test())


def test_a_node_alone_has_one_replica_of_everything(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            assert metadata.may_audit
            assert metadata.replication_of("t") == DEFAULT_REPLICATION
            metadata.check_replication(DEFAULT_REPLICATION)
            metadata.check_replication(TopicReplication(1, 1))
            for asked in (TopicReplication(2), TopicReplication(None, 2), TopicReplication(0)):
                with pytest.raises(InvalidInput):
                    metadata.check_replication(asked)

    run(test())


def test_a_closed_store_takes_nothing_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as metadata:
            await metadata.create_topic(TOPIC)
        with pytest.raises((RuntimeError, sqlite3.Error)):
            await metadata.put_topic(TOPIC)

    run(test())
