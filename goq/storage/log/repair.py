"""Repair of a damaged segment with frames of another replica.

The damaged bytes stay until the segment is written again, to a new file and durably, as its next
generation. The new generation has every sound frame unchanged, and in each gap the frames that
another replica has there. It becomes the segment when it gets its name, as in compaction. So a
crash leaves either the damaged segment or the repaired one. No pass of compaction has read the new
frames: the cleaner checkpoint that covers them is removed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.errors import InvalidFrame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import forget_checkpoint
from goq.storage.compaction.segment_merger import remove_merged
from goq.storage.compaction.segment_rewriter import (
    SegmentWriter,
    install_generation,
    write_generation,
)
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.scanner import BadRegion, Damage, Scanner


class Gap(NamedTuple):
    """Unreadable offsets in one segment, the end excluded."""

    start_offset: int
    end_offset: int


class SoundFrame(NamedTuple):
    """The base offset and leader epoch of a sound frame."""

    base_offset: int
    leader_epoch: int


def known_damage(log: Log) -> list[Damage]:
    """Return the known damage that is still in a log."""
    return [d for d in log.damage if d.end_offset > log.start_offset]


def find_gaps(log: Log, segment: Segment) -> list[Gap]:
    """Read a whole segment and return its gaps, in order; blocks on the disk."""
    gaps: list[Gap] = []
    scanner = Scanner(log.reader.disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)
    for place in scanner.frames(0, segment.base_offset):
        if isinstance(place, BadRegion):
            end_offset = segment.end_offset if place.end_offset is None else place.end_offset
            gaps.append(Gap(place.start_offset, end_offset))
    reached = gaps[-1].end_offset if gaps else 0
    if max(scanner.offset, reached) < segment.end_offset:
        gaps.append(Gap(scanner.offset, segment.end_offset))
    return gaps


def compacted_end_offset(log: Log) -> int:
    """Return the end of the last segment that has removed rows or damage; blocks on the disk."""
    for segment in reversed(log.segments):
        end_offset = segment.end_offset
        scanner = Scanner(log.reader.disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)
        for place in scanner.frames(0, segment.base_offset):
            if isinstance(place, BadRegion) or place.view.header.attributes & Attribute.REMOVED:
                return end_offset
        if scanner.offset < end_offset:
            return end_offset
    return 0


def scan_segment(log: Log, segment: Segment) -> None:
    """Read a whole segment, so that its damage becomes known; blocks on the disk."""
    segments = log.segments
    if segment in segments:
        number = segments.index(segment)
        for _ in log.reader.scan(segments, number, segment.base_offset, limits.MIB):
            continue


def first_sound_frame(log: Log, offset: int) -> SoundFrame | None:
    """Return the first readable frame from an offset on, or None; blocks on the disk."""
    reading = log.reader.read(offset, log.end_offset, messages_max=1)
    if not reading.frames:
        return None
    header = reading.frames[0].header
    return SoundFrame(header.base_offset, header.leader_epoch)


def last_sound_frame(log: Log, offset: int) -> SoundFrame | None:
    """Return the readable frame that ends at an offset, or None; blocks on the disk."""
    if offset <= log.start_offset:
        return None
    frames = log.reader.read(offset - 1, offset, messages_max=1).frames
    header = frames[0].header if frames else None
    return None if header is None else SoundFrame(header.base_offset, header.leader_epoch)


def begins_gap(frames: Sequence[FrameView], gap: Gap) -> bool:
    """Return whether consecutive frames cover the offsets of a gap, or the first of them."""
    offset = gap.start_offset
    for view in frames:
        if view.header.base_offset != offset:
            return False
        offset = view.header.end_offset
    return gap.start_offset < offset <= gap.end_offset


def repair_segment(log: Log, segment: Segment, frames: Mapping[Gap, Sequence[FrameView]]) -> None:
    """Rewrite a sealed segment with frames in its gaps; what they do not fill stays damaged.

    Blocks on the disk; no other thread may change the log meanwhile. Raises ``OSError`` when the
    disk fails, with the segment unchanged, and ``InvalidFrame`` for frames that are not of their
    gap.
    """
    for gap, views in frames.items():
        if not begins_gap(views, gap):
            raise InvalidFrame(f"these frames do not begin the offsets {gap} of {segment.path}")
    write = partial(_fill, log=log, segment=segment, frames=frames)
    _replace(log, [segment], frames, write)


def replace_range(log: Log, segments: Sequence[Segment], frames: Sequence[FrameView]) -> None:
    """Replace sealed neighbours by one segment with other frames of all their offsets.

    Blocks, and raises, as :func:`repair_segment`.
    """
    if not segments or any(segment not in log.segments for segment in segments):
        raise InvalidFrame(f"segments of {log.directory} were deleted meanwhile")
    gap = Gap(segments[0].base_offset, segments[-1].end_offset)
    if not begins_gap(frames, gap) or frames[-1].header.end_offset != gap.end_offset:
        raise InvalidFrame(f"these frames are not the offsets {gap} of {log.directory}")
    _replace(log, segments, [gap], partial(_put, frames=frames))


def _replace(
    log: Log,
    segments: Sequence[Segment],
    gaps: Iterable[Gap],
    write: Callable[[SegmentWriter], None],
) -> None:
    """Write neighbours again as one segment, as a merge does, with some gaps filled."""
    disk, time_before_us = log.reader.disk, log.reader.max_time_us_before(segments[0])
    new = write_generation(disk, segments, time_before_us, write)
    forget_checkpoint(disk, log.directory, new.base_offset)
    if len(segments) > 1:
        disk.replace(new.merged_path, b"")
    install_generation(disk, new)
    log.replace_segments(segments, new)
    for gap in gaps:
        log.reader.clear_damage(*gap)
    remove_merged(disk, segments, new)


def _fill(
    writer: SegmentWriter, log: Log, segment: Segment, frames: Mapping[Gap, Sequence[FrameView]]
) -> None:
    """Write a segment with frames in its gaps."""
    disk = log.reader.disk
    scanner = Scanner(disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)
    for place in scanner.frames(0, segment.base_offset):
        if not isinstance(place, BadRegion):
            writer.add(place.view.header, place.view.buffer)
            continue
        end_offset = segment.end_offset if place.end_offset is None else place.end_offset
        found = frames.get(Gap(place.start_offset, end_offset))
        if found is not None:
            _put(writer, found)
            place = place._replace(start_offset=writer.offset)
        if writer.offset < end_offset:
            size_bytes = place.end_position - place.position
            writer.add_damaged([disk.read(segment.path, place.position, size_bytes)], place)
    missing = frames.get(Gap(scanner.offset, segment.end_offset))
    if missing is not None and writer.offset == scanner.offset:
        _put(writer, missing)


def _put(writer: SegmentWriter, frames: Sequence[FrameView]) -> None:
    for view in frames:
        writer.add(view.header, view.buffer)


class GapFrames(NamedTuple):
    """Consecutive frames from a gap's start; ``is_damaged`` if they end at damaged bytes."""

    frames: list[FrameView]
    is_damaged: bool


def read_gap(reader: LogReader, gap: Gap, end_offset: int, bytes_max: int) -> GapFrames:
    """Return a log's frames in the gap of another replica, up to the log's ``end_offset``.

    Returns as many frames as fit into ``bytes_max``, at least one if there is one. Blocks on the
    disk.
    """
    offset, end_offset = gap.start_offset, min(gap.end_offset, end_offset)
    if offset < reader.segments[0].base_offset or offset >= end_offset:
        return GapFrames([], is_damaged=False)
    reading = reader.read(offset, end_offset, bytes_max=bytes_max, messages_max=2**62)
    frames: list[FrameView] = []
    for view in reading.frames:
        if view.header.base_offset > offset:
            break
        frames.append(view)
        offset = view.header.end_offset
    is_damaged = any(damage.start_offset <= offset < damage.end_offset for damage in reading.damage)
    return GapFrames(frames, is_damaged)
