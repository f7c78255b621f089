"""The partitions of a topic that may have messages for a group, by the lane of its next message.

A partition where a group found nothing is left out until something changes there, so a receive
costs the same however many partitions rest. A change that concerns all groups is noted once, not
for each of them: a group looks at what changed since it looked last. To note too much costs a look;
to note too little would hide messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from goq.broker.partition.partition import Partition
from goq.broker.topic.partition_table import PartitionTable

_FIRST_LOOKS_MAX = 32  # at once: they make the group in the partition, for 0.1 ms each
_UNKNOWN_LANE = -1  # before all lanes: what a partition has is known once its queues are built


class _Known:
    """The partitions known to a group: lanes of those with messages, and those to look at.

    ``seen`` and ``table_seen`` are how many changes of partitions, and of their table, it has seen.
    """

    __slots__ = ("changed", "lanes", "new", "seen", "table_seen")

    def __init__(self, seen: int) -> None:
        self.lanes: dict[int, int] = {}
        self.new: dict[int, None] = {}
        self.changed: set[int] = set()
        self.seen = seen
        self.table_seen = 0


class ReadyPartitions:
    """The ready partitions of each group of a topic.

    :meth:`note_change` must be called whenever messages of a partition may become ready, before
    the event loop runs anything else. Partitions that come or go are noticed in the table, and
    only they are looked at for it.
    """

    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self._known: dict[str, _Known] = {}
        self._change_count = 0
        self._changed_at: dict[int, int] = {}  # the latest change of each partition, in order

    def note_change(self, number: int, group: str | None) -> None:
        """Have a partition looked at again, for one group or for all."""
        if group is None:
            self._change_count += 1
            self._changed_at.pop(number, None)
            self._changed_at[number] = self._change_count
        elif known := self._known.get(group):
            known.changed.add(number)

    def forget(self, group: str) -> None:
        """Have all partitions looked at again for a group, or none if there is no such group."""
        self._known.pop(group, None)

    def in_order(self, group: str, first: int, *, by_lane: bool) -> Iterator[Partition]:
        """Yield the online partitions that may have messages, in cyclic order from ``first`` on.

        With ``by_lane`` those come first whose next message is in the most urgent lane. They are
        as the last :meth:`look` found them.
        """
        lanes = self._known[group].lanes
        numbers = sorted(lanes)
        split = bisect_left(numbers, first)
        numbers = numbers[split:] + numbers[:split]
        if by_lane and len(numbers) > 1:
            numbers.sort(key=lanes.__getitem__)
        for number in numbers:
            partition = self._partitions.get(number)
            if partition is not None and partition.is_online:
                yield partition

    def lanes(self, group: str) -> dict[int, int]:
        """Look at all that changed. Return the lane of the next message by partition."""
        while not self.look(group):
            pass
        return self._known[group].lanes

    def look(self, group: str) -> bool:
        """Look at the partitions that changed; return whether the group has seen all by now.

        It sees some partitions at a time for the first time. However many change meanwhile, that
        ends.
        """
        known = self._known.get(group)
        if known is None:
            known = self._known[group] = _Known(self._change_count)
        if known.table_seen != self._partitions.change_count:
            known.new |= dict.fromkeys(self._partitions.changed_since(known.table_seen))
            known.table_seen = self._partitions.change_count
        if known.new:
            for number in list(islice(known.new, _FIRST_LOOKS_MAX)):
                del known.new[number]
                self._look_at(number, group, known)
            if known.new:
                return False
        for number, changed_at in reversed(self._changed_at.items()):
            if changed_at <= known.seen:
                break
            known.changed.add(number)
        known.seen = self._change_count
        changed, known.changed = known.changed, set()
        for number in changed:
            self._look_at(number, group, known)
        return True

    def _look_at(self, number: int, group: str, known: _Known) -> None:
        lane = self._next_lane(group, number)
        if lane is None:
            known.lanes.pop(number, None)
        else:
            known.lanes[number] = lane

    def _next_lane(self, group: str, number: int) -> int | None:
        partition = self._partitions.get(number)
        if partition is None or not partition.is_online:
            return None  # it comes back as another one
        if not partition.ready_manager.is_ready_for(group):
            return _UNKNOWN_LANE
        return partition.leases.next_lane(group)
