"""Messages that wait for another attempt: by offset, by when they are due, and by lane.

Heaps lie over the same parts: one of those that wait for their time, and one a lane of the ripe,
whose time has come and that wait for a consumer. So the next time to wake somebody at is never
that of a message that everybody knows of. Entries are not removed but outlived: one that no part
stands behind any more is dropped when it comes up, and the heaps are made anew when most of them
is that, or when the clock was set back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from goq.delivery.group.attempt_ranges import AttemptRange, AttemptRanges

_SMALL = 64


class Retries:
    """The parts of one group that wait, and their times. All of a part are in one lane."""

    __slots__ = ("_entries", "_lane_of", "_now_ms", "_parts", "_ripe", "_waiting")

    def __init__(self, lane_of: Callable[[int], int]) -> None:
        self._lane_of = lane_of
        self._parts = AttemptRanges()
        self._waiting: list[tuple[int, int]] = []
        self._ripe: dict[int, list[tuple[int, int]]] = {}
        self._entries = 0
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[AttemptRange]:
        return iter(self._parts)

    @property
    def message_count(self) -> int:
        """How many messages wait."""
        return self._parts.message_count

    def add(self, part: AttemptRange) -> None:
        """Let messages wait that do not yet; the part's time is when they are due."""
        self._parts.add(part)
        self._enter(part)

    def take(self, start: int, end: int) -> list[AttemptRange]:
        """Let go of what waits from ``start`` up to ``end``, and return it."""
        taken = self._parts.take(start, end)
        rest = self._parts.at(end)
        if rest is not None and rest.start == end:  # cut off from what had the entry
            self._enter(rest)
        return taken

    def has(self, offset: int) -> bool:
        """Whether a message waits."""
        return self._parts.at(offset) is not None

    def is_due(self, offset: int, now_ms: int) -> bool:
        """Whether a message waits, and its time has come."""
        part = self._parts.at(offset)
        return part is not None and part.time_ms <= now_ms

    def within(self, start: int, end: int) -> list[AttemptRange]:
        """Return what waits from ``start`` up to ``end``."""
        return self._parts.within(start, end)

    def first(self) -> AttemptRange | None:
        """Return the part with the lowest offsets."""
        return next(iter(self._parts), None)

    def ripe_lanes(self) -> list[int]:
        """Return the lanes in which something may be ripe."""
        return [lane for lane, heap in self._ripe.items() if heap]

    def pop_ripe(self, lanes: Sequence[int]) -> AttemptRange | None:
        """Return the part of these lanes that has been ripe for longest; it stays until taken.

        It is not returned again unless it is entered again.
        """
        while heaps := [(heap[0], lane) for lane in lanes if (heap := self._ripe.get(lane))]:
            entry, lane = min(heaps)
            heap = self._ripe[lane]
            while heap and heap[0] == entry:  # it may have been entered more than once
                heapq.heappop(heap)
                self._entries -= 1
            part = self._behind(entry)
            if part is not None and self._lane_of(part.start) == lane:
                return part
        return None

    def enter_again(self, offset: int) -> None:
        """Let what was popped and not taken come up again."""
        part = self._parts.at(offset)
        if part is not None:
            self._enter(part)

    def ripen(self, now_ms: int) -> bool:
        """Find what has become due; return whether anything has."""
        if now_ms < self._now_ms:
            self._rebuild()
        self._now_ms = now_ms
        ripened = False
        while self._waiting and self._waiting[0][0] <= now_ms:
            entry = heapq.heappop(self._waiting)
            if self._behind(entry) is not None:
                heapq.heappush(self._ripe.setdefault(self._lane_of(entry[1]), []), entry)
                ripened = True
            else:
                self._entries -= 1
        return ripened

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest at which more becomes due."""
        return self._waiting[0][0] if self._waiting else None

    def _behind(self, entry: tuple[int, int]) -> AttemptRange | None:
        part = self._parts.at(entry[1])
        return part if part is not None and (part.time_ms, part.start) == entry else None

    def _enter(self, part: AttemptRange) -> None:
        if self._entries > 2 * len(self._parts) + _SMALL:
            self._rebuild()
        else:
            heapq.heappush(self._waiting, (part.time_ms, part.start))
            self._entries += 1

    def _rebuild(self) -> None:
        self._waiting = [(part.time_ms, part.start) for part in self._parts]
        heapq.heapify(self._waiting)
        self._ripe = {}
        self._entries = len(self._waiting)
