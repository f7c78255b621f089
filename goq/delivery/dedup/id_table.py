"""A hash table of 128-bit ids in flat arrays: 29 bytes a slot, and no objects to garbage-collect.

Buckets have eight slots, filled from the first; an id whose bucket is full goes to the next one.
Each bucket has a word of eight one-byte tags, 0 for a free slot, as in Swiss tables. Many ids are
looked up and added at a time, all first buckets in one vector operation, then all second ones. A
few ids are walked in Python, which is faster for them.

Nearly every id is new. So many ids are first looked up in a blocked Bloom filter (Putze et al.,
2007): five bits of one word for each id, and four words for each bucket. Of absent ids it passes
about one in 5,000, and it needs one vector operation however many buckets are full.

Multiply-add-shift with odd secret factors decides an id's bucket (Dietzfelbinger et al., 1997). So
no client can choose ids that all fall into one bucket.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SLOTS: Final = 8
FEW: Final = 64
"""Fewer ids than this are looked up one by one, which is faster."""
_FEW_LEFT = 8  # of many ids, that had a full bucket
_LOAD = 13 / 16
_MASK_64 = 2**64 - 1
_ONES = 0x0101_0101_0101_0101
_HIGHS = _ONES << 7
_LAST = 56  # where the last slot's tag begins
_TAG = 32  # which byte of the mixed id is its tag
_FILTER_BITS = (14, 20, 26, 32, 38)  # where six bits of the mixed id name a bit of its filter word
_FILTER_WORD_BITS = 2  # log2 of the words of a bucket

_LEAST_TAGS = np.uint64(1) << np.arange(0, 64, 8, dtype=np.uint64)
"""The least word of tags of a bucket with one filled slot, two, and so on."""
_TAG_HIGHS = _LEAST_TAGS << np.uint64(7)
"""The highest bit of the tag of each slot."""

Ids = NDArray[np.uint64]
"""Shape (n, 2): the two halves of each id."""
Words = NDArray[np.uint64]


class Mixer:
    """A hash of ids to one word each, whose highest bits are good for choosing a bucket."""

    def __init__(self, factors: tuple[int, int]) -> None:
        self._factors = factors[0] | 1, factors[1] | 1
        self._first, self._second = np.array(self._factors, np.uint64)

    def mix(self, ids: Ids) -> Words:
        """Return the word of each id."""
        mixed: Words = ids[:, 0] * self._first + ids[:, 1] * self._second
        return mixed

    def mix_one(self, first: int, second: int) -> int:
        """Return the word of one id."""
        return (first * self._factors[0] + second * self._factors[1]) & _MASK_64


class IdTable:
    """Up to ``capacity`` ids, each with a number that is not 0; ids are never removed.

    An id may be added again: then the highest of its numbers counts.
    """

    def __init__(self, capacity: int) -> None:
        buckets = max(2, math.ceil(capacity / (SLOTS * _LOAD)))
        self._bits = (buckets - 1).bit_length()
        self._mask = (1 << self._bits) - 1
        self.capacity = int((SLOTS << self._bits) * _LOAD)
        self.count = 0
        self._tags = np.zeros(1 << self._bits, np.uint64)
        self._tag_words = self._tags.data
        self._tag_bytes = self._tags.view(np.uint8)
        self._filter = np.zeros(1 << self._bits + _FILTER_WORD_BITS, np.uint64)
        self._firsts, self._seconds, self._numbers = np.zeros((3, SLOTS << self._bits), np.uint64)

    def find(self, ids: Ids, mixed: Words, rows: NDArray[np.intp] | None = None) -> Words:
        """Return the number of each id, 0 for ids that are not in the table.

        ``rows`` are those of :meth:`possible_rows`, for callers that asked for them before.
        """
        found = np.zeros(len(ids), np.uint64)
        if rows is None:
            rows = self.possible_rows(mixed, filter_bits_of(mixed))
        buckets, wanted = self._buckets_of(mixed[rows]), _tags_of(mixed[rows])
        wanted *= np.uint64(_ONES)
        while len(rows) >= _FEW_LEFT:
            tags = self._tags[buckets]
            differing = tags ^ wanted  # a byte is 0 where a slot has the tag
            alike = (differing - np.uint64(_ONES)) & ~differing & np.uint64(_HIGHS)
            some = alike.nonzero()[0]
            looked, at, left = rows[some], buckets[some], alike[some]
            while len(looked):  # the next slot of each that has the tag
                others = left & (left - np.uint64(1))
                slots = at * SLOTS + np.searchsorted(_TAG_HIGHS, left ^ others)
                is_it = self._firsts[slots] == ids[looked, 0]
                is_it &= self._seconds[slots] == ids[looked, 1]
                hits = looked[is_it]
                found[hits] = np.maximum(found[hits], self._numbers[slots[is_it]])
                more = others.nonzero()[0]
                looked, at, left = looked[more], at[more], others[more]
            full = (tags >> np.uint64(_LAST)).nonzero()[0]
            rows, wanted = rows[full], wanted[full]
            buckets = (buckets[full] + 1) & self._mask
        for row, bucket in zip(rows.tolist(), buckets.tolist(), strict=True):
            first, second = ids[row].tolist()
            number = self._find_from(bucket, first, second, int(mixed[row]))
            found[row] = max(int(found[row]), number)
        return found

    def possible_rows(self, mixed: Words, bits: Words) -> NDArray[np.intp]:
        """Return the rows of all ids that are in the table, and of few others.

        ``bits`` are those of :func:`filter_bits_of`, the same for all tables.
        """
        words = self._filter.take(self._filter_words_of(mixed))
        words &= bits
        rows: NDArray[np.intp] = (words == bits).nonzero()[0]
        return rows

    def find_one(self, first: int, second: int, mixed: int) -> int:
        """Return the number of one id, 0 if it is not in the table."""
        return self._find_from(mixed >> (64 - self._bits), first, second, mixed)

    def _find_from(self, bucket: int, first: int, second: int, mixed: int) -> int:
        found, wanted = 0, ((mixed >> _TAG & 0xFF) or 1) * _ONES
        while True:
            tags = self._tag_words[bucket]
            differing = tags ^ wanted
            if (differing - _ONES) & ~differing & _HIGHS:
                found = max(found, self._in_bucket(bucket, first, second))
            if not tags >> _LAST:
                return found
            bucket = (bucket + 1) & self._mask

    def _in_bucket(self, bucket: int, first: int, second: int) -> int:
        slots = slice(bucket * SLOTS, (bucket + 1) * SLOTS)
        firsts, seconds = self._firsts[slots].tolist(), self._seconds[slots].tolist()
        numbers = self._numbers[slots].tolist()
        return max(
            (
                number
                for one, other, number in zip(firsts, seconds, numbers, strict=True)
                if one == first and other == second
            ),
            default=0,
        )

    def add(self, ids: Ids, mixed: Words, numbers: Words) -> None:
        """Add ids, each with its number."""
        self.count += len(ids)
        np.bitwise_or.at(self._filter, self._filter_words_of(mixed), filter_bits_of(mixed))
        buckets = self._buckets_of(mixed)
        tags = _tags_of(mixed)
        rows = _by_bucket(buckets)
        while len(rows) >= FEW:
            at = buckets[rows]
            taken = np.searchsorted(_LEAST_TAGS, self._tags[at], side="right")
            starts = np.concatenate(([True], at[1:] != at[:-1])).nonzero()[0]
            ends = np.concatenate((starts[1:], [len(at)]))
            nth = np.arange(len(at)) - np.repeat(starts, ends - starts)
            nth += taken
            fits = nth < SLOTS
            some, slots = rows[fits], (at * SLOTS + nth)[fits]
            self._firsts[slots] = ids[some, 0]
            self._seconds[slots] = ids[some, 1]
            self._numbers[slots] = numbers[some]
            self._tag_bytes[slots] = tags[some]
            rows = rows[~fits]
            buckets[rows] = (buckets[rows] + 1) & self._mask
            rows = rows[_by_bucket(buckets[rows])]
        for (first, second), bucket, tag, number in zip(
            ids[rows].tolist(),
            buckets[rows].tolist(),
            tags[rows].tolist(),
            numbers[rows].tolist(),
            strict=True,
        ):
            self._add_one(first, second, bucket, tag, number)

    def _add_one(self, first: int, second: int, bucket: int, tag: int, number: int) -> None:
        while (tags := self._tag_words[bucket]) >> _LAST:
            bucket = (bucket + 1) & self._mask
        slot = bucket * SLOTS + (tags.bit_length() + 7) // 8
        self._firsts[slot] = first
        self._seconds[slot] = second
        self._numbers[slot] = number
        self._tag_bytes[slot] = tag

    def _filter_words_of(self, mixed: Words) -> NDArray[Any]:
        return (mixed >> np.uint64(64 - _FILTER_WORD_BITS - self._bits)).view(np.int64)

    def _buckets_of(self, mixed: Words) -> NDArray[Any]:
        return (mixed >> np.uint64(64 - self._bits)).view(np.int64)


def _by_bucket(buckets: NDArray[Any]) -> NDArray[Any]:
    """Return the rows in the order of their buckets, those of one bucket as they were.

    Sorting numbers is vectorized, a stable sort of their places takes eight times as long.
    """
    bits = len(buckets).bit_length()
    keys = buckets << bits
    keys |= np.arange(len(buckets))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def filter_bits_of(mixed: Words) -> Words:
    """Return the bits of each id in its word of a table's filter."""
    bits = np.zeros(len(mixed), np.uint64)
    for place in _FILTER_BITS:
        bits |= np.uint64(1) << (mixed >> np.uint64(place) & np.uint64(63))
    return bits


def _tags_of(mixed: Words) -> Words:
    tags: Words = (mixed >> np.uint64(_TAG)) & np.uint64(0xFF)
    return np.maximum(tags, np.uint64(1))
