"""The administration of topics: what is decided before what follows, and what failures leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.metadata import TopicVersion
from goq.broker.topic.admin.open_topics import TopicListener
from goq.broker.topic.admin.topic_admin import NewTopicDefaults, TopicAdmin
from goq.config.topic import TopicSettings
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    PartitionOffline,
    StorageFailed,
    TimedOut,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from goq.model import DEAD_LETTERS_SUFFIX
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicRow

DEFAULTS = TopicSettings()
OTHER = {"delivery.max_attempts": "9"}


class Topic:
    """A topic of a node, which notes what it is told."""

    def __init__(self, node: Node, row: TopicRow) -> None:
        self.node, self.name, self.id = node, row.name, row.id
        self.settings = DEFAULTS.changed(row.settings)
        self.partitions = SimpleNamespace(count=row.partitions, check=self._check)
        self.groups: dict[str, dict[str, str]] = {}
        self.doubt: TopicDoubt | None = None
        self.publisher = SimpleNamespace(target=lambda number: (self.name, number))
        self.opener = SimpleNamespace(reopen=self._reopen)

    def _check(self, number: int) -> None:
        if number >= self.partitions.count:
            raise InvalidInput("no such partition")

    async def _reopen(self, number: int) -> None:
        self.node.do("reopened", number)

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self.node.do("configured", self.name)

    def set_doubt(self, doubt: TopicDoubt | None) -> None:
        self.doubt = doubt
        self.node.do("doubt", doubt)

    def expect(self, partitions: int) -> None:
        self.partitions.count = partitions
        self.node.do("expects", partitions)

    def configure_group(self, group: str, settings: Mapping[str, str]) -> None:
        self.node.do("group", group)

    def forget_group(self, group: str) -> None:
        self.node.do("no group", group)

    async def close(self, reason: GoqError, *, is_deleted: bool = False) -> None:
        self.node.do("closed", self.name, type(reason), is_deleted)


class Node:
    """What a node does with its topics, in order; a step in ``faults`` fails."""

    def __init__(self, *, is_member: bool = False, auto_create: bool = True) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.faults: dict[str, Exception] = {}
        self.topics: dict[str, Topic] = {}
        self.half_deleted: dict[str, int] = {}
        self.version: TopicVersion | None = None
        self.stored_groups: dict[str, dict[str, str]] = {}
        self.rows: list[TopicRow] = []
        given: Any = self
        self.started = asyncio.Event()
        self.started.set()
        self.admin = TopicAdmin(
            given.topics,
            given.find,
            given,
            given,
            given,
            self.started,
            defaults=NewTopicDefaults(DEFAULTS, 2),
            auto_create=auto_create,
            is_member=is_member,
        )
        self.admin.start(
            given,
            TopicListener(
                on_change=lambda topic: self.do("changed", topic.name),
                on_settings=lambda: self.do("settings"),
                on_adopt=self._on_adopt,
                on_delete=lambda topic_id: self.do("deleting", topic_id),
            ),
        )

    def do(self, *step: Any) -> None:
        self.steps.append(step)
        if step[0] in self.faults:
            raise self.faults[step[0]]

    def add(self, name: str, partitions: int = 2, **settings: str) -> Topic:
        row = TopicRow(name, partitions, settings, id=len(self.topics) + 1)
        topic = self.topics[name] = Topic(self, row)
        return topic

    def find(self, name: str) -> Topic:
        if name not in self.topics:
            raise TopicNotFound("there is no such topic")
        return self.topics[name]

    async def _on_adopt(self, folder: str) -> None:
        self.do("taken up", folder)

    # The start queue, and the capacity

    def __bool__(self) -> bool:
        return True

    async def wait_for(self, name: str) -> None:
        self.do("waited", name)

    @contextmanager
    def topic(self, partitions: int) -> Iterator[None]:
        self.do("room", partitions)
        yield

    def partitions(self, count: int, _topic: Topic) -> Any:
        return self.topic(count)

    # The loader

    async def open(self, row: TopicRow, *, skip_failed: bool) -> Topic:
        self.do("opened", row.name, skip_failed)
        return Topic(self, row)

    async def finish_deletion(self, name: str) -> None:
        self.do("finished", name)

    async def delete(self, name: str, topic_id: int) -> None:
        self.do("deleted", name, topic_id)

    async def open_partitions(self, topic: Topic, partitions: int) -> None:
        self.do("partitions", partitions)

    async def in_thread(self, work: Callable[[], None]) -> None:
        work()

    async def write_file(self, row: TopicRow, _groups: object) -> None:
        self.do("file", row.name)

    # The metadata

    def check_replication(self, _asked: object, _topic: str | None = None) -> None:
        self.do("replication")

    def replication_of(self, topic: str) -> str:
        return f"as of {topic}"

    async def create_topic(self, row: TopicRow, replication: Any) -> TopicRow:
        self.rows.append(row)
        self.do("created", row.name, row.partitions)
        return row._replace(id=77)

    async def adopt_topic(self, row: TopicRow, _groups: object, _epoch: int) -> None:
        self.do("adopted", row.name)

    def version_of(self, _name: str, _topic_id: int) -> TopicVersion | None:
        return self.version

    async def put_topic(self, row: TopicRow, _replication: Any = None, since: Any = None) -> None:
        self.rows.append(row)
        self.do("put", row.name, row.partitions, row.deleting)

    async def groups(self, _name: str) -> dict[str, dict[str, str]]:
        return self.stored_groups

    async def put_group(self, _topic: str, group: str, _own: object) -> None:
        self.do("put group", group)


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


UNKNOWN = Unavailable("no quorum")


def test_a_new_topic_is_stored_before_it_is_opened_and_one_that_exists_is_refused() -> None:
    node = Node()
    topic = run(node.admin.create("t", settings=OTHER))
    assert node.topics == {"t": topic}
    assert node.steps == [
        ("replication",),
        ("waited", "t"),
        ("room", 2),
        ("finished", "t"),
        ("created", "t", 2),
        ("opened", "t", False),
        ("changed", "t"),
    ]
    assert topic.id == 77
    assert topic.settings.attempts_max == 9
    node.steps.clear()
    with pytest.raises(TopicExists):
        run(node.admin.create("t"))
    assert ("created", "t", 2) not in node.steps


def test_a_topic_that_cannot_be_opened_is_deleted_again_and_by_a_member_of_a_cluster_never() -> (
    None
):
    node = Node()
    node.faults["opened"] = StorageFailed("bad")
    with pytest.raises(StorageFailed):
        run(node.admin.create("t"))
    assert node.steps[-1] == ("deleted", "t", 77)
    assert node.half_deleted == {"t": 77}
    node.faults["deleted"] = OSError("bad")
    with pytest.raises(TimedOut):
        run(node.admin.create("t"))
    member = Node(is_member=True)
    member.faults["opened"] = StorageFailed("bad")
    with pytest.raises(TimedOut):
        run(member.admin.create("t"))
    assert member.steps[-1] == ("opened", "t", False)
    assert member.half_deleted == {}


def test_a_publish_waits_for_a_topic_that_is_being_opened_and_creates_one_if_it_may() -> None:
    node = Node()
    known = node.add("t")
    assert run(node.admin.topic_for_publish("t")) is known
    assert node.steps == []
    assert run(node.admin.topic_for_publish("u")).name == "u"
    assert node.steps[0] == ("waited", "u")
    closed = Node(auto_create=False)
    with pytest.raises(TopicNotFound):
        run(closed.admin.topic_for_publish("u"))
    assert closed.steps == [("waited", "u")]

    async def opened_meanwhile(name: str) -> None:
        closed.add(name)

    closed.wait_for = opened_meanwhile
    assert run(closed.admin.topic_for_publish("u")).name == "u"


def test_a_topic_that_another_request_has_created_meanwhile_is_published_to() -> None:
    node = Node()

    async def created_meanwhile(name: str, *_: object) -> Any:
        node.add(name)
        raise TopicExists("it exists already")

    node.admin.create = created_meanwhile
    assert run(node.admin.topic_for_publish("t")).name == "t"


def test_a_change_is_stored_before_the_topic_follows_it_and_others_hear_of_it() -> None:
    node = Node()
    topic = node.add("t")
    assert run(node.admin.alter("t", OTHER, 5)) is topic
    assert node.steps == [
        ("waited", "t"),
        ("replication",),
        ("room", 3),
        ("put", "t", 5, False),
        ("configured", "t"),
        ("partitions", 5),
        ("changed", "t"),
        ("settings",),
    ]
    assert topic.settings.attempts_max == 9


def test_a_change_that_is_refused_changes_nothing() -> None:
    node = Node()
    topic = node.add("t", 3)
    for refused, error in (
        (node.admin.alter("t", {}, 2), InvalidInput),
        (node.admin.alter("t", {"delivery.max_attempts": "many"}), InvalidInput),
        (node.admin.alter("t", {}, expected={"delivery.max_attempts": "5"}), Conflict),
        (node.admin.alter("unknown", {}), TopicNotFound),
    ):
        with pytest.raises(error):
            run(refused)
    node.faults["put"] = UNKNOWN
    with pytest.raises(Unavailable):
        run(node.admin.alter("t", OTHER))
    assert ("configured", "t") not in node.steps
    assert topic.settings == DEFAULTS
    node.faults.clear()
    run(
        node.admin.alter("t", {}, 3, expected={"delivery.max_attempts": str(DEFAULTS.attempts_max)})
    )
    assert ("configured", "t") in node.steps


def test_a_change_is_made_to_what_the_cluster_has_decided_last() -> None:
    node = Node(is_member=True)
    topic = node.add("t")
    node.version = SimpleNamespace(settings={"delivery.max_attempts": "4"})
    run(node.admin.alter("t", {"retention.age": "1h"}))
    assert topic.settings.attempts_max == 4


def test_settings_that_are_unset_are_those_of_a_new_topic_or_of_the_source_of_dead_letters() -> (
    None
):
    node = Node()
    node.add("t", fsync="interval")
    plain = node.add("u", fsync="never")
    dead = node.add("t" + DEAD_LETTERS_SUFFIX, fsync="never")
    for topic in (plain, dead):
        run(node.admin.alter(topic.name, {}, unset=["fsync"]))
    assert plain.settings.fsync == DEFAULTS.fsync
    assert dead.settings.fsync == node.topics["t"].settings.fsync


def test_a_change_decides_on_a_topic_in_doubt_and_stores_the_groups_that_it_shows() -> None:
    node = Node()
    topic = node.add("t")
    topic.doubt = TopicDoubt(next(iter(DoubtKind)), "its settings were lost")
    topic.groups = {"same": {"a": "1"}, "other": {"a": "2"}, "lost": {}}
    node.stored_groups = {"same": {"a": "1"}, "other": {"a": "1"}}
    run(node.admin.alter("t", {}))
    put = [step for step in node.steps if step[0] == "put group"]
    assert put == [("put group", "other"), ("put group", "lost")]
    assert topic.doubt is None


def test_a_topic_for_copies_is_made_or_gets_the_partition_that_they_go_to() -> None:
    node = Node()
    source = node.add("t", 4)
    grave = "t" + DEAD_LETTERS_SUFFIX
    given: Any = source
    assert run(node.admin.target(given, grave, 1)) == (grave, 1)
    assert ("created", grave, 4) in node.steps
    assert node.topics[grave].settings.dead_letters is False
    assert run(node.admin.target(given, "shared", 2)) == ("shared", 2)
    assert ("created", "shared", 3) in node.steps
    assert node.topics["shared"].settings == DEFAULTS
    node.steps.clear()
    assert run(node.admin.target(given, "shared", 2)) == ("shared", 2)
    assert node.steps == [("waited", "shared")]
    node.topics["shared"].partitions.count = 3
    run(node.admin.target(given, "shared", 3))
    assert ("put", "shared", 4, False) in node.steps


def test_a_partition_is_reopened_on_a_node_alone() -> None:
    node = Node()
    node.add("t")
    run(node.admin.reopen_partition("t", 1))
    assert node.steps == [("waited", "t"), ("reopened", 1), ("changed", "t")]
    with pytest.raises(InvalidInput):
        run(node.admin.reopen_partition("t", 2))
    node.faults["reopened"] = PartitionOffline("its disk failed")
    node.steps.clear()
    with pytest.raises(PartitionOffline):
        run(node.admin.reopen_partition("t", 1))
    assert ("changed", "t") not in node.steps
    member = Node(is_member=True)
    member.add("t")
    with pytest.raises(Conflict):
        run(member.admin.reopen_partition("t", 1))


def test_a_deletion_is_decided_before_anything_goes_and_a_member_only_decides() -> None:
    node = Node()
    node.add("t")
    run(node.admin.delete("t"))
    assert node.steps == [
        ("waited", "t"),
        ("put", "t", 2, True),
        ("closed", "t", TopicNotFound, True),
        ("deleting", 1),
        ("deleted", "t", 1),
    ]
    assert (node.topics, node.half_deleted) == ({}, {"t": 1})
    member = Node(is_member=True)
    member.add("t")
    run(member.admin.delete("t"))
    assert member.steps[-1] == ("put", "t", 2, True)
    assert member.topics.keys() == {"t"}


def test_only_the_topic_that_is_meant_is_closed_and_the_files_of_another_go() -> None:
    node = Node(is_member=True)
    topic = node.add("t")
    run(node.admin.drop("t", topic.id + 1))
    assert node.steps == [("deleted", "t", topic.id + 1)]
    assert node.topics == {"t": topic}
    run(node.admin.drop("t", topic.id))
    assert ("closed", "t", TopicNotFound, True) in node.steps
    assert node.topics == {}


@pytest.mark.parametrize("has_replicas", [False, True])
def test_a_topic_follows_the_metadata_of_the_cluster_as_far_as_it_differs(
    *, has_replicas: bool
) -> None:
    node = Node(is_member=True)
    row = TopicRow("t", 2, {}, id=1)
    file = [("file", "t")] * has_replicas
    run(node.admin.take_up(row, {}, has_replicas=has_replicas))
    assert node.steps == [*file, ("opened", "t", False), ("changed", "t")]
    told = [("changed", "t"), ("settings",)]
    topic = node.topics["t"]
    topic.groups = {"same": {"a": "1"}, "other": {"a": "1"}, "gone": {}}
    groups = {"same": {"a": "1"}, "other": {"a": "2"}, "new": {}}
    node.steps.clear()
    run(node.admin.take_up(row, groups, has_replicas=has_replicas))
    assert sorted(node.steps) == sorted(
        [*file, ("group", "other"), ("group", "new"), ("no group", "gone"), *told]
    )
    topic.groups = dict(groups)
    node.steps.clear()
    later = row._replace(partitions=3, settings=OTHER)
    run(node.admin.take_up(later, groups, has_replicas=has_replicas))
    assert node.steps == [*file, ("configured", "t"), ("expects", 3), *told]
    node.steps.clear()
    run(node.admin.take_up(row._replace(id=2), {}, has_replicas=has_replicas))
    assert node.steps == []


def test_a_topic_is_adopted_with_its_files_in_place_and_may_be_there_if_it_cannot_be_opened() -> (
    None
):
    node, placed = Node(), list[int]()
    row = TopicRow("t", 2, {}, id=5)
    run(node.admin.adopt(row, {}, 3, lambda: placed.append(len(node.steps))))
    assert node.steps == [
        ("waited", "t"),
        ("room", 2),
        ("finished", "t"),
        ("adopted", "t"),
        ("taken up", row.folder),
        ("opened", "t", False),
        ("changed", "t"),
    ]
    assert placed == [3]
    with pytest.raises(TopicExists):
        run(node.admin.adopt(row, {}, 3, lambda: placed.append(0)))
    assert placed == [3]
    failing = Node()
    failing.faults["opened"] = StorageFailed("bad")
    with pytest.raises(TimedOut):
        run(failing.admin.adopt(row, {}, 3, lambda: None))
