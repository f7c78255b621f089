"""Where one group stands in each ready queue: a few bytes a queue, by the queue's slot.

A position is a run's number and the offset inside it from which on messages are still to be
offered. Who has come to the end of the last run stays there, because that run may grow.
"""

from __future__ import annotations

from array import array

from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX
from goq.delivery.queues.ready_queues import ReadyQueues

IS_ACTIVE = 1
IS_WATCHED = 2
IS_PARKED = 4


class Cursors:
    """Positions in all queues of a partition, and what else a group notes about each.

    ``credits`` belongs to :class:`~goq.delivery.queues.weighted_sharing.WeightedSharing`.
    ``flags`` says in
    which of the group's structures a queue is. Nothing before ``floor_offset`` is ever offered.
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
        """Have a place for every slot; in a new one the position is the queue's beginning."""
        new = bytes(max(0, slot_count - len(self.flags)))
        for column in (self._runs, self._offsets, self.credits):
            column.frombytes(new * column.itemsize)
        self.flags += new

    def head(self, slot: int) -> tuple[int, int] | None:
        """Return the messages to be offered next, None if the group is past all there are."""
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
            index = min(last, queue.reaching(floor, index + 1)) if end <= floor else index + 1
            offset = self._offsets[slot] = 0
        self._runs[slot] = queue.first + index
        return None

    def move(self, slot: int, offset: int) -> bool:
        """Go on, in the run that :meth:`head` told, to an offset; return whether that is its end
        and there is no other run.
        """
        self._offsets[slot] = offset
        queue = self._ready.slots[slot]
        assert queue is not None
        if self._runs[slot] != queue.first + len(queue.runs) - 1:
            return False
        run = queue.runs[-1]
        return offset >= (run >> COUNT_BITS) + (run & COUNT_MAX)

    def ready_ms(self, slot: int, offset: int) -> tuple[int, int]:
        """Return when the head, at ``offset``, became ready, and up to where that is so."""
        queue = self._ready.slots[slot]
        assert queue is not None
        late_ms = queue.late_ms(self._runs[slot])
        if late_ms >= 0:
            return late_ms, offset + COUNT_MAX
        times = self._ready.times
        return times.at(offset), times.same_until(offset)

    def passed(self, slot: int) -> int:
        """Return the number of the first run of a queue that is still needed."""
        queue = self._ready.slots[slot]
        assert queue is not None
        if slot >= len(self.flags):
            return queue.first
        if self.head(slot) is None and not self.flags[slot] & (IS_ACTIVE | IS_PARKED):
            return queue.end
        return min(self._runs[slot], queue.end - 1)

    def forget(self, slot: int) -> None:
        """Be at the beginning of whatever queue gets the slot."""
        if slot < len(self.flags):
            self._runs[slot] = self._offsets[slot] = 0
