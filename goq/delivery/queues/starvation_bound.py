"""The starvation bound of a group: a heap of queues by the ready time of their heads.

An entry is not updated while its queue advances: then it is too early, and is corrected when it
reaches the top. The top is looked at only when it is over the bound. So there is at most one
correction for each advance of a queue, and none while no message waits too long.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from goq.delivery.queues.ready_queues import IS_WATCHED, Cursors

_SLOT_BITS = 32


class StarvationBound:
    """The queues of a group by the age of their heads, one entry each."""

    __slots__ = ("_cursors", "_heap")

    def __init__(self, cursors: Cursors) -> None:
        self._cursors = cursors
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, slot: int) -> None:
        """Add a queue that has a head and no entry yet; do nothing for any other."""
        if self._cursors.flags[slot] & IS_WATCHED:
            return
        entry = self._entry(slot)
        if entry is not None:
            self._cursors.flags[slot] |= IS_WATCHED
            heappush(self._heap, entry)

    def oldest(self, before_ms: int) -> int | None:
        """Return the queue whose head has waited longest, if it became ready before a time."""
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
        """Remove the queue that :meth:`oldest` returned."""
        slot = heappop(self._heap) & ((1 << _SLOT_BITS) - 1)
        self._cursors.flags[slot] &= ~IS_WATCHED

    def _entry(self, slot: int) -> int | None:
        head = self._cursors.head(slot)
        if head is None:
            return None
        return self._cursors.ready_ms(slot, head[0])[0] << _SLOT_BITS | slot
