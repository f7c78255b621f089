"""Disjoint runs of offsets, each with an attempt, a time and a past, in order of offset.

What a lease still holds and what waits for a retry are both of this kind. Memory and time grow
with the number of runs, not of messages: a lease of a thousand messages in order is one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from goq.delivery.events.event import Failure


class AttemptRange(NamedTuple):
    """Offsets from ``start`` up to ``end`` that share an attempt, a time, and what failed."""

    start: int
    end: int
    attempt: int
    time_ms: int
    failures: tuple[Failure, ...] = ()


class AttemptRanges:
    """A sorted, disjoint set of :class:`AttemptRange`."""

    __slots__ = ("_parts", "_starts", "message_count")

    def __init__(self) -> None:
        self._parts: list[AttemptRange] = []
        self._starts: list[int] = []  # of the parts, to search among plain numbers
        self.message_count = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[AttemptRange]:
        return iter(self._parts)

    def add(self, part: AttemptRange) -> None:
        """Add a part that overlaps none that is here."""
        starts = self._starts
        self.message_count += part.end - part.start
        place = len(starts)
        if starts and starts[-1] > part.start:
            place = bisect_right(starts, part.start)
        starts.insert(place, part.start)
        self._parts.insert(place, part)

    def take(self, start: int, end: int) -> list[AttemptRange]:
        """Remove what lies from ``start`` up to ``end`` and return it."""
        parts = self._parts
        first = max(0, bisect_right(self._starts, start) - 1)
        if first < len(parts) and parts[first].end <= start:
            first += 1
        last = first
        taken: list[AttemptRange] = []
        kept: list[AttemptRange] = []
        while last < len(parts) and parts[last].start < end:
            part = parts[last]
            if part.start < start:
                kept.append(part._replace(end=start))
            taken.append(_cut(part, start, end))
            if part.end > end:
                kept.append(part._replace(start=end))
            last += 1
        parts[first:last] = kept
        self._starts[first:last] = [part.start for part in kept]
        self.message_count -= sum(part.end - part.start for part in taken)
        return taken

    def take_all(self) -> list[AttemptRange]:
        """Remove everything and return it."""
        taken, self._parts, self._starts = self._parts, [], []
        self.message_count = 0
        return taken

    def at(self, offset: int) -> AttemptRange | None:
        """Return the part that holds ``offset``."""
        number = bisect_right(self._starts, offset) - 1
        if number >= 0 and offset < self._parts[number].end:
            return self._parts[number]
        return None

    def within(self, start: int, end: int) -> list[AttemptRange]:
        """Return what :meth:`take` would, and leave it."""
        number = max(0, bisect_right(self._starts, start) - 1)
        found: list[AttemptRange] = []
        while number < len(self._parts) and (part := self._parts[number]).start < end:
            if part.end > start:
                found.append(_cut(part, start, end))
            number += 1
        return found

    def holds(self, start: int, end: int) -> bool:
        """Whether all from ``start`` up to ``end`` is here, in one part or in neighbours."""
        parts = self._parts
        number = bisect_right(self._starts, start) - 1
        if number < 0:
            return False
        reached = parts[number].end
        while reached < end:
            number += 1
            if number == len(parts) or parts[number].start != reached:
                return False
            reached = parts[number].end
        return True

    def is_just(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether this is all that is here: ranges that do not overlap."""
        count = sum([end - start for start, end in ranges])
        return count == self.message_count and all(self.holds(*each) for each in ranges)

    def earliest_ms(self) -> int | None:
        """Return the smallest time, None when empty."""
        return min((part.time_ms for part in self._parts), default=None)


def gaps(start: int, end: int, parts: Iterable[AttemptRange]) -> Iterator[tuple[int, int]]:
    """Yield what lies from ``start`` up to ``end`` and in none of ``parts``, which are disjoint."""
    for part in sorted(parts):
        if part.start >= end:
            break
        if start < part.start:
            yield start, part.start
        start = max(start, part.end)
    if start < end:
        yield start, end


def _cut(part: AttemptRange, start: int, end: int) -> AttemptRange:
    """Return what of a part lies from ``start`` up to ``end``."""
    if start <= part.start and part.end <= end:
        return part
    return part._replace(start=max(part.start, start), end=min(part.end, end))
