"""What retention deletes is archived before, and read with the live log as one."""

from __future__ import annotations

import asyncio
import shutil
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.retention_manager import RetentionManager
from goq.broker.retention.tiered_log import ArchiveView, TieredLogReader, tiered_logs
from goq.broker.search.partition_search import MessageQuery
from goq.client import Client
from goq.clock import ManualClock
from goq.errors import GoqError, PartitionOffline
from goq.frame.view import FrameView
from goq.storage.archive.file import check_archive
from goq.storage.catalog.rows import DoubtKind, TopicDoubt
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment
from goq.storage.log.time_range_reader import TimeRange, read_time_range
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    options,
    publish,
    quick_broker_on,
    quiet,
    run,
)
from tests.support.broker.partition_internals import event_log, message_log
from tests.support.eventually import until
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import running_node
from tests.support.paths import topic_dir
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk

HOUR_MS = 3_600_000
SETTINGS = {"retention__age": "1h", "segment__bytes": "64KiB", "archive": "true"}


async def fill(broker: Broker, clock: ManualClock, segments: int, name: str = "t") -> list[bytes]:
    """Publish so many segments of messages, an hour apart; return the values."""
    values = []
    for number in range(segments):
        for part in range(3):
            value = (b"%d.%d " % (number, part)) * 6000
            await publish(broker.topic(name), value)
            values.append(value)
        await broker.topic(name).partitions[0].trimmer.roll()
        clock.advance_ms(HOUR_MS)
    return values


def values_of(frames: list[FrameView]) -> list[bytes]:
    return [v or b"" for f in frames for v in f.values(0, f.header.message_count)]


def read_all(reader: TieredLogReader, end: int) -> list[bytes]:
    values, offset = [], reader.start_offset
    while offset < end:
        reading = reader.read(offset, end)
        assert not reading.damage
        assert reading.next_offset > offset
        values += values_of(reading.frames)
        offset = reading.next_offset
    return values


