"""Reading a log by offset or by time: a bisection over segments, one over an index, one seek."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from goq import limits
from goq.errors import CorruptData
from goq.frame.view import FrameView
from goq.storage.column_index.rows import ColumnRows, DedupIdRows
from goq.storage.disk import Disk, NotCached
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import SparseIndex
from goq.storage.scanner import BadRegion, Damage, ScannedFrame, Scanner

_ENDS_MAX = 64


@dataclass(slots=True)
class ReadResult:
    """Frames from one reading, the offset to read on from, and what had to be passed over."""

    frames: list[FrameView] = field(default_factory=list)
    next_offset: int = 0
    damage: list[Damage] = field(default_factory=list)


class LogReader:
    """Reads the committed part of a log, from any thread.

    ``segments`` is never changed in place: the writer puts another in its place, so that whoever
    reads meanwhile goes on with what it took. A segment deleted under a reading is passed over; one
    that another generation has replaced is read on there.
    """

    def __init__(self, disk: Disk, segments: Sequence[Segment], damage: list[Damage]) -> None:
        self._disk = disk
        self.segments = segments
        self.damage = damage
        self._noting = threading.Lock()
        self._ends: dict[int, tuple[Segment, int]] = {}
        """Where readings ended that may be gone on with: a segment, and a position in it."""

    @property
    def disk(self) -> Disk:
        """What the segments are read with."""
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

        At least one frame is read if there is one, however large; more up to the two bounds.
        Damage met on the way is noted and passed over. ``wait=False`` raises ``NotCached``
        instead of waiting for the device.
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
                    self._note_end(reading.next_offset, segments[number], found.end_position)
                    return reading
            if reading.next_offset == before:
                following = self._following(segments, before)
                if following is None:
                    break
                reading.next_offset = following
        return reading

    def _note_end(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._ends) >= _ENDS_MAX:
            self._ends.clear()
        self._ends[offset] = segment, position

    def clear_read_ends(self) -> None:
        """Hear that offsets may come to lie at other places, because the log was cut."""
        self._ends.clear()

    def _following(self, segments: Sequence[Segment], offset: int) -> int | None:
        """Return where to read on when ``segments`` have nothing at ``offset``; None: nowhere.

        Either there are others since, or there is a gap, as between what was archived.
        """
        now = self.segments
        if now is not segments:
            return max(offset, now[0].base_offset)
        return next((s.base_offset for s in now if s.base_offset > offset), None)

    def offset_for_time(self, time_us: int, end_offset: int) -> int:
        """Return the offset of the first message appended at or after ``time_us``.

        That is ``end_offset`` where none is. With a clock that was set back, it is the first in
        the order of the log: later ones may again be earlier than ``time_us``.
        """
        while True:
            segments = self.segments
            try:
                return min(self._find_time(segments, time_us, end_offset), end_offset)
            except FileNotFoundError:
                if segments is self.segments:
                    raise CorruptData(f"a segment of {segments[0].path.parent} is gone") from None

    def _find_time(self, segments: Sequence[Segment], time_us: int, end_offset: int) -> int:
        low, high = 0, len(segments) - 1
        while low < high:  # the first segment whose running maximum reaches the time
            middle = (low + high) // 2
            if self._time_of(segments, middle) >= time_us:
                high = middle
            else:
                low = middle + 1
        for segment in segments[low:]:
            entry = segment.load_index(self._disk).before_time(time_us)
            scan = Scanner(self._disk, segment.path, segment.size_bytes)
            for place in scan.frames(entry.position, entry.offset):
                if isinstance(place, ScannedFrame) and place.view.header.append_time_us >= time_us:
                    return place.view.header.base_offset
        return end_offset

    def time_of(self, offset: int) -> int:
        """Return when the message at ``offset`` was appended; raises ``CorruptData``."""
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
        """Yield the rows of messages from ``start`` up to ``end`` that are committed, by offset.

        Some arrays at a time, from any thread; blocks on the disk. With a bound of the time of
        delivery, both included, only messages that were delayed to within. What has been damaged
        since may be among them; reading it says so. Raises ``OSError`` when the disk fails.
        """
        while (segment := self._next_within(start, end)) is not None:
            assert segment.columns is not None, "the log keeps no columns"
            for rows in segment.columns.rows(start, end, due_from_ms, due_to_ms):
                start = int(rows.offsets[-1]) + 1
                yield rows
            if segment in self.segments:  # else its files may have gone before all was read
                start = max(start, segment.end_offset)

    def dedup_rows(self, start: int, end: int) -> Iterator[DedupIdRows]:
        """Yield the dedup ids of messages from ``start`` up to ``end``, the newest first.

        Within each of the results offsets rise; see :meth:`rows` for the rest.
        """
        while (segment := self._last_within(start, end)) is not None:
            assert segment.columns is not None, "the log keeps no columns"
            for rows in segment.columns.dedup_rows(start, end):
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
        """Return the segment and position of the frame holding ``offset``, and its first offset.

        Raises ``CorruptData`` where that frame cannot be read.
        """
        segment = self.segments[segment_number(self.segments, offset)]
        for place in self._scan_from(offset):
            if isinstance(place, Damage):
                raise CorruptData(f"offset {offset} is damaged: {place}")
            return segment, place.position, place.view.header.base_offset
        return segment, segment.size_bytes, segment.end_offset

    def locate_cut(self, offset: int) -> tuple[Segment, int, int]:
        """Return :meth:`locate`, also where damage begins just at ``offset``: it goes as well."""
        segment = self.segments[segment_number(self.segments, offset)]
        place = next(iter(self._scan_from(offset)), None)
        if isinstance(place, Damage) and (place.path, place.start_offset) == (segment.path, offset):
            return segment, place.position, offset
        return self.locate(offset)

    def max_time_us_before(self, segment: Segment) -> int:
        """Return the running maximum of append times over everything before a segment."""
        segments = self.segments
        number = segments.index(segment)
        return self._time_of(segments, number - 1) if number else 0

    def max_time_us_at_end(self, segment: Segment) -> int:
        """Return the running maximum of append times over everything up to a segment's end."""
        segments = self.segments
        if segment is segments[-1] and segment.index is not None and not segment.times_are_own:
            return segment.time_us
        return self._time_of(segments, segments.index(segment))

    def sealed_time_us(self, offset: int) -> int | None:
        """Return the latest append time up to the end of the segment that holds ``offset``.

        None where that is the last segment, to which more may come.
        """
        segments = self.segments
        number = segment_number(segments, offset)
        return self._time_of(segments, number) if number < len(segments) - 1 else None

    def _scan_from(self, offset: int) -> Iterator[ScannedFrame | Damage]:
        segments = self.segments
        number = segment_number(segments, offset)
        return self.scan(segments, number, offset, limits.READ_CHUNK_BYTES)

    def _time_of(self, segments: Sequence[Segment], number: int) -> int:
        """Return the running maximum at a segment's end, making indexes anew where they lack."""
        first = number
        while first > 0 and not self._knows_time(segments[first]):
            first -= 1
        time_us = 0
        for segment in segments[first : number + 1]:
            segment.load_index(self._disk)
            segment.settle_times(self._disk, time_us)
            time_us = segment.time_us
        return time_us

    def _knows_time(self, segment: Segment) -> bool:
        return segment.has_index(self._disk) and not segment.times_are_own

    def index_of(self, segments: Sequence[Segment], number: int) -> SparseIndex:
        """Return a segment's index; one made anew is finished if that costs nothing more."""
        segment = segments[number]
        index = segment.load_index(self._disk)
        if segment.times_are_own:
            before = segments[number - 1] if number else None
            if before is None or self._knows_time(before):
                segment.settle_times(self._disk, before.time_us if before else 0)
        return index

    def scan(
        self,
        segments: Sequence[Segment],
        number: int,
        offset: int,
        chunk_bytes: int,
        wait: bool = True,
    ) -> Iterator[ScannedFrame | Damage]:
        """Yield the frames from the one with ``offset`` to the segment's end, and what is bad."""
        segment = segments[number]
        end = self._ends.get(offset)
        if end is not None and end[0] is not segment:
            end = None
        if segment.index is None and end is None and not wait:
            raise NotCached
        end_offset = segment.end_offset  # before the size, which a commit sets before it
        size_bytes, reached = segment.size_bytes, offset
        try:
            if end is not None:
                position, at = end[1], offset
            else:
                at, position, *_ = self.index_of(segments, number).before_offset(offset)
            scan = Scanner(self._disk, segment.path, size_bytes, chunk_bytes=chunk_bytes, wait=wait)
            for place in scan.frames(position, at, skip_to=offset):
                if isinstance(place, ScannedFrame):
                    yield place
                else:
                    damage = self._note(segment, place, end_offset)
                    if damage.end_offset > offset:
                        yield damage
                    if place.end_offset is None:
                        return
                reached = scan.offset
            reached = scan.offset
        except FileNotFoundError:
            if segment not in self.segments:
                return
        if reached < end_offset:
            gap = BadRegion(size_bytes, size_bytes, reached, None, "messages are missing here")
            yield self._note(segment, gap, end_offset)

    def _note(self, segment: Segment, region: BadRegion, segment_end_offset: int) -> Damage:
        """Remember damage met in reading; the same offsets are remembered once."""
        end_offset = segment_end_offset if region.end_offset is None else region.end_offset
        with self._noting:
            for known in self.damage:
                if (known.start_offset, known.end_offset) == (region.start_offset, end_offset):
                    return known
            damage = Damage(
                segment.path,
                region.position,
                region.end_position,
                region.start_offset,
                end_offset,
                region.reason,
            )
            self.damage.append(damage)
        return damage

    def is_sound(self, start_offset: int, end_offset: int) -> bool:
        """Whether everything between two offsets can be read; reads it, and blocks on the disk."""
        reached = start_offset
        while reached < end_offset:
            reading = self.read(reached, end_offset, messages_max=2**62, bytes_max=limits.MIB)
            if reading.damage or reading.next_offset <= reached:
                return False
            reached = reading.next_offset
        return True

    def clear_damage(self, start_offset: int, end_offset: int) -> None:
        """Hear that what was damaged between two offsets is whole again."""
        with self._noting:
            self.damage[:] = [
                damage
                for damage in self.damage
                if damage.end_offset <= start_offset or end_offset <= damage.start_offset
            ]


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Return which segment holds ``offset``: the last that begins at or before it."""
    return max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)


def estimate_chunk_bytes(segment: Segment, messages: int, bytes_max: int = limits.MIB) -> int:
    """Guess what to read at once for so many messages, from the segment's own average."""
    average = segment.size_bytes // max(1, segment.message_count) + 1
    guess = average * messages + limits.INDEX_INTERVAL_BYTES
    return min(max(guess, 2 * limits.INDEX_INTERVAL_BYTES), bytes_max)
