"""When cycles are collected: by a policy over made-up times, and in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from goq.process.garbage import Collection, GarbagePolicy

NOTHING, NEW, ALL = Collection.NOTHING, Collection.NEW, Collection.ALL
HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("used_s", "closed", "due"),
    [(0.49, 8, ALL), (0.49, 7, NOTHING), (0.5, 8, NOTHING), (10.0, 1_000, NOTHING)],
    ids=["at rest", "nothing was closed", "at work", "busy"],
)
def test_all_objects_are_looked_at_when_partitions_were_closed_and_the_node_is_at_rest(
    used_s: float, closed: int, due: Collection
) -> None:
    policy = GarbagePolicy(3.0, 7, 50.0)
    assert policy.look(3.0 + used_s, closed, 0, 60.0) is due


@pytest.mark.parametrize(("new_objects", "due"), [(1_999, NOTHING), (2_000, NEW)])
@pytest.mark.parametrize("used_s", [0.0, 10.0])
def test_new_objects_are_looked_at_when_there_are_many(
    new_objects: int, due: Collection, used_s: float
) -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(used_s, 0, new_objects, 10.0) is due


def test_the_load_counts_since_the_last_look() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(10.0, 1, 0, 10.0) is NOTHING
    assert policy.look(10.1, 1, 0, 20.0) is ALL


def test_what_was_closed_is_collected_after_an_hour_at_work() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(HOUR_S - 1, 5, 0, HOUR_S - 1) is NOTHING
    assert policy.look(HOUR_S, 5, 0, HOUR_S) is ALL
    policy.on_collected_all(0.001, 5, HOUR_S)
    assert policy.look(2 * HOUR_S - 1, 6, 0, 2 * HOUR_S - 1) is NOTHING
    assert policy.look(2 * HOUR_S, 5, 0, 2 * HOUR_S) is NOTHING
    assert policy.look(2 * HOUR_S + 10, 6, 0, 2 * HOUR_S + 10) is ALL


def test_collections_of_all_objects_take_a_thousandth_of_the_time_at_most() -> None:
    policy = GarbagePolicy(0.0, 0, 0.0)
    assert policy.look(0.0, 1, 0, 10.0) is ALL
    policy.on_collected_all(0.5, 1, 10.0)
    assert policy.look(0.0, 2, 0, 509.0) is NOTHING
    assert policy.look(0.0, 2, 0, 510.0) is ALL


def output_of(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


BUSY = """
import asyncio, gc
from types import SimpleNamespace
from goq.process import garbage

ended = []
gc.callbacks.append(lambda phase, info: ended.append(info["generation"]) if phase == "stop" else 0)

async def main():
    tried = asyncio.Event()
    node = SimpleNamespace(broker=SimpleNamespace(start_queue=SimpleNamespace(tried=tried)))
    garbage._LOOK_PAUSE_S = 0.001
    asked = %r
    garbage.GarbagePolicy.look = lambda *_: garbage.Collection[asked.pop() if asked else "NOTHING"]
    collecting = asyncio.create_task(garbage.collect_garbage(node))
    await asyncio.sleep(0)
    gc.collect()
    ended.clear()
    tried.set()
    await asyncio.sleep(0)
    begun = gc.get_freeze_count()
    kept = [[] for _ in range(%d)]
    assert ended == [], ended
    async with asyncio.timeout(30):
        while asked:
            await asyncio.sleep(0.001)
    collecting.cancel()
    print(ended, gc.get_freeze_count() >= begun + len(kept))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("looks", "objects", "found"),
    [
        ([], 500_000, "[] False"),
        (["NEW"], 10_000, "[0] False"),
        (["NEW"], 500_000, "[] True"),
        (["ALL"], 500_000, "[2] True"),
    ],
)
def test_no_collection_comes_of_itself_and_none_of_very_many_new_objects(
    looks: list[str], objects: int, found: str
) -> None:
    assert output_of(BUSY % (looks, objects)) == [found]


KNOTS = """
import gc, weakref
from goq.process import garbage

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
garbage._NEW_OBJECTS_MAX = len(gc.get_objects(generation=0)) + %d
garbage.collect_new()
print(old_ref() is None, new_ref() is None)
garbage.collect_all()
print(old_ref() is None, new_ref() is None)
"""


@pytest.mark.parametrize(("room", "first"), [(10, "False True"), (-10, "False False")])
def test_new_cycles_are_found_among_new_objects_and_old_ones_among_all(
    room: int, first: str
) -> None:
    assert output_of(KNOTS % room) == [first, "True True"]
