"""The rewrite of a sealed segment as its next generation, without the removed messages.

A segment is read twice. The first read decides which messages to remove, and which frames must stay
for their producers. The second read writes. Offsets and their order stay. A frame that loses no
message stays byte for byte, and so do damaged bytes. Consecutive frames without any message left
become one, up to the most messages that a frame may count. The last batches of each producer keep
their headers, because the partition needs them at open to recognise duplicates.

The new generation is written beside the segment and synced. It becomes the segment when it gets its
name, so at any moment there is one whole segment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from goq import limits
from goq.errors import CorruptData
from goq.frame.header import Attribute, FrameHeader
from goq.frame.slice import remove_all_rows, remove_rows, removed_run
from goq.frame.view import FrameView
from goq.storage.compaction.cleaner import OffsetMap, plan_removal
from goq.storage.disk import Disk, File
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import remove_merge_markers
from goq.storage.log.sparse_index import TIME_US_MAX, TIME_US_MIN, IndexEntry, SparseIndex
from goq.storage.scanner import BadRegion, Scanner

_WRITE_BYTES = limits.MIB
_NO_TIMES = (TIME_US_MAX, TIME_US_MIN)  # of the last entry, which no frame follows


class CleanerParameters(msgspec.Struct, frozen=True):
    """The parameters of a cleaning pass.

    Times are microseconds. Tombstones appended at or before ``tombstones_until_us`` are removed.
    Dedup ids of removed messages stay in frames appended after ``dedup_after_us``. ``pause`` is
    called between frames, and may stop the pass by raising. Append times after ``now_us`` are of a
    clock that was ahead.
    """

    offset_map: OffsetMap
    tombstones_until_us: int
    dedup_after_us: int
    pause: Callable[[], None]
    now_us: int = TIME_US_MAX


class RewritePlan(NamedTuple):
    """The rows to remove from the frames of a segment, as bits, by each frame's base offset.

    ``producers`` are the frames that stay for their producers. ``tombstone_us`` is the time from
    which the oldest tombstone that stays counts, 0 for none.
    """

    removed: dict[int, bytes]
    removed_count: int
    producers: set[int]
    tombstone_us: int


def plan_rewrite(
    disk: Disk, segment: Segment, parameters: CleanerParameters, time_after_us: int = TIME_US_MAX
) -> RewritePlan:
    """Read a segment and plan its rewrite; memory is a bit per message of affected frames.

    A tombstone of a clock that was ahead is at least as old as what follows the segment, which was
    appended at ``time_after_us``.
    """
    removed: dict[int, bytes] = {}
    removed_count = tombstone_us = 0
    last: OrderedDict[int, list[int]] = OrderedDict()
    for place in _scanner(disk, segment).frames(0, segment.base_offset):
        parameters.pause()
        if isinstance(place, BadRegion):
            continue
        view, header = place.view, place.view.header
        is_ahead = header.append_time_us > parameters.now_us
        time_us = time_after_us if is_ahead else header.append_time_us
        is_over = time_us <= parameters.tombstones_until_us
        removal = plan_removal(view, parameters.offset_map, is_over)
        if header.producer_id:
            _remember(last, header)
        if removal.tombstones:
            tombstone_us = min(tombstone_us or time_us, time_us)
        if removal.removed:
            removed[header.base_offset] = _bits(removal.removed, header.message_count)
            removed_count += removal.removed_count
    producers = {base for few in last.values() for base in few}
    return RewritePlan(removed, removed_count, producers, tombstone_us)


def _remember(last: OrderedDict[int, list[int]], header: FrameHeader) -> None:
    """Record a producer's last frames, for as many producers as a partition remembers."""
    few = last.setdefault(header.producer_id, [])
    few.append(header.base_offset)
    del few[: -limits.PRODUCER_BATCHES_REMEMBERED]
    last.move_to_end(header.producer_id)
    if len(last) > limits.PRODUCERS_PER_PARTITION_MAX:
        last.popitem(last=False)


def rewrite_segment(
    disk: Disk,
    segment: Segment,
    plan: RewritePlan,
    parameters: CleanerParameters,
    *,
    time_before_us: int,
) -> Segment:
    """Write the next generation of a segment, durably; :func:`install_generation` names it.

    ``time_before_us`` is the running maximum of append times before the segment.
    """

    def write(writer: SegmentWriter) -> None:
        for place in _scanner(disk, segment).frames(0, segment.base_offset):
            parameters.pause()
            if isinstance(place, BadRegion):
                writer.add_damaged(_pieces(disk, segment, place), place)
            else:
                _add(writer, place.view, plan, parameters)

    return write_generation(disk, [segment], time_before_us, write)


def write_generation(
    disk: Disk,
    segments: Sequence[Segment],
    time_before_us: int,
    write: Callable[[SegmentWriter], None],
) -> Segment:
    """Return the next generation of the first segment, which holds all of them, by ``write``.

    It is durable, but not in place yet. If ``write`` or the disk fails, the segments stay as they
    were and the new file is removed.
    """
    segment, end_offset = segments[0], segments[-1].end_offset
    new = Segment(segment.path.parent, segment.base_offset, segment.generation + 1)
    remove_merge_markers(disk, new)
    file = disk.open(new.temp_path)
    try:
        if file.size_bytes:  # left by an interrupted pass
            file.truncate(0)
        writer = SegmentWriter(file, segment.base_offset, time_before_us)
        write(writer)
        writer.finish(end_offset)
        file.sync()
    except BaseException:
        file.close()
        disk.remove(new.temp_path)
        raise
    file.close()
    new.size_bytes, new.end_offset = writer.position, end_offset
    new.index = writer.index
    new.time_us = writer.index.last().time_us
    if segment.has_columns:
        new.attach_columns_later(disk)
    return new


