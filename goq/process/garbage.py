"""When reference cycles are collected: new objects a few at a time, all of them seldom.

A collection looks at every object of its generation, and all requests wait meanwhile: 220,000
objects of groups and leases took 40 to 150 ms, all objects of a node with 10,000 groups 760. Python
begins one after so many new objects, less those that were freed: there may be ten times as many. So
it begins none here. Requests leave no cycles. Closed partitions do: those that closed soon are
found among the new and recent objects, the others once the node is at rest, after an hour if it
never is, or when there are very many. New objects that are too many to look at are left alone,
unless partitions were closed: long work made them, and it keeps nearly all.
"""

from __future__ import annotations

import gc
import time
from enum import Enum

from goq.broker.partition.partition import Partition
from goq.clock import next_beat
from goq.node import NodeServer

_LOOK_PAUSE_S = 1.0
_NEW_OBJECTS_MIN = 2_000  # that make a collection worth it
_NEW_OBJECTS_MAX = 15_000  # some 10 ms
_PARTITION_OBJECTS = 250  # that a closed one leaves, 25 to 50 KB
_GARBAGE_MIN = 5_000  # objects that are worth a look at any number of others
_RECENT_S = 20.0
_REST_CPU_SHARE = 0.05  # of a core, for a node at rest
_REST_S = 10.0
_BUSY_PAUSE_S = 3_600.0
_COST_SHARE = 0.001  # of the time, for collections of all objects
_GARBAGE_MAX = 200_000  # objects, 20 to 40 MB
_PRESSED_COST_SHARE = 0.05  # of the time, where there are more


class Collection(Enum):
    """The objects among which cycles are due to be collected now."""

    NOTHING = 0
    NEW = 1
    """Among the objects that came since the last look."""
    RECENT = 2
    """Also among those that were looked at once."""
    ALL = 3


class GarbagePolicy:
    """Decides what to collect.

    From the CPU time of the process, how many partitions were closed so far, the number of new
    objects less those that were freed, what collections found, and monotonic time.
    """

    def __init__(self, cpu_s: float, closed: int, now_s: float) -> None:
        self._look_s, self._cpu_s, self._closed = now_s, cpu_s, closed
        self._busy_s = self._recent_s = self._collected_s = now_s
        self._took_s = 0.0
        self._garbage = 0
        """How many objects may wait for a collection of all."""
        self._recent_garbage = 0

    @property
    def is_worth_many(self) -> bool:
        """Whether there is recent garbage enough for a look at any number of objects."""
        return self._recent_garbage >= _GARBAGE_MIN

    def look(self, cpu_s: float, closed: int, new_objects: int, now_s: float) -> Collection:
        """Return what is due. It looks at the load since the last look."""
        if cpu_s - self._cpu_s >= _REST_CPU_SHARE * (now_s - self._look_s):
            self._busy_s = now_s
        left = _PARTITION_OBJECTS * (closed - self._closed)
        self._look_s, self._cpu_s, self._closed = now_s, cpu_s, closed
        self._garbage += left
        self._recent_garbage += left
        if self._is_all_due(now_s):
            return Collection.ALL
        if self.is_worth_many and now_s - self._recent_s >= _RECENT_S:
            return Collection.RECENT
        return Collection.NEW if new_objects >= _NEW_OBJECTS_MIN else Collection.NOTHING

    def _is_all_due(self, now_s: float) -> bool:
        since_s = now_s - self._collected_s
        may_wait = now_s - self._busy_s < _REST_S and since_s < _BUSY_PAUSE_S
        if self._garbage >= _GARBAGE_MIN and not may_wait:
            return since_s >= self._took_s / _COST_SHARE
        return self._garbage >= _GARBAGE_MAX and since_s >= self._took_s / _PRESSED_COST_SHARE

    def on_collected(self, what: Collection, found: int, took_s: float, now_s: float) -> None:
        """Record a collection that has ended, and how many objects it found."""
        self._garbage = max(0, self._garbage - found)
        self._recent_garbage = max(0, self._recent_garbage - found)
        if what in (Collection.RECENT, Collection.ALL):
            self._recent_garbage, self._recent_s = 0, now_s
        if what is Collection.ALL:
            self._garbage, self._collected_s, self._took_s = 0, now_s, took_s


async def collect_garbage(node: NodeServer) -> None:
    """Collect reference cycles once the topics are open, until cancelled; none come of themselves.

    A start makes many objects and few cycles: collecting meanwhile cost a fifth of it.
    """
    assert node.broker is not None
    await node.broker.start_queue.tried.wait()
    gc.disable()
    gc.freeze()
    policy = GarbagePolicy(time.process_time(), Partition.closed_count, time.monotonic())
    while True:
        await next_beat(_LOOK_PAUSE_S)
        new_objects, closed = gc.get_count()[0], Partition.closed_count
        due = policy.look(time.process_time(), closed, new_objects, time.monotonic())
        if due is not Collection.NOTHING:
            began_s = time.monotonic()
            found = collect(due, is_worth_many=policy.is_worth_many)
            ended_s = time.monotonic()
            policy.on_collected(due, found, ended_s - began_s, ended_s)


def collect(what: Collection, *, is_worth_many: bool) -> int:
    """Collect cycles; return how many objects were found.

    New objects are left alone if they are too many, unless it is worth it. After a collection of
    all, nothing but the next one looks at what is left.
    """
    if what is Collection.ALL:
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        return found
    if what is Collection.RECENT:
        return gc.collect(1)
    if is_worth_many or len(gc.get_objects(generation=0)) <= _NEW_OBJECTS_MAX:
        return gc.collect(0)
    gc.freeze()
    return 0
