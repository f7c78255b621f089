"""The sparse index of a segment, by offset and by time.

It has about one entry per 8 KiB of log. An entry states: *the frame at ``position`` begins with
``offset``, and every frame before it in the whole log was appended at or before ``time_us``*. The
time is a running maximum. It never falls, even where the clock was set back, so one bisection finds
a time as well as an offset.

The frames between two entries are an interval. The entry at its end also bounds the append times of
the interval, ``min_us`` to ``max_us``, whatever the clock did elsewhere. So an interval without a
frame of a time range is skipped unread. Damaged bytes in an interval count as having the times of
the frames before and after them.

The file holds the entries by column, little-endian: their count (``u64``), all offsets, all
positions, all times, all least times, all greatest (``i64`` each), then the CRC32C of all before it
(``u64``), seeded with the id of the log. It carries no authority. An index that is missing, stale,
corrupt, of another version or of another log is rebuilt from the segment, which only costs time.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from goq import limits
from goq.frame.checksum import crc32c
from goq.storage.column_index.rows import Int64s

TIME_US_MIN = -(2**63)
TIME_US_MAX = 2**63 - 1
_WORD = struct.Struct("<Q")
_SEED_MAX = 2**32 - 1


class IndexEntry(NamedTuple):
    """The start of a frame, a bound on all append times before it, and the bounds of its interval.

    Without bounds an interval may hold any time.
    """

    offset: int
    position: int
    time_us: int
    min_us: int = TIME_US_MIN
    max_us: int = TIME_US_MAX


class IndexRange(NamedTuple):
    """Consecutive intervals: their offsets, and an estimate of their bytes.

    The last range of a segment has no end: it reaches to the end of the segment.
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
        self.has_bad_region = False
        """Whether damaged bytes were added; a stored index does not tell."""
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._min_us, self._max_us = TIME_US_MAX, TIME_US_MIN

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entry: IndexEntry, *, always: bool = False) -> None:
        """Add an entry if it is far enough from the last one, or ``always``.

        Its interval begins at the last entry that was added.
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
        self._begin_interval()
        self._times.append(entry.time_us)
        self._positions.append(entry.position)
        self._offsets.append(entry.offset)  # added last: other threads count the offsets

    def add_bad_region(self) -> None:
        """Extend the current interval over damaged bytes, to the next frame or further."""
        self.has_bad_region = True
        if self._min_us > self._max_us:
            self._min_us, self._max_us = self._min[-1], self._max[-1]

    def raise_max_times(self, time_us: int) -> None:
        """Raise every entry's time to at least ``time_us``, the maximum before the segment."""
        self._times = array("q", [max(time_us, t) for t in self._times])

    def newest_us(self) -> int:
        """Return the greatest append time in this segment alone; the largest if it is not known."""
        newest_us = max(self._max[1:], default=TIME_US_MIN)  # nothing is before the first entry
        newest_us = max(newest_us, self._max_us)
        return TIME_US_MAX if newest_us == TIME_US_MIN else newest_us

    def first(self) -> IndexEntry:
        """Return the entry of the segment's first byte."""
        return self._entry(0)

    def last(self) -> IndexEntry:
        """Return the last entry."""
        return self._entry(len(self) - 1)

    def before_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before ``offset``; its frame begins there or later."""
        return self._entry(max(0, bisect_right(self._offsets, offset) - 1))

    def before_time(self, time_us: int) -> IndexEntry:
        """Return the last entry with only earlier frames before it."""
        return self._entry(max(0, bisect_left(self._times, time_us, 0, len(self)) - 1))

    def ranges(self, min_us: int, max_us: int, offset: int) -> list[IndexRange]:
        """Return the ranges that may hold a frame of a time range, from ``offset``'s interval on.

        The times are from ``min_us`` to ``max_us``, both included. The frames after the last entry
        are always part of the result. Thread-safe.
        """
        count = len(self._offsets)
        first = max(0, bisect_right(self._offsets, offset, 0, count) - 1)
        least = np.frombuffer(self._min[first + 1 : count], np.int64)
        most = np.frombuffer(self._max[first + 1 : count], np.int64)
        wanted = np.ones(count - first + 1, np.int8)
        wanted[:-2] = (most >= min_us) & (least <= max_us)
        wanted[-1] = 0
        edges = first + np.flatnonzero(np.diff(wanted, prepend=np.int8(0)))
        pairs = edges.reshape(-1, 2).tolist()
        return [self._range(start, end, count) for start, end in pairs]

    def _range(self, start: int, end: int, count: int) -> IndexRange:
        last = min(end, count - 1)
        return IndexRange(
            self._offsets[start],
            self._offsets[end] if end < count else None,
            self._positions[last] - self._positions[start] + limits.INDEX_INTERVAL_BYTES,
        )

    def intervals(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return offsets, positions and least times of all entries. Thread-safe."""
        count = len(self)
        offsets, positions, least = (
            np.frombuffer(column[:count], np.int64)
            for column in (self._offsets, self._positions, self._min)
        )
        return offsets, positions, least

    def pack(self, end: IndexEntry, log_id: int) -> bytes:
        """Return the bytes of the index file, with ``end`` as the position that the index reaches.

        The bounds of the last interval are those of the frames that were added.
        """
        columns = [array("q", column) for column in self._columns()]
        if end.position > self._positions[-1]:
            end = end._replace(min_us=self._min_us, max_us=self._max_us)
            for column, item in zip(columns, end, strict=True):
                column.append(item)
        data = _WORD.pack(len(columns[0])) + b"".join(column.tobytes() for column in columns)
        return data + _WORD.pack(crc32c(data, log_id & _SEED_MAX))

    @classmethod
    def unpack(cls, data: bytes | memoryview, log_id: int) -> SparseIndex | None:
        """Return the index in ``data``; None if any byte is corrupt, or if it is of another log."""
        columns_end = len(data) - _WORD.size
        if columns_end <= _WORD.size or _WORD.unpack_from(data, columns_end)[0] != crc32c(
            data[:columns_end], log_id & _SEED_MAX
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