def install_generation(disk: Disk, new: Segment) -> None:
    """Give a new generation its name: from then on it is the segment, whatever happens."""
    disk.rename(new.temp_path, new.path)
    assert new.index is not None
    try:
        new.save_index(disk, new.index.last())
    except OSError:
        return  # the index is rebuilt from the segment when it is needed


def _scanner(disk: Disk, segment: Segment) -> Scanner:
    return Scanner(disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)


def _pieces(disk: Disk, segment: Segment, region: BadRegion) -> Iterator[memoryview]:
    for position in range(region.position, region.end_position, _WRITE_BYTES):
        size_bytes = min(_WRITE_BYTES, region.end_position - position)
        yield disk.read(segment.path, position, size_bytes)


def _bits(rows: Sequence[int], count: int) -> bytes:
    mask = np.zeros(count, np.uint8)
    mask[np.array(rows, np.int64)] = 1
    return np.packbits(mask).tobytes()


def _rows(bits: bytes, count: int) -> list[int]:
    rows: list[int] = np.flatnonzero(
        np.unpackbits(np.frombuffer(bits, np.uint8), count=count)
    ).tolist()
    return rows


def _add(
    writer: SegmentWriter, view: FrameView, plan: RewritePlan, parameters: CleanerParameters
) -> None:
    header = view.header
    bits = plan.removed.get(header.base_offset)
    if bits is None:
        writer.add(view.header, view.buffer)
        return
    rows, before = _rows(bits, header.message_count), view.removed_rows
    if len(rows) < header.message_count:
        is_as_before = before is not None and before.kept_count + len(rows) == len(before.mask)
        writer.add(header, view.buffer if is_as_before else remove_rows(view, rows))
        return
    has_ids = bool(header.attributes & Attribute.DEDUP_ID)
    keeps_ids = has_ids and header.append_time_us > parameters.dedup_after_us
    if header.base_offset in plan.producers or keeps_ids:
        is_as_before = before is not None and before.is_all and keeps_ids == has_ids
        writer.add(
            header, view.buffer if is_as_before else remove_all_rows(view, keep_dedup_ids=keeps_ids)
        )
        return
    writer.add_empty(header)


class SegmentWriter:
    """Writes frames one after the other, and builds their index."""

    def __init__(self, file: File, base_offset: int, time_before_us: int) -> None:
        self.position = 0
        self.index = SparseIndex()
        self._file = file
        self.offset = base_offset
        """The offset after the last frame added."""
        self._time_us = time_before_us
        self._run: _Run | None = None
        self._buffers: list[bytes | memoryview] = []
        self._buffered_bytes = 0
        self.index.add(IndexEntry(base_offset, 0, time_before_us), always=True)

    def add(self, header: FrameHeader, frame: bytes | memoryview) -> None:
        """Add a frame with some messages."""
        self._end_run()
        self._put(header.base_offset, header.end_offset, header.append_time_us, frame)

    def add_empty(self, header: FrameHeader) -> None:
        """Add a frame without any message left, merged with empty frames before it."""
        run = self._run
        if run is None or not run.takes(header):
            self._end_run()
            self._run = _Run(
                header.base_offset, header.end_offset, header.append_time_us, header.leader_epoch
            )
            return
        run.end_offset = header.end_offset
        run.time_us = max(run.time_us, header.append_time_us)

    def add_damaged(self, pieces: Iterable[memoryview], region: BadRegion) -> None:
        """Add bytes of a bad region unchanged."""
        self._end_run()
        for piece in pieces:
            self._write(piece)
        if region.end_offset is not None:
            self.offset = region.end_offset
            self.index.add_bad_region()

    def finish(self, end_offset: int) -> None:
        """Write all buffered bytes, and complete the index."""
        self._end_run()
        self._flush()
        end = IndexEntry(end_offset, self.position, self._time_us, *_NO_TIMES)
        self.index.add(end, always=True)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            frame = removed_run(
                run.base_offset,
                run.end_offset - run.base_offset,
                append_time_us=run.time_us,
                leader_epoch=run.leader_epoch,
            )
            self._put(run.base_offset, run.end_offset, run.time_us, frame)

    def _put(self, base: int, end: int, time_us: int, frame: bytes | memoryview) -> None:
        if base != self.offset:
            raise CorruptData(f"offset {self.offset} expected while rewriting, plan {base}")
        self._write(frame)
        self.offset = end
        self._time_us = max(self._time_us, time_us)
        self.index.add(IndexEntry(end, self.position, self._time_us, time_us, time_us))

    def _write(self, data: bytes | memoryview) -> None:
        self._buffers.append(data)
        self._buffered_bytes += len(data)
        self.position += len(data)
        if self._buffered_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffers:
            self._file.append(self._buffers)
            self._buffers, self._buffered_bytes = [], 0


class _Run(msgspec.Struct):
    """Consecutive frames without any message left, to be merged into one.

    The merged frame has the latest of their times, so the running maximum after it is unchanged.
    """

    base_offset: int
    end_offset: int
    time_us: int
    leader_epoch: int

    def takes(self, header: FrameHeader) -> bool:
        """Return whether the next frame can be merged too."""
        return (
            header.leader_epoch == self.leader_epoch
            and header.end_offset - self.base_offset <= limits.FRAME_MESSAGES_MAX
        )
