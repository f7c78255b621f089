"""Disjoint ranges of offsets, each with an attempt, a time and earlier failures, in order.

The messages of a lease and the messages that wait for a retry are both kept this way. Memory and
time grow with the number of ranges, not of messages: a lease of a thousand consecutive messages is
one range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from goq.delivery.events.event import Failure


class AttemptRange(NamedTuple):
    """Offsets from ``start`` up to ``end`` with one attempt, one time and the same failures.

    ``time_ms`` is a deadline for a leased range, and the due time for one that waits for a retry.
    """

    start: int
    end: int
    attempt: int
    time_ms: int
    failures: tuple[Failure, ...] = ()


class AttemptRanges:
    """A sorted, disjoint set of :class:`AttemptRange`."""

    __slots__ = ("_ranges", "_starts", "message_count")

    def __init__(self) -> None:
        self._ranges: list[AttemptRange] = []
        self._starts: list[int] = []  # the same ranges' starts: plain numbers are faster to search
        self.message_count = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[AttemptRange]:
        return iter(self._ranges)

    def add(self, part: AttemptRange) -> None:
        """Add a range that overlaps no other."""
        starts = self._starts
        self.message_count += part.end - part.start
        place = len(starts)
        if starts and starts[-1] > part.start:
            place = bisect_right(starts, part.start)
        starts.insert(place, part.start)
        self._ranges.insert(place, part)

    def take(self, start: int, end: int) -> list[AttemptRange]:
        """Remove and return what lies from ``start`` up to ``end``."""
        parts = self._ranges
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
        """Remove and return everything."""
        taken, self._ranges, self._starts = self._ranges, [], []
        self.message_count = 0
        return taken

    def at(self, offset: int) -> AttemptRange | None:
        """Return the range that contains ``offset``."""
        number = bisect_right(self._starts, offset) - 1
        if number >= 0 and offset < self._ranges[number].end:
            return self._ranges[number]
        return None

    def within(self, start: int, end: int) -> list[AttemptRange]:
        """Return what :meth:`take` would return, and keep it."""
        number = max(0, bisect_right(self._starts, start) - 1)
        found: list[AttemptRange] = []
        while number < len(self._ranges) and (part := self._ranges[number]).start < end:
            if part.end > start:
                found.append(_cut(part, start, end))
            number += 1
        return found

    def contains(self, start: int, end: int) -> bool:
        """Return whether all offsets from ``start`` up to ``end`` are in the set."""
        parts = self._ranges
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

    def equals(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Return whether these ranges, which do not overlap, are the whole set."""
        count = sum([end - start for start, end in ranges])
        return count == self.message_count and all(self.contains(*each) for each in ranges)

    def earliest_ms(self) -> int | None:
        """Return the smallest time, None when empty."""
        return min((part.time_ms for part in self._ranges), default=None)


def gaps(start: int, end: int, parts: Iterable[AttemptRange]) -> Iterator[tuple[int, int]]:
    """Yield what of ``start`` up to ``end`` is in none of ``parts``, which are disjoint."""
    for part in sorted(parts):
        if part.start >= end:
            break
        if start < part.start:
            yield start, part.start
        start = max(start, part.end)
    if start < end:
        yield start, end


def _cut(part: AttemptRange, start: int, end: int) -> AttemptRange:
    """Return the piece of a range from ``start`` up to ``end``."""
    if start <= part.start and part.end <= end:
        return part
    return part._replace(start=max(part.start, start), end=min(part.end, end))
