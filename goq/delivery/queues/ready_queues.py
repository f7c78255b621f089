"""The ready queues of a partition: what may be delivered, in the order in which it became ready.

Each lane and tenant has one queue (:class:`~goq.delivery.queues.ready_queue.ReadyQueue`). The
queues belong to the partition and only grow; a group is a reader with a cursor in each
(:class:`~goq.delivery.queues.fair_scheduler.FairScheduler`). Entries are hints: a message that was
cancelled, moved, expired or deleted keeps its entry, and a receive checks each message.

Runs that all readers have passed are dropped, a few queues at each :meth:`ReadyQueues.release`, so
that no call ever pays for 100,000 tenants. A queue that is empty for two sweeps is removed: a
tenant without messages costs its name and no more.

All of this is derived. Without readers everything may go. :attr:`ReadyQueues.complete_from` is the
offset from which on the queues still hold every message that became ready. It tells the owner
whether a new reader finds all it needs or the queues must be rebuilt.

:class:`Cursors` are the positions of one group in all queues: a few bytes a queue, by slot. A
cursor is the number of a run and an offset inside it: messages from there on are still to be
offered. A cursor at the end of the last run stays there, because that run may grow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from goq.delivery.queues.policy import NO_TENANT
from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX, IN_ORDER, ReadyQueue, ReadyTimes

_TENANT_BITS = 32
_SWEEP_MIN = 16
_SWEEP_SHARE = 8
_ARRIVALS_MIN = 1024
_FEW_ROWS = 16  # fewer cost less one by one


_key_of = itemgetter(0)


class QueueReader(Protocol):
    """A reader of the queues, as far as the removal of runs must know it."""

    def first_needed_run(self, slot: int) -> int:
        """Return the number of the first run of a queue that the reader still needs."""

    def on_queue_removed(self, slot: int) -> None:
        """Forget a queue: another queue may get its slot."""

    def catch_up(self, queues_max: int) -> bool:
        """Look at up to ``queues_max`` queues with new messages; return whether that was all."""


class ArrivalLog:
    """The slots of queues with new messages, in order: each group reads them before it takes.

    Entries are numbered from the first that there ever was. A queue gets an entry only after a
    group has read past its last one. So a topic without consumers has one entry a queue however
    much it grows. The log is cut when it is longer than twice the number of queues: a group that is
    further behind looks at all queues instead, which costs no more than the entries it missed.
    """

    __slots__ = ("_first", "_slots", "read_to")

    def __init__(self) -> None:
        self._slots = array("I")
        self._first = 0
        self.read_to = 0

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, queue: ReadyQueue, queue_count: int) -> None:
        """Add a queue that has no entry that a group has still to read."""
        if len(self._slots) > 2 * queue_count + _ARRIVALS_MIN:
            cut = len(self._slots) // 2
            del self._slots[:cut]
            self._first += cut
        queue.last_arrival = self.end
        self._slots.append(queue.slot)

    def since(self, number: int) -> Iterable[int] | None:
        """Return the entries from a number on, None if some of them were cut."""
        self.read_to = self.end
        return self._slots[number - self._first :] if number >= self._first else None

    @property
    def end(self) -> int:
        """The number that the next entry will have."""
        return self._first + len(self._slots)


class ReadyQueues:
    """All ready queues. ``slots`` has None where a queue was removed.

    ``start_offset`` is the beginning of the log; ``entry_count`` the number of runs that are kept.
    """

    def __init__(self, start_offset: int = 0) -> None:
        self.slots: list[ReadyQueue | None] = []
        self.times = ReadyTimes()
        self.arrivals = ArrivalLog()
        self.start_offset = start_offset
        self.complete_from = start_offset
        self.entry_count = 0
        self._queues: dict[int, ReadyQueue] = {}
        self._free_slots: list[int] = []
        self._readers: list[QueueReader] = []
        self._end_offset = start_offset
        self._lowest_end: int | None = None
        self._sweep_slot = 0
        self._unswept_runs = 0

    def __iter__(self) -> Iterator[ReadyQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def containers(self) -> list[dict[Any, Any] | list[Any]]:
        """Return what holds the queues and readers, to be emptied once it has no reader."""
        return [self._queues, self.slots, self._readers]

    def add_reader(self, reader: QueueReader) -> None:
        """Keep from now on what this reader has not passed."""
        self._readers.append(reader)

    def remove_reader(self, reader: QueueReader) -> None:
        """Keep nothing more for this reader."""
        self._readers.remove(reader)

    def catch_up(self, queues_max: int) -> bool:
        """Have a reader look at new messages; return whether all have seen all."""
        return all(reader.catch_up(queues_max) for reader in self._readers)

    def add(self, lane: int, tenant: int, start: int, end: int, ready_ms: int) -> None:
        """Add messages of one lane and tenant."""
        if start >= end:
            return
        late_ms = self._late_ms(start, end, ready_ms, is_rising=True)
        key = lane << _TENANT_BITS | tenant
        queue = self._queues.get(key) or self._new_queue(key)
        self._count(queue.append(start, end, late_ms))
        if queue.last_arrival < self.arrivals.read_to:
            self.arrivals.add(queue, len(self.slots))

    def add_rows(
        self,
        offsets: npt.NDArray[np.integer[Any]],
        lanes: npt.NDArray[np.integer[Any]],
        tenants: npt.NDArray[np.integer[Any]],
        ready_ms: int,
    ) -> None:
        """Add messages of many lanes and tenants, each queue's in the order of the rows."""
        if not len(offsets):
            return
        if len(offsets) <= _FEW_ROWS:
            self._add_few(offsets.tolist(), lanes.tolist(), tenants.tolist(), ready_ms)
            return
        offsets = offsets.astype(np.int64, copy=False)
        steps = np.diff(offsets)
        first, end = int(offsets[0]), int(offsets.max()) + 1
        late_ms = self._late_ms(first, end, ready_ms, is_rising=bool((steps > 0).all()))
        keys = lanes.astype(np.int64) << _TENANT_BITS | tenants.astype(np.int64)
        if (keys != keys[0]).any():
            order = keys.argsort(kind="stable")
            keys, offsets = keys[order], offsets[order]
            begins = (np.diff(keys) != 0) | (np.diff(offsets) != 1)
        else:
            begins = steps != 1
        first_rows = np.concatenate(([0], np.flatnonzero(begins) + 1))
        counts = np.diff(first_rows, append=len(offsets))
        starts = offsets[first_rows]
        arrivals, made = self.arrivals, 0
        for key, start, end in zip(
            keys[first_rows].tolist(), starts.tolist(), (starts + counts).tolist(), strict=True
        ):
            queue = self._queues.get(key) or self._new_queue(key)
            made += queue.append(start, end, late_ms)
            if queue.last_arrival < arrivals.read_to:
                arrivals.add(queue, len(self.slots))
        self._count(made)

    def _add_few(
        self, offsets: list[int], lanes: list[int], tenants: list[int], ready_ms: int
    ) -> None:
        """Do the same for a few rows, as they mature one after the other."""
        is_rising = all(before < after for before, after in pairwise(offsets))
        late_ms = self._late_ms(offsets[0], max(offsets) + 1, ready_ms, is_rising=is_rising)
        arrivals, made = self.arrivals, 0
        keys = [lane << _TENANT_BITS | n for lane, n in zip(lanes, tenants, strict=True)]
        for key, offset in sorted(zip(keys, offsets, strict=True), key=_key_of):
            queue = self._queues.get(key) or self._new_queue(key)
            made += queue.append(offset, offset + 1, late_ms)
            if queue.last_arrival < arrivals.read_to:
                arrivals.add(queue, len(self.slots))
        self._count(made)

    def trim(self, start_offset: int) -> None:
        """Drop the runs at the heads of queues that lie wholly before an offset.

        Looks at the queues only when the lowest head has such a run.
        """
        self.start_offset = max(self.start_offset, start_offset)
        self.times.trim(self.start_offset)
        if self._lowest_end is not None and self._lowest_end > self.start_offset:
            return
        self._lowest_end = None
        for queue in self._queues.values():
            if queue.runs and queue.head_end() <= self.start_offset:
                self._drop(queue, queue.find_run(self.start_offset))
            if queue.runs and (self._lowest_end is None or queue.head_end() < self._lowest_end):
                self._lowest_end = queue.head_end()

    def release(self) -> None:
        """Drop what all readers have passed; everything, if there are no readers.

        Looks at a number of queues in proportion to what was added since the last call. To be
        called often: after each frame or two.
        """
        if not self._readers:
            self._clear()
            return
        looks = _SWEEP_MIN + self._unswept_runs // _SWEEP_SHARE
        self._unswept_runs = 0
        for _ in range(min(len(self.slots), -(-looks // len(self._readers)))):
            self._sweep_slot = (self._sweep_slot + 1) % len(self.slots)
            queue = self.slots[self._sweep_slot]
            if queue is not None:
                self._sweep(queue)

    def _late_ms(self, start: int, end: int, ready_ms: int, *, is_rising: bool) -> int:
        """Return the time that runs must carry: none when their offsets are above all earlier."""
        is_in_order = is_rising and start >= self._end_offset
        self._end_offset = max(self._end_offset, end)
        if not is_in_order:
            return ready_ms
        self.times.add(start, ready_ms)
        return IN_ORDER

    def _count(self, made: int) -> None:
        self.entry_count += made
        self._unswept_runs += made

    def _new_queue(self, key: int) -> ReadyQueue:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = len(self.slots)
            self.slots.append(None)
        queue = ReadyQueue(key >> _TENANT_BITS, key & ((1 << _TENANT_BITS) - 1), slot)
        self.slots[slot] = self._queues[key] = queue
        return queue

    def _sweep(self, queue: ReadyQueue) -> None:
        needed = min([reader.first_needed_run(queue.slot) for reader in self._readers])
        if queue.tenant == NO_TENANT:  # its last run costs nothing, and a new reader may need it
            needed = min(needed, queue.end - 1)
        elif needed == queue.end and not queue.runs:
            self._remove(queue)
        if needed > queue.first:
            self.complete_from = max(self.complete_from, self._drop(queue, needed - queue.first))

    def _drop(self, queue: ReadyQueue, count: int) -> int:
        self.entry_count -= count
        return queue.drop(count)

    def _remove(self, queue: ReadyQueue) -> None:
        del self._queues[queue.lane << _TENANT_BITS | queue.tenant]
        self.slots[queue.slot] = None
        self._free_slots.append(queue.slot)
        for reader in self._readers:
            reader.on_queue_removed(queue.slot)

    def _clear(self) -> None:
        self.slots.clear()
        self._queues.clear()
        self._free_slots.clear()
        self.times.trim(self._end_offset)
        self.arrivals = ArrivalLog()
        self.complete_from = max(self.complete_from, self._end_offset)
        self.entry_count = 0
        self._lowest_end = None
        self._unswept_runs = 0


IS_ACTIVE = 1
"""The queue takes part in the weighted sharing of its lane."""
IS_WATCHED = 2
"""The queue has an entry in the heap of the starvation bound."""
IS_PARKED = 4
"""The queue's tenant is at its cap."""


class Cursors:
    """A cursor for each ready queue, and the group's other notes on it.

    ``credits`` belongs to :class:`~goq.delivery.queues.weighted_shares.WeightedShares`. ``flags``
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

    def waiting_count(self, slot: int) -> int:
        """Return how many messages of a queue are not offered yet; later runs count as a whole."""
        head, queue = self.head(slot), self._ready.slots[slot]
        if head is None or queue is None:
            return 0
        later = np.frombuffer(queue.runs, np.uint64)[self._runs[slot] - queue.first + 1 :]
        return head[1] - head[0] + int((later & np.uint64(COUNT_MAX)).sum())

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
