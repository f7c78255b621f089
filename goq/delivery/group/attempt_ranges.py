"""Disjoint ranges of offsets, each with an attempt, a time and earlier failures, in order.

The messages of a lease and the messages that wait for a retry are both kept this way. Memory and
time grow with the number of ranges, not of messages: a lease of a thousand consecutive messages is
one range.

**Retries.** Heaps refer to the same ranges: one for the ranges whose time has not come, and one a
lane for due ranges that wait for a consumer. So the next timer is never that of a message that is
due already. Entries are not removed but become stale. A stale entry, with no range behind it, is
dropped when it comes up. The heaps are rebuilt when most entries are stale, or when the clock was
set back.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from goq import limits
from goq.delivery.events.event import Failure, Span


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

    __slots__ = ("_ranges", "_starts", "encoded", "message_count")

    def __init__(self) -> None:
        self.encoded: msgspec.Raw | None = None
        """The ranges as encoded for a snapshot; None again once they change."""
        self._ranges: list[AttemptRange] = []
        self._starts: list[int] = []  # the same ranges' starts: plain numbers are faster to search
        self.message_count = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[AttemptRange]:
        return iter(self._ranges)

    def only(self) -> AttemptRange | None:
        """Return the range if there is one and no other."""
        return self._ranges[0] if len(self._ranges) == 1 else None

    def add(self, part: AttemptRange) -> None:
        """Add a range that overlaps no other."""
        self.encoded = None
        starts = self._starts
        self.message_count += part.end - part.start
        place = len(starts)
        if starts and starts[-1] > part.start:
            place = bisect_right(starts, part.start)
        starts.insert(place, part.start)
        self._ranges.insert(place, part)

    def add_spans(self, spans: Iterable[Span], time_ms: int) -> None:
        """Add spans that overlap nothing, all with one time; neighbours of one attempt are joined.

        So what a lease got in any order is one range where it is one run.
        """
        self.encoded = None
        found: list[tuple[int, int, int]] = []
        for span in sorted(spans):
            if found and found[-1][1] == span[0] and found[-1][2] == span[2]:
                found[-1] = (found[-1][0], span[1], span[2])
            else:
                found.append(span)
        if self._ranges:
            for start, end, attempt in found:
                self.add(AttemptRange(start, end, attempt, time_ms))
            return
        self._starts = [span[0] for span in found]
        self._ranges = [AttemptRange(start, end, attempt, time_ms) for start, end, attempt in found]
        self.message_count = sum([end - start for start, end, _ in found])

    def take(self, start: int, end: int) -> list[AttemptRange]:
        """Remove and return the ranges from ``start`` up to ``end``, cut to these bounds."""
        self.encoded = None
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
        self.encoded = None
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

    def containers(self) -> list[list[Any]]:
        """Return what holds the ranges."""
        return [self._ranges, self._starts]

    def equals(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Return whether these ranges, which do not overlap, are the whole set."""
        if [part[:2] for part in self._ranges] == ranges:
            return True  # nearly always
        count = sum([end - start for start, end in ranges])
        return count == self.message_count and all(self.contains(*each) for each in ranges)

    def shift_times(self, shift_ms: int) -> None:
        """Move the times of all ranges by so many milliseconds."""
        self.encoded = None
        self._ranges = [part._replace(time_ms=part.time_ms + shift_ms) for part in self._ranges]

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


_ENTRIES_MIN = 64


