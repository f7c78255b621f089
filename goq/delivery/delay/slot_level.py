"""The slots of one width of the timer wheel: rows of due time, offset and tag, 24 bytes each.

A slot is taken whole, or in parts, from its beginning or by offset, so that one of a million rows
does not hold up the event loop.
"""

from __future__ import annotations

import heapq
from array import array

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

DUE, OFFSET, TAG = range(3)
"""The columns of a slot's rows."""

_SCANNED_AT_ONCE = 65_536  # rows: about 1 ms, or 5 if they must be sorted
_RUNS_MAX = 4  # of so many rows


class SlotLevel:
    """The non-empty slots of one width, and the order of their numbers.

    A slot is an array of due time, offset and tag: 24 bytes an entry. Rows that were taken in parts
    stay in the array until all are: moving the rest up each time would cost more the larger it is.
    """

    __slots__ = ("_merges", "_taken", "order", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, array[int]] = {}
        self.order: list[int] = []
        self._taken: dict[int, int] = {}  # rows from the beginning of the array
        self._merges: dict[int, _Merge] = {}

    def row_count(self, number: int) -> int:
        """Return the number of rows of a slot; 0 if there is none."""
        count = len(self.slots.get(number, ())) // 3 - self._taken.get(number, 0)
        merge = self._merges.get(number)
        return count if merge is None else count - merge.taken

    def rows(self, number: int) -> Int64s:
        """Return the rows of a slot, without copying if none was taken from its middle."""
        rows = _rows_of(self.slots[number])[self._taken.get(number, 0) :]
        merge = self._merges.get(number)
        return rows if merge is None else merge.left_of(rows)

    def slot(self, number: int) -> array[int]:
        """Return a slot, a new one if there is none."""
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = array("q")
            heapq.heappush(self.order, number)
        return slot

    def begun(self, now_ms: int) -> list[int]:
        """Return the numbers of the slots that have begun, in any order."""
        order, last = self.order, now_ms >> self.shift
        found, at = [], [0]  # in a heap no number is before its parent's
        for place in at:
            if place < len(order) and order[place] <= last:
                found.append(order[place])
                at += (2 * place + 1, 2 * place + 2)
        return found

    def take_first(self) -> Int64s:
        """Remove the earliest slot and return its rows."""
        rows = self.rows(self.order[0])
        number = heapq.heappop(self.order)
        del self.slots[number]
        self._taken.pop(number, None)
        self._merges.pop(number, None)
        return rows

    def take_some(self, number: int, rows_max: int) -> Int64s:
        """Remove and return the first rows of a slot, which is the earliest."""
        if self.row_count(number) <= rows_max:
            return self.take_first()
        start = self._taken.get(number, 0)
        self._taken[number] = start + rows_max
        return _rows_of(self.slots[number][3 * start : 3 * (start + rows_max)])

    def take_lowest(self, number: int, rows_max: int) -> Int64s | None:
        """Remove and return the rows with the lowest offsets of a slot, which is the earliest.

        They are in order. Returns None if it has only looked at the order of some rows.
        """
        rows = _rows_of(self.slots[number])
        merge = self._merges.setdefault(number, _Merge())
        if not merge.has_scanned(rows):
            return None
        return (
            self.take_first() if self.row_count(number) <= rows_max else merge.take(rows, rows_max)
        )

    def replace(self, number: int, rows: Int64s) -> None:
        """Set the rows of a slot; an empty slot is removed."""
        self._taken.pop(number, None)
        self._merges.pop(number, None)
        if len(rows):
            slot = self.slots[number] = array("q")
            slot.frombytes(np.ascontiguousarray(rows).data.cast("B"))
        else:
            del self.slots[number]
            self.order = sorted(self.slots)


class _Merge:
    """The runs of rising offsets in a slot, and what was taken from them.

    Rows that come from one wider slot are in order, so most slots have few runs. To sort a million
    rows at once would take 40 ms; to merge the heads of their runs costs what is taken.
    """

    __slots__ = ("_scanned", "runs", "taken")

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        """Where in the slot the rest of each run begins, and ends."""
        self.taken = 0
        self._scanned = 0

    def has_scanned(self, rows: Int64s) -> bool:
        """Find the runs of some more rows of a slot, or sort them; return whether it has all."""
        start, end = self._scanned, min(self._scanned + _SCANNED_AT_ONCE, len(rows))
        if start < end:
            offsets = rows[start:end, OFFSET]
            breaks = (np.flatnonzero(offsets[1:] < offsets[:-1]) + start + 1).tolist()
            if len(breaks) >= _RUNS_MAX:
                rows[start:end] = rows[start:end][np.argsort(offsets)]
                breaks = []
            first = start
            if self.runs and self.runs[-1][1] == start and rows[start - 1, OFFSET] < offsets[0]:
                first = self.runs.pop()[0]
            self.runs += zip([first, *breaks], [*breaks, end], strict=True)
            self._scanned = end
        return end == len(rows)

    def left_of(self, rows: Int64s) -> Int64s:
        """Return the rows that were not taken."""
        left = [rows[start:end] for start, end in self.runs]
        return np.concatenate([*left, rows[self._scanned :]])

    def take(self, rows: Int64s, rows_max: int) -> Int64s:
        """Return the lowest rows, in order."""
        heads = [rows[start : min(end, start + rows_max), OFFSET] for start, end in self.runs]
        offsets = np.concatenate(heads)
        last = np.partition(offsets, rows_max - 1)[rows_max - 1]
        counts = [int(np.searchsorted(head, last, "right")) for head in heads]
        found = np.concatenate(
            [rows[start : start + n] for (start, _), n in zip(self.runs, counts, strict=True)]
        )
        rest = ((start + n, end) for (start, end), n in zip(self.runs, counts, strict=True))
        self.runs = [(start, end) for start, end in rest if start < end]
        self.taken += len(found)
        return found[np.argsort(found[:, OFFSET])]


def _rows_of(slot: array[int]) -> Int64s:
    """Return a slot's entries, a row each, without copying."""
    return np.frombuffer(slot, np.int64).reshape(-1, 3)
