"""How far a log reached at a moment, and reading a log from its end towards its beginning.

The moment is told by the log's order: a log that holds frames of 10:00, 11:00 and, because the
clock was set back in between, 10:30 reached past all three at 10:30, and past the first of them at
10:15. So a clock that was once wrong hides nothing that came after.

The index says of each stretch when the earliest of its frames was appended, whatever the clock did:
so the log is looked through from its end, and only stretches are read that have a frame of the
moment or before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

import numpy as np

from goq import limits
from goq.errors import CorruptData
from goq.frame.header import HEADER_BYTES, MAGIC
from goq.storage.column_index.rows import Int64s
from goq.storage.disk import Disk
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import TIME_US_MIN
from goq.storage.scanner import ScannedFrame, Scanner

T = TypeVar("T")

_HEAD = Struct("<4sIqq")  # magic, length, offset and time: what a frame's header begins with
_CHUNK_BYTES = 2 * limits.INDEX_INTERVAL_BYTES


def end_offset_at(reader: LogReader, time_us: int) -> int:
    """Return the offset behind the last frame, in the log's order, that was appended by then.

    That is the log's first offset where none was. Frames that are damaged have no time. Blocks on
    the disk; raises ``OSError`` when it fails, ``CorruptData`` for a segment that is gone.
    """
    return retry_deleted([reader], lambda: _end_at(reader, time_us))


def retry_deleted(readers: Sequence[LogReader], work: Callable[[], T]) -> T:
    """Return what comes of reading logs, read anew where segments are deleted meanwhile.

    Raises ``CorruptData`` for a segment that is gone and was not deleted by its log.
    """
    while True:
        before = [reader.segments for reader in readers]
        try:
            return work()
        except FileNotFoundError as error:
            if all(reader.segments is each for reader, each in zip(readers, before, strict=True)):
                raise CorruptData(f"a segment is gone: {error}") from None


def read_backward(
    reader: LogReader, end_offset: int, is_wanted: Callable[[memoryview], bool] | None = None
) -> Iterator[ScannedFrame]:
    """Yield the sound frames before ``end_offset``, the last first; blocks on the disk.

    ``is_wanted`` is asked about the body of each, unchecked: what it refuses costs little.
    """
    for segment in reversed(reader.segments):
        if segment.base_offset >= end_offset:
            continue
        stretches = _intervals(reader, segment)
        for number in reversed(range(stretches.number)):
            if stretches.offsets[number] >= end_offset:
                continue
            stretch = _Interval(stretches, number)
            heads = stretch.heads(reader.disk) if is_wanted is not None else None
            if heads is None or any(is_wanted(head.body) for head in heads if is_wanted):
                for place in reversed(list(stretch.frames(reader.disk))):
                    view = place.view
                    if view.header.end_offset <= end_offset and (
                        is_wanted is None or is_wanted(view.body)
                    ):
                        yield place


class _Intervals(NamedTuple):
    """The places that divide a segment, its end being the last.

    ``min_us`` is the earliest append time of each stretch between two of them; where that is not
    known yet, behind the last entry of a segment that grows, the lowest there is.
    """

    segment: Segment
    offsets: Int64s
    positions: Int64s
    min_us: Int64s

    @property
    def number(self) -> int:
        """How many stretches there are between the places."""
        return len(self.offsets) - 1


class _Head(NamedTuple):
    """What a frame says of itself, before any check."""

    time_us: int
    body: memoryview


class _Interval(NamedTuple):
    """One of the stretches of a segment."""

    of: _Intervals
    number: int

    def heads(self, disk: Disk) -> list[_Head] | None:
        """Return what the frames say of themselves, unchecked; None where they are damaged."""
        first, last = self.of.positions[self.number : self.number + 2].tolist()
        data = disk.read(self.of.segment.path, first, last - first)
        heads, at = [], 0
        while at < len(data):
            if at + HEADER_BYTES > len(data):
                return None
            magic, frame_bytes, _, time_us = _HEAD.unpack_from(data, at)
            if magic != MAGIC or frame_bytes <= HEADER_BYTES:
                return None
            heads.append(_Head(time_us, data[at + HEADER_BYTES : at + frame_bytes]))
            at += frame_bytes
        return heads if at == last - first else None

    def last_by(self, disk: Disk, time_us: int) -> int | None:
        """Return the offset behind the last sound frame appended by then, None if none was."""
        heads = self.heads(disk)
        if heads is not None and all(head.time_us > time_us for head in heads):
            return None
        ends = [
            place.view.header.end_offset
            for place in self.frames(disk)
            if place.view.header.append_time_us <= time_us
        ]
        return ends[-1] if ends else None

    def frames(self, disk: Disk) -> Iterator[ScannedFrame]:
        """Yield the sound frames in order."""
        segment, offsets, positions, _ = self.of
        start, end = positions[self.number : self.number + 2].tolist()
        scan = Scanner(disk, segment.path, end, chunk_bytes=_CHUNK_BYTES)
        for place in scan.frames(start, int(offsets[self.number])):
            if isinstance(place, ScannedFrame):
                yield place


def _intervals(reader: LogReader, segment: Segment) -> _Intervals:
    end_offset, size_bytes = segment.end_offset, segment.size_bytes  # in the order of a reader
    offsets, positions, min_us = segment.load_index(reader.disk).stretches()
    count = int(np.searchsorted(positions, size_bytes))
    return _Intervals(
        segment,
        np.append(offsets[:count], end_offset),
        np.append(positions[:count], size_bytes),
        np.append(min_us, TIME_US_MIN)[1 : count + 1],
    )


def _end_at(reader: LogReader, time_us: int) -> int:
    segments = reader.segments
    end_offset = segments[-1].end_offset  # before the time, which a commit sets after it
    if time_us >= _time_at_end(reader, segments[-1]):
        return end_offset
    for segment in reversed(segments):
        stretches = _intervals(reader, segment)
        for number in reversed(np.flatnonzero(stretches.min_us <= time_us).tolist()):
            end = _Interval(stretches, number).last_by(reader.disk, time_us)
            if end is not None:
                return end
    return segments[0].base_offset


def _time_at_end(reader: LogReader, segment: Segment) -> int:
    try:
        return reader.max_time_us_at_end(segment)
    except ValueError:
        raise FileNotFoundError(f"{segment.path} was deleted") from None
