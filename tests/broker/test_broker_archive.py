"""What retention deletes is archived before, and read with the live log as one."""

from __future__ import annotations

from pathlib import Path

from support.broker_harness import (
    MemoryMetadata,
    broker_on,
    publish,
    run,
)

from goq.broker.broker import Broker
from goq.broker.wholelog import WholeReader, whole_logs
from goq.clock import ManualClock
from goq.frame.view import FrameView

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
