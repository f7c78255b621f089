"""The messages of one group that wait for another attempt: by offset, by due time and by lane.

Heaps refer to the same ranges: one for the ranges whose time has not come, and one a lane for due
ranges that wait for a consumer. So the next timer is never that of a message that is due already.
Entries are not removed but become stale. A stale entry, with no range behind it, is dropped when it
comes up. The heaps are rebuilt when most entries are stale, or when the clock was set back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from goq.delivery.group.attempt_ranges import AttemptRange, AttemptRanges

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
        """Let a range come up again that was popped and not taken."""
        part = self._ranges.at(offset)
        if part is not None:
            self._push(part)

    def advance(self, now_ms: int) -> bool:
        """Move on to a time; return whether any message has become due."""
        if now_ms < self._now_ms:
            self._rebuild()
        self._now_ms = now_ms
        is_any_due = False
        while self._waiting and self._waiting[0][0] <= now_ms:
            entry = heapq.heappop(self._waiting)
            if self._range_of(entry) is not None:
                heapq.heappush(self._due.setdefault(self._lane_of(entry[1]), []), entry)
                is_any_due = True
            else:
                self._entry_count -= 1
        return is_any_due

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
