"""When partitions are due for retention."""

from __future__ import annotations

import random

from goq.broker.partition_context import PartitionId
from goq.broker.retention.due_times import DueTimes


def test_those_that_are_due_come_once_the_earliest_first() -> None:
    due, first, second = DueTimes(), PartitionId("t", 0), PartitionId("t", 1)
    due.set_no_later(first, 7)
    due.set_no_later(second, 5)
    due.set_no_later(first, 9)
    assert due.next_us() == 5
    assert due.take_due(6) == [second]
    assert due.next_us() == 7
    due.set_no_later(first, 1)
    assert due.take_due(9) == [first]
    assert due.take_due(99) == []
    assert due.next_us() is None


def test_whatever_is_set_each_partition_has_its_earliest_time() -> None:
    chance, due, expected = random.Random(1), DueTimes(), dict[PartitionId, int]()
    for now_us in range(2_000):
        identity = PartitionId("t", chance.randrange(20))
        due_us = now_us + chance.randrange(-5, 50)
        due.set_no_later(identity, due_us)
        expected[identity] = min(due_us, expected.get(identity, due_us))
        assert due.next_us() == min(expected.values())
        if chance.random() < 0.3:
            found = due.take_due(now_us)
            assert sorted(found) == sorted(i for i, at in expected.items() if at <= now_us)
            expected = {i: at for i, at in expected.items() if at > now_us}


def test_a_partition_that_is_looked_at_early_again_and_again_leaves_nothing_behind() -> None:
    due, often, later = DueTimes(), PartitionId("t", 0), PartitionId("t", 1)
    due.set_no_later(later, 2**40)
    for now_us in range(10_000):
        due.set_no_later(often, now_us)
        assert due.take_due(now_us) == [often]
        due.set_no_later(often, 2**50 + now_us)
    assert len(due._heap) < 100
    assert due.take_due(2**41) == [later]
    assert due.take_due(2**61) == [often]
