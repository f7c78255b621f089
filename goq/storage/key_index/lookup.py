"""A lookup by hash, and the scan over frames that answers it without an index."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from goq.frame.header import HEADER_BYTES as FRAME_HEADER_BYTES
from goq.storage.column_index.block import NO_FRAME, LastFrame, SegmentPosition, last_frame
from goq.storage.disk import Disk
from goq.storage.key_index.extract import DEFAULT_LIMITS, ScanLimits, extract_keys
from goq.storage.key_index.file import AppendTimes, KeyEntries, KeyTable

Pause = Callable[[], None]
"""Called between batches of work; it may wait, or raise to stop the work."""


class KeyLookup(NamedTuple):
    """The hash to find, among offsets from ``start`` up to ``end``.

    Messages appended before ``from_us``, or at ``to_us`` and later, may be skipped.
    """

    table: KeyTable
    hashed: int
    start: int
    end: int
    from_us: int
    to_us: int

    def overlaps(self, times: AppendTimes) -> bool:
        """Return whether frames with these append times may match."""
        return times.earliest_us < self.to_us and times.latest_us >= self.from_us


def scan_offsets(
    disk: Disk,
    path: Path,
    start: SegmentPosition,
    size_bytes: int,
    lookup: KeyLookup,
    pause: Pause,
    limit: ScanLimits = DEFAULT_LIMITS,
) -> Iterator[int]:
    """Yield candidate offsets from a segment's frames, highest first.

    At most ``limit.offsets_max`` are in memory. If there are more, earlier frames are read again.
    """
    while start.position < size_bytes and lookup.start < lookup.end:
        newest: deque[int] = deque(maxlen=limit.offsets_max)
        for piece in extract_keys(disk, path, size_bytes, start, NO_FRAME, limit):
            pause()
            if piece.frames.start.offset >= lookup.end:
                break
            newest.extend(matching_offsets(piece.tables[lookup.table], lookup))
        yield from reversed(newest)
        if len(newest) < limit.offsets_max:
            return
        lookup = lookup._replace(end=newest[0])


def matching_offsets(entries: KeyEntries, lookup: KeyLookup) -> list[int]:
    """Return the offsets of the entries with this hash, in rising order."""
    offsets = entries.offsets[entries.hashes == np.uint64(lookup.hashed)]
    first, last = offsets.searchsorted((lookup.start, lookup.end))
    found: list[int] = offsets[first:last].tolist()
    return found


def has_frame(disk: Disk, path: Path, last: LastFrame) -> bool:
    """Return whether a segment still holds this frame."""
    if last == NO_FRAME:
        return True
    try:
        header = disk.read(path, last.position, FRAME_HEADER_BYTES)
    except OSError:
        return False
    return last_frame(last.position, header) == last
