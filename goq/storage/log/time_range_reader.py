"""Reads of the messages in a time range, exact whatever the clock did.

Append times come from the leader's clock, which may be set back. So a time range is not one range
of offsets. The result equals a filter over all messages. The index excludes intervals without a
frame of the range, unread; each frame of the others is checked. All messages of a frame have its
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from goq import limits
from goq.errors import CorruptData
from goq.frame.view import FrameView
from goq.storage.log.reader import LogReader, ReadResult, estimate_chunk_bytes, segment_number
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import TIME_US_MAX, TIME_US_MIN, IndexRange
from goq.storage.scanner import Damage

_INDEX_SHARE = 128  # size of a segment, in sizes of its index
_SEGMENT_FRAMES = 4  # cost of a query of an index in memory, in frames


class TimeRange(NamedTuple):
    """A range in microseconds since 1970: from the first time, up to but without the second."""

    from_us: int = TIME_US_MIN
    to_us: int = TIME_US_MAX + 1

    def __contains__(self, time_us: object) -> bool:
        return isinstance(time_us, int) and self.from_us <= time_us < self.to_us


class ReadBounds(NamedTuple):
    """When a read stops: enough found, or enough scanned for one call."""

    messages_max: int = limits.READ_MESSAGES_MAX
    bytes_max: int = limits.READ_BYTES_MAX
    scanned_bytes_max: int = limits.TIME_SCAN_BYTES_MAX


FOREGROUND = ReadBounds()


def read_time_range(
    reader: LogReader,
    times: TimeRange,
    offset: int,
    end_offset: int,
    bounds: ReadBounds = FOREGROUND,
) -> ReadResult:
    """Read the frames in a time range that hold messages from ``offset`` up to ``end_offset``.

    Thread-safe; blocks on the disk. Continue from ``next_offset``; all offsets before it were
    checked. There is no more once it reaches ``end_offset``. A read that ``scanned_bytes_max``
    ended may have no frame at all. Damage is returned with the frames, because its messages may be
    in the range.
    """
    search = _TimeRangeRead(reader, times, offset, end_offset, bounds)
    search.run()
    return search.reading


class _TimeRangeRead:
    """One read in progress."""

    def __init__(
        self, reader: LogReader, times: TimeRange, offset: int, end_offset: int, bounds: ReadBounds
    ) -> None:
        self.reading = ReadResult(next_offset=max(offset, reader.segments[0].base_offset))
        self._reader = reader
        self._times = times
        self._end_offset = end_offset
        self._messages_left = bounds.messages_max
        self._bytes_left = bounds.bytes_max
        self._scan_left = bounds.scanned_bytes_max

    @property
    def _is_full(self) -> bool:
        return self._messages_left <= 0 or self._bytes_left <= 0 or self._scan_left <= 0

    def run(self) -> None:
        reading = self.reading
        while reading.next_offset < self._end_offset and not self._is_full:
            segments = self._reader.segments
            number = segment_number(segments, reading.next_offset)
            if reading.next_offset >= segments[number].end_offset:
                if number + 1 == len(segments):
                    return
                reading.next_offset = segments[number + 1].base_offset  # skip a gap
            elif not self._read_segment(segments, number):
                start_offset = self._reader.segments[0].base_offset
                reading.next_offset = max(reading.next_offset, start_offset)

    def _read_segment(self, segments: Sequence[Segment], number: int) -> bool:
        """Read a segment to its end or until there is enough.

        Return False if its files were removed meanwhile: deleted, or replaced by another
        generation.
        """
        reading = self.reading
        stop = min(segments[number].end_offset, self._end_offset)
        ranges = self._ranges(segments, number)
        if ranges is None:
            return False
        for each in ranges:
            if each.start_offset >= stop:
                break
            reading.next_offset = max(reading.next_offset, each.start_offset)
            range_end = stop if each.end_offset is None else min(each.end_offset, stop)
            self._read_range(segments, number, each.size_bytes, range_end)
            if self._is_full:
                return True
            if reading.next_offset < range_end:
                return False
        reading.next_offset = max(reading.next_offset, stop)
        return True

    def _ranges(self, segments: Sequence[Segment], number: int) -> list[IndexRange] | None:
        segment, times = segments[number], self._times
        self._scan_left -= _SEGMENT_FRAMES * limits.FRAME_SCAN_COST_BYTES
        if segment.index is None:  # the index must be read, or even rebuilt
            self._scan_left -= segment.size_bytes // _INDEX_SHARE
        try:
            index = self._reader.load_index(segments, number)
        except FileNotFoundError:
            if segment not in self._reader.segments:
                return None
            raise CorruptData(f"{segment.path} is missing") from None
        min_us = max(times.from_us, TIME_US_MIN)
        max_us = min(times.to_us - 1, TIME_US_MAX)
        return index.ranges(min_us, max_us, self.reading.next_offset)

    def _read_range(
        self, segments: Sequence[Segment], number: int, size_bytes: int, range_end: int
    ) -> None:
        """Read up to offset ``range_end``, or less if there is enough or the files were removed."""
        reading = self.reading
        chunk_bytes = min(
            max(size_bytes, limits.INDEX_INTERVAL_BYTES),
            estimate_chunk_bytes(segments[number], self._messages_left, self._bytes_left),
        )
        for found in self._reader.scan(segments, number, reading.next_offset, chunk_bytes):
            if isinstance(found, Damage):
                self._skip(found)
            else:
                self._take(found.view)
            if self._is_full or reading.next_offset >= range_end:
                return

    def _skip(self, damage: Damage) -> None:
        self.reading.damage.append(damage)
        self.reading.next_offset = max(self.reading.next_offset, damage.end_offset)
        self._scan_left -= damage.end_position - damage.position

    def _take(self, view: FrameView) -> None:
        """Add a frame if its time is in the range and there is room for it."""
        header, reading = view.header, self.reading
        self._scan_left -= header.frame_bytes + limits.FRAME_SCAN_COST_BYTES
        if header.append_time_us in self._times:
            self._bytes_left -= header.frame_bytes
            if reading.frames and self._bytes_left < 0:
                return
            reading.frames.append(view)
            self._messages_left -= header.end_offset - max(header.base_offset, reading.next_offset)
        reading.next_offset = header.end_offset