def test_what_is_deleted_is_read_from_the_archive(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            await broker.topic_admin.create("t", 1)
            values = await fill(broker, clock, 4)
            await broker.retention_manager.apply()
            (partition,) = broker.topic("t").partitions
            assert partition.log_start_offset == 9
            stats = broker.topic("t").stats
            assert (stats.archived_messages, stats.deleted_messages) == (9, 9)
            sealed = {key[3] for key in metadata.segment_keys if key[2] == "messages"}
            assert sealed == {9}
            reader = tiered_logs(broker.archive, partition).messages
            assert reader.start_offset == 0
            assert read_all(reader, partition.end_offset) == values
            assert [row.base_offset for row in metadata.archive.values()] == [0, 3, 6]
            found = broker.archive.segments.topic_totals("t")
            assert found is not None
            assert (found.segments, found.messages) == (3, 9)
            stored = sorted(p.name for p in (tmp_path / "archive/t/0/messages").iterdir())
            assert f"{0:020}.log.zst" in stored
            assert f"{0:020}.index" in stored
            assert f"{0:020}.columns" in stored
        changes: list[str] = []
        metadata.before = changes.append
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            assert "put_archived" not in changes  # the manifest has them all
            (partition,) = broker.topic("t").partitions
            reader = tiered_logs(broker.archive, partition).messages
            assert read_all(reader, partition.end_offset) == values
            assert reader.offset_for_time(ManualClock().wall_us() + HOUR_MS * 1000, 12) == 3
            rows = [r.offsets.tolist() for r in reader.rows(0, 12)]
            assert rows == []

    run(main())


@pytest.mark.parametrize("looks", [1, 2])
def test_a_segment_that_is_found_damaged_before_or_after_it_was_archived_is_kept(
    looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that replicas can repair; a standalone node has none, so the check is given here."""
    seen: list[int] = []

    async def check(_self: RetentionManager, _partition: Partition, segment: Segment) -> None:
        seen.append(segment.base_offset)
        if len(seen) % looks == 0:
            raise PartitionOffline("damaged")

    monkeypatch.setattr(RetentionManager, "_check_undamaged", check)

    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await fill(broker, clock, 4)
            await broker.retention_manager.apply()
            assert topic.partitions[0].log_start_offset == 0
            assert set(seen) == {0}

    run(main())


async def check_whole(broker: Broker, values: list[bytes], directory: Path, disk: Disk) -> None:
    """Everything is there, live or archived; the files are those of the manifest, and whole."""
    (partition,) = broker.topic("t").partitions
    messages, events = tiered_logs(broker.archive, partition)
    assert read_all(messages, partition.end_offset) == values
    assert messages.start_offset == 0
    assert events.start_offset == 0
    offset, end = 0, partition.event_high_watermark
    while offset < end:
        reading = events.read(offset, end)
        assert not reading.damage
        assert reading.next_offset > offset
        offset = reading.next_offset
    for log in ("messages", "events"):
        folder = directory / "archive/t/0" / log
        names = disk.names(folder)
        assert not [name for name in names if name.endswith(".part")]
        for row in broker.archive.segments.rows(partition.identity, log):
            footer = check_archive(disk, folder / f"{row.base_offset:020}.log.zst")
            assert (footer.crc32c, footer.end_offset) == (row.crc32c, row.end_offset)
        rows = broker.archive.segments.rows(partition.identity, log)
        assert len(rows) == len([name for name in names if name.endswith(".log.zst")])


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("power", [False, True])
def test_wherever_the_process_ends_each_message_is_live_or_archived(
    power: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 300)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    base, clock = Path("/simulated"), ManualClock()
    settings = {"retention__age": "1h", "archive": "true"}

    async def prepare() -> tuple[SimulatedDisk, MemoryMetadata, list[bytes]] | None:
        disk, metadata, values = SimulatedDisk(Random(1)), MemoryMetadata(), list[bytes]()
        async with quick_broker_on(
            base, disk=disk, metadata=metadata, clock=clock, **settings
        ) as broker:
            topic = await broker.topic_admin.create("t", 1)
            for number in range(9):
                values.append(b"%d" % number * 50)
                await publish(topic, values[-1])
                await ack(topic, "g", await topic.receiver.receive("g", options(1)))
                await quiet(topic.partitions[0])
                if number % 3 == 2:
                    await topic.partitions[0].trimmer.roll()
                    clock.advance_ms(HOUR_MS)
            assert len(event_log(topic.partitions[0]).segments) > 2
        clock.advance_ms(-3 * HOUR_MS)  # nothing is due when a broker starts
        # The last snapshot, and so the old events, depend on which events were written together.
        has_old_events = await archives_events(disk.copy(), deepcopy(metadata))
        return (disk, metadata, values) if has_old_events else None

    async def archives_events(disk: SimulatedDisk, metadata: MemoryMetadata) -> bool:
        """Let retention run without a crash; return whether it archives events."""
        async with quick_broker_on(
            base, disk=disk, metadata=metadata, clock=clock, **settings
        ) as broker:
            clock.advance_ms(4 * HOUR_MS)
            await broker.retention_manager.apply()
            rows = broker.archive.segments.rows(broker.topic("t").partitions[0].identity, "events")
        clock.advance_ms(-4 * HOUR_MS)
        return bool(rows)

    async def crash_at(operation: int) -> bool:
        """Let retention end at an operation of the disk; return whether it came to that."""
        disk = prepared.copy()
        disk.random = Random(operation)
        metadata = deepcopy(written)
        try:
            async with quick_broker_on(
                base, disk=disk, metadata=metadata, clock=clock, **settings
            ) as broker:
                disk.crash_at = disk.operations + operation
                clock.advance_ms(4 * HOUR_MS)
                await broker.retention_manager.apply()
                is_through = not disk._crashing
        except (SimulatedCrash, OSError, GoqError):
            is_through = False
        disk.crash(power=power)
        clock.advance_ms(-4 * HOUR_MS)
        async with quick_broker_on(
            base, disk=disk, metadata=metadata, clock=clock, **settings
        ) as broker:
            await check_whole(broker, values, base, disk)
            clock.advance_ms(4 * HOUR_MS)
            await broker.retention_manager.apply()
            await check_whole(broker, values, base, disk)
            assert broker.topic("t").partitions[0].log_start_offset == 9
            assert broker.archive.segments.rows(broker.topic("t").partitions[0].identity, "events")
        clock.advance_ms(-4 * HOUR_MS)
        return not is_through

    found = next(each for _ in range(100) if (each := run(prepare())) is not None)
    prepared, written, values = found
    operation = 1
    while run(crash_at(operation)):
        operation += step
    assert operation > 30


async def archived_topic(broker: Broker, clock: ManualClock, name: str = "t") -> list[bytes]:
    await broker.topic_admin.create(name, 1)
    values = await fill(broker, clock, 4, name)
    await broker.retention_manager.apply()
    assert broker.topic(name).partitions[0].log_start_offset == 9
    return values


def read_here(broker: Broker, name: str = "t") -> list[bytes]:
    (partition,) = broker.topic(name).partitions
    return read_all(tiered_logs(broker.archive, partition).messages, partition.end_offset)


def test_a_manifest_that_lost_its_rows_is_made_anew_from_the_files(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            values = await archived_topic(broker, clock)
        rows = dict(metadata.archive)
        folder = tmp_path / "archive/t/0/messages"
        (folder / f"{99:020}.log.zst.part").write_bytes(b"unfinished")
        (folder / f"{99:020}.log.zst").write_bytes(b"not an archive")
        (folder / "notes.log.zst").write_bytes(b"somebody's")
        (tmp_path / "archive/t/lost+found").mkdir()
        metadata.archive = {}
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            assert read_here(broker) == values
            assert metadata.archive == rows
            names = [path.name for path in folder.iterdir()]
            assert not [name for name in names if name.endswith(".part")]

    run(main())


def test_a_new_topic_does_not_come_into_the_archive_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        for metadata in (MemoryMetadata(), MemoryMetadata(keeps_ids=True)):
            on = partial(quick_broker_on, tmp_path, clock=clock, metadata=metadata, **SETTINGS)
            async with on() as broker:
                values = await archived_topic(broker, clock)
                assert read_here(broker) == values
            shutil.rmtree(topic_dir(tmp_path, "t"))
            metadata.rows.clear()
        assert len(list((tmp_path / "archive").iterdir())) == 2

    run(main())


def test_a_topic_that_is_deleted_takes_its_archive_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            await archived_topic(broker, clock)
            other = await archived_topic(broker, clock, "other")
            read_here(broker)
            await broker.topic_admin.delete("t")
            assert not (tmp_path / "archive/t").exists()
            assert {key[0] for key in metadata.archive} == {"other"}
            assert broker.archive.segments.topic_totals("t") is None
            assert read_here(broker, "other") == other
            values = await archived_topic(broker, clock)
            assert read_here(broker) == values

    run(main())


def test_nothing_is_deleted_from_the_archive_of_a_topic_that_is_read_only(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        settings = SETTINGS | {"retention__total_age": "9h"}
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **settings) as broker:
            topic = await broker.topic_admin.create("t", 1)
            values = await fill(broker, clock, 4)
            await broker.retention_manager.apply()
            topic.set_doubt(TopicDoubt(DoubtKind.READ_ONLY, "its row is damaged"))
            for _ in range(12):
                clock.advance_ms(HOUR_MS)
                await broker.retention_manager.apply()
            reader = tiered_logs(broker.archive, topic.partitions[0]).messages
            assert read_all(reader, 12) == values
            topic.set_doubt(None)
            await broker.retention_manager.apply()
            assert not metadata.archive

    run(main())


def test_what_was_deleted_without_an_archive_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            values = await archived_topic(broker, clock)
            await broker.topic_admin.alter("t", {"archive": "false"})
            values += await fill(broker, clock, 2)
            await broker.retention_manager.apply()
            await broker.topic_admin.alter("t", {"archive": "true"})
            values += await fill(broker, clock, 2)
            await broker.retention_manager.apply()
            (partition,) = broker.topic("t").partitions
            assert partition.log_start_offset == 21
            reader = tiered_logs(broker.archive, partition).messages
            assert read_all(reader, 24) == values[:9] + values[15:]
            reading = reader.read(7, 24, messages_max=4)
            assert [v.header.base_offset for v in reading.frames] == [7, 8, 15, 16]
            row = broker.archive.segments.find(partition.identity, "messages", 8)
            assert row is not None
            assert (row.base_offset, row.end_offset) == (6, 9)
            assert broker.archive.segments.file_of(row).is_file()
            assert broker.archive.segments.find(partition.identity, "messages", 9) is None
            assert broker.archive.segments.find(partition.identity, "messages", 23) is None

    run(main())


def test_reading_goes_on_without_gap_or_doubling_while_segments_are_archived(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            await broker.topic_admin.create("t", 1)
            (partition,) = broker.topic("t").partitions
            clock.advance_ms(-100 * HOUR_MS)
            values = await fill(broker, clock, 12)
            clock.advance_ms(-11 * HOUR_MS)
            reader = tiered_logs(broker.archive, partition).messages
            seen, offset = list[bytes](), 0
            while offset < len(values):
                reading = reader.read(offset, len(values), messages_max=1)
                seen += values_of(reading.frames)
                offset = reading.next_offset
                if offset % 3 == 2:  # in the middle of a segment
                    clock.advance_ms(HOUR_MS)
                    await broker.retention_manager.apply()
                    assert partition.log_start_offset > 0 or offset == 2
            assert seen == values

            async def read_in_threads() -> list[list[bytes]]:
                work = [
                    broker.archive.in_thread(lambda: read_all(reader, len(values)))
                    for _ in range(10)
                ]
                return list(await asyncio.gather(*work))

            clock.advance_ms(HOUR_MS)
            found, _ = await asyncio.gather(read_in_threads(), broker.retention_manager.apply())
            assert all(each == values for each in found)

    run(main())


def test_a_segment_that_was_archived_and_not_deleted_is_not_archived_twice(tmp_path: Path) -> None:
    async def main() -> None:
        clock, disk, metadata = ManualClock(), BrokenDisk(), MemoryMetadata()
        async with quick_broker_on(
            tmp_path, clock=clock, disk=disk, metadata=metadata, archive="true"
        ) as broker:
            await broker.topic_admin.create("t", 1)
            values = await fill(broker, clock, 2)
            clock.advance_ms(HOUR_MS)
            (partition,) = broker.topic("t").partitions
            first = message_log(partition).segments[0]
            row = await broker.archive.archive_segment(partition.identity, "messages", first)
            clock.advance_ms(HOUR_MS)
            written = disk.count("append", ".part")
            again = await broker.archive.archive_segment(partition.identity, "messages", first)
            assert disk.count("append", ".part") == written
            assert again == row._replace(archived_at_us=clock.now_us)
            path = tmp_path / f"archive/t/0/messages/{0:020}.log.zst"
            path.write_bytes(path.read_bytes()[:-1] + b"x")
            assert await broker.archive.archive_segment(partition.identity, "messages", first)
            assert disk.count("append", ".part") > written
            assert read_here(broker) == values
            await broker.topic_admin.alter("t", {"retention.age": "1h"})
            await broker.retention_manager.apply()
            assert partition.log_start_offset == 6
            assert read_here(broker) == values

    run(main())


def test_damage_in_the_archive_is_reported_by_readers_of_the_whole_log(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            values = await archived_topic(broker, clock)
            (tmp_path / f"archive/t/0/messages/{3:020}.log.zst").unlink()
            (partition,) = broker.topic("t").partitions
            reader = tiered_logs(broker.archive, partition).messages
            reading = reader.read(0, 12)
            assert values_of(reading.frames) == values[:3] + values[6:]
            assert [(d.start_offset, d.end_offset) for d in reading.damage] == [(3, 6)]
            assert not partition.message_damage
            assert len(broker.archive.damage(partition.identity, "messages")) == 1

    run(main())


@pytest.mark.parametrize("left", ["nothing", ".index"])
def test_an_archived_segment_whose_file_is_missing_is_damage_and_the_others_are_read(
    left: str, tmp_path: Path
) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        start_us = clock.wall_us()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            await broker.topic_admin.create("t", 1)
            values = await fill(broker, clock, 4)
            await broker.retention_manager.apply()
        for path in (tmp_path / "archive/t/0/messages").glob(f"{3:020}.*"):
            if path.suffix != left:
                path.unlink()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            topic = broker.topic("t")
            reader = tiered_logs(broker.archive, topic.partitions[0]).messages
            second_us = start_us + HOUR_MS * 1000
            assert reader.offset_for_time(second_us, 12) == 6
            reading = read_time_range(reader, TimeRange(start_us), 0, 12)
            assert [(each.start_offset, each.end_offset) for each in reading.damage] == [(3, 6)]
            assert values_of(reading.frames) == values[:3] + values[6:]
            page = await broker.finder.find(topic, MessageQuery(from_us=second_us), 20, None)
            assert [each.offset for each in page.found] == [11, 10, 9, 8, 7, 6]

    run(main())


def test_a_node_that_stops_breaks_off_what_it_archives(tmp_path: Path) -> None:
    async def main() -> None:
        clock, disk, metadata = ManualClock(), BrokenDisk(), MemoryMetadata()
        on = partial(quick_broker_on, tmp_path, clock=clock, metadata=metadata, **SETTINGS)
        async with on(disk=disk) as broker:
            await broker.topic_admin.create("t", 1)
            values = await fill(broker, clock, 2)
            clock.advance_ms(HOUR_MS)
            disk.hold(".log.zst.part", operation="append")
            broker.retention_manager.wake_topic(broker.topic("t"))
            await until(disk.holding.is_set)
            broker.archive._writer.close()
            disk.release()
        assert not [p for p in (tmp_path / "archive").rglob("*.log.zst*") if p.is_file()]
        async with on() as broker:
            await broker.retention_manager.apply()
            assert read_here(broker) == values

    run(main())


def test_a_snapshot_has_the_segment_that_was_being_archived_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(
            tmp_path, clock=clock, retention__age="1h", archive="true"
        ) as broker:
            await broker.topic_admin.create("t", 1)
            (partition,) = broker.topic("t").partitions
            values = [b"%d" % number for number in range(4)]
            for value in values:
                await publish(broker.topic("t"), value)
                await partition.trimmer.roll()
            kept: list[tuple[int, list[bytes]]] = []

            async def slowly(*asked: Any) -> Any:
                row = await Archiver.archive_segment(broker.archive, *asked)
                kept.append((clock.now_us, values[partition.log_start_offset :]))
                clock.advance_ms(1000)
                return row

            monkeypatch.setattr(broker.archive, "archive_segment", slowly)
            clock.advance_ms(HOUR_MS + 1)
            await broker.retention_manager.apply()
            kept.append((clock.now_us, values[partition.log_start_offset :]))
            assert [len(then) for _, then in kept] == [4, 3, 2, 1, 0]
            for time_us, then in kept:
                past = ArchiveView(broker.archive, time_us)
                reader, start, end, _ = past.open_reader(partition, 0, partition.end_offset)
                assert values_of(reader.read(start, end).frames) == then

    run(main())


def test_a_snapshot_has_what_was_kept_at_its_time_and_nothing_later(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(
            tmp_path, clock=clock, retention__age="none", archive="true"
        ) as broker:
            await broker.topic_admin.create("t", 1)
            (partition,) = broker.topic("t").partitions
            kept: list[tuple[int, list[bytes]]] = []
            values: list[bytes] = []
            for number in range(8):
                values.append(b"%d" % number)
                await publish(broker.topic("t"), values[-1])
                await partition.trimmer.roll()
                if number in (3, 6):
                    age = {"retention.age": f"{2 * 3600 + 1}s"}
                    await broker.topic_admin.alter("t", age)
                    await broker.retention_manager.apply()
                    await broker.topic_admin.alter("t", {"retention.age": "none"})
                clock.advance_ms(HOUR_MS)
                kept.append((clock.now_us - 1, values[partition.log_start_offset :]))
            assert [len(then) for _, then in kept] == [1, 2, 3, 3, 4, 5, 3, 4]
            for time_us, then in kept:
                past = ArchiveView(broker.archive, time_us)
                reader, start, end, _ = past.open_reader(partition, 0, partition.end_offset)
                assert values_of(reader.read(start, end).frames) == then
                start = past.open_reader(partition, start + 1, end).start
                assert values_of(reader.read(start, end).frames) == then[1:]
            past = ArchiveView(broker.archive, kept[0][0] - 2 * HOUR_MS * 1000)
            found = past.open_reader(partition, 0, partition.end_offset)
            assert found.start == found.end == 0

    run(main())


def test_pages_of_messages_and_events_end_before_what_another_node_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(_identity: PartitionId, log: str, start: int, end: int) -> str:
        return "n2 has them" if log == "messages" and start < 3 and end > 2 else ""

    with running_node(tmp_path, defaults={"topic": {"partitions": 1}}) as node:
        with Client(node.url) as q:
            q.create_topic("t")
        publish_segments(node, "t", range(6))
        retire(node, "t", archive=True)
        broker = node.node.broker
        assert broker is not None
        topic = broker.topic("t")
        rows = broker.archive.segments.rows(topic.partitions[0].identity, "messages")
        node.on_loop(lambda: broker.archive.segments.expire(topic.folder, [rows[2]]))
        broker.archive.why_absent = why
        path = "/v1/topics/t/messages?partition=0&include_deleted=true&offset="
        page = node.call("GET", path + "0")
        assert ([m["offset"] for m in page["messages"]], page["next"], page["end"]) == (
            [0, 1],
            2,
            6,
        )
        refused = node.request("GET", path + "2")
        assert (refused.status, refused.json["code"]) == (503, "archive_unreachable")
        assert [m["offset"] for m in node.call("GET", path + "3")["messages"]] == [3, 4, 5]
        monkeypatch.setattr(TieredLogReader, "read_end", lambda *_: 2)
        events = node.call("GET", "/v1/topics/t/events?partition=0&include_deleted=true")
        assert events["next"] == 2
