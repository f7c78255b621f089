"""A set of offsets that is dense below its floor and may be sparse above it.

The offsets that a group has taken are such a set: nearly always everything up to some offset; with
priorities, tenants and held keys, scattered offsets beyond. Below the floor nothing is kept. Above
it a chunk of 4096 offsets is one integer used as a bitmap. So a set with a hole at every other
offset costs an eighth of a byte an offset, and all full chunks share one integer.

A set may have a ceiling: everything from there on is in the set, published or not. So a group can
end at an offset as it begins at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from goq.model import OffsetRange

_CHUNK = 4096
_FULL = (1 << _CHUNK) - 1
_CHUNK_BYTES = _CHUNK // 8

Partial = tuple[int, bytes]
"""A chunk's number and its bitmap, little-endian, least significant bit first."""

NO_CEILING = 2**63
"""The ceiling of a set that has none: no offset reaches it."""


class OffsetSet:
    """A set of all offsets below ``floor``, some above, and all from ``ceiling`` on."""

    __slots__ = ("_chunks", "ceiling", "floor")

    def __init__(self, floor: int = 0, ceiling: int = NO_CEILING) -> None:
        self.floor = floor
        self.ceiling = ceiling
        self._chunks: dict[int, int] = {}

    @property
    def has_ceiling(self) -> bool:
        """Whether the set contains everything from some offset on."""
        return self.ceiling != NO_CEILING

    @property
    def is_dense(self) -> bool:
        """Whether nothing is in the set between its floor and its ceiling."""
        return not self._chunks

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor or offset >= self.ceiling:
            return True
        number, bit = divmod(offset, _CHUNK)
        return bool(self._chunks.get(number, 0) >> bit & 1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OffsetSet)
            and self.ceiling == other.ceiling
            and self.encode() == other.encode()
        )

    def copy(self) -> OffsetSet:
        """Return an independent set of the same offsets."""
        copied = OffsetSet(self.floor, self.ceiling)
        copied._chunks = dict(self._chunks)
        return copied

    def add(self, start: int, end: int) -> None:
        """Add the offsets from ``start`` up to ``end``."""
        if end <= self.floor or start >= end:
            return
        if start > self.floor:
            if end == start + 1:
                number, bit = divmod(start, _CHUNK)
                self._chunks[number] = self._chunks.get(number, 0) | 1 << bit
                return
            for number, mask in _masks(start, end):
                self._chunks[number] = self._chunks.get(number, 0) | mask
            return
        if self._chunks:
            self._drop_chunks(self.floor // _CHUNK, end // _CHUNK)
        self.floor = end
        if self._chunks:
            self._absorb()

    def add_new(self, ranges: Sequence[tuple[int, ...]]) -> bool:
        """Add ranges of which the set has nothing; return False, and add nothing, if it has any.

        A range begins with its start and its end; they do not overlap. Scattered offsets cost one
        bitmap a chunk.
        """
        chunks, floor, ceiling = self._chunks, self.floor, self.ceiling
        bitmaps: dict[int, bytearray] = {}
        others: list[tuple[int, ...]] = []
        for each in ranges:
            start, end = each[0], each[1]
            if end == start + 1 and floor < start < ceiling:
                number, bit = divmod(start, _CHUNK)
                bitmap = bitmaps.get(number)
                if bitmap is None:
                    bitmap = bitmaps[number] = bytearray(_CHUNK_BYTES)
                bitmap[bit >> 3] |= 1 << (bit & 7)
            elif self.count(start, end):
                return False
            else:
                others.append(each)
        masks = [(number, int.from_bytes(each, "little")) for number, each in bitmaps.items()]
        if any(chunks.get(number, 0) & mask for number, mask in masks):
            return False
        for number, mask in masks:
            chunks[number] = chunks.get(number, 0) | mask
        for each in others:
            self.add(each[0], each[1])
        return True

    def remove(self, start: int, end: int) -> None:
        """Remove the offsets from ``start`` up to ``end``; the floor may fall to ``start``.

        Offsets from the ceiling on stay.
        """
        if start < self.floor:
            floor, self.floor = self.floor, start
            self._clear_below(floor)
            self.add(max(end, start), floor)
        for number, mask in _masks(max(start, self.floor), end, within=self._chunks):
            left = self._chunks[number] & ~mask
            if left:
                self._chunks[number] = left
            else:
                del self._chunks[number]

    def missing(self, start: int, end: int) -> Iterator[OffsetRange]:
        """Yield what of ``start`` up to ``end`` is missing, in order; neighbours may touch."""
        start, end = max(start, self.floor), min(end, self.ceiling)
        chunks = self._chunks
        if end == start + 1 and chunks:
            if start not in self:
                yield OffsetRange(start, end)
            return
        if not chunks:
            if start < end:
                yield OffsetRange(start, end)
            return
        last = max(chunks)
        while start < end:
            number, bit = divmod(start, _CHUNK)
            if number > last:
                yield OffsetRange(start, end)
                return
            base = number * _CHUNK
            chunk = chunks.get(number, 0)
            stop = min(end, base + _CHUNK)
            if chunk == 0:
                yield OffsetRange(start, stop)
                start = stop
                continue
            if chunk == _FULL:
                start = stop
                continue
            rest = chunk >> bit
            start += _trailing_ones(rest)
            if start >= stop:
                start = stop
                continue
            rest = chunk >> (start - base)
            zeros = (rest & -rest).bit_length() - 1 if rest else _CHUNK
            upto = min(stop, start + zeros)
            yield OffsetRange(start, upto)
            start = upto

    def present(self, start: int, end: int) -> Iterator[OffsetRange]:
        """Yield what of ``start`` up to ``end`` is present, in order; neighbours may touch."""
        for hole in self.missing(start, end):
            if start < hole.start:
                yield OffsetRange(start, hole.start)
            start = hole.end
        if start < end:
            yield OffsetRange(start, end)

    def count(self, start: int, end: int) -> int:
        """Return how many offsets from ``start`` up to ``end`` are present."""
        if end <= start + 1:
            return int(start < end and start in self)
        found = max(0, min(end, self.floor) - start)
        if end > self.ceiling:
            found += max(0, end - max(start, self.ceiling, self.floor))
            end = self.ceiling
        for number, mask in _masks(max(start, self.floor), end, within=self._chunks):
            found += (self._chunks[number] & mask).bit_count()
        return found

    def first_missing(self, end: int) -> int:
        """Return the first missing offset before ``end``; ``end`` if there is none."""
        return end if self.floor >= self.ceiling else min(self.floor, end)

    def top(self) -> int:
        """Return the offset from which on all offsets are present, or none is."""
        top = max(self.floor, self.ceiling if self.has_ceiling else 0)
        if not self._chunks:
            return top
        number = max(self._chunks)
        return max(number * _CHUNK + self._chunks[number].bit_length(), top)

    def all(self) -> Iterator[OffsetRange]:
        """Yield what is present below :meth:`top`, from offset 0 on; neighbours may touch."""
        return self.present(0, self.top())

    def update(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add several ranges."""
        for start, end in ranges:
            self.add(start, end)

    def runs(self) -> Iterator[OffsetRange]:
        """Yield what is present from the floor to :meth:`top`, in order; neighbours may touch."""
        return self.present(self.floor, self.top())

    def encode(self) -> tuple[int, list[tuple[int, int]], list[Partial]]:
        """Return the floor, runs of full chunks as chunk numbers, and the bitmaps of the others.

        The ceiling is not included.
        """
        full: list[tuple[int, int]] = []
        partial: list[Partial] = []
        for number in sorted(self._chunks):
            if self._chunks[number] != _FULL:
                bitmap = self._chunks[number] & ~self._below_floor(number)
                if bitmap:
                    partial.append((number, bitmap.to_bytes(_CHUNK_BYTES, "little")))
            elif full and full[-1][1] == number:
                full[-1] = (full[-1][0], number + 1)
            else:
                full.append((number, number + 1))
        return self.floor, full, partial

    def restore(self, full: Iterable[tuple[int, int]], partial: Iterable[Partial]) -> None:
        """Add what :meth:`encode` returned; the set may have another floor."""
        for first, last in full:
            self.add(first * _CHUNK, last * _CHUNK)
        for number, bitmap in partial:
            self._chunks[number] = self._chunks.get(number, 0) | int.from_bytes(bitmap, "little")
        if self._chunks:
            self._absorb()

    def _absorb(self) -> None:
        """Raise the floor over the offsets that follow it without a hole."""
        while (chunk := self._chunks.get(self.floor // _CHUNK)) is not None:
            number, bit = divmod(self.floor, _CHUNK)
            ones = _trailing_ones(chunk >> bit) if chunk != _FULL else _CHUNK - bit
            self.floor += ones
            if bit + ones < _CHUNK:
                return
            del self._chunks[number]

    def _drop_chunks(self, first: int, end: int) -> None:
        if end - first > len(self._chunks):
            for number in [n for n in self._chunks if first <= n < end]:
                del self._chunks[number]
        else:
            for number in range(first, end):
                self._chunks.pop(number, None)

    def _clear_below(self, floor: int) -> None:
        """Clear the bits of the floor's chunk that lie below the floor."""
        number, bit = divmod(floor, _CHUNK)
        if number in self._chunks:
            self._chunks[number] = self._chunks[number] >> bit << bit

    def _below_floor(self, number: int) -> int:
        bit = self.floor - number * _CHUNK
        return (1 << bit) - 1 if bit > 0 else 0


def _masks(
    start: int, end: int, *, within: dict[int, int] | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the chunks that ``start`` up to ``end`` touches, and a mask of the bits of each."""
    if start >= end:
        return
    first, last = start // _CHUNK, (end - 1) // _CHUNK
    numbers: Iterable[int] = range(first, last + 1)
    if within is not None:
        if last - first > len(within):
            numbers = [number for number in within if first <= number <= last]
        else:
            numbers = [number for number in numbers if number in within]
    for number in numbers:
        base = number * _CHUNK
        low, high = max(start - base, 0), min(end - base, _CHUNK)
        yield number, _FULL if high - low == _CHUNK else ((1 << (high - low)) - 1) << low


def _trailing_ones(value: int) -> int:
    return (~value & (value + 1)).bit_length() - 1
