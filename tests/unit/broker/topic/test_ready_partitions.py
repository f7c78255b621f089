"""The partitions of a topic that may have messages: which are looked at, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.topic import ready_partitions
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.ready_partitions import ReadyPartitions
from goq.errors import ShuttingDown


class Part:
    """A partition that counts the looks at it."""

    def __init__(self, lane: int | None = None, number: int = 0) -> None:
        self.identity = SimpleNamespace(number=number)
        self.lane = lane
        self.looks = 0
        self.is_online = self.is_built = True
        self.leases = self
        self.ready_manager = SimpleNamespace(is_ready_for=lambda _group: self.is_built)

    def next_lane(self, _group: str) -> int | None:
        self.looks += 1
        return self.lane


def ready_of(*lanes: int | None) -> tuple[ReadyPartitions, Any]:
    table: Any = PartitionTable("t")
    table.put(*(Part(lane, number) for number, lane in enumerate(lanes)))
    return ReadyPartitions(table), table


def order(ready: ReadyPartitions, table: Any, first: int, *, by_lane: bool = True) -> list[int]:
    assert ready.look("g")
    return [part.identity.number for part in ready.in_order("g", first, by_lane=by_lane)]


def looks(table: Any) -> list[int]:
    found = [part.looks for part in table]
    for part in table:
        part.looks = 0
    return found


def test_partitions_come_in_cyclic_order_those_with_urgent_messages_first_if_asked() -> None:
    ready, table = ready_of(1, 0, None, 1, 0)
    assert order(ready, table, 3) == [4, 1, 3, 0]
    assert order(ready, table, 2) == [4, 1, 3, 0]
    assert order(ready, table, 4, by_lane=False) == [4, 0, 1, 3]
    assert order(ready, table, 5, by_lane=False) == [0, 1, 3, 4]


def test_a_partition_at_rest_is_looked_at_once_and_again_when_something_changes_there() -> None:
    ready, table = ready_of(None, 1, None)
    assert order(ready, table, 0) == [1]
    assert looks(table) == [1, 1, 1]
    table[0].lane = table[2].lane = 1
    assert order(ready, table, 0) == [1]
    assert looks(table) == [0, 0, 0]
    ready.note_change(0, "g")
    ready.note_change(2, "another")
    assert order(ready, table, 0) == [0, 1]
    assert looks(table) == [1, 0, 0]
    table[1].lane = None
    ready.note_change(2, None)
    ready.note_change(1, None)
    assert order(ready, table, 0) == [0, 2]
    assert looks(table) == [0, 1, 1]
    assert order(ready, table, 0) == [0, 2]
    assert looks(table) == [0, 0, 0]


def test_a_first_look_at_many_partitions_takes_several_turns_however_many_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ready_partitions, "_FIRST_LOOKS_MAX", 2)
    ready, table = ready_of(1, None, 1, 1, None)
    assert [ready.look("g") for _ in range(4)] == [False, False, True, True]
    assert looks(table) == [1, 1, 1, 1, 1]
    assert ready.lanes("g") == {0: 1, 2: 1, 3: 1}
    for number in range(5):
        ready.note_change(number, None)
    assert ready.look("g")
    assert looks(table) == [1, 1, 1, 1, 1]
    ready.forget("g")
    for is_last in (False, False, True):
        for number in range(5):
            ready.note_change(number, None)
        assert ready.look("g") is is_last


def test_each_group_hears_of_a_change_that_is_noted_once() -> None:
    ready, table = ready_of(None)
    for group in ("g", "h"):
        assert ready.lanes(group) == {}
    table[0].lane = 2
    ready.note_change(0, None)
    for group in ("g", "h", "new"):
        assert ready.lanes(group) == {0: 2}
    table[0].lane = 3
    ready.note_change(0, "h")
    assert [ready.lanes(group) for group in ("g", "h")] == [{0: 2}, {0: 3}]


def test_a_partition_that_comes_or_goes_is_looked_at_and_all_for_a_group_that_starts_over() -> None:
    ready, table = ready_of(None, 1)
    assert order(ready, table, 0) == [1]
    table.put(Part(1, 0))
    assert order(ready, table, 0) == [0, 1]
    table.put(Part(1, 2))
    assert order(ready, table, 0) == [0, 1, 2]
    assert looks(table) == [1, 1, 1]
    table.take(1)
    ready.note_change(1, None)
    assert order(ready, table, 0) == [0, 2]
    table[0].lane = None
    ready.forget("g")
    assert order(ready, table, 0) == [2]
    table.close(ShuttingDown("it stops"))
    assert order(ready, table, 0) == []


def test_a_first_look_ends_while_partitions_open_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ready_partitions, "_FIRST_LOOKS_MAX", 2)
    ready, table = ready_of(1, 1, 1, 1)
    for number, is_last in ((4, False), (5, False), (6, True), (7, True), (8, True)):
        assert ready.look("g") is is_last
        table.put(Part(1, number))
    assert set(ready.lanes("g")) == set(range(9))
    assert looks(table) == [1] * 9


def test_an_offline_partition_is_left_out_and_one_whose_queues_are_built_comes_first() -> None:
    ready, table = ready_of(0, 0, 0)
    table[0].is_online = table[2].is_built = False
    assert order(ready, table, 0) == [2, 1]
    assert looks(table) == [0, 1, 0]
    table[1].is_online = False
    assert order(ready, table, 0) == [2]
