"""When reference cycles are collected: new objects a few at a time, all of them seldom.

A collection looks at every object of its generation, and all requests wait meanwhile: 220,000
objects of groups and leases took 40 to 150 ms, all objects of a node with 10,000 groups 760. Python
begins one after so many new objects, less those that were freed: there may be ten times as many. So
it begins none here. Requests leave no cycles. Closed partitions do, some 250 objects each: those
that closed soon are found among the new objects, the others once the node is at rest, after an hour
if it never is, or when there are very many. New objects that are too many to look at are left
alone, unless partitions were closed: long work made them, and it keeps nearly all.
"""

from __future__ import annotations

import asyncio
import gc
import time
from enum import Enum

from goq.broker.partition.partition import Partition
from goq.node import NodeServer

_LOOK_PAUSE_S = 1.0
_NEW_OBJECTS_MIN = 2_000  # that make a collection worth it
_NEW_OBJECTS_MAX = 15_000  # some 10 ms
_CLOSED_MIN = 20  # partitions: they are worth a look at any number of new objects
_REST_CPU_SHARE = 0.05  # of a core, for a node at rest
_REST_S = 10.0
_BUSY_PAUSE_S = 3_600.0
_COST_SHARE = 0.001  # of the time, for collections of all objects
_CLOSED_MAX = 2_000  # partitions: half a million objects
_PRESSED_COST_SHARE = 0.05  # of the time, where more were closed


class Collection(Enum):
    """The objects among which cycles are due to be collected now."""

    NOTHING = 0
    NEW = 1
    """Among the objects that came since the last look."""
    ALL = 2


class GarbagePolicy:
    """Decides what to collect.

    From the CPU time of the process, how many partitions were closed so far, the number of new
    objects less those that were freed, and monotonic time.
    """

    def __init__(self, cpu_s: float, closed: int, now_s: float) -> None:
        self._look_s, self._cpu_s = now_s, cpu_s
        self._busy_s = now_s
        self._closed = closed
        self._collected_s = now_s
        self._took_s = 0.0

    def look(self, cpu_s: float, closed: int, new_objects: int, now_s: float) -> Collection:
        """Return what is due. It looks at the load since the last look."""
        if cpu_s - self._cpu_s >= _REST_CPU_SHARE * (now_s - self._look_s):
            self._busy_s = now_s
        self._look_s, self._cpu_s = now_s, cpu_s
        left, since_s = closed - self._closed, now_s - self._collected_s
        may_wait = now_s - self._busy_s < _REST_S and since_s < _BUSY_PAUSE_S
        if left and not may_wait and since_s >= self._took_s / _COST_SHARE:
            return Collection.ALL
        if left >= _CLOSED_MAX and since_s >= self._took_s / _PRESSED_COST_SHARE:
            return Collection.ALL
        return Collection.NEW if new_objects >= _NEW_OBJECTS_MIN else Collection.NOTHING

    def on_collected_all(self, took_s: float, closed: int, now_s: float) -> None:
        """Record a collection of all objects that has ended."""
        self._closed = closed
        self._collected_s, self._took_s = now_s, took_s


async def collect_garbage(node: NodeServer) -> None:
    """Collect reference cycles once the topics are open, until cancelled; none come of themselves.

    A start makes many objects and few cycles: collecting meanwhile cost a fifth of it.
    """
    assert node.broker is not None
    await node.broker.start_queue.tried.wait()
    gc.disable()
    gc.freeze()
    closed = Partition.closed_count
    policy = GarbagePolicy(time.process_time(), closed, time.monotonic())
    while True:
        await asyncio.sleep(_LOOK_PAUSE_S)
        closed_before, closed = closed, Partition.closed_count
        due = policy.look(time.process_time(), closed, gc.get_count()[0], time.monotonic())
        if due is Collection.NEW:
            collect_new(closed - closed_before)
        elif due is Collection.ALL:
            began_s = time.monotonic()
            collect_all()
            ended_s = time.monotonic()
            policy.on_collected_all(ended_s - began_s, closed, ended_s)


def collect_new(closed: int) -> None:
    """Collect cycles among the new objects.

    They are left alone if they are too many, and few partitions were closed meanwhile.
    """
    if closed >= _CLOSED_MIN or len(gc.get_objects(generation=0)) <= _NEW_OBJECTS_MAX:
        gc.collect(0)
    else:
        gc.freeze()


def collect_all() -> None:
    """Collect cycles among all objects; until the next time nothing looks at them again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
