"""What is looked up, and finding it by reading frames, where nothing better is at hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from goq.frame.header import HEADER_BYTES as FRAME_HEADER_BYTES
from goq.storage.column_index.block import NO_FRAME, LastFrame, SegmentPosition, last_frame
from goq.storage.disk import Disk
from goq.storage.key_index.extract import extract_keys
from goq.storage.key_index.file import AppendTimes, KeyEntries, KeyTable

_FOUND_MAX = 65_536

Pause = Callable[[], None]
"""Called between pieces of work; it may wait, or raise to end the work."""


class Lookup(NamedTuple):
    """What is looked for: a hash, at offsets from ``start`` up to ``end``.

    What was appended outside of ``from_us`` to before ``to_us`` may be left out.
    """

    table: KeyTable
    hashed: int
    start: int
    end: int
    from_us: int
    to_us: int

    def may_be_in(self, times: AppendTimes) -> bool:
        """Whether frames of these times may be meant."""
        return times.earliest_us < self.to_us and times.latest_us >= self.from_us


def scan_offsets(
    disk: Disk, path: Path, start: SegmentPosition, size_bytes: int, lookup: Lookup, pause: Pause
) -> Iterator[int]:
    """Yield from a segment's frames the offsets that a hash may stand for, the highest first.

    So many are kept in memory and no more: the frames are read again for what is before them.
    """
    while start.position < size_bytes and lookup.start < lookup.end:
        newest: deque[int] = deque(maxlen=_FOUND_MAX)
        for piece in extract_keys(disk, path, size_bytes, start, NO_FRAME):
            pause()
            if piece.stretch.start.offset >= lookup.end:
                break
            newest.extend(matching_offsets(piece.tables[lookup.table], lookup))
        yield from reversed(newest)
        if len(newest) < _FOUND_MAX:
            return
        lookup = lookup._replace(end=newest[0])


def matching_offsets(entries: KeyEntries, lookup: Lookup) -> list[int]:
    """Return the offsets among some entries that a hash may stand for, rising."""
    offsets = entries.offsets[entries.hashes == np.uint64(lookup.hashed)]
    first, last = offsets.searchsorted((lookup.start, lookup.end))
    found: list[int] = offsets[first:last].tolist()
    return found


def has_frame(disk: Disk, path: Path, last: LastFrame) -> bool:
    """Whether a segment still has the frame that was its last one."""
    if last == NO_FRAME:
        return True
    try:
        header = disk.read(path, last.position, FRAME_HEADER_BYTES)
    except OSError:
        return False
    return last_frame(last.position, header) == last
