"""When cycles are collected: by a policy over made-up times, and in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from goq.process.garbage import Collection, GarbagePolicy

NOTHING, NEW, RECENT, ALL = (
    Collection.NOTHING,
    Collection.NEW,
    Collection.RECENT,
    Collection.ALL,
)
HOUR_S = 3_600


class Node:
    """A node whose policy is asked once a second."""

    def __init__(self) -> None:
        self.cpu_s, self.closed, self.now_s = 3.0, 7, 50.0
        self.policy = GarbagePolicy(self.cpu_s, self.closed, self.now_s)

    def runs(self, seconds: int, load: float, *, closed: int = 0, new: int = 0) -> Collection:
        """Return what is due at the end; the partitions close at the beginning."""
        self.closed += closed
        due = NOTHING
        for _ in range(seconds):
            self.now_s += 1
            self.cpu_s += load
            due = self.policy.look(self.cpu_s, self.closed, new, self.now_s)
        return due

    def collects(self, what: Collection, *, found: int = 0, took_s: float = 0.001) -> None:
        self.policy.on_collected(what, found, took_s, self.now_s)


@pytest.mark.parametrize(
    ("seconds", "load", "closed", "due"),
    [
        (10, 0.049, 20, ALL),
        (9, 0.049, 20, NOTHING),
        (10, 0.049, 19, NOTHING),
        (10, 0.051, 20, NOTHING),
        (10, 1.0, 799, NOTHING),
        (1, 1.0, 800, ALL),
    ],
    ids=["at rest", "just at rest", "few were closed", "at work", "many closed", "very many"],
)
def test_all_objects_are_looked_at_when_partitions_were_closed_and_the_node_is_at_rest(
    seconds: int, load: float, closed: int, due: Collection
) -> None:
    assert Node().runs(seconds, load, closed=closed) is due


@pytest.mark.parametrize(("new", "due"), [(1_999, NOTHING), (2_000, NEW)])
@pytest.mark.parametrize("load", [0.0, 1.0])
def test_new_objects_are_looked_at_when_there_are_many(
    new: int, due: Collection, load: float
) -> None:
    assert Node().runs(1, load, new=new) is due
    assert Node().runs(1, load, new=new, closed=1) is due


def test_recent_objects_are_looked_at_after_partitions_were_closed_but_not_again_and_again() -> (
    None
):
    node = Node()
    assert node.runs(19, 1.0, closed=20) is NOTHING
    assert node.runs(1, 1.0) is RECENT
    node.collects(RECENT)
    assert node.runs(100, 1.0) is NOTHING
    assert node.runs(1, 1.0, closed=19) is NOTHING
    assert node.runs(1, 1.0, closed=1) is RECENT


def test_what_was_found_is_looked_for_no_more() -> None:
    node = Node()
    node.runs(1, 1.0, closed=20)
    assert node.policy.is_worth_many
    node.collects(NEW, found=1)
    assert not node.policy.is_worth_many
    assert node.runs(20, 1.0) is NOTHING
    assert node.runs(20, 0.0) is NOTHING
    assert node.runs(20, 0.0, closed=1) is ALL
    node.collects(ALL)
    assert not node.policy.is_worth_many
    assert node.runs(20, 0.0) is NOTHING


def test_a_node_is_at_rest_once_it_was_for_ten_seconds() -> None:
    node = Node()
    assert node.runs(9, 0.0, closed=20) is NOTHING
    assert node.runs(1, 0.1) is NOTHING
    assert node.runs(9, 0.0) is NOTHING
    assert node.runs(1, 0.0) is ALL


def test_what_was_closed_is_collected_after_an_hour_at_work() -> None:
    node = Node()
    assert node.runs(20, 0.5, closed=20) is RECENT
    node.collects(RECENT)
    assert node.runs(HOUR_S - 21, 0.5) is NOTHING
    assert node.runs(1, 0.5) is ALL
    node.collects(ALL)
    assert node.runs(HOUR_S + 1, 0.5) is NOTHING
    assert node.runs(1, 0.5, closed=20) is ALL


def test_collections_of_all_objects_take_little_of_the_time_and_more_under_pressure() -> None:
    node = Node()
    node.collects(ALL, took_s=0.5)
    assert node.runs(499, 0.0, closed=20) is RECENT
    assert node.runs(1, 0.0) is ALL
    node.collects(ALL, took_s=0.5)
    assert node.runs(9, 1.0, closed=800) is NOTHING
    assert node.runs(1, 1.0) is ALL


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
from goq.process.garbage import Collection

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

def finds(what, is_worth_many=False):
    return garbage.collect(Collection[what], is_worth_many=is_worth_many) > 0

print(finds("NEW", %r), old_ref() is None, new_ref() is None)
young, young_ref = knot()
gc.collect(0)
del young
print(finds("NEW", True), young_ref() is None)
print(finds("RECENT"), young_ref() is None)
print(finds("ALL"), old_ref() is None, new_ref() is None)
"""


@pytest.mark.parametrize(
    ("room", "is_worth_many", "first"),
    [
        (10, False, "True False True"),
        (-10, False, "False False False"),
        (-10, True, "True False True"),
    ],
)
def test_new_cycles_are_found_among_new_objects_and_old_ones_among_all(
    room: int, is_worth_many: bool, first: str
) -> None:
    expected = [first, "False False", "True True", "True True True"]
    assert output_of(KNOTS % (room, is_worth_many)) == expected
