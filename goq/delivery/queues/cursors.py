"""The cursors of one group in all ready queues of a partition: a few bytes a queue, by slot.

A cursor is the number of a run and an offset inside it: messages from there on are still to be
offered. A cursor at the end of the last run stays there, because that run may grow.
"""

from __future__ import annotations

from array import array

from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX
from goq.delivery.queues.ready_queues import ReadyQueues

IS_ACTIVE = 1
"""The queue takes part in the weighted sharing of its lane."""
IS_WATCHED = 2
"""The queue has an entry in the heap of the starvation bound."""
IS_PARKED = 4
"""The queue's tenant is at its cap."""


class Cursors:
    """A cursor for each ready queue, and the group's other notes on it.

    ``credits`` belongs to :class:`~goq.delivery.queues.weighted_sharing.WeightedSharing`. ``flags``
    says which of the group's structures hold a queue. Offsets below ``floor_offset`` are never
    offered.
    """

    __slots__ = ("_offsets", "_ready", "_runs", "credits", "flags", "floor_offset")

    def __init__(self, ready: ReadyQueues, floor_offset: int) -> None:
        self._ready = ready
        self._runs = array("q")
        self._offsets = array("q")
        self.credits = array("q")
        self.flags = bytearray()
        self.floor_offset = floor_offset

    def __len__(self) -> int:
        return len(self.flags)

    def grow(self, slot_count: int) -> None:
        """Add cursors up to ``slot_count``; a new one is at the beginning of its queue."""
        new = bytes(max(0, slot_count - len(self.flags)))
        for column in (self._runs, self._offsets, self.credits):
            column.frombytes(new * column.itemsize)
        self.flags += new

    def head(self, slot: int) -> tuple[int, int] | None:
        """Return the offsets to offer next, as start and end; None when the queue is used up."""
        queue = self._ready.slots[slot]
        if queue is None:
            return None
        runs, floor = queue.runs, self.floor_offset
        index, offset = self._runs[slot] - queue.first, self._offsets[slot]
        if index < 0:
            index = offset = self._offsets[slot] = 0
        last = len(runs) - 1
        while index <= last:
            run = runs[index]
            start = run >> COUNT_BITS
            end = start + (run & COUNT_MAX)
            begin = start if start > offset else offset
            if begin < floor:
                begin = floor
            if begin < end:
                self._runs[slot] = queue.first + index
                return begin, end
            if index == last:
                break
            index = min(last, queue.find_run(floor, index + 1)) if end <= floor else index + 1
            offset = self._offsets[slot] = 0
        self._runs[slot] = queue.first + index
        return None

    def advance(self, slot: int, offset: int) -> bool:
        """Move to an offset in the run that :meth:`head` returned.

        Returns whether the queue is used up: the offset is the end of its last run.
        """
        self._offsets[slot] = offset
        queue = self._ready.slots[slot]
        assert queue is not None
        if self._runs[slot] != queue.first + len(queue.runs) - 1:
            return False
        run = queue.runs[-1]
        return offset >= (run >> COUNT_BITS) + (run & COUNT_MAX)

    def ready_ms(self, slot: int, offset: int) -> tuple[int, int]:
        """Return when the head, at ``offset``, became ready, and the end of that time's validity.

        The second value is the first offset that may have another ready time.
        """
        queue = self._ready.slots[slot]
        assert queue is not None
        late_ms = queue.late_ms(self._runs[slot])
        if late_ms >= 0:
            return late_ms, offset + COUNT_MAX
        times = self._ready.times
        return times.at(offset), times.same_until(offset)

    def first_needed_run(self, slot: int) -> int:
        """Return the number of the first run of a queue that the group still needs."""
        queue = self._ready.slots[slot]
        assert queue is not None
        if slot >= len(self.flags):
            return queue.first
        if self.head(slot) is None and not self.flags[slot] & (IS_ACTIVE | IS_PARKED):
            return queue.end
        return min(self._runs[slot], queue.end - 1)

    def reset(self, slot: int) -> None:
        """Move to the beginning of the queue that gets the slot next."""
        if slot < len(self.flags):
            self._runs[slot] = self._offsets[slot] = 0
