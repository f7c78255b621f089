"""The partitions of a topic: their number never falls."""

from __future__ import annotations

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
