"""When reference cycles are collected: young objects a few at a time, all of them at rest.

A collection looks at every object of its generation, and all requests wait meanwhile: 220,000
objects of groups and leases took 40 to 150 ms, all objects of a node with 10,000 groups 760. So a
young generation has some 15,000 objects at most, which takes a few milliseconds, and what has
survived two collections is left alone. Requests leave no cycles. Deleted topics and closed
partitions do, some 250 objects each, and stay in memory until a collection of all objects. That
comes when the node is at rest. A node that never is collects once an hour what came since the
last time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from enum import Enum

from goq.node import NodeServer

_YOUNG_OBJECTS = 5_000  # collecting every 700 objects, the default, costs 6 %
_YOUNG_COLLECTIONS = 2
_NEVER = 2**31 - 1
_LOOK_PAUSE_S = 10.0
_REST_CPU_SHARE = 0.05  # of a core, for a node at rest
_SURVIVALS_MIN = 10  # collections of the second generation that make one of all objects worth it
_COST_SHARE = 0.001  # of the time, for collections of all objects
_BUSY_PAUSE_S = 3_600.0


class Collection(Enum):
    """The objects among which cycles are due to be collected now."""

    NOTHING = 0
    NEW = 1
    """Among the objects that came since the last collection."""
    ALL = 2


class GarbagePolicy:
    """Decides when to collect more than the young objects.

    From the CPU time of the process, how often the second generation was collected, and monotonic
    time.
    """

    def __init__(self, cpu_s: float, survivals: int, now_s: float) -> None:
        self._look_s, self._cpu_s = now_s, cpu_s
        self._survivals = survivals
        self._collected_s = now_s
        self._rests_until_s = now_s

    def look(self, cpu_s: float, survivals: int, now_s: float) -> Collection:
        """Return what is due. It looks at the load since the last look."""
        used_s, passed_s = cpu_s - self._cpu_s, now_s - self._look_s
        self._look_s, self._cpu_s = now_s, cpu_s
        if survivals - self._survivals < _SURVIVALS_MIN or now_s < self._rests_until_s:
            return Collection.NOTHING
        if used_s < _REST_CPU_SHARE * passed_s:
            return Collection.ALL
        is_overdue = now_s - self._collected_s >= _BUSY_PAUSE_S
        return Collection.NEW if is_overdue else Collection.NOTHING

    def on_collected(self, took_s: float, survivals: int, now_s: float) -> None:
        """Record a collection that has ended."""
        self._collected_s, self._survivals = now_s, survivals
        self._rests_until_s = now_s + took_s / _COST_SHARE


async def collect_garbage(node: NodeServer) -> None:
    """Collect reference cycles once the topics are open, until cancelled.

    A start makes many objects and few cycles: collecting meanwhile cost a fifth of it.
    """
    assert node.broker is not None
    await node.broker.start_queue.tried.wait()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _NEVER)
    gc.enable()
    policy = GarbagePolicy(time.process_time(), _survivals(), time.monotonic())
    while True:
        await asyncio.sleep(_LOOK_PAUSE_S)
        due = policy.look(time.process_time(), _survivals(), time.monotonic())
        if due is not Collection.NOTHING and gc.isenabled():
            began_s = time.monotonic()
            collect(due)
            ended_s = time.monotonic()
            policy.on_collected(ended_s - began_s, _survivals(), ended_s)


def collect(what: Collection) -> None:
    """Collect cycles among new objects or among all; no later collection looks at the rest."""
    if what is Collection.ALL:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _survivals() -> int:
    count: int = gc.get_stats()[1]["collections"]
    return count
