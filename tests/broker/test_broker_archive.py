"""What retention deletes is archived before, and read with the live log as one."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
from support.broker_harness import (
    MemoryMetadata,
    ack,
    broker_on,
    options,
    publish,
    quiet,
    run,
)
from support.disk import SimulatedCrash, SimulatedDisk

from goq import limits
from goq.broker.broker import Broker
from goq.broker.wholelog import WholeReader, whole_logs
from goq.clock import ManualClock
from goq.errors import GoqError
from goq.frame.view import FrameView
from goq.storage.archivefile import check_archive
from goq.storage.files import Disk

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
        await broker.topic(name).partitions[0].keeping.roll()
        clock.advance_ms(HOUR_MS)
    return values


def values_of(frames: list[FrameView]) -> list[bytes]:
    return [v or b"" for f in frames for v in f.values(0, f.header.message_count)]


def read_all(reader: WholeReader, end: int) -> list[bytes]:
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
        async with broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            await broker.create_topic("t", 1)
            values = await fill(broker, clock, 4)
            await broker.apply_retention()
            (partition,) = broker.topic("t").partitions
            assert partition.messages.start_offset == 9
            reader = whole_logs(broker.archive, partition).messages
            assert reader.start_offset == 0
            assert read_all(reader, partition.state.end_offset) == values
            assert [row.base_offset for row in metadata.archive.values()] == [0, 3, 6]
            found = broker.archive.of_topic("t")
            assert found is not None
            assert (found.segments, found.messages) == (3, 9)
            stored = sorted(p.name for p in (tmp_path / "archive/t/0/messages").iterdir())
            assert f"{0:020}.log.zst" in stored
            assert f"{0:020}.index" in stored
            assert f"{0:020}.columns" in stored
        async with broker_on(tmp_path, clock=clock, metadata=metadata, **SETTINGS) as broker:
            (partition,) = broker.topic("t").partitions
            reader = whole_logs(broker.archive, partition).messages
            assert read_all(reader, partition.state.end_offset) == values
            assert reader.find_time(ManualClock().wall_us() + HOUR_MS * 1000, 12) == 3
            rows = [r.offsets.tolist() for r in reader.rows(0, 12)]
            assert rows == []

    run(main())


async def check_whole(broker: Broker, values: list[bytes], directory: Path, disk: Disk) -> None:
    """Everything is there, live or archived; the files are those of the manifest, and whole."""
    (partition,) = broker.topic("t").partitions
    messages, events = whole_logs(broker.archive, partition)
    assert read_all(messages, partition.state.end_offset) == values
    assert messages.start_offset == 0
    assert events.start_offset == 0
    offset, end = 0, partition.events.end_offset
    while offset < end:
        reading = events.read(offset, end)
        assert not reading.damage
        assert reading.next_offset > offset
        offset = reading.next_offset
    for log in ("messages", "events"):
        folder = directory / "archive/t/0" / log
        names = disk.names(folder)
        assert not [name for name in names if name.endswith(".part")]
        for row in broker.archive.rows(partition.identity, log):
            footer = check_archive(disk, folder / f"{row.base_offset:020}.log.zst")
            assert (footer.crc32c, footer.end_offset) == (row.crc32c, row.end_offset)
        rows = broker.archive.rows(partition.identity, log)
        assert len(rows) == len([name for name in names if name.endswith(".log.zst")])


@pytest.mark.parametrize("power", [False, True])
def test_wherever_the_process_ends_each_message_is_live_or_archived(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 300)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    monkeypatch.setattr("goq.broker.topic._REOPEN_DELAY_S", 0.001)
    base, clock = Path("/simulated"), ManualClock()
    settings = {"retention__age": "1h", "archive": "true"}

    async def prepare() -> tuple[SimulatedDisk, MemoryMetadata, list[bytes]]:
        disk, metadata, values = SimulatedDisk(Random(1)), MemoryMetadata(), list[bytes]()
        async with broker_on(base, disk=disk, metadata=metadata, clock=clock, **settings) as broker:
            topic = await broker.create_topic("t", 1)
            for number in range(9):
                values.append(b"%d" % number * 50)
                await publish(topic, values[-1])
                await ack(topic, "g", await topic.receive("g", options(1)))
                await quiet(topic.partitions[0])
                if number % 3 == 2:
                    await topic.partitions[0].keeping.roll()
                    clock.advance_ms(HOUR_MS)
            assert len(topic.partitions[0].events.segments) > 2
        clock.advance_ms(-3 * HOUR_MS)  # nothing is due when a broker starts
        return disk, metadata, values

    async def crash_at(operation: int) -> bool:
        """Let retention end at an operation of the disk; return whether it came to that."""
        disk = prepared.copy()
        disk.random = Random(operation)
        metadata = deepcopy(written)
        try:
            async with broker_on(
                base, disk=disk, metadata=metadata, clock=clock, **settings
            ) as broker:
                disk.crash_at = disk.operations + operation
                clock.advance_ms(4 * HOUR_MS)
                await broker.apply_retention()
                is_through = not disk._crashing
        except (SimulatedCrash, OSError, GoqError):
            is_through = False
        disk.crash(power=power)
        clock.advance_ms(-4 * HOUR_MS)
        async with broker_on(base, disk=disk, metadata=metadata, clock=clock, **settings) as broker:
            await check_whole(broker, values, base, disk)
            clock.advance_ms(4 * HOUR_MS)
            await broker.apply_retention()
            await check_whole(broker, values, base, disk)
            assert broker.topic("t").partitions[0].messages.start_offset == 9
            assert broker.archive.rows(broker.topic("t").partitions[0].identity, "events")
        clock.advance_ms(-4 * HOUR_MS)
        return not is_through

    prepared, written, values = run(prepare())
    operation = 1
    while run(crash_at(operation)):
        operation += 1
    assert operation > 30
