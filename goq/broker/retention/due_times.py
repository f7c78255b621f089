"""The times at which partitions are due for retention, the earliest first.

A heap has an entry for each time that was set. One that does not count any more is dropped when it
comes up, or when most of them are such. So it costs the same to set a time, whatever the number of
partitions, and those that are looked at early again and again leave nothing behind.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from goq.broker.partition_context import PartitionId

_ENTRIES_KEPT: Final = 64


class DueTimes:
    """At most one time for each partition, in microseconds of the wall clock."""

    def __init__(self) -> None:
        self._due_us: dict[PartitionId, int] = {}
        self._heap: list[tuple[int, PartitionId]] = []

    def set_no_later(self, identity: PartitionId, due_us: int) -> None:
        """Set the time of a partition, unless it has an earlier one."""
        if due_us < self._due_us.get(identity, due_us + 1):
            self._due_us[identity] = due_us
            heappush(self._heap, (due_us, identity))
            if len(self._heap) > 2 * len(self._due_us) + _ENTRIES_KEPT:
                self._heap = [(at_us, each) for each, at_us in self._due_us.items()]
                heapify(self._heap)

    def take_due(self, now_us: int) -> list[PartitionId]:
        """Remove and return the partitions that are due, the earliest first."""
        found = []
        while (next_us := self.next_us()) is not None and next_us <= now_us:
            _, identity = heappop(self._heap)
            del self._due_us[identity]
            found.append(identity)
        return found

    def next_us(self) -> int | None:
        """Return when the next partition is due, None without any."""
        while self._heap:
            due_us, identity = self._heap[0]
            if self._due_us.get(identity) == due_us:
                return due_us
            heappop(self._heap)
        return None
