"""A partition's ready queues: one for each tenant of each lane, in order of readiness.

A queue is an append-only list of runs of offsets. It belongs to the partition, and a group is a
place in it, so a thousand groups share one list. Runs are told by numbers that never change, also
when what every group has passed is let go of. An entry is a hint: whoever takes from a queue asks
whether a message is still to be had.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from operator import add

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Place = tuple[int, int]
"""The number of a run, and how many messages of it were dealt with."""

_DROP_MIN = 1024  # runs; fewer are not worth moving the others


class Tenants:
    """Names of tenants and their numbers in this partition; 0 is no tenant."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str | None] = [None]

    def number(self, name: str) -> int:
        """Return a tenant's number, a new one for one that is seen first."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def name(self, number: int) -> str | None:
        """Return whose number it is."""
        return self._names[number]


class ReadyQueue:
    """The runs of one tenant in one lane."""

    __slots__ = ("_counts", "_marks", "_starts", "_times_ms", "first", "lane", "tenant")

    def __init__(self, lane: int, tenant: int) -> None:
        self.lane = lane
        self.tenant = tenant
        self.first = 0
        self._starts = array("q")
        self._counts = array("I")
        self._marks = array("q")  # run numbers, rising, from which the time holds
        self._times_ms = array("q")

    @property
    def end(self) -> int:
        """The number behind the last run."""
        return self.first + len(self._starts)

    def run(self, number: int) -> tuple[int, int]:
        """Return the offsets of a run, the end excluded."""
        start = self._starts[number - self.first]
        return start, start + self._counts[number - self.first]

    def ready_ms(self, number: int) -> int:
        """Return since when a run is ready."""
        return self._times_ms[max(0, bisect_right(self._marks, number) - 1)]

    def append(self, start: int, end: int, ready_ms: int) -> None:
        """Add a run; one that continues the last becomes part of it."""
        starts, counts = self._starts, self._counts
        if starts and starts[-1] + counts[-1] == start and end - starts[-1] < 2**32:
            counts[-1] += end - start
            return
        if not self._times_ms or self._times_ms[-1] != ready_ms:
            self._marks.append(self.end)
            self._times_ms.append(ready_ms)
        while start < end:
            count = min(end - start, 2**32 - 1)
            starts.append(start)
            counts.append(count)
            start += count

    def drop_before(self, number: int) -> int:
        """Let go of the runs before ``number``; return the end of the offsets that were dropped."""
        count = min(number, self.end) - self.first
        dropped = 0
        if count >= _DROP_MIN or (count > 0 and count == len(self._starts)):
            dropped = max(map(add, self._starts[:count], self._counts[:count]))
            del self._starts[:count]
            del self._counts[:count]
            self.first += count
            kept = max(0, bisect_right(self._marks, self.first) - 1)
            del self._marks[:kept]
            del self._times_ms[:kept]
        return dropped


class Lane:
    """The queues of one lane.

    ``arrivals`` names the tenants that got messages, in order, so that whoever keeps a ring of
    the tenants with work need not look at all of them; ``arrivals_read`` is how far anybody did.
    One that nobody read yet stands for what the same tenant gets next, too. The list is cut when
    it is longer than the tenants are many; who is behind then looks at all once.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.queues: dict[int, ReadyQueue] = {}
        self.arrivals = array("i")
        self.arrivals_first = 0
        self.arrivals_read = 0

    def append(self, tenant: int, start: int, end: int, ready_ms: int) -> None:
        """Add a run to a tenant's queue."""
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = ReadyQueue(self.number, tenant)
        queue.append(start, end, ready_ms)
        arrivals = self.arrivals
        if not arrivals or arrivals[-1] != tenant or self.arrivals_end <= self.arrivals_read:
            arrivals.append(tenant)
            if len(arrivals) > 2 * len(self.queues) + _DROP_MIN:
                cut = len(arrivals) // 2
                del arrivals[:cut]
                self.arrivals_first += cut

    @property
    def arrivals_end(self) -> int:
        """The number behind the last arrival."""
        return self.arrivals_first + len(self.arrivals)


class Ready:
    """All ready queues of a partition.

    What became ready before ``complete_from`` in order of offset may be missing.
    """

    def __init__(self) -> None:
        self.tenants = Tenants()
        self.lanes: dict[int, Lane] = {}
        self.complete_from = 0

    def lane(self, number: int) -> Lane:
        """Return a lane, empty if nothing is in it yet."""
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = Lane(number)
        return lane

    def add(self, lane: int, tenant: int, start: int, end: int, ready_ms: int) -> None:
        """Add the messages from ``start`` up to ``end`` to a queue."""
        self.lane(lane).append(tenant, start, end, ready_ms)

    def add_rows(self, offsets: Int64s, lanes: Int64s, tenants: Int64s, ready_ms: int) -> None:
        """Add messages to their queues, in the order in which they are given."""
        if not len(offsets):
            return
        codes = tenants << 8 | lanes
        order = np.argsort(codes, kind="stable")
        codes, offsets = codes[order], offsets[order]
        breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(codes) != 0)) + 1
        firsts = np.concatenate(([0], breaks))
        counts = np.diff(np.concatenate((firsts, [len(offsets)])))
        for code, start, count in zip(
            codes[firsts].tolist(), offsets[firsts].tolist(), counts.tolist(), strict=True
        ):
            self.lane(code & 0xFF).append(code >> 8, start, start + count, ready_ms)

    def release(self, places: Iterable[dict[tuple[int, int], Place]], end_offset: int) -> None:
        """Let go of the runs that every group has passed; with no group, of all there is."""
        known = list(places)
        if not known:
            self.complete_from = end_offset
        for lane in self.lanes.values():
            for tenant, queue in lane.queues.items():
                key = (lane.number, tenant)
                passed = min((p[key][0] if key in p else 0 for p in known), default=queue.end)
                self.complete_from = max(self.complete_from, queue.drop_before(passed))

    @property
    def run_count(self) -> int:
        """How many runs there are."""
        return sum(q.end - q.first for lane in self.lanes.values() for q in lane.queues.values())
