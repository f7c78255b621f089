"""What the fixed columns of frames say about messages: when they are due, where they queue.

Frames say it by frame; here it is by message, as arrays, for many frames at once. Lane, tenant
and time of delivery make the *rows* of all messages in frames that have any of the three; dedup
ids make rows of their own. A frame with none of them is *plain* and gives nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goq.errors import InvalidFrame
from goq.frame.encode import NO_TENANT
from goq.frame.header import Attribute
from goq.frame.view import FrameView

ROW_ATTRIBUTES = Attribute.LANE | Attribute.TENANT | Attribute.DELIVER_AT
COLUMN_ATTRIBUTES = ROW_ATTRIBUTES | Attribute.DEDUP_ID

Int64s = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Messages of frames that have lanes, tenants or times of delivery: parallel, read-only.

    ``offsets`` rise. ``lanes`` is -1 where the frame names none. ``tenants`` are numbers of
    ``tenant_names``, which holds a name once, -1 for none. ``deliver_at_ms`` is 0 for a message
    that was never delayed: one whose time had come when it was appended.
    """

    offsets: Int64s
    lanes: npt.NDArray[np.int16]
    tenants: npt.NDArray[np.int32]
    deliver_at_ms: Int64s
    tenant_names: list[str]

    def within(self, start: int, end: int) -> Rows:
        """Return the rows with offsets from ``start`` up to ``end``."""
        return self.select(slice(*np.searchsorted(self.offsets, (start, end))))

    def due_within(self, low_ms: int, high_ms: int) -> Rows:
        """Return the rows of messages that were delayed to a time between two, both included."""
        due_ms = self.deliver_at_ms
        return self.select((due_ms >= low_ms) & (due_ms <= high_ms) & (due_ms > 0))

    def select(self, which: slice | npt.NDArray[np.bool_]) -> Rows:
        """Return some of the rows, with all the names."""
        return Rows(
            self.offsets[which],
            self.lanes[which],
            self.tenants[which],
            self.deliver_at_ms[which],
            self.tenant_names,
        )


class DedupRows(NamedTuple):
    """Messages that have a dedup id: its 16 bytes as two little-endian words, never both 0."""

    offsets: Int64s
    ids: npt.NDArray[np.uint64]

    def within(self, start: int, end: int) -> DedupRows:
        """Return the rows with offsets from ``start`` up to ``end``."""
        which = slice(*np.searchsorted(self.offsets, (start, end)))
        return DedupRows(self.offsets[which], self.ids[which])


FrameRows = tuple[Rows | None, DedupRows | None]


def rows_of(view: FrameView) -> Rows | None:
    """Return the rows of a frame as it was stamped, None for one that has none.

    Raises ``InvalidFrame`` or ``ValueError`` for a frame that was never checked and is not sound.
    """
    header = view.header
    if not header.attributes & ROW_ATTRIBUTES:
        return None
    count = header.message_count
    lane_column, due_column = view.column(Attribute.LANE), view.column(Attribute.DELIVER_AT)
    tenants, names = _tenants_of(view)
    if due_column is None:
        deliver_at_ms = np.zeros(count, np.int64)
    else:
        deliver_at_ms = np.frombuffer(due_column, np.int64)
        # times by 1000 would overflow: nobody has checked what a producer wrote there
        delayed = deliver_at_ms > max(0, header.append_time_us // 1000)
        deliver_at_ms = np.where(delayed, deliver_at_ms, 0)
    return Rows(
        np.arange(header.base_offset, header.end_offset, dtype=np.int64),
        np.full(count, -1, np.int16)
        if lane_column is None
        else np.frombuffer(lane_column, np.uint8).astype(np.int16),
        tenants,
        deliver_at_ms,
        names,
    )


def _tenants_of(view: FrameView) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the number of each message's tenant among the names that are used, and those."""
    column, dictionary = view.column(Attribute.TENANT), view.tenants
    if column is None or dictionary is None:
        return np.full(view.header.message_count, -1, np.int32), []
    numbers = np.frombuffer(column, np.uint16)
    used = np.unique(numbers)
    used = used[used != NO_TENANT]
    known = len(dictionary.offsets) - 1
    if len(used) and used[-1] >= known:
        raise InvalidFrame("a tenant's number points outside of the frame's dictionary")
    names = [dictionary.slice(n, n + 1)[0].decode() for n in used.tolist()]
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    places = np.array([*(place[name] for name in names), -1], np.int32)
    found = np.searchsorted(used, numbers)  # no tenant is the highest number: behind all names
    return places[found], list(place)


def dedup_rows_of(view: FrameView) -> DedupRows | None:
    """Return the dedup ids of a frame as it was stamped, None where it has none."""
    header = view.header
    if not header.attributes & Attribute.DEDUP_ID:
        return None
    column = view.column(Attribute.DEDUP_ID)
    assert column is not None
    ids = np.frombuffer(column, np.uint64).reshape(header.message_count, 2)
    given = np.flatnonzero(ids.any(axis=1))
    if not len(given):
        return None
    return DedupRows(given + header.base_offset, ids[given])


def read_frame(view: FrameView) -> FrameRows:
    """Return what a frame adds; nothing if it was never checked and its sections are not sound."""
    try:
        return rows_of(view), dedup_rows_of(view)
    except (InvalidFrame, ValueError, IndexError):
        return None, None


class OffsetRuns:
    """Rising offsets as runs without a gap: where each begins, and how long it is."""

    def __init__(self) -> None:
        self.starts = array("q")
        self.counts = array("q")

    def add(self, offsets: Int64s) -> None:
        """Add offsets above all that are there; at least one."""
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
    """Return the offsets that runs stand for."""
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + counts[0], dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


class ColumnsBuilder:
    """Gathers the rows of frames in the order of their offsets."""

    def __init__(self) -> None:
        self.count = 0
        self.dedup_count = 0
        self.due_ms: tuple[int, int] | None = None
        """The earliest and the latest time of delivery, None where nothing is delayed."""
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
        """About how much memory, and room in a file, the rows take."""
        runs = len(self.runs.starts) + len(self.dedup_runs.starts)
        return 14 * self.count + len(self._ids) + self._names_bytes + 16 * runs

    def add(self, rows: Rows | None, dedup: DedupRows | None) -> None:
        """Add what lies behind everything there."""
        if rows is not None:
            self._add_rows(rows)
        if dedup is not None:
            self.dedup_runs.add(dedup.offsets)
            self._ids += dedup.ids.tobytes()
            self.dedup_count += len(dedup.offsets)

    def _add_rows(self, rows: Rows) -> None:
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

    def rows(self) -> Rows:
        """Return a copy of the rows, safe from what is added later."""
        return Rows(
            expand_runs(_int64s(self.runs.starts), _int64s(self.runs.counts)),
            np.frombuffer(bytes(self._lanes), np.int16),
            np.frombuffer(bytes(self._tenants), np.int32),
            np.frombuffer(bytes(self._deliver_at_ms), np.int64),
            list(self.names),
        )

    def dedup_rows(self) -> DedupRows:
        """Return a copy of the dedup ids."""
        return DedupRows(
            expand_runs(_int64s(self.dedup_runs.starts), _int64s(self.dedup_runs.counts)),
            np.frombuffer(bytes(self._ids), np.uint64).reshape(self.dedup_count, 2),
        )


def _int64s(items: array[int]) -> Int64s:
    return np.frombuffer(items.tobytes(), np.int64)
