"""Reading a log by offset or by time: a bisection over segments, one over an index, one seek."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from goq import limits
from goq.errors import DamagedData
from goq.frame.view import FrameView
from goq.storage.damage import Damage
from goq.storage.files import Disk
from goq.storage.scan import BadRegion, FramePlace, Scan
from goq.storage.segment import Segment


@dataclass(slots=True)
class Reading:
    """Frames from one reading, the offset to read on from, and what had to be passed over."""

    frames: list[FrameView] = field(default_factory=list)
    next_offset: int = 0
    damage: list[Damage] = field(default_factory=list)


class LogReader:
    """Reads the committed part of a log; shares the list of segments with its writer."""

    def __init__(self, disk: Disk, segments: list[Segment], damage: list[Damage]) -> None:
        self._disk = disk
        self._segments = segments
        self.damage = damage

    def read(
        self,
        offset: int,
        end_offset: int,
        *,
        messages_max: int = limits.READ_MESSAGES_MAX,
        bytes_max: int = limits.READ_BYTES_MAX,
        wait: bool = True,
    ) -> Reading:
        """Read whole frames that hold messages from ``offset`` up to ``end_offset``.

        At least one frame is read if there is one, however large; more up to the two bounds.
        Damage met on the way is noted and passed over. ``wait=False`` raises ``NotCached``
        instead of waiting for the device.
        """
        offset = max(offset, self._segments[0].base_offset)
        reading = Reading(next_offset=offset)
        messages = size_bytes = 0
        while reading.next_offset < end_offset and messages < messages_max:
            segment = self._segment_of(reading.next_offset)
            before = reading.next_offset
            chunk_bytes = self._chunk_bytes(segment, messages_max - messages)
            for found in self._places(segment, before, chunk_bytes, wait):
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
                    return reading
            if reading.next_offset == before:
                break
        return reading

    def find_time(self, time_us: int, end_offset: int) -> int:
        """Return the offset of the first message appended at or after ``time_us``.

        That is ``end_offset`` where none is. With a clock that was set back, it is the first in
        the order of the log: later ones may again be earlier than ``time_us``.
        """
        low, high = 0, len(self._segments) - 1
        while low < high:  # the first segment whose running maximum reaches the time
            middle = (low + high) // 2
            if self._time_of(middle) >= time_us:
                high = middle
            else:
                low = middle + 1
        for number in range(low, len(self._segments)):
            segment = self._segments[number]
            self._time_of(number)
            entry = segment.load_index(self._disk).before_time(time_us)
            scan = Scan(self._disk, segment.path, segment.size_bytes)
            for place in scan.frames(entry.position, entry.offset):
                if isinstance(place, FramePlace) and place.view.header.append_time_us >= time_us:
                    return min(place.view.header.base_offset, end_offset)
        return end_offset

    def time_of(self, offset: int) -> int:
        """Return when the message at ``offset`` was appended; raises ``DamagedData``."""
        for place in self._places(self._segment_of(offset), offset, limits.READ_CHUNK_BYTES, True):
            if isinstance(place, Damage):
                raise DamagedData(f"offset {offset} is damaged: {place}")
            return place.view.header.append_time_us
        raise DamagedData(f"offset {offset} is not in the log")

    def place_of(self, offset: int) -> tuple[Segment, int, int]:
        """Return the segment and position of the frame holding ``offset``, and its first offset.

        Raises ``DamagedData`` where that frame cannot be read.
        """
        segment = self._segment_of(offset)
        for place in self._places(segment, offset, limits.READ_CHUNK_BYTES, wait=True):
            if isinstance(place, Damage):
                raise DamagedData(f"offset {offset} is damaged: {place}")
            return segment, place.position, place.view.header.base_offset
        return segment, segment.size_bytes, segment.end_offset

    def _segment_of(self, offset: int) -> Segment:
        number = bisect_right(self._segments, offset, key=lambda s: s.base_offset) - 1
        return self._segments[max(0, number)]

    def _time_of(self, number: int) -> int:
        """Return the running maximum at a segment's end, making indexes anew where they lack."""
        first = number
        while first > 0 and not self._segments[first].has_index(self._disk):
            first -= 1
        time_us = 0
        for segment in self._segments[first : number + 1]:
            segment.load_index(self._disk, time_before_us=time_us)
            time_us = segment.time_us
        return time_us

    def _chunk_bytes(self, segment: Segment, messages: int) -> int:
        """Guess what to read at once for so many messages, from the segment's own average."""
        average = segment.size_bytes // max(1, segment.message_count) + 1
        guess = average * messages + limits.INDEX_INTERVAL_BYTES
        return min(max(guess, 2 * limits.INDEX_INTERVAL_BYTES), limits.MIB)

    def _places(
        self, segment: Segment, offset: int, chunk_bytes: int, wait: bool
    ) -> Iterator[FramePlace | Damage]:
        """Yield the frames from the one with ``offset`` to the segment's end, and what is bad."""
        entry = segment.load_index(self._disk).before_offset(offset)
        scan = Scan(
            self._disk, segment.path, segment.size_bytes, chunk_bytes=chunk_bytes, wait=wait
        )
        end_offset, size_bytes = segment.end_offset, segment.size_bytes
        for place in scan.frames(entry.position, entry.offset, skip_to=offset):
            if isinstance(place, FramePlace):
                yield place
            else:
                damage = self._note(segment, place, end_offset)
                if damage.end_offset > offset:
                    yield damage
                if place.end_offset is None:
                    return
        if scan.offset < end_offset:
            gap = BadRegion(size_bytes, size_bytes, scan.offset, None, "messages are missing here")
            yield self._note(segment, gap, end_offset)

    def _note(self, segment: Segment, region: BadRegion, segment_end_offset: int) -> Damage:
        """Remember damage met in reading; the same offsets are remembered once."""
        end_offset = segment_end_offset if region.end_offset is None else region.end_offset
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
