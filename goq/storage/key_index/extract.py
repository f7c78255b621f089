"""Extraction of index entries from frames: hashes of keys, dedup ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goq import limits
from goq.errors import InvalidInput
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.column_index.block import NO_FRAME, LastFrame, SegmentPosition, last_frame
from goq.storage.column_index.rows import expand_runs
from goq.storage.disk import Disk
from goq.storage.key_index.file import (
    DISTANCE_MAX,
    AppendTimes,
    KeyEntries,
    KeyPart,
    PartRange,
    pack_part,
)
from goq.storage.scanner import ScannedFrame, Scanner

NO_TIMES: Final = AppendTimes(2**63 - 1, -(2**63))
_LACKS_KEYS: Final = Attribute.KEY_NULLS | Attribute.REMOVED
_UNREADABLE = (InvalidInput, ValueError, IndexError)
"""Of a frame that was never validated, and that no reader accepts."""


class ScanLimits(NamedTuple):
    """Bounds of one pass over a segment's frames."""

    extract_bytes: int = limits.READ_CHUNK_BYTES
    """Frames of about this size are extracted together."""
    offsets_max: int = 65_536
    """The most matching offsets that one pass keeps in memory."""


DEFAULT_LIMITS: Final = ScanLimits()


class ExtractedKeys(NamedTuple):
    """Index entries of consecutive frames, by :class:`~goq.storage.key_index.file.KeyTable`."""

    tables: tuple[KeyEntries, KeyEntries]
    frames: PartRange


def extract_keys(
    disk: Disk,
    path: Path,
    size_bytes: int,
    start: SegmentPosition,
    last: LastFrame,
    limit: ScanLimits = DEFAULT_LIMITS,
) -> Iterator[ExtractedKeys]:
    """Yield the entries of a segment's frames from ``start`` to ``size_bytes``, in batches.

    ``last`` is the last sound frame before ``start``. Damaged frames yield no entries. A batch
    never spans a gap, so its offsets are close together.
    """
    scanner = Scanner(disk, path, size_bytes, chunk_bytes=limits.MIB)
    views, views_bytes, before, position = list[FrameView](), 0, start, start.position
    for place in scanner.frames(*start):
        is_frame = isinstance(place, ScannedFrame)
        if views and (not is_frame or views_bytes >= limit.extract_bytes):
            last = last_frame(position, views[-1].buffer)
            end = SegmentPosition(place.position, views[-1].header.end_offset)
            yield _extract(views, before, end, last)
            views, views_bytes, before = [], 0, end
        if isinstance(place, ScannedFrame):
            position = place.position
            views.append(place.view)
            views_bytes += len(place.view.buffer)
        else:
            end = SegmentPosition(place.end_position, scanner.offset)
            yield _extract([], before, end, last)
            before = end
    if views:
        last = last_frame(position, views[-1].buffer)
        yield _extract(views, before, SegmentPosition(size_bytes, scanner.offset), last)


class PartBuilder:
    """Collects the entries of one part of the file."""

    def __init__(self, start: SegmentPosition) -> None:
        self._frames = PartRange(start, start, NO_FRAME, NO_TIMES)
        self._tables: tuple[list[KeyEntries], list[KeyEntries]] = ([], [])
        self._count = 0
        self._base_offset = -1

    def has_room_for(self, tables: tuple[KeyEntries, KeyEntries]) -> bool:
        """Return whether the entries fit; an empty part accepts any batch."""
        offsets = [int(e.offsets[-1]) for e in tables if len(e.offsets)]
        if not self._count or not offsets:
            return True
        added = sum(len(entries.offsets) for entries in tables)
        is_near = max(offsets) - self._base_offset <= DISTANCE_MAX
        return is_near and self._count + added <= limits.KEYS_PART_ENTRIES

    def add(self, tables: tuple[KeyEntries, KeyEntries], frames: PartRange) -> None:
        """Add the entries of the frames that follow."""
        _, end, last, (earliest_us, latest_us) = frames
        earliest_us = min(self._frames.times.earliest_us, earliest_us)
        latest_us = max(self._frames.times.latest_us, latest_us)
        times = AppendTimes(earliest_us, latest_us)
        self._frames = PartRange(self._frames.start, end, last, times)
        firsts = [int(entries.offsets[0]) for entries in tables if len(entries.offsets)]
        if firsts and not self._count:
            self._base_offset = min(firsts)
        for gathered, entries in zip(self._tables, tables, strict=True):
            if len(entries.offsets):
                gathered.append(entries)
                self._count += len(entries.offsets)

    def pack(self, position: int) -> tuple[KeyPart, bytes]:
        """Return the part for a position in the file, and its bytes."""
        tables = [join_entries(some) for some in self._tables]
        return pack_part(tables, max(0, self._base_offset), self._frames, position)


def join_entries(some: list[KeyEntries]) -> KeyEntries:
    """Return entries end to end."""
    if not some:
        return KeyEntries(np.zeros(0, np.uint64), np.zeros(0, np.int64))
    hashes, offsets = zip(*some, strict=True)
    return KeyEntries(np.concatenate(hashes), np.concatenate(offsets))


def _extract(
    views: Sequence[FrameView], start: SegmentPosition, end: SegmentPosition, last: LastFrame
) -> ExtractedKeys:
    times_us = [view.header.append_time_us for view in views]
    times = AppendTimes(min(times_us), max(times_us)) if times_us else NO_TIMES
    tables = _entries(views, Attribute.KEY_HASH), _entries(views, Attribute.DEDUP_ID)
    return ExtractedKeys(tables, PartRange(start, end, last, times))


def _entries(views: Sequence[FrameView], attribute: int) -> KeyEntries:
    """Return the hashes of the messages that have a key, or a dedup id."""
    views = [view for view in views if view.header.attributes & attribute]
    parts: list[bytes | memoryview] = []
    for view in views:
        try:
            parts.append(view.leading_column(attribute) or b"")
        except _UNREADABLE:
            parts.append(bytes((16 if attribute == Attribute.DEDUP_ID else 8) * _count(view)))
    bases = np.array([view.header.base_offset for view in views], np.int64)
    offsets = expand_runs(bases, np.array([_count(view) for view in views], np.int64))
    words = np.frombuffer(b"".join(parts), np.uint64)
    if attribute == Attribute.DEDUP_ID:
        ids = words.reshape(-1, 2)
        given = ids.any(axis=1)
        return KeyEntries(ids[given, 0], offsets[given])
    if any(view.header.attributes & _LACKS_KEYS for view in views):
        given = np.concatenate([_has_key(view) for view in views])
        return KeyEntries(words[given], offsets[given])
    return KeyEntries(words, offsets)


def _count(view: FrameView) -> int:
    return view.header.message_count


def _has_key(view: FrameView) -> npt.NDArray[np.bool_]:
    """Return which messages of a frame with keys are there and have one.

    A message without a key has the hash 0, and so has the empty key. The payload may be
    compressed, so it is read only where a hash is 0.
    """
    kept = np.ones(_count(view), np.bool_)
    try:
        removed = view.removed_rows
        if removed is not None:
            kept = ~removed.mask
        column = view.leading_column(Attribute.KEY_HASH)
        if column is None or np.frombuffer(column, np.uint64)[kept].all():
            return kept
        validity = view.payload.key_validity
    except _UNREADABLE:
        return kept
    if validity is None:
        return kept
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    present: npt.NDArray[np.bool_] = bits[: _count(view)].astype(np.bool_)
    return present
