"""Disjoint runs of offsets, each with an attempt, a time and a past, in order of offset.

What a lease still holds and what waits for a retry are both of this kind. Memory and time grow
with the number of runs, not of messages: a lease of a thousand messages in order is one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from goq.delivery.events import Failure


class Part(NamedTuple):
    """Offsets from ``start`` up to ``end`` that share an attempt, a time, and what failed."""

    start: int
    end: int
    attempt: int
    time_ms: int
    failures: tuple[Failure, ...] = ()


class Parts:
    """A sorted, disjoint set of :class:`Part`."""

    __slots__ = ("_parts", "message_count")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.message_count = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def add(self, part: Part) -> None:
        """Add a part that overlaps none that is here."""
        parts = self._parts
        self.message_count += part.end - part.start
        if not parts or parts[-1].start < part.start:
            parts.append(part)
        else:
            parts.insert(bisect_right(parts, part.start, key=_start), part)

    def take(self, start: int, end: int) -> list[Part]:
        """Remove what lies from ``start`` up to ``end`` and return it."""
        parts = self._parts
        first = max(0, bisect_right(parts, start, key=_start) - 1)
        if first < len(parts) and parts[first].end <= start:
            first += 1
        last = first
        taken: list[Part] = []
        kept: list[Part] = []
        while last < len(parts) and parts[last].start < end:
            part = parts[last]
            if part.start < start:
                kept.append(part._replace(end=start))
            taken.append(_cut(part, start, end))
            if part.end > end:
                kept.append(part._replace(start=end))
            last += 1
        parts[first:last] = kept
        self.message_count -= sum(part.end - part.start for part in taken)
        return taken

    def at(self, offset: int) -> Part | None:
        """Return the part that holds ``offset``."""
        number = bisect_right(self._parts, offset, key=_start) - 1
        if number >= 0 and offset < self._parts[number].end:
            return self._parts[number]
        return None

    def within(self, start: int, end: int) -> list[Part]:
        """Return what :meth:`take` would, and leave it."""
        number = max(0, bisect_right(self._parts, start, key=_start) - 1)
        found: list[Part] = []
        while number < len(self._parts) and (part := self._parts[number]).start < end:
            if part.end > start:
                found.append(_cut(part, start, end))
            number += 1
        return found

    def holds(self, start: int, end: int) -> bool:
        """Whether one part holds all from ``start`` up to ``end``."""
        number = bisect_right(self._parts, start, key=_start) - 1
        return number >= 0 and end <= self._parts[number].end

    def earliest_ms(self) -> int | None:
        """Return the smallest time, None when empty."""
        return min((part.time_ms for part in self._parts), default=None)


def gaps(start: int, end: int, parts: Iterable[Part]) -> Iterator[tuple[int, int]]:
    """Yield what lies from ``start`` up to ``end`` and in none of ``parts``, which are disjoint."""
    for part in sorted(parts):
        if part.start >= end:
            break
        if start < part.start:
            yield start, part.start
        start = max(start, part.end)
    if start < end:
        yield start, end


def _cut(part: Part, start: int, end: int) -> Part:
    """Return what of a part lies from ``start`` up to ``end``."""
    if start <= part.start and part.end <= end:
        return part
    return part._replace(start=max(part.start, start), end=min(part.end, end))


def _start(part: Part) -> int:
    return part.start
