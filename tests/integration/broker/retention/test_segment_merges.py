"""Segments of a compacted topic that become one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq.broker.log.pending_appends import PendingAppends
from goq.storage.compaction.checkpoint import CleanerCheckpoint
from goq.storage.verification import verify_log
from tests.support.broker.compacted_topics import COMPACT, by_hand, compacted, put, seal, served
from tests.support.broker.harness import BrokenDisk, MemoryMetadata, run, trim
from tests.support.broker.partition_internals import message_log
from tests.support.eventually import until


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
