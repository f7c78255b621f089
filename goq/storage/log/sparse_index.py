"""A segment's sparse index, by offset and by time.

One entry about every 8 KiB of log: *the frame at ``position`` begins with ``offset``, and every
frame before it in the whole log was appended at or before ``time_us``*. The time is a running
maximum, so that it never falls even where the clock did, and one bisection finds a time as well
as an offset.

What lies between an entry and the one before it is a stretch. An entry also says between which
times the frames of its stretch were appended, ``min_us`` to ``max_us``, whatever the clock did
before and after: so a stretch without any frame of a range of times is known without reading it.
Bad bytes in a stretch count as having the times of the frames before and after them.

The file holds the entries by column, little-endian: their count (``u64``), all offsets, all
positions, all times, all least times, all greatest (``i64`` each), then the CRC32C of all before
it (``u64``). It carries no authority: an index that is missing, stale, damaged or of another form
is made anew from the segment, and only costs the time for that.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from goq import limits
from goq.storage.column_index.rows import Int64s

TIME_US_MIN = -(2**63)
TIME_US_MAX = 2**63 - 1
_WORD = struct.Struct("<Q")


class IndexEntry(NamedTuple):
    """Where a frame begins, a bound on the time of all before it, and those of its stretch.

    A stretch of which nothing is said may hold any time.
    """

    offset: int
    position: int
    time_us: int
    min_us: int = TIME_US_MIN
    max_us: int = TIME_US_MAX


class IndexRange(NamedTuple):
    """Stretches that follow each other: the offsets in them, and about how many bytes they are.

    The last run of a segment has no end: it reaches to wherever the segment does.
    """

    start_offset: int
    end_offset: int | None
    size_bytes: int


class SparseIndex:
    """The entries of one segment, in order."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self._min = array("q")
        self._max = array("q")
        self._begin_stretch()

    def _begin_stretch(self) -> None:
        self._min_us, self._max_us = TIME_US_MAX, TIME_US_MIN

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entry: IndexEntry, *, always: bool = False) -> None:
        """Add an entry if the last one is far enough behind it, or ``always``.

        Its stretch begins at the last entry that was kept.
        """
        distance = entry.position - self._positions[-1] if self._positions else None
        if distance is not None and distance <= 0:
            return
        self._min_us = min(self._min_us, entry.min_us)
        self._max_us = max(self._max_us, entry.max_us)
        if distance is not None and distance < limits.INDEX_INTERVAL_BYTES and not always:
            return
        self._min.append(self._min_us)
        self._max.append(self._max_us)
        self._begin_stretch()
        self._times.append(entry.time_us)
        self._positions.append(entry.position)
        self._offsets.append(entry.offset)  # last: a reader in another thread counts by offsets

    def add_bad_region(self) -> None:
        """Let the stretch under way reach over bad bytes, up to the next frame at least."""
        if self._min_us > self._max_us:
            self._min_us, self._max_us = self._min[-1], self._max[-1]

    def raise_max_times(self, time_us: int) -> None:
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

    def runs(self, min_us: int, max_us: int, offset: int) -> list[IndexRange]:
        """Return the runs of stretches, from that with ``offset`` on, that may hold a time.

        That is one from ``min_us`` to ``max_us``, both included. What lies behind the last
        entry is always among them. From any thread.
        """
        count = len(self._offsets)
        first = max(0, bisect_right(self._offsets, offset, 0, count) - 1)
        least = np.frombuffer(self._min[first + 1 : count], np.int64)
        most = np.frombuffer(self._max[first + 1 : count], np.int64)
        wanted = np.ones(count - first + 1, np.int8)
        wanted[:-2] = (most >= min_us) & (least <= max_us)
        wanted[-1] = 0
        edges = first + np.flatnonzero(np.diff(wanted, prepend=np.int8(0)))
        return [self._run(int(edges[n]), int(edges[n + 1]), count) for n in range(0, len(edges), 2)]

    def _run(self, start: int, end: int, count: int) -> IndexRange:
        last = min(end, count - 1)
        return IndexRange(
            self._offsets[start],
            self._offsets[end] if end < count else None,
            self._positions[last] - self._positions[start] + limits.INDEX_INTERVAL_BYTES,
        )

    def stretches(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return offsets, positions and least times of all entries there are, from any thread."""
        count = len(self)
        offsets, positions, least = (
            np.frombuffer(column[:count], np.int64)
            for column in (self._offsets, self._positions, self._min)
        )
        return offsets, positions, least

    def pack(self, end: IndexEntry) -> bytes:
        """Return the index as its file has it, with ``end`` as the place that it reaches to.

        The bounds of the last stretch are those of the frames that were added.
        """
        columns = [array("q", column) for column in self._columns()]
        if end.position > self._positions[-1]:
            end = end._replace(min_us=self._min_us, max_us=self._max_us)
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
        if not count or columns_end != _WORD.size * (1 + len(IndexEntry._fields) * count):
            return None
        index = cls()
        start = _WORD.size
        for column in index._columns():
            column.frombytes(data[start : start + _WORD.size * count])
            start += _WORD.size * count
        return index

    def _columns(self) -> tuple[array[int], ...]:
        """Return the columns in the order of an entry's fields."""
        return self._offsets, self._positions, self._times, self._min, self._max

    def _entry(self, number: int) -> IndexEntry:
        return IndexEntry(*(column[number] for column in self._columns()))
