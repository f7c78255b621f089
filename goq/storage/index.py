"""A segment's sparse index, by offset and by time.

One entry about every 8 KiB of log: *the frame at ``position`` begins with ``offset``, and every
frame before it in the whole log was appended at or before ``time_us``*. The time is a running
maximum, so that it never falls even where the clock did, and one bisection finds a time as well
as an offset.

The file holds the entries by column, little-endian: their count (``u64``), all offsets, all
positions, all times (``i64`` each), then the CRC32C of all before it (``u64``). It carries no
authority: an index that is missing, stale or damaged is made anew from the segment, and only
costs the time for that.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from goq import limits
from goq.storage.columns import Int64s

_WORD = struct.Struct("<Q")


class IndexEntry(NamedTuple):
    """Where a frame begins, and a bound on the time of all before it."""

    offset: int
    position: int
    time_us: int


class SparseIndex:
    """The entries of one segment, in order."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entry: IndexEntry, *, always: bool = False) -> None:
        """Add an entry if the last one is far enough behind it, or ``always``."""
        if self._positions:
            distance = entry.position - self._positions[-1]
            if distance <= 0 or (distance < limits.INDEX_INTERVAL_BYTES and not always):
                return
        self._times.append(entry.time_us)
        self._positions.append(entry.position)
        self._offsets.append(entry.offset)  # last: a reader in another thread counts by offsets

    def raise_times(self, time_us: int) -> None:
        """Let no entry's time be below ``time_us``, the maximum before the segment."""
        self._times = array("q", [max(time_us, t) for t in self._times])

    def first(self) -> IndexEntry:
        """Return the entry of the segment's beginning."""
        return self._entry(0)

    def last(self) -> IndexEntry:
        """Return the entry furthest on."""
        return self._entry(len(self) - 1)

    def before_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before ``offset``; the frame with it lies there or after."""
        return self._entry(max(0, bisect_right(self._offsets, offset) - 1))

    def before_time(self, time_us: int) -> IndexEntry:
        """Return the last entry that has only earlier frames before it."""
        return self._entry(max(0, bisect_left(self._times, time_us, 0, len(self)) - 1))

    def columns(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return offsets, positions and times of all entries there are, from any thread."""
        count = len(self)
        offsets, positions, times = (column[:count] for column in self._columns())
        return (
            np.frombuffer(offsets, np.int64),
            np.frombuffer(positions, np.int64),
            np.frombuffer(times, np.int64),
        )

    def pack(self, end: IndexEntry) -> bytes:
        """Return the index as its file has it, with ``end`` as the place that it reaches to."""
        columns = [array("q", column) for column in self._columns()]
        if end.position > self._positions[-1]:
            for column, item in zip(columns, end, strict=True):
                column.append(item)
        data = _WORD.pack(len(columns[0])) + b"".join(column.tobytes() for column in columns)
        return data + _WORD.pack(crc32c(data))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> SparseIndex | None:
        """Return the index in ``data``, or None if any byte of it is not as it was written."""
        columns_end = len(data) - _WORD.size
        if columns_end <= _WORD.size or _WORD.unpack_from(data, columns_end)[0] != crc32c(
            data[:columns_end]
        ):
            return None
        (count,) = _WORD.unpack_from(data)
        if not count or columns_end != _WORD.size * (1 + 3 * count):
            return None
        index = cls()
        start = _WORD.size
        for column in index._columns():
            column.frombytes(data[start : start + _WORD.size * count])
            start += _WORD.size * count
        return index

    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._offsets, self._positions, self._times

    def _entry(self, number: int) -> IndexEntry:
        return IndexEntry(self._offsets[number], self._positions[number], self._times[number])
