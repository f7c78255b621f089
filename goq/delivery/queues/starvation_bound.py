"""Which queue has waited longest: a heap of the times at which heads of queues became ready.

An entry is not kept up to date while its queue moves on: it is then too early, and is put right
when it comes up. That is only when it is over the bound, so it happens at most once for each time
that the queue moved on, and never while nobody waits too long.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from goq.delivery.queues.cursors import IS_WATCHED, Cursors

_SLOT_BITS = 32


class StarvationBound:
    """Queues of a group by the age of their heads, one entry each."""

    __slots__ = ("_heap", "_places")

    def __init__(self, places: Cursors) -> None:
        self._places = places
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def enter(self, slot: int) -> None:
        """Watch a queue, if it has a head and is not watched."""
        if self._places.flags[slot] & IS_WATCHED:
            return
        entry = self._entry(slot)
        if entry is not None:
            self._places.flags[slot] |= IS_WATCHED
            heappush(self._heap, entry)

    def oldest(self, before_ms: int) -> int | None:
        """Return the queue whose head became ready first, if that was before ``before_ms``."""
        while self._heap and self._heap[0] >> _SLOT_BITS < before_ms:
            slot = self._heap[0] & ((1 << _SLOT_BITS) - 1)
            entry = self._entry(slot)
            if entry is None:
                self.drop_oldest()
            elif entry > self._heap[0]:
                heapreplace(self._heap, entry)
            else:
                return slot
        return None

    def drop_oldest(self) -> None:
        """No longer watch the queue that :meth:`oldest` told."""
        slot = heappop(self._heap) & ((1 << _SLOT_BITS) - 1)
        self._places.flags[slot] &= ~IS_WATCHED

    def _entry(self, slot: int) -> int | None:
        head = self._places.head(slot)
        if head is None:
            return None
        return self._places.ready_ms(slot, head[0])[0] << _SLOT_BITS | slot
