"""The partitions of a topic: their number never falls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.topic.partition_table import PartitionTable
from goq.errors import PartitionNotFound, PartitionOffline


def test_a_partition_that_is_offline_counts_and_takes_none_from_the_count() -> None:
    table = PartitionTable("t")
    table.count = 3
    error = PartitionOffline("partition 1 of t is offline")
    table.put_offline(1, error)
    assert table.count == 3
    table.put_offline(4, error)
    assert table.count == 5
    assert table.failures() == {1: error, 4: error}
    table.check(4)
    with pytest.raises(PartitionNotFound):
        table.check(5)


def test_partitions_are_taken_in_turn_from_any_number_on_whichever_are_open_here() -> None:
    table = PartitionTable("t")
    parts: dict[int, Any] = {
        number: SimpleNamespace(identity=SimpleNamespace(number=number)) for number in (5, 1, 3)
    }
    table.put(*parts.values())
    turns = [[each.identity.number for each in table.in_turn(first)] for first in range(7)]
    assert turns == [[1, 3, 5]] * 2 + [[3, 5, 1]] * 2 + [[5, 1, 3]] * 2 + [[1, 3, 5]]
    assert (table.count, table.held_count()) == (6, 3)
