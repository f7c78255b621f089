"""How far a log reached at a moment, and reading a log from its end towards its beginning.

The moment is told by the log's order: a log that holds frames of 10:00, 11:00 and, because the
clock was set back in between, 10:30 reached past all three at 10:30, and past the first of them at
10:15. So a clock that was once wrong hides nothing that came after.

The index knows the running maximum of times only. Up to where that is not later than the moment,
everything is within. Beyond, only frames from after a step back are, and a stretch of log with such
frames is one in which the maximum stands still. Those are looked at; the first few MiB behind the
moment are looked at in any case, frame by frame. What is passed over is a step back that began
further on, reached behind the moment, and was over within one entry of the index (8 KiB of log).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

import numpy as np

from goq import limits
from goq.errors import DamagedData, InvalidFrame
from goq.frame.header import HEADER_BYTES, MAGIC, parse_header
from goq.storage.columns import Int64s
from goq.storage.files import Disk
from goq.storage.reader import LogReader
from goq.storage.scan import FramePlace, Scan
from goq.storage.segment import Segment

T = TypeVar("T")

_HEAD = Struct("<4sIqq")  # magic, length, offset and time: what a frame's header begins with
_CHUNK_BYTES = 2 * limits.INDEX_INTERVAL_BYTES


def end_at(reader: LogReader, time_us: int) -> int:
    """Return the offset behind the last frame, in the log's order, that was appended by then.

    That is the log's first offset where none was. Frames that are damaged have no time. Blocks on
    the disk; raises ``OSError`` when it fails, ``DamagedData`` for a segment that is gone.
    """
    return while_kept([reader], lambda: _end_at(reader, time_us))


def while_kept(readers: Sequence[LogReader], work: Callable[[], T]) -> T:
    """Return what comes of reading logs, read anew where segments are deleted meanwhile.

    Raises ``DamagedData`` for a segment that is gone and was not deleted by its log.
    """
    while True:
        before = [reader.segments for reader in readers]
        try:
            return work()
        except FileNotFoundError as error:
            if all(reader.segments is each for reader, each in zip(readers, before, strict=True)):
                raise DamagedData(f"a segment is gone: {error}") from None


def frames_back(
    reader: LogReader, end_offset: int, is_wanted: Callable[[memoryview], bool] | None = None
) -> Iterator[FramePlace]:
    """Yield the sound frames before ``end_offset``, the last first; blocks on the disk.

    ``is_wanted`` is asked about the body of each, unchecked: what it refuses costs little.
    """
    for segment in reversed(reader.segments):
        if segment.base_offset >= end_offset:
            continue
        stretches = _stretches(reader, segment)
        for number in reversed(range(stretches.number)):
            if stretches.offsets[number] >= end_offset:
                continue
            part = _Part(stretches, number, number + 1)
            heads = part.heads(reader.disk) if is_wanted is not None else None
            if heads is None or any(is_wanted(head.body) for head in heads if is_wanted):
                for place in reversed(list(part.frames(reader.disk))):
                    view = place.view
                    if view.header.end_offset <= end_offset and (
                        is_wanted is None or is_wanted(view.body)
                    ):
                        yield place


class _Stretches(NamedTuple):
    """The places that divide a segment, its end being the last.

    ``times_us`` are the running maxima over everything in the log before each place.
    """

    segment: Segment
    offsets: Int64s
    positions: Int64s
    times_us: Int64s

    @property
    def number(self) -> int:
        """How many stretches there are between the places."""
        return len(self.offsets) - 1

    def size_bytes(self, start: int, stop: int) -> int:
        """Return how many bytes some stretches have."""
        return int(self.positions[stop] - self.positions[start])

    def reached(self, start: int, size_bytes: int) -> int:
        """Return behind which stretch so many bytes end that begin with ``start``."""
        if not size_bytes:
            return start
        end = int(self.positions[start]) + size_bytes
        return min(int(np.searchsorted(self.positions, end)), self.number)


class _Head(NamedTuple):
    """What a frame says of itself, before any check."""

    time_us: int
    body: memoryview


class _Part(NamedTuple):
    """Some stretches of a segment, the last excluded."""

    of: _Stretches
    start: int
    stop: int

    def heads(self, disk: Disk) -> list[_Head] | None:
        """Return what the frames say of themselves, unchecked; None where they are damaged."""
        first, last = int(self.of.positions[self.start]), int(self.of.positions[self.stop])
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
        for number in reversed(range(self.start, self.stop)):
            part = _Part(self.of, number, number + 1)
            heads = part.heads(disk)
            if heads is None or any(head.time_us <= time_us for head in heads):
                ends = [
                    place.view.header.end_offset
                    for place in part.frames(disk)
                    if place.view.header.append_time_us <= time_us
                ]
                if ends:
                    return ends[-1]
        return None

    def frames(self, disk: Disk) -> Iterator[FramePlace]:
        """Yield the sound frames in order."""
        segment, offsets, positions, _ = self.of
        scan = Scan(disk, segment.path, int(positions[self.stop]), chunk_bytes=_CHUNK_BYTES)
        for place in scan.frames(int(positions[self.start]), int(offsets[self.start])):
            if isinstance(place, FramePlace):
                yield place


def _stretches(reader: LogReader, segment: Segment) -> _Stretches:
    end_offset, size_bytes = segment.end_offset, segment.size_bytes  # in the order of a reader
    try:
        before_us = reader.time_before(segment)
    except ValueError:
        raise FileNotFoundError(f"{segment.path} was deleted") from None
    index = segment.load_index(reader.disk)
    segment.settle_times(reader.disk, before_us)
    offsets, positions, times_us = index.columns()
    count = int(np.searchsorted(positions, size_bytes))
    return _Stretches(
        segment,
        np.append(offsets[:count], end_offset),
        np.append(positions[:count], size_bytes),
        np.append(times_us[:count], segment.time_us),
    )


def _end_at(reader: LogReader, time_us: int) -> int:
    all_segments = reader.segments
    end_offset = all_segments[-1].end_offset  # before the time, which a commit sets after it
    segments = [segment for segment in all_segments if segment.size_bytes]
    reach = bisect_right(segments, time_us, key=lambda s: _time_at_end(reader, s))
    if reach == len(segments):
        return end_offset
    within = _stretches(reader, segments[reach])
    first = max(0, int(np.searchsorted(within.times_us, time_us, side="right")) - 1)
    for part in reversed(list(_behind(reader, segments[reach:], first))):
        end = part.last_by(reader.disk, time_us)
        if end is not None:
            return end
    return int(within.offsets[first])


def _behind(reader: LogReader, segments: Sequence[Segment], first: int) -> Iterator[_Part]:
    """Yield what may hold frames of the moment, in order.

    ``first`` is the stretch of the first segment within which the maximum passes the moment.
    """
    look_bytes = max(1, limits.MOMENT_LOOK_BYTES)
    for segment in segments:
        stretches = _stretches(reader, segment)
        looked = stretches.reached(first, look_bytes)
        part = _Part(stretches, first, looked)
        yield part
        for part in _set_back(reader.disk, stretches, looked):
            yield part
        if looked == stretches.number:
            look_bytes = max(0, look_bytes - stretches.size_bytes(first, looked))
        else:  # the clock may catch up in the first stretch of the next
            look_bytes = int(part.stop == stretches.number)
        first = 0


def _time_at_end(reader: LogReader, segment: Segment) -> int:
    try:
        return reader.time_at_end(segment)
    except ValueError:
        raise FileNotFoundError(f"{segment.path} was deleted") from None


def _set_back(disk: Disk, stretches: _Stretches, first: int) -> Iterator[_Part]:
    """Yield where, from stretch ``first`` on, times are below the maximum.

    The frames of one commit share their time, so that a maximum which stands still may be theirs.
    After a step back it stands still until the clock has caught up, which it does in the stretch
    behind: so the last frame shows it.
    """
    segment, _, positions, times_us = stretches
    still = np.flatnonzero(np.diff(times_us[first:]) == 0) + first
    for run in np.split(still, np.flatnonzero(np.diff(still) != 1) + 1):
        if len(run):
            last = int(run[-1])
            time_us = _time_at(disk, segment, int(positions[last]))
            if time_us is None or time_us < times_us[last]:
                yield _Part(stretches, int(run[0]), min(last + 2, stretches.number))


def _time_at(disk: Disk, segment: Segment, position: int) -> int | None:
    try:
        header = parse_header(disk.read(segment.path, position, HEADER_BYTES))
    except InvalidFrame:
        return None
    return header.append_time_us
