"""Reads of a log by offset or by time: bisect the segments, bisect an index, seek once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from goq import limits
from goq.errors import CorruptData
from goq.frame.view import FrameView
from goq.storage.column_index.rows import ColumnRows, DedupIdRows
from goq.storage.disk import Disk, NotCached
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import SparseIndex
from goq.storage.scanner import BadPages, BadRegion, Damage, DamageRegistry, ScannedFrame, Scanner

_ENDS_MAX = 64


class ReadResult(msgspec.Struct):
    """The frames of one read, the offset to continue from, and the damage that was skipped."""

    frames: list[FrameView] = msgspec.field(default_factory=list)
    next_offset: int = 0
    damage: list[Damage] = msgspec.field(default_factory=list)


class LogReader:
    """Reads the committed part of a log. Thread-safe.

    ``segments`` is never changed in place. The writer replaces the sequence, so a concurrent read
    continues with the one it has. A segment deleted during a read is skipped. A segment replaced by
    another generation is read on from there.
    """

    def __init__(self, disk: Disk, segments: Sequence[Segment], damage: list[Damage]) -> None:
        self._disk = disk
        self.segments = segments
        self._registry = DamageRegistry(damage)
        self.damage = self._registry.items
        """The known damage of the log; one list, which changes."""
        self._bad_pages = BadPages()
        self._ends: dict[int, tuple[Segment, int]] = {}
        """Where recent reads ended, by offset: the segment and the position in it."""

    @property
    def disk(self) -> Disk:
        """The disk that the segments are read from."""
        return self._disk

    def read(
        self,
        offset: int,
        end_offset: int,
        *,
        messages_max: int = limits.READ_MESSAGES_MAX,
        bytes_max: int = limits.READ_BYTES_MAX,
        wait: bool = True,
    ) -> ReadResult:
        """Read whole frames that hold messages from ``offset`` up to ``end_offset``.

        At least one frame is read if there is one, whatever its size; more up to the two bounds.
        Damage on the way is recorded and skipped. ``wait=False`` raises ``NotCached`` instead of
        waiting for the device, and where a frame is so large that reading it takes a while.
        """
        offset = max(offset, self.segments[0].base_offset)
        reading = ReadResult(next_offset=offset)
        messages = size_bytes = 0
        while reading.next_offset < end_offset and messages < messages_max:
            segments, before = self.segments, reading.next_offset
            number = segment_number(segments, before)
            chunk_bytes = estimate_chunk_bytes(segments[number], messages_max - messages)
            for found in self.scan(segments, number, before, chunk_bytes, wait):
                if isinstance(found, Damage):
                    reading.damage.append(found)
                    reading.next_offset = found.end_offset
                    continue
                header = found.view.header
                if header.base_offset >= end_offset or (
                    reading.frames and size_bytes + header.frame_bytes > bytes_max
                ):
                    return reading
                reading.frames.append(found.view)
                reading.next_offset = header.end_offset
                messages += header.message_count
                size_bytes += header.frame_bytes
                if messages >= messages_max or reading.next_offset >= end_offset:
                    self._remember_end(reading.next_offset, segments[number], found.end_position)
                    return reading
            if reading.next_offset == before:
                next_offset = self._next_offset(segments, before)
                if next_offset is None:
                    break
                reading.next_offset = next_offset
        return reading

    def _remember_end(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._ends) >= _ENDS_MAX:
            self._ends.clear()
        self._ends[offset] = segment, position

    def clear_read_ends(self) -> None:
        """Forget where reads ended; required after a cut, because offsets may move."""
        self._ends.clear()

    def _next_offset(self, segments: Sequence[Segment], offset: int) -> int | None:
        """Return where to read on when ``segments`` have nothing at ``offset``, None if nowhere.

        Either the segments were replaced meanwhile, or there is a gap, as between archived
        segments.
        """
        now = self.segments
        if now is not segments:
            return max(offset, now[0].base_offset)
        return next((s.base_offset for s in now if s.base_offset > offset), None)

    def offset_for_time(self, time_us: int, end_offset: int) -> int:
        """Return the offset of the first message appended at or after ``time_us``.

        Returns ``end_offset`` if there is none. If the clock was set back, this is the first in log
        order; later messages may again be earlier than ``time_us``.
        """
        while True:
            segments = self.segments
            try:
                return min(self._offset_for_time(segments, time_us, end_offset), end_offset)
            except FileNotFoundError:
                if segments is self.segments:
                    raise CorruptData(
                        f"a segment of {segments[0].path.parent} is missing"
                    ) from None

    def _offset_for_time(self, segments: Sequence[Segment], time_us: int, end_offset: int) -> int:
        low, high = 0, len(segments) - 1
        while low < high:  # bisect to the first segment whose running maximum reaches the time
            middle = (low + high) // 2
            if self._max_time_us(segments, middle) >= time_us:
                high = middle
            else:
                low = middle + 1
        for segment in segments[low:]:
            entry = segment.load_index(self._disk).before_time(time_us)
            scanner = Scanner(
                self._disk, segment.path, segment.size_bytes, bad_pages=self._bad_pages
            )
            try:
                for place in scanner.frames(entry.position, entry.offset):
                    if not isinstance(place, ScannedFrame):
                        continue
                    if place.view.header.append_time_us >= time_us:
                        return place.view.header.base_offset
            except FileNotFoundError:
                if segments is not self.segments:
                    raise  # it was deleted, else it is damage, which has no time
        return end_offset

    def append_time_us(self, offset: int) -> int:
        """Return the append time of the message at ``offset``; raises ``CorruptData``."""
        while True:
            segments = self.segments
            for place in self._scan_from(offset):
                if isinstance(place, Damage):
                    raise CorruptData(f"offset {offset} is damaged: {place}")
                return place.view.header.append_time_us
            if segments is self.segments:
                raise CorruptData(f"offset {offset} is not in the log")

    def rows(
        self, start: int, end: int, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> Iterator[ColumnRows]:
        """Yield the column rows of committed messages from ``start`` up to ``end``, by offset.

        Yields batches of arrays; thread-safe; blocks on the disk. With a due bound, both ends
        included, only delayed messages due within it. Rows of offsets damaged since may be among
        them; reading those offsets reports it. Raises ``OSError`` when the disk fails.
        """
        while (segment := self._next_within(start, end)) is not None:
            columns = segment.used_columns()
            assert columns is not None, "the log keeps no columns"
            for rows in columns.rows(start, end, due_from_ms, due_to_ms):
                start = int(rows.offsets[-1]) + 1
                yield rows
            if segment in self.segments:  # else its files may be deleted before the end
                start = max(start, segment.end_offset)

    def dedup_rows(self, start: int, end: int) -> Iterator[DedupIdRows]:
        """Yield the dedup ids of messages from ``start`` up to ``end``, newest batch first.

        Offsets rise within a batch. See :meth:`rows` for the rest.
        """
        while (segment := self._last_within(start, end)) is not None:
            columns = segment.used_columns()
            assert columns is not None, "the log keeps no columns"
            for rows in columns.dedup_rows(start, end):
                end = int(rows.offsets[0])
                yield rows
            if segment in self.segments:
                end = min(end, segment.base_offset)

    def _next_within(self, start: int, end: int) -> Segment | None:
        segments = self.segments
        for segment in segments[segment_number(segments, start) :]:
            if segment.base_offset >= end:
                break
            if segment.end_offset > start:
                return segment
        return None

    def _last_within(self, start: int, end: int) -> Segment | None:
        segments = self.segments
        number = bisect_left(segments, end, key=lambda s: s.base_offset) - 1
        found = segments[number] if number >= 0 else None
        return found if found is not None and found.end_offset > start else None

    def locate(self, offset: int) -> tuple[Segment, int, int]:
        """Return the segment and position of the frame that holds ``offset``, and its base offset.

        Raises ``CorruptData`` if that frame cannot be read.
        """
        segment = self.segments[segment_number(self.segments, offset)]
        for place in self._scan_from(offset):
            if isinstance(place, Damage):
                raise CorruptData(f"offset {offset} is damaged: {place}")
            return segment, place.position, place.view.header.base_offset
        return segment, segment.size_bytes, segment.end_offset

    def locate_cut(self, offset: int) -> tuple[Segment, int, int]:
        """Return :meth:`locate`, or the start of damage that begins exactly at ``offset``."""
        segment = self.segments[segment_number(self.segments, offset)]
        place = next(iter(self._scan_from(offset)), None)
        if isinstance(place, Damage) and place.start_offset == offset:
            if place.path == segment.path:
                return segment, place.position, offset
            if not place.end_position:  # a whole file is missing, behind this segment
                return segment, segment.size_bytes, offset
        return self.locate(offset)

    def max_time_us_before(self, segment: Segment) -> int:
        """Return the running maximum of append times before a segment."""
        segments = self.segments
        number = segments.index(segment)
        return self._max_time_us(segments, number - 1) if number else 0

    def max_time_us_at_end(self, segment: Segment) -> int:
        """Return the running maximum of append times up to the end of a segment."""
        segments = self.segments
        if segment is segments[-1] and segment.index is not None and not segment.has_partial_times:
            return segment.time_us
        return self._max_time_us(segments, segments.index(segment))

    def sealed_time_us(self, offset: int) -> int | None:
        """Return the latest append time up to the end of the segment that holds ``offset``.

        None for the active segment, which can still grow.
        """
        segments = self.segments
        number = segment_number(segments, offset)
        return self._max_time_us(segments, number) if number < len(segments) - 1 else None

    def _scan_from(self, offset: int) -> Iterator[ScannedFrame | Damage]:
        segments = self.segments
        number = segment_number(segments, offset)
        return self.scan(segments, number, offset, limits.READ_CHUNK_BYTES)

    def _max_time_us(self, segments: Sequence[Segment], number: int) -> int:
        """Return the running maximum at a segment's end; rebuilds missing indexes."""
        first = number
        while first > 0 and not self._has_max_time(segments[first]):
            first -= 1
        time_us = 0
        for segment in segments[first : number + 1]:
            segment.load_index(self._disk)
            segment.finish_times(self._disk, time_us)
            time_us = segment.time_us
        return time_us

    def _has_max_time(self, segment: Segment) -> bool:
        return segment.has_index(self._disk) and not segment.has_partial_times

    def load_index(self, segments: Sequence[Segment], number: int) -> SparseIndex:
        """Return a segment's index; completes a rebuilt one where that needs no other segment."""
        segment = segments[number]
        index = segment.load_index(self._disk)
        if segment.has_partial_times:
            before = segments[number - 1] if number else None
            if before is None or self._has_max_time(before):
                segment.finish_times(self._disk, before.time_us if before else 0)
        return index

    def scan(
        self,
        segments: Sequence[Segment],
        number: int,
        offset: int,
        chunk_bytes: int,
        wait: bool = True,
    ) -> Iterator[ScannedFrame | Damage]:
        """Yield frames and damage from the frame with ``offset`` to the end of the segment."""
        segment = segments[number]
        end = self._ends.get(offset)
        if end is not None and end[0] is not segment:
            end = None
        if segment.index is None and end is None and not wait:
            raise NotCached
        end_offset = segment.end_offset  # read before the size: a commit sets the size first
        size_bytes, reached = segment.size_bytes, offset
        try:
            if end is not None:
                position, at = end[1], offset
            else:
                at, position, *_ = self.load_index(segments, number).before_offset(offset)
            scanner = Scanner(
                self._disk,
                segment.path,
                size_bytes,
                chunk_bytes=chunk_bytes,
                wait=wait,
                bad_pages=self._bad_pages,
            )
            for place in scanner.frames(position, at, skip_to=offset):
                if isinstance(place, ScannedFrame):
                    yield place
                else:
                    damage = self.record_damage(segment, place, end_offset)
                    if damage.end_offset > offset:
                        yield damage
                    if place.end_offset is None:
                        return
                reached = scanner.offset
            reached = scanner.offset
        except FileNotFoundError:
            if segment not in self.segments:
                return
        if reached < end_offset:
            gap = BadRegion(size_bytes, size_bytes, reached, None, "messages are missing here")
            yield self.record_damage(segment, gap, end_offset)

    def record_damage(self, segment: Segment, region: BadRegion, end_offset: int) -> Damage:
        """Return the damage of a region of a segment; it is known from now on."""
        return self._registry.record(segment.path, region, end_offset)

    def is_sound(self, start_offset: int, end_offset: int) -> bool:
        """Return whether every frame between two offsets is readable; reads them all from disk."""
        reached = start_offset
        while reached < end_offset:
            reading = self.read(reached, end_offset, messages_max=2**62, bytes_max=limits.MIB)
            if reading.damage or reading.next_offset <= reached:
                return False
            reached = reading.next_offset
        return True

    def note_missing(self, start_offset: int, end_offset: int) -> None:
        """Record a segment as damage that the log must have and has not."""
        known = (d for d in self.damage if d.start_offset <= start_offset)
        if not any(end_offset <= damage.end_offset for damage in known):
            path = Segment(self.segments[0].path.parent, start_offset).path
            region = BadRegion(0, 0, start_offset, end_offset, "the segment is missing")
            self._registry.record(path, region, end_offset)

    def note_hole(self, sealed: Segment, start_offset: int) -> None:
        """Record the end of a sealed segment, from an offset on, as damage without bytes."""
        size = sealed.size_bytes
        hole = BadRegion(size, size, start_offset, None, "no replica has these messages")
        self._registry.record(sealed.path, hole, sealed.end_offset)

    def clear_damage(self, start_offset: int, end_offset: int) -> None:
        """Forget known damage between two offsets, after a repair or a cut."""
        self._registry.clear(start_offset, end_offset)


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the segment that holds ``offset``: the last that begins by then."""
    return max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)


def estimate_chunk_bytes(segment: Segment, messages: int, bytes_max: int = limits.MIB) -> int:
    """Return how many bytes to read at once for so many messages, by the segment's average."""
    average = segment.size_bytes // max(1, segment.message_count) + 1
    guess = average * messages + limits.INDEX_INTERVAL_BYTES
    return min(max(guess, 2 * limits.INDEX_INTERVAL_BYTES), bytes_max)
