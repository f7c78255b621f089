"""The room of a node for partitions and groups: what is kept, refused and told."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.broker.topic.admin.capacity import Capacity
from goq.errors import NodeFull

P, G = limits.PARTITION_BYTES, limits.GROUP_BYTES


class Queue:
    """Topics that are not opened yet."""

    def __init__(self, *partitions: int) -> None:
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def partition_count(self) -> int:
        return sum(self._partitions)


def topic(partitions: int, groups: Iterable[str] = (), offline: Iterable[int] = ()) -> Any:
    table = SimpleNamespace(
        numbers=lambda: dict.fromkeys(range(partitions)).keys(),
        offline=dict.fromkeys(offline),
    )
    return SimpleNamespace(name="t", partitions=table, groups=dict.fromkeys(groups))


def capacity_of(
    bytes_max: int, *topics: Any, queued: tuple[int, ...] = (), is_member: bool = False
) -> Capacity:
    queue: Any = Queue(*queued)
    named = {str(number): each for number, each in enumerate(topics)}
    return Capacity(
        named,
        default_partitions=2,
        is_member=is_member,
        start_queue=queue,
        bytes_max=bytes_max,
    )


def test_open_offline_and_queued_partitions_count_and_each_group_in_each_of_them() -> None:
    capacity = capacity_of(10**9, topic(3, "ab"), topic(2, "a", offline=[1, 5]), queued=(4, 1))
    assert capacity.used_bytes == (3 + 3 + 5) * P + (2 * 3 + 3) * G


def test_what_just_fits_is_created_and_what_does_not_is_refused() -> None:
    capacity = capacity_of(5 * P, topic(2))
    with pytest.raises(NodeFull), capacity.topic(4):
        pass
    with capacity.topic(3):
        pass
    with capacity.partitions(3):
        pass
    with pytest.raises(NodeFull), capacity.partitions(4):
        pass


def test_what_is_being_created_is_kept_until_it_is_there_or_has_failed() -> None:
    capacity = capacity_of(5 * P, topic(2))
    with ExitStack() as creating:
        creating.enter_context(capacity.topic(2))
        with pytest.raises(NodeFull), capacity.topic(2):
            pass
        with capacity.topic(1):
            pass
    with pytest.raises(OSError, match="disk"), capacity.topic(3):
        raise OSError("its disk is full")
    with capacity.topic(3):
        pass


def test_partitions_of_a_topic_count_with_its_groups() -> None:
    grown = topic(2, "abc")
    used = 2 * (P + 3 * G)
    with capacity_of(used + P + 3 * G, grown).partitions(1, grown):
        pass
    full = capacity_of(used + P + 3 * G - 1, grown)
    with pytest.raises(NodeFull), full.partitions(1, grown):
        pass


def test_a_group_counts_in_each_partition_and_one_that_is_there_needs_no_room() -> None:
    of = topic(3, "a")
    used = 3 * (P + G)
    with capacity_of(used + 3 * G, of).group(of, "b"):
        pass
    full = capacity_of(used + 3 * G - 1, of)
    with pytest.raises(NodeFull), full.group(of, "b"):
        pass
    with full.group(of, "a"):
        pass


def test_a_topic_has_a_bound_of_groups_and_a_node_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_TOPIC_MAX", 2)
    monkeypatch.setattr(limits, "TOPICS_MAX", 3)
    of = topic(1, "ab")
    capacity = capacity_of(2**40, of, queued=(1,))
    with pytest.raises(NodeFull), capacity.group(of, "c"):
        pass
    with capacity.topic(1):
        pass
    assert capacity.shortage() is None
    many = capacity_of(2**40, of, queued=(1, 1))
    with pytest.raises(NodeFull), many.topic(1):
        pass
    assert "3 topics" in (many.shortage() or "")


def test_a_shortage_is_told_once_no_topic_of_the_default_size_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fits, full = capacity_of(4 * P, topic(2)), capacity_of(4 * P - 1, topic(2))
    fits.tell()
    assert not caplog.text
    assert fits.shortage() is None
    for _ in range(3):
        full.tell()
    assert "2 partitions and 0 groups" in (full.shortage() or "")
    assert caplog.text.count("no further topic fits") == 1


def test_in_a_cluster_the_metadata_bound_topics_and_only_groups_are_bounded_here() -> None:
    of = topic(2, "a")
    member = capacity_of(2 * (P + G), of, is_member=True)
    assert member.shortage() is None
    with member.topic(50), member.partitions(50, of):
        pass
    with pytest.raises(NodeFull), member.group(of, "b"):
        pass
