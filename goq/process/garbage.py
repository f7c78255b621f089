"""When reference cycles are collected: new objects a few at a time, all of them at rest.

A collection looks at every object of its generation, and all requests wait meanwhile: 220,000
objects of groups and leases took 40 to 150 ms, all objects of a node with 10,000 groups 760. Python
begins one after so many new objects, less those that were freed: there may be ten times as many. So
it begins none here. It would find little: requests and closed partitions leave no cycles, a deleted
topic some 50 objects. Those, and what libraries leave, are found among the new objects, or once the
node is at rest, or after a day. New objects that are too many to look at are left alone: long work
made them, and it keeps nearly all.
"""

from __future__ import annotations

import gc
import time
from enum import Enum

from goq.clock import next_beat
from goq.node import NodeServer

_LOOK_PAUSE_S = 1.0
_NEW_OBJECTS_MIN = 2_000  # that make a collection worth it
_NEW_OBJECTS_MAX = 15_000  # some 10 ms
_REST_CPU_SHARE = 0.05  # of a core, for a node at rest
_REST_S = 10.0
_BUSY_PAUSE_S = 86_400.0
_COST_SHARE = 0.001  # of the time, for collections of all objects
_OBJECT_S = 5e-7  # to look at an object


class Collection(Enum):
    """The objects among which cycles are due to be collected now."""

    NOTHING = 0
    NEW = 1
    """Among the objects that came since the last look."""
    ALL = 2


class GarbagePolicy:
    """Decides what to collect.

    From the CPU time of the process, the number of new objects less those that were freed, and
    monotonic time. ``objects`` are those of the start, which leaves few cycles: the first
    collection must be worth its cost too.
    """

    def __init__(self, cpu_s: float, now_s: float, objects: int = 0) -> None:
        self._look_s, self._cpu_s = now_s, cpu_s
        self._busy_s = self._collected_s = now_s
        self._took_s = objects * _OBJECT_S

    def look(self, cpu_s: float, new_objects: int, now_s: float) -> Collection:
        """Return what is due. It looks at the load since the last look."""
        if cpu_s - self._cpu_s >= _REST_CPU_SHARE * (now_s - self._look_s):
            self._busy_s = now_s
        self._look_s, self._cpu_s = now_s, cpu_s
        if self._is_all_due(now_s):
            return Collection.ALL
        return Collection.NEW if new_objects >= _NEW_OBJECTS_MIN else Collection.NOTHING

    def _is_all_due(self, now_s: float) -> bool:
        """Return whether the node rests after work, for as long as a collection is worth."""
        since_s = now_s - self._collected_s
        has_worked = self._busy_s > self._collected_s
        rests = now_s - self._busy_s >= _REST_S
        is_time = since_s >= self._took_s / _COST_SHARE
        return (has_worked and rests and is_time) or since_s >= _BUSY_PAUSE_S

    def on_collected_all(self, took_s: float, now_s: float) -> None:
        """Record a collection of all objects that has ended."""
        self._collected_s, self._took_s = now_s, took_s


async def collect_garbage(node: NodeServer) -> None:
    """Collect reference cycles once the topics are open, until cancelled; none come of themselves.

    A start makes many objects and few cycles: collecting meanwhile cost a fifth of it.
    """
    assert node.broker is not None
    await node.broker.start_queue.tried.wait()
    gc.disable()
    gc.freeze()
    policy = GarbagePolicy(time.process_time(), time.monotonic(), gc.get_freeze_count())
    while True:
        await next_beat(_LOOK_PAUSE_S)
        due = policy.look(time.process_time(), gc.get_count()[0], time.monotonic())
        began_s = time.monotonic()
        if due is Collection.ALL:
            collect_all()
            policy.on_collected_all(time.monotonic() - began_s, time.monotonic())
        elif due is Collection.NEW:
            collect_new()


def collect_all() -> int:
    """Collect cycles among all objects; return how many objects were found.

    Afterwards nothing but the next such collection looks at those that are left.
    """
    gc.unfreeze()
    found = gc.collect()
    gc.freeze()
    return found


def collect_new() -> int:
    """Collect cycles among new objects unless they are too many; return how many were found."""
    if len(gc.get_objects(generation=0)) <= _NEW_OBJECTS_MAX:
        return gc.collect(0)
    gc.freeze()
    return 0
