"""Rows: the delivery columns of messages as arrays, for many frames at once.

Frames store columns by frame; rows are by message. Messages of frames with a lane, tenant or
delivery time column have a row. Dedup ids have rows of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, count, filterfalse
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goq.errors import InvalidFrame
from goq.frame.encoder import NO_TENANT
from goq.frame.header import Attribute
from goq.frame.view import FrameView

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

    def numbered(self, rows: ColumnRows) -> ColumnRows:
        """Return rows with these names' numbers and no names, so that :meth:`add` is fast."""
        tenants = self._renumbered(rows.tenants, rows.tenant_names)
        return rows._replace(tenants=tenants, tenant_names=[])

    def _renumbered(
        self, tenants: npt.NDArray[np.int32], names: Sequence[str]
    ) -> npt.NDArray[np.int32]:
        if not names:
            return tenants
        known = self.names
        new = dict.fromkeys(filterfalse(known.__contains__, names))
        known.update(zip(new, count(len(known)), strict=False))
        self._names_bytes += 4 * len(new) + len("".join(new).encode())
        numbers = np.full(len(names) + 1, -1, np.int32)  # the last one for none
        numbers[:-1] = np.fromiter(map(known.__getitem__, names), np.int32, len(names))
        return numbers[tenants]

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


ROW_ATTRIBUTES = Attribute.LANE | Attribute.TENANT | Attribute.DELIVER_AT
COLUMN_ATTRIBUTES = ROW_ATTRIBUTES | Attribute.DEDUP_ID


def rows_of(view: FrameView) -> ColumnRows | None:
    """Return the rows of a stamped frame, or None if it has none.

    Removed messages have no row. Raises ``InvalidFrame`` or ``ValueError`` for an unsound frame
    that was never validated.
    """
    return _rows([view]) if view.header.attributes & ROW_ATTRIBUTES else None


def read_frames(views: Sequence[FrameView]) -> FrameRows:
    """Return the rows of frames with rising offsets, all at once.

    One array operation costs more than one message, so frames are read together. A frame that was
    never validated and is not sound has no rows.
    """
    try:
        with_rows = [v for v in views if v.header.attributes & ROW_ATTRIBUTES]
        with_ids = [v for v in views if v.header.attributes & Attribute.DEDUP_ID]
        return _rows(with_rows) if with_rows else None, _dedup_rows(with_ids) if with_ids else None
    except (InvalidFrame, ValueError, IndexError):
        if len(views) == 1:
            return None, None
    builder = ColumnsBuilder()
    for view in views:
        builder.add(*read_frames([view]))
    return builder.rows() if builder.count else None, (
        builder.dedup_rows() if builder.dedup_count else None
    )


def _rows(views: Sequence[FrameView]) -> ColumnRows | None:
    headers = [view.header for view in views]
    counts = np.array([header.message_count for header in headers])
    lanes = _column(views, Attribute.LANE, b"\0").astype(np.int16)
    has_lanes = [bool(header.attributes & Attribute.LANE) for header in headers]
    if not all(has_lanes):
        lanes[~np.repeat(has_lanes, counts)] = -1
    deliver_at_ms = _column(views, Attribute.DELIVER_AT, bytes(8)).view(np.int64)
    # not multiplied by 1000, which could overflow: the producer's times are not validated
    append_ms = [max(0, header.append_time_us // 1000) for header in headers]
    deliver_at_ms = np.where(deliver_at_ms > np.repeat(append_ms, counts), deliver_at_ms, 0)
    bases = np.array([header.base_offset for header in headers])
    tenants, names = _tenants(views, counts)
    rows = ColumnRows(expand_runs(bases, counts), lanes, tenants, deliver_at_ms, names)
    if not any(header.attributes & Attribute.REMOVED for header in headers):
        return rows
    masks = [
        np.ones(view.header.message_count, np.bool_) if removed is None else ~removed.mask
        for view, removed in ((view, view.removed_rows) for view in views)
    ]
    rows = rows.select(np.concatenate(masks))
    return rows if len(rows.offsets) else None


def _column(views: Sequence[FrameView], attribute: int, none: bytes) -> npt.NDArray[np.uint8]:
    """Return a column of frames end to end, with ``none`` per message of a frame without it."""
    parts = [
        none * view.header.message_count
        if not view.header.attributes & attribute
        else view.column(attribute) or b""
        for view in views
    ]
    return np.frombuffer(b"".join(parts), np.uint8)


def _tenants(views: Sequence[FrameView], counts: Int64s) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the number of each message's tenant among the names in use, and these names."""
    dictionaries = [view.tenants for view in views]
    known = [0 if d is None else len(d.offsets) - 1 for d in dictionaries]
    if not any(known):
        return np.full(int(counts.sum()), -1, np.int32), []
    none = NO_TENANT.to_bytes(2, "little")
    numbers = _column(views, Attribute.TENANT, none).view(np.uint16).astype(np.int64)
    is_none = numbers == NO_TENANT
    if ((numbers >= np.repeat(known, counts)) & ~is_none).any():
        raise InvalidFrame("a tenant's number is not in the frame's dictionary")
    *firsts, total = 0, *accumulate(known)  # as if the dictionaries were one
    numbers += np.repeat(firsts, counts)
    numbers[is_none] = total
    is_used = np.zeros(total + 1, np.bool_)
    is_used[numbers] = True
    names = [name for view in views for name in view.tenant_names]
    place: dict[str, int] = {}
    places = [-1] * (total + 1)
    for number in np.flatnonzero(is_used[:total]).tolist():
        places[number] = place.setdefault(names[number], len(place))
    return np.array(places, np.int32)[numbers], list(place)


def _dedup_rows(views: Sequence[FrameView]) -> DedupIdRows | None:
    counts = np.array([view.header.message_count for view in views])
    bases = np.array([view.header.base_offset for view in views])
    ids = _column(views, Attribute.DEDUP_ID, b"").view(np.uint64).reshape(-1, 2)
    given = ids.any(axis=1)
    if not given.any():
        return None
    return DedupIdRows(expand_runs(bases, counts)[given], ids[given])
