"""Finding messages of the segment that grows: what lookups have read of it is kept in memory.

Publishing does nothing for it. Each lookup reads what has been added since the last one; when the
memory for it is used up, the rest is read each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from goq import limits
from goq.storage.column_index.block import NO_FRAME, SegmentPosition
from goq.storage.disk import Disk
from goq.storage.key_index.extract import extract_keys, join_entries
from goq.storage.key_index.file import KeyEntries
from goq.storage.key_index.lookup import Lookup, Pause, has_frame, matching_offsets, scan_offsets
from goq.storage.log.segment import Segment


class ActiveKeys:
    """A segment that grows, as far as lookups have read it. One thread at a time."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        self._disk = disk
        self._path = segment.path
        self._place = SegmentPosition(0, segment.base_offset)
        self._last = NO_FRAME
        self._tables: tuple[list[KeyEntries], list[KeyEntries]] = ([], [])
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        """About how much memory the entries take."""
        return limits.KIB + 16 * self._count

    def is_of(self, segment: Segment) -> bool:
        """Whether what was read is still the segment's beginning."""
        return (
            segment.path == self._path
            and segment.size_bytes >= self._place.position
            and has_frame(self._disk, self._path, self._last)
        )

    def catch_up(self, size_bytes: int, pause: Pause) -> None:
        """Read what has been added since, as far as there is room for it."""
        if size_bytes <= self._place.position or self._count >= limits.KEYS_GROWING_ENTRIES_MAX:
            return
        for piece in extract_keys(self._disk, self._path, size_bytes, self._place, self._last):
            for gathered, entries in zip(self._tables, piece.tables, strict=True):
                if len(entries.offsets):
                    _add_run(gathered, entries)
                    self._count += len(entries.offsets)
            _, self._place, self._last, _ = piece.stretch
            if self._count >= limits.KEYS_GROWING_ENTRIES_MAX:
                return
            pause()

    def offsets(self, lookup: Lookup, size_bytes: int, pause: Pause) -> Iterator[int]:
        """Return offsets that the hash may stand for, the highest first."""
        newer = scan_offsets(self._disk, self._path, self._place, size_bytes, lookup, pause)
        runs = reversed(self._tables[lookup.table].copy())
        return chain(newer, *(_newest_first(entries, lookup) for entries in runs))


def _add_run(runs: list[KeyEntries], entries: KeyEntries) -> None:
    """Add entries so that there are few runs, and each entry is copied few times."""
    runs.append(entries)
    while len(runs) > 1 and len(runs[-2].offsets) <= 2 * len(runs[-1].offsets):
        runs[-2:] = [join_entries(runs[-2:])]


def _newest_first(entries: KeyEntries, lookup: Lookup) -> Iterator[int]:
    yield from reversed(matching_offsets(entries, lookup))
