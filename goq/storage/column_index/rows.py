"""Rows: the delivery columns of messages as arrays, for many frames at once.

Frames store columns by frame; rows are by message. Messages of frames with a lane, tenant or
delivery time column have a row. Dedup ids have rows of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class ColumnRows(NamedTuple):
    """Messages of frames with lanes, tenants or delivery times: parallel arrays, read-only.

    ``offsets`` rise. ``lanes`` is -1 where the frame has none. ``tenants`` are indexes into
    ``tenant_names``, which holds each name once; -1 for none. ``deliver_at_ms`` is 0 for a message
    without a delay, or whose delivery time had passed when it was appended.
    """

    offsets: Int64s
    lanes: npt.NDArray[np.int16]
    tenants: npt.NDArray[np.int32]
    deliver_at_ms: Int64s
    tenant_names: list[str]

    def within(self, start: int, end: int) -> ColumnRows:
        """Return the rows with offsets from ``start`` up to ``end``."""
        return self.select(slice(*np.searchsorted(self.offsets, (start, end))))

    def due_within(self, low_ms: int, high_ms: int) -> ColumnRows:
        """Return the rows of delayed messages due between two times, both included."""
        due_ms = self.deliver_at_ms
        return self.select((due_ms >= low_ms) & (due_ms <= high_ms) & (due_ms > 0))

    def select(self, which: slice | npt.NDArray[np.bool_]) -> ColumnRows:
        """Return some of the rows, with all the names."""
        return ColumnRows(
            self.offsets[which],
            self.lanes[which],
            self.tenants[which],
            self.deliver_at_ms[which],
            self.tenant_names,
        )


class DedupIdRows(NamedTuple):
    """Messages that have a dedup id: its 16 bytes as two little-endian words, never both 0."""

    offsets: Int64s
    ids: npt.NDArray[np.uint64]

    def within(self, start: int, end: int) -> DedupIdRows:
        """Return the rows with offsets from ``start`` up to ``end``."""
        which = slice(*np.searchsorted(self.offsets, (start, end)))
        return DedupIdRows(self.offsets[which], self.ids[which])


FrameRows = tuple[ColumnRows | None, DedupIdRows | None]


class OffsetRuns:
    """Rising offsets as runs without a gap: the start and length of each."""

    def __init__(self) -> None:
        self.starts = array("q")
        self.counts = array("q")

    def add(self, offsets: Int64s) -> None:
        """Add at least one offset; all must be above the offsets present."""
        firsts = np.flatnonzero(np.diff(offsets) != 1) + 1
        bounds = [0, *firsts.tolist(), len(offsets)]
        starts = offsets[bounds[:-1]].tolist()
        counts = np.diff(bounds).tolist()
        if self.starts and self.starts[-1] + self.counts[-1] == starts[0]:
            self.counts[-1] += counts[0]
            del starts[0], counts[0]
        self.starts.extend(starts)
        self.counts.extend(counts)


def expand_runs(starts: Int64s, counts: Int64s) -> Int64s:
    """Return the offsets of runs."""
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + counts[0], dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


class ColumnsBuilder:
    """Gathers the rows of frames in offset order."""

    def __init__(self) -> None:
        self.count = 0
        self.dedup_count = 0
        self.due_ms: tuple[int, int] | None = None
        """The earliest and the latest delivery time, None if no message is delayed."""
        self.runs = OffsetRuns()
        self.dedup_runs = OffsetRuns()
        self.names: dict[str, int] = {}
        self._names_bytes = 0
        self._lanes = bytearray()
        self._tenants = bytearray()
        self._deliver_at_ms = bytearray()
        self._ids = bytearray()

    @property
    def size_bytes(self) -> int:
        """Estimated size of the rows in memory and in a file."""
        runs = len(self.runs.starts) + len(self.dedup_runs.starts)
        return 14 * self.count + len(self._ids) + self._names_bytes + 16 * runs

    def add(self, rows: ColumnRows | None, dedup: DedupIdRows | None) -> None:
        """Add rows with offsets above all present ones."""
        if rows is not None:
            self._add_rows(rows)
        if dedup is not None:
            self.dedup_runs.add(dedup.offsets)
            self._ids += dedup.ids.tobytes()
            self.dedup_count += len(dedup.offsets)

    def _add_rows(self, rows: ColumnRows) -> None:
        self.runs.add(rows.offsets)
        self.count += len(rows.offsets)
        self._lanes += rows.lanes.tobytes()
        self._tenants += self._renumbered(rows.tenants, rows.tenant_names).tobytes()
        self._deliver_at_ms += rows.deliver_at_ms.tobytes()
        latest = int(rows.deliver_at_ms.max())
        if latest:
            earliest = int(rows.deliver_at_ms[rows.deliver_at_ms > 0].min())
            low, high = self.due_ms or (earliest, latest)
            self.due_ms = min(low, earliest), max(high, latest)

    def _renumbered(
        self, tenants: npt.NDArray[np.int32], names: Sequence[str]
    ) -> npt.NDArray[np.int32]:
        if not names:
            return tenants
        for name in names:
            if name not in self.names:
                self.names[name] = len(self.names)
                self._names_bytes += 4 + len(name.encode())
        return np.array([*(self.names[name] for name in names), -1], np.int32)[tenants]

    def rows(self) -> ColumnRows:
        """Return a copy of the rows, unaffected by later additions."""
        return ColumnRows(
            expand_runs(_int64s(self.runs.starts), _int64s(self.runs.counts)),
            np.frombuffer(bytes(self._lanes), np.int16),
            np.frombuffer(bytes(self._tenants), np.int32),
            np.frombuffer(bytes(self._deliver_at_ms), np.int64),
            list(self.names),
        )

    def dedup_rows(self) -> DedupIdRows:
        """Return a copy of the dedup ids."""
        return DedupIdRows(
            expand_runs(_int64s(self.dedup_runs.starts), _int64s(self.dedup_runs.counts)),
            np.frombuffer(bytes(self._ids), np.uint64).reshape(self.dedup_count, 2),
        )


def _int64s(items: array[int]) -> Int64s:
    return np.frombuffer(items.tobytes(), np.int64)
