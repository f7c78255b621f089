"""The partitions of a topic: their number never falls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.topic.partition_table import PartitionTable
from goq.errors import NotLeader, PartitionNotFound, PartitionOffline, TopicNotFound


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


def test_a_table_is_empty_at_first_and_grows_with_what_is_here_or_offline() -> None:
    table = PartitionTable("t")
    assert (table.count, table.held_count(), table.change_count) == (0, 0, 0)
    assert table.are_sound
    table.put(_part(0), _part(1))
    assert (table.count, table.held_count(), table.change_count) == (2, 2, 1)
    table.put_offline(2, PartitionOffline("partition 2 of t is offline"))
    assert (table.count, table.held_count(), table.change_count) == (3, 3, 2)


def test_partitions_are_sound_if_none_is_offline_or_damaged() -> None:
    table = PartitionTable("t")
    table.put(_part(0), _part(1))
    assert table.are_sound
    table.put(_part(1, is_sound=False))
    assert not table.are_sound
    table.put(_part(1))
    table.put_offline(2, PartitionOffline("partition 2 of t is offline"))
    assert not table.are_sound


def test_partitions_are_taken_in_turn_from_any_number_on_whichever_are_open_here() -> None:
    table = PartitionTable("t")
    parts: dict[int, Any] = {
        number: SimpleNamespace(identity=SimpleNamespace(number=number)) for number in (5, 1, 3)
    }
    table.put(*parts.values())
    turns = [[each.identity.number for each in table.in_turn(first)] for first in range(7)]
    assert turns == [[1, 3, 5]] * 2 + [[3, 5, 1]] * 2 + [[5, 1, 3]] * 2 + [[1, 3, 5]]
    assert (table.count, table.held_count()) == (6, 3)


def _part(number: int, error: PartitionOffline | None = None, *, is_sound: bool = True) -> Any:
    return SimpleNamespace(
        identity=SimpleNamespace(number=number),
        availability=SimpleNamespace(error=error),
        is_online=error is None,
        is_sound=is_sound,
    )


def test_a_partition_is_here_offline_led_elsewhere_or_not_at_all() -> None:
    table, error = PartitionTable("t"), PartitionOffline("partition 1 of t is offline")
    table.count = 3
    here = _part(0)
    table.put(here)
    table.put_offline(1, error)
    assert table[0] is table.get(0) is here
    assert table.get(1) is None
    with pytest.raises(PartitionOffline):
        _ = table[1]
    with pytest.raises(NotLeader):
        _ = table[2]
    for number in (-1, 3):
        with pytest.raises(PartitionNotFound):
            _ = table[number]
    with pytest.raises(PartitionOffline):
        table.check_all_open()
    table.put(_part(1))
    table.check_all_open()
    assert table.take(0) is here
    with pytest.raises(NotLeader):
        table.take(0)


def test_a_topic_is_offline_only_if_all_of_its_partitions_are() -> None:
    table, error = PartitionTable("t"), PartitionOffline("offline")
    table.check_any_online()
    table.put(_part(0, error), _part(1))
    assert table.failures() == {0: error}
    table.check_any_online()
    table.put(_part(1, error))
    with pytest.raises(PartitionOffline):
        table.check_any_online()
    table.count = 3  # another node may lead the third
    table.check_any_online()


def test_each_change_of_the_partitions_is_counted() -> None:
    table, counts = PartitionTable("t"), list[int]()
    for change in (
        lambda: table.put(_part(0)),
        lambda: table.put(_part(0)),
        lambda: table.put_offline(1, PartitionOffline("offline")),
        lambda: table.take(0),
    ):
        change()
        counts.append(table.change_count)
    assert counts == [counts[0] + number for number in range(4)]


def test_a_closed_table_has_no_partition_and_says_why() -> None:
    table, reason = PartitionTable("t"), TopicNotFound("topic t was deleted")
    table.put(_part(0), _part(1))
    changes = table.change_count
    table.close(reason)
    assert (list(table), table.count, table.change_count) == ([], 2, changes + 1)
    with pytest.raises(TopicNotFound, match="deleted"):
        _ = table[1]
    with pytest.raises(PartitionNotFound):
        _ = table[2]
