"""Lookups by time: the end offset of a log at a time; and searches of the frames themselves.

A time is resolved in log order. Take a log with frames of 10:00, 11:00 and, because the clock was
set back in between, 10:30. At 10:30 it had all three; at 10:15 it had the first. So a wrong clock
hides no frame that came after it.

The index holds the earliest append time of each interval, whatever the clock did. A lookup walks
the index from its end, and reads only intervals with a frame of that time or before it.
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
from goq.storage.scanner import ScannedFrame, Scanner, is_medium_error

T = TypeVar("T")

_HEAD = Struct("<4sIqq")  # the first header fields: magic, length, offset, time
_CHUNK_BYTES = 2 * limits.INDEX_INTERVAL_BYTES
_SEARCH_BYTES = 256 * limits.KIB


def end_offset_at(reader: LogReader, time_us: int) -> int:
    """Return the offset after the last frame, in log order, that was appended by ``time_us``.

    Returns the log's first offset if there is none. Damaged frames have no time. Blocks on the
    disk. Raises ``OSError`` when the disk fails, and ``CorruptData`` for a missing segment.
    """
    return retry_deleted([reader], lambda: _end_offset_at(reader, time_us))


def retry_deleted(readers: Sequence[LogReader], work: Callable[[], T]) -> T:
    """Return the result of ``work``, run again if it met a segment that was deleted meanwhile.

    Raises ``CorruptData`` for a missing segment that its log did not delete.
    """
    while True:
        before = [reader.segments for reader in readers]
        try:
            return work()
        except FileNotFoundError as error:
            if all(reader.segments is each for reader, each in zip(readers, before, strict=True)):
                raise CorruptData(f"a segment is missing: {error}") from None


def read_backward(
    reader: LogReader, end_offset: int, accepts: Callable[[memoryview], bool] | None = None
) -> Iterator[ScannedFrame]:
    """Yield the sound frames before ``end_offset``, last first; blocks on the disk.

    ``accepts`` is called with the unchecked body of each frame. Rejected frames cost little.
    """
    for segment in reversed(reader.segments):
        if segment.base_offset >= end_offset:
            continue
        intervals = _intervals(reader, segment)
        for number in reversed(range(intervals.number)):
            if intervals.offsets[number] >= end_offset:
                continue
            for place in _accepted(_Interval(intervals, number), reader.disk, accepts):
                if place.view.header.end_offset <= end_offset:
                    yield place


def _accepted(
    interval: _Interval, disk: Disk, accepts: Callable[[memoryview], bool] | None
) -> Iterator[ScannedFrame]:
    """Yield the sound frames of an interval that are accepted, last first."""
    if accepts is None:
        yield from reversed(list(interval.frames(disk)))
        return
    heads = interval.heads(disk)
    if heads is None or any(accepts(head.body) for head in heads):
        places = list(interval.frames(disk))
        yield from (place for place in reversed(places) if accepts(place.view.body))


def find_frames(reader: LogReader, segment: Segment, text: bytes) -> Iterator[ScannedFrame]:
    """Yield the sound frames of a segment with ``text`` in their body; blocks on the disk.

    The file is searched as it is; only the index intervals with a hit are parsed.
    """
    intervals = _intervals(reader, segment)
    end = int(intervals.positions[-1])
    hits: list[int] = []
    for start in range(0, end, _SEARCH_BYTES):
        size = min(_SEARCH_BYTES + len(text) - 1, end - start)
        data = bytes(reader.disk.read(segment.path, start, size))
        at = data.find(text)
        while at >= 0:
            number = int(np.searchsorted(intervals.positions, start + at, "right")) - 1
            hits.append(number)
            at = data.find(text, int(intervals.positions[number + 1]) - start)
    for number in dict.fromkeys(hits):
        for place in _Interval(intervals, number).frames(reader.disk):
            if text in bytes(place.view.body):
                yield place


class _Intervals(NamedTuple):
    """The boundaries of a segment's index intervals, with the segment's end as the last.

    ``min_us`` is the earliest append time of each interval. After the last entry of the active
    segment it is not known yet, and is the lowest possible time.
    """

    segment: Segment
    offsets: Int64s
    positions: Int64s
    min_us: Int64s

    @property
    def number(self) -> int:
        """Number of intervals."""
        return len(self.offsets) - 1


class _Head(NamedTuple):
    """The time and body of a frame, before any check."""

    time_us: int
    body: memoryview


class _Interval(NamedTuple):
    """One interval of a segment."""

    of: _Intervals
    number: int

    def heads(self, disk: Disk) -> list[_Head] | None:
        """Return times and bodies of the frames, unchecked; None where they are damaged."""
        first, last = self.of.positions[self.number : self.number + 2].tolist()
        try:
            data = disk.read(self.of.segment.path, first, last - first)
        except OSError as error:
            if not is_medium_error(error):
                raise
            return None
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
        """Return the offset after the last sound frame appended by ``time_us``, or None."""
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
        scanner = Scanner(disk, segment.path, end, chunk_bytes=_CHUNK_BYTES)
        for place in scanner.frames(start, int(offsets[self.number])):
            if isinstance(place, ScannedFrame):
                yield place


def _intervals(reader: LogReader, segment: Segment) -> _Intervals:
    end_offset, size_bytes = segment.end_offset, segment.size_bytes  # a commit sets size first
    offsets, positions, min_us = segment.load_index(reader.disk).intervals()
    count = int(np.searchsorted(positions, size_bytes))
    return _Intervals(
        segment,
        np.append(offsets[:count], end_offset),
        np.append(positions[:count], size_bytes),
        np.append(min_us, TIME_US_MIN)[1 : count + 1],
    )


def _end_offset_at(reader: LogReader, time_us: int) -> int:
    segments = reader.segments
    end_offset = segments[-1].end_offset  # read before the time: a commit sets the time last
    if time_us >= _max_time_us_at_end(reader, segments[-1]):
        return end_offset
    for segment in reversed(segments):
        intervals = _intervals(reader, segment)
        for number in reversed(np.flatnonzero(intervals.min_us <= time_us).tolist()):
            end = _Interval(intervals, number).last_by(reader.disk, time_us)
            if end is not None:
                return end
    return segments[0].base_offset


def _max_time_us_at_end(reader: LogReader, segment: Segment) -> int:
    try:
        return reader.max_time_us_at_end(segment)
    except ValueError:
        raise FileNotFoundError(f"{segment.path} was deleted") from None
