"""When leases end, earliest first.

A heap whose entries are never removed, only outlived: the owner says which are still meant when
they come up. So that a long visibility timeout cannot fill memory with entries of settled leases,
the heap is rebuilt from the owner's living ones when they are fewer than half of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

_SMALL = 64


class Deadlines:
    """Pairs of a time and a lease's token."""

    __slots__ = ("_heap", "_living")

    def __init__(self, living: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._living = living
        self._heap: list[tuple[int, int]] = []

    def add(self, time_ms: int, token: int, *, living_count: int) -> None:
        """Add an entry; ``living_count`` is how many the owner has."""
        if len(self._heap) > 2 * living_count + _SMALL:
            self._heap = list(self._living())
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (time_ms, token))

    def pop_due(self, now_ms: int) -> int | None:
        """Remove the earliest entry if its time has come, and return its token."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[1]
        return None

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest that is still meant, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all entries."""
        self._heap.clear()
