"""The administration of groups: what changes before what, and what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.topic.admin.group_admin import GroupAdmin
from goq.errors import GoqError, PartitionOffline, StorageFull, TimedOut, Unavailable


class Node:
    """A topic with two partitions and the group ``known``, and what is done to them in order."""

    name = "t"

    def __init__(self) -> None:
        self.steps: list[tuple[str, ...]] = []
        self.faults: dict[str, GoqError] = {}
        self.groups: dict[str, dict[str, str]] = {"known": {}}
        self.is_full = False
        self.partitions = self
        given: Any = self
        self.admin = GroupAdmin(
            given, given, lambda topic: self._do("changed"), lambda: self.is_full
        )

    def _do(self, *step: str) -> None:
        self.steps.append(step)
        if step[0] in self.faults:
            raise self.faults[step[0]]

    @contextmanager
    def group(self, _topic: object, group: str) -> Iterator[None]:
        self._do("has room", group)
        yield

    async def put_group(self, _topic: str, group: str, settings: dict[str, str]) -> None:
        self._do("stored", group)

    def add_group(self, group: str) -> None:
        self._do("added", group)

    def check_all_open(self) -> None:
        self._do("all open")

    def __iter__(self) -> Iterator[Any]:
        return (SimpleNamespace(delete_group=self._of(number)) for number in range(2))

    def _of(self, number: int) -> Any:
        async def delete_group(group: str) -> None:
            self._do(f"deleted in {number}", group)

        return delete_group

    async def delete_group(self, _topic: str, group: str) -> None:
        self._do("deleted", group)

    def forget_group(self, group: str) -> None:
        self._do("forgotten", group)

    def remember(self, group: str) -> None:
        topic: Any = self
        asyncio.run(self.admin.remember(topic, group))

    def delete(self) -> None:
        topic: Any = self
        asyncio.run(self.admin.delete(topic, "known"))


def test_a_group_is_stored_before_its_topic_has_it_and_only_at_its_first_use() -> None:
    node = Node()
    node.remember("known")
    assert node.steps == []
    node.remember("new")
    assert node.steps == [("has room", "new"), ("stored", "new"), ("added", "new")]


def test_a_full_disk_takes_no_new_group_and_goes_on_with_those_that_it_has() -> None:
    node = Node()
    node.is_full = True
    node.remember("known")
    with pytest.raises(StorageFull):
        node.remember("new")
    assert node.steps == []


def test_a_group_that_cannot_be_stored_is_not_of_its_topic() -> None:
    node = Node()
    node.faults["stored"] = Unavailable("no quorum")
    with pytest.raises(Unavailable):
        node.remember("new")
    assert ("added", "new") not in node.steps


PROGRESS = [("all open",), ("deleted in 0", "known"), ("deleted in 1", "known")]


def test_a_group_is_forgotten_once_its_progress_and_its_entry_are_deleted() -> None:
    node = Node()
    node.delete()
    assert node.steps == [*PROGRESS, ("deleted", "known"), ("forgotten", "known"), ("changed",)]


def test_a_group_stays_while_a_partition_of_its_topic_is_offline() -> None:
    node = Node()
    node.faults["all open"] = PartitionOffline("partition 1 is offline")
    with pytest.raises(PartitionOffline):
        node.delete()
    assert node.steps == PROGRESS[:1]


def test_a_group_stays_whose_progress_is_deleted_in_some_partitions_alone() -> None:
    node = Node()
    node.faults["deleted in 1"] = PartitionOffline("partition 1 is offline")
    with pytest.raises(TimedOut):
        node.delete()
    assert node.steps == PROGRESS


def test_it_is_unknown_whether_a_group_is_deleted_whose_entry_cannot_be() -> None:
    node = Node()
    node.faults["deleted"] = Unavailable("no quorum")
    with pytest.raises(TimedOut) as doubt:
        node.delete()
    assert isinstance(doubt.value.__cause__, Unavailable)
    assert node.steps == [*PROGRESS, ("deleted", "known")]
