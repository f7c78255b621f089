"""When cycles are collected: by a policy over made-up times, and in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from goq.process.garbage import Collection, GarbagePolicy

NOTHING, NEW, ALL = Collection.NOTHING, Collection.NEW, Collection.ALL
HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("used_s", "survivals", "due"),
    [(0.49, 10, ALL), (0.49, 9, NOTHING), (0.5, 10, NOTHING), (10.0, 1_000, NOTHING)],
    ids=["at rest", "little is new", "at work", "busy"],
)
def test_all_objects_are_looked_at_when_much_is_new_and_the_node_is_at_rest(
    used_s: float, survivals: int, due: Collection
) -> None:
    policy = GarbagePolicy(3.0, 100, 50.0)
    assert policy.look(3.0 + used_s, 100 + survivals, 60.0) is due


def test_the_load_counts_since_the_last_look() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(10.0, 20, 10.0) is NOTHING
    assert policy.look(10.1, 20, 20.0) is ALL


def test_a_node_that_is_never_at_rest_collects_what_is_new_once_an_hour() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(HOUR_S - 1, 50, HOUR_S - 1) is NOTHING
    assert policy.look(HOUR_S, 50, HOUR_S) is NEW
    policy.on_collected(0.001, 50, HOUR_S)
    assert policy.look(2 * HOUR_S - 1, 90, 2 * HOUR_S - 1) is NOTHING
    assert policy.look(2 * HOUR_S, 59, 2 * HOUR_S) is NOTHING
    assert policy.look(2 * HOUR_S + 10, 60, 2 * HOUR_S + 10) is NEW


def test_collections_take_a_thousandth_of_the_time_at_most() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(0.0, 10, 10.0) is ALL
    policy.on_collected(0.5, 10, 10.0)
    assert policy.look(0.0, 99, 509.0) is NOTHING
    assert policy.look(0.0, 99, 510.0) is ALL


BUSY = """
import asyncio, gc
from types import SimpleNamespace
from goq.process import garbage

ended = []
gc.callbacks.append(lambda phase, info: ended.append(info["generation"]) if phase == "stop" else 0)

async def main():
    tried = asyncio.Event()
    tried.set()
    node = SimpleNamespace(broker=SimpleNamespace(start_queue=SimpleNamespace(tried=tried)))
    garbage._LOOK_PAUSE_S = 0.001
    asked = %r
    garbage.GarbagePolicy.look = lambda *_: garbage.Collection[asked.pop() if asked else "NOTHING"]
    gc.disable()
    collecting = asyncio.create_task(garbage.collect_garbage(node))
    await asyncio.sleep(0)
    assert gc.isenabled()
    kept = [[] for _ in range(500_000)]
    assert ended.count(1) >= 10 and ended.count(2) == 0, ended
    assert gc.get_threshold()[2] > 1_000_000_000
    async with asyncio.timeout(30):
        while asked:
            await asyncio.sleep(0.001)
    collecting.cancel()
    print(ended.count(2), gc.get_freeze_count() > 400_000)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("looks", "found"), [([], "0 False"), (["NEW"], "1 True"), (["ALL"], "1 True")]
)
def test_no_collection_of_many_objects_comes_of_itself(looks: list[str], found: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY % looks], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"{found}\n"


FROZEN = """
import gc, weakref
from goq.process.garbage import Collection, collect

class Knot:
    def __init__(self):
        self.me = self

def knot():
    made = Knot()
    return made, weakref.ref(made)

gc.disable()
old, old_ref = knot()
gc.freeze()
del old
new, new_ref = knot()
del new
collect(Collection.NEW)
print(old_ref() is None, new_ref() is None)
collect(Collection.ALL)
print(old_ref() is None, new_ref() is None)
"""


def test_what_was_frozen_is_collected_with_all_objects_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROZEN], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == ["False True", "True True"]
