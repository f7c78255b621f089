"""When cycles are collected: by a policy over made-up times, and in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from goq.process.garbage import Collection, GarbagePolicy

NOTHING, NEW, ALL = Collection.NOTHING, Collection.NEW, Collection.ALL
DAY_S = 86_400


class Node:
    """A node whose policy is asked once a second."""

    def __init__(self) -> None:
        self.cpu_s, self.now_s = 3.0, 50.0
        self.policy = GarbagePolicy(self.cpu_s, self.now_s)

    def runs(self, seconds: int, load: float, *, new: int = 0) -> Collection:
        """Return what is due at the end."""
        due = NOTHING
        for _ in range(seconds):
            self.now_s += 1
            self.cpu_s += load
            due = self.policy.look(self.cpu_s, new, self.now_s)
        return due

    def collects_all(self, *, took_s: float = 0.001) -> None:
        self.policy.on_collected_all(took_s, self.now_s)


@pytest.mark.parametrize(
    ("seconds", "load", "due"),
    [(10, 0.049, ALL), (9, 0.049, NOTHING), (10, 0.051, NOTHING)],
    ids=["at rest", "just at rest", "at work"],
)
def test_all_objects_are_looked_at_when_a_node_that_worked_is_at_rest(
    seconds: int, load: float, due: Collection
) -> None:
    node = Node()
    assert node.runs(1, 1.0) is NOTHING
    assert node.runs(seconds, load) is due


@pytest.mark.parametrize(("new", "due"), [(1_999, NOTHING), (2_000, NEW)])
@pytest.mark.parametrize("load", [0.0, 1.0])
def test_new_objects_are_looked_at_when_there_are_many(
    new: int, due: Collection, load: float
) -> None:
    assert Node().runs(1, load, new=new) is due


def test_objects_of_a_start_are_looked_at_once_that_is_worth_its_time() -> None:
    """Ten seconds after its start they held a node of 1,000 partitions for 0.3 s."""
    node = Node()
    node.policy = GarbagePolicy(node.cpu_s, node.now_s, objects=600_000)
    node.runs(1, 1.0)
    assert node.runs(298, 0.0) is NOTHING
    assert node.runs(1, 0.0) is ALL


def test_all_objects_are_not_looked_at_again_until_the_node_has_worked() -> None:
    node = Node()
    node.runs(1, 1.0)
    assert node.runs(10, 0.0) is ALL
    node.collects_all()
    assert node.runs(1_000, 0.0) is NOTHING
    assert node.runs(1, 1.0) is NOTHING
    assert node.runs(9, 0.0) is NOTHING
    assert node.runs(1, 0.0) is ALL


def test_a_node_is_at_rest_once_it_was_for_ten_seconds() -> None:
    node = Node()
    node.runs(1, 1.0)
    assert node.runs(9, 0.0) is NOTHING
    assert node.runs(1, 0.1) is NOTHING
    assert node.runs(9, 0.0) is NOTHING
    assert node.runs(1, 0.0) is ALL


@pytest.mark.parametrize("load", [0.04, 0.5])
def test_all_objects_are_looked_at_after_a_day_without_rest_or_without_work(load: float) -> None:
    node = Node()
    assert node.runs(DAY_S - 1, load) is NOTHING
    assert node.runs(1, load) is ALL
    node.collects_all()
    assert node.runs(DAY_S - 1, load) is NOTHING


def test_collections_of_all_objects_take_little_of_the_time() -> None:
    node = Node()
    node.collects_all(took_s=0.5)
    node.runs(1, 1.0)
    assert node.runs(498, 0.0) is NOTHING
    assert node.runs(1, 0.0) is ALL


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

print(garbage.collect_new() > 0, old_ref() is None, new_ref() is None)
print(garbage.collect_all() > 0, old_ref() is None, new_ref() is None)
"""


@pytest.mark.parametrize(("room", "first"), [(10, "True False True"), (-10, "False False False")])
def test_new_cycles_are_found_among_new_objects_and_old_ones_among_all(
    room: int, first: str
) -> None:
    assert output_of(KNOTS % room) == [first, "True True True"]