class Retries:
    """The waiting ranges of one group, and their times. All messages of a range are in one lane."""

    __slots__ = ("_due", "_entry_count", "_lane_of", "_now_ms", "_ranges", "_waiting")

    def __init__(self, lane_of: Callable[[int], int]) -> None:
        self._lane_of = lane_of
        self._ranges = AttemptRanges()
        self._waiting: list[tuple[int, int]] = []  # a heap of due times and start offsets
        self._due: dict[int, list[tuple[int, int]]] = {}  # the same, by lane
        self._entry_count = 0
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[AttemptRange]:
        return iter(self._ranges)

    @property
    def message_count(self) -> int:
        """The number of messages that wait."""
        return self._ranges.message_count

    def add(self, part: AttemptRange) -> None:
        """Add messages that do not wait yet; the range's time is when they are due."""
        self._ranges.add(part)
        self._push(part)

    def take(self, start: int, end: int) -> list[AttemptRange]:
        """Remove and return what waits from ``start`` up to ``end``."""
        taken = self._ranges.take(start, end)
        rest = self._ranges.at(end)
        if rest is not None and rest.start == end:  # cut off from the range that had the entry
            self._push(rest)
        return taken

    def has(self, offset: int) -> bool:
        """Return whether a message waits."""
        return self._ranges.at(offset) is not None

    def is_due(self, offset: int, now_ms: int) -> bool:
        """Return whether a message waits and its time has come."""
        part = self._ranges.at(offset)
        return part is not None and part.time_ms <= now_ms

    def containers(self) -> list[list[Any]]:
        """Return what holds the ranges."""
        return [*self._ranges.containers(), self._waiting, *self._due.values()]

    def within(self, start: int, end: int) -> list[AttemptRange]:
        """Return what waits from ``start`` up to ``end``."""
        return self._ranges.within(start, end)

    def first(self) -> AttemptRange | None:
        """Return the range with the lowest offsets."""
        return next(iter(self._ranges), None)

    def due_lanes(self) -> list[int]:
        """Return the lanes in which messages may be due."""
        return [lane for lane, heap in self._due.items() if heap]

    def pop_due(self, lanes: Sequence[int]) -> AttemptRange | None:
        """Return the range of these lanes that has been due for longest; it stays until taken.

        It is not returned again before :meth:`requeue`.
        """
        while heaps := [(heap[0], lane) for lane in lanes if (heap := self._due.get(lane))]:
            entry, lane = min(heaps)
            heap = self._due[lane]
            while heap and heap[0] == entry:  # it may have been pushed more than once
                heapq.heappop(heap)
                self._entry_count -= 1
            part = self._range_of(entry)
            if part is not None and self._lane_of(part.start) == lane:
                return part
        return None

    def requeue(self, offset: int) -> None:
        """Push a range again that was popped and not taken."""
        part = self._ranges.at(offset)
        if part is not None:
            self._push(part)

    def advance(self, now_ms: int) -> bool:
        """Move on to a time; return whether any message has become due.

        So many may be due that it takes several calls: until then :attr:`is_behind` is true.
        """
        if now_ms < self._now_ms:
            self._rebuild()
        self._now_ms = now_ms
        is_any_due = False
        left = limits.SELECTION_STEPS_MAX
        while left and self._waiting and self._waiting[0][0] <= now_ms:
            left -= 1
            entry = heapq.heappop(self._waiting)
            if self._range_of(entry) is not None:
                heapq.heappush(self._due.setdefault(self._lane_of(entry[1]), []), entry)
                is_any_due = True
            else:
                self._entry_count -= 1
        return is_any_due

    @property
    def is_behind(self) -> bool:
        """Whether more is due at the time of the last :meth:`advance`."""
        return bool(self._waiting) and self._waiting[0][0] <= self._now_ms

    def shift_times(self, shift_ms: int) -> None:
        """Move all due times by so many milliseconds."""
        self._ranges.shift_times(shift_ms)
        self._rebuild()

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest at which more becomes due."""
        return self._waiting[0][0] if self._waiting else None

    def _range_of(self, entry: tuple[int, int]) -> AttemptRange | None:
        part = self._ranges.at(entry[1])
        return part if part is not None and (part.time_ms, part.start) == entry else None

    def _push(self, part: AttemptRange) -> None:
        if self._entry_count > 2 * len(self._ranges) + _ENTRIES_MIN:
            self._rebuild()
        else:
            heapq.heappush(self._waiting, (part.time_ms, part.start))
            self._entry_count += 1

    def _rebuild(self) -> None:
        self._waiting = [(part.time_ms, part.start) for part in self._ranges]
        heapq.heapify(self._waiting)
        self._due = {}
        self._entry_count = len(self._waiting)
