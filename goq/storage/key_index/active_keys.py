"""The index of the active segment: entries of the frames that lookups have read.

Publishing does no work for it. Each lookup reads the frames added since the last one. Beyond the
memory bound, the rest is read on each lookup.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from goq import limits
from goq.storage.column_index.block import NO_FRAME, SegmentPosition
from goq.storage.disk import Disk
from goq.storage.key_index.extract import DEFAULT_LIMITS, ScanLimits, extract_keys, join_entries
from goq.storage.key_index.file import KeyEntries
from goq.storage.key_index.lookup import KeyLookup, Pause, has_frame, matching_offsets, scan_offsets
from goq.storage.log.segment import Segment


class ActiveKeys:
    """Index entries of the active segment, as far as lookups have read it. Not thread-safe."""

    def __init__(self, disk: Disk, segment: Segment, limit: ScanLimits = DEFAULT_LIMITS) -> None:
        self._disk = disk
        self._path = segment.path
        self._limit = limit
        self._place = SegmentPosition(0, segment.base_offset)
        self._last = NO_FRAME
        self._tables: tuple[list[KeyEntries], list[KeyEntries]] = ([], [])
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the entries."""
        return limits.KIB + 16 * self._count

    def matches(self, segment: Segment) -> bool:
        """Return whether the frames that were read are still the start of the segment."""
        return (
            segment.path == self._path
            and segment.size_bytes >= self._place.position
            and has_frame(self._disk, self._path, self._last)
        )

    def catch_up(self, size_bytes: int, pause: Pause) -> None:
        """Read the frames added since the last call, up to the memory bound."""
        if size_bytes <= self._place.position or self._count >= limits.KEYS_ACTIVE_ENTRIES_MAX:
            return
        for piece in extract_keys(
            self._disk, self._path, size_bytes, self._place, self._last, self._limit
        ):
            for runs, entries in zip(self._tables, piece.tables, strict=True):
                if len(entries.offsets):
                    _merge_run(runs, entries)
                    self._count += len(entries.offsets)
            _, self._place, self._last, _ = piece.frames
            if self._count >= limits.KEYS_ACTIVE_ENTRIES_MAX:
                return
            pause()

    def offsets(self, lookup: KeyLookup, size_bytes: int, pause: Pause) -> Iterator[int]:
        """Return candidate offsets, highest first."""
        newer = scan_offsets(
            self._disk, self._path, self._place, size_bytes, lookup, pause, self._limit
        )
        runs = reversed(self._tables[lookup.table].copy())
        return chain(newer, *(_newest_first(entries, lookup) for entries in runs))


def _merge_run(runs: list[KeyEntries], entries: KeyEntries) -> None:
    """Add entries as a run; merging keeps runs few and copies each entry few times."""
    runs.append(entries)
    while len(runs) > 1 and len(runs[-2].offsets) <= 2 * len(runs[-1].offsets):
        runs[-2:] = [join_entries(runs[-2:])]


def _newest_first(entries: KeyEntries, lookup: KeyLookup) -> Iterator[int]:
    yield from reversed(matching_offsets(entries, lookup))
