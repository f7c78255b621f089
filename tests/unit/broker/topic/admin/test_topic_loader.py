"""Topics between disk and memory: what a start finishes, what is in doubt, and what a deletion does
in which order.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.topic.admin import topic_loader as topic_loader_module
from goq.broker.topic.admin.topic_loader import TopicLoader
from goq.config.topic import TopicSettings
from goq.errors import PartitionOffline, StorageFailed, Unavailable
from goq.model import NATIVE_TOPIC_IDS, NO_TOPIC_ID
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicRow
from goq.storage.catalog.topic_catalog import KEEP_ALL
from tests.support.broker.context import context_on
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

TOPICS = Path("/data/topics")


class Node:
    """A node that loads topics; what it does is noted in order."""

    def __init__(self, *rows: TopicRow, is_member: bool = False) -> None:
        self.steps: list[Any] = []
        self.faults: dict[str, Exception] = {}
        self.rows, self.group_rows = list(rows), dict[str, dict[str, str]]()
        self.known_partitions = 0
        self.disk = SimulatedDisk()
        self.new_id = 41
        given: Any = self
        context = context_on(self.disk, executor=InlineExecutor(), new_id=lambda: self.new_id)
        self.loader = TopicLoader(
            TOPICS,
            given,
            TopicSettings(),
            context,
            given,
            None,
            None,
            remember_group=given,
            parameters=given,
            is_member=is_member,
            on_delete=self._on_delete,
        )

    def do(self, *step: Any) -> None:
        self.steps.append(step)
        if step[0] in self.faults:
            raise self.faults[step[0]]

    async def _on_delete(self, folder: str) -> None:
        self.do("archive", folder)

    async def topics(self) -> list[TopicRow]:
        return self.rows

    async def groups(self, _name: str) -> dict[str, dict[str, str]]:
        return self.group_rows

    async def put_topic(self, row: TopicRow) -> None:
        self.do("put", row.name, row.id)

    async def delete_topic(self, name: str, topic_id: int) -> None:
        self.do("entry", name, topic_id)

    async def manifest_of(self, _folder: str) -> Any:
        return SimpleNamespace(partitions=self.known_partitions)

    async def put_partitions(self, folder: str, partitions: int) -> None:
        self.do("partitions", partitions)


def row(name: str, *, deleting: bool = False, topic_id: int = 5, **more: Any) -> TopicRow:
    return TopicRow(name, 2, {}, deleting, topic_id, **more)


def folder_of(node: Node, of: TopicRow, *names: str) -> Path:
    folder = TOPICS / of.folder
    for name in names:
        node.disk.make_dir(folder / name)
        node.disk.put(folder / name / "file", b"x")
    return folder


def test_a_deletion_takes_partitions_archive_entry_and_folder_in_this_order() -> None:
    topic = row("t")
    node = Node(topic)
    folder = folder_of(node, topic, "0", "17", "not-a-partition")
    node.disk.put(folder / "topic.json", b"x")
    left: list[list[str]] = []

    async def on_delete(_folder: str) -> None:
        left.append(node.disk.names(folder))

    node.loader._on_delete = on_delete
    node.loader.half_deleted = {"t": topic.id, "u": 9}
    asyncio.run(node.loader.delete("t", topic.id))
    assert left == [["not-a-partition", "topic.json"]]
    assert node.steps == [("entry", "t", topic.id)]
    assert node.disk.names(folder) == []
    assert node.loader.half_deleted == {"u": 9}
    node.loader.half_deleted = {"t": topic.id + 1}
    asyncio.run(node.loader.delete("t", topic.id))
    assert node.loader.half_deleted == {"t": topic.id + 1}, "of another topic of its name"


def test_a_start_finishes_deletions_and_remembers_those_that_it_cannot() -> None:
    going, stuck, stays = row("going", deleting=True), row("stuck", deleting=True), row("stays")
    node = Node(going, stays)
    assert asyncio.run(node.loader.recover_rows()) == {"stays": stays}
    assert ("entry", "going", 5) in node.steps
    assert node.loader.half_deleted == {}
    for error in (OSError("bad"), StorageFailed("bad")):
        failing = Node(stuck, stays)
        failing.faults["entry"] = error
        assert asyncio.run(failing.loader.recover_rows()) == {"stays": stays}
        assert failing.loader.half_deleted == {"stuck": 5}
        failing.faults.clear()
        failing.steps.clear()
        asyncio.run(failing.loader.finish_deletion("stays"))
        assert failing.steps == []
        asyncio.run(failing.loader.finish_deletion("stuck"))
        assert ("entry", "stuck", 5) in failing.steps
        assert failing.loader.half_deleted == {}


@pytest.mark.parametrize("new_id", [0, 1, NATIVE_TOPIC_IDS - 2, NATIVE_TOPIC_IDS - 1])
def test_a_topic_from_before_ids_gets_one_that_is_stored_unless_a_user_is_to_decide(
    new_id: int,
) -> None:
    doubt = TopicDoubt(DoubtKind.READ_ONLY, "its settings were lost")
    old, doubted = row("old", topic_id=NO_TOPIC_ID), row("d", topic_id=NO_TOPIC_ID, doubt=doubt)
    node = Node(old, doubted, row("has one"))
    node.new_id = new_id
    found = asyncio.run(node.loader.recover_rows())
    expected = 1 + new_id % (NATIVE_TOPIC_IDS - 1)
    assert 0 < expected < NATIVE_TOPIC_IDS
    assert {name: each.id for name, each in found.items()} == {
        "old": expected,
        "d": expected,
        "has one": 5,
    }
    assert node.steps == [("put", "old", expected)]
    member = Node(old, is_member=True)
    assert asyncio.run(member.loader.recover_rows())["old"].id == NO_TOPIC_ID


class OpenTopic:
    """A topic that is opened; it notes what it is told."""

    def __init__(self, name: str, _id: int, settings: TopicSettings, *_: Any, **named: Any) -> None:
        self.folder, self.name, self.settings = name, name, settings
        self.doubt = named["doubt"]
        self.groups: dict[str, Any] = {"known": {"a": "1"}}
        self.steps: list[Any] = []
        self.partitions = SimpleNamespace(offline={})
        self.opener = SimpleNamespace(open=self._open)
        self.fault: Exception | None = None

    async def _open(self, partitions: int, _known: object, *, skip_failed: bool) -> None:
        self.steps.append(("open", partitions, skip_failed))
        if OPEN_FAULT:
            raise OPEN_FAULT[0]

    def configure_group(self, group: str, written: dict[str, str]) -> None:
        if written:
            TopicSettings().for_group(written)
        self.steps.append((group, written))

    def set_doubt(self, doubt: TopicDoubt) -> None:
        self.doubt = doubt

    def expect(self, partitions: int) -> None:
        self.steps.append(("expect", partitions))

    async def close(self, _reason: object, *, is_deleted: bool) -> None:
        CLOSED.append(is_deleted)


OPEN_FAULT: list[Exception] = []
CLOSED: list[bool] = []


@pytest.fixture(autouse=True)
def opened_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenTopic, "__iter__", lambda _self: iter(()), raising=False)
    monkeypatch.setattr(topic_loader_module, "Topic", OpenTopic)
    OPEN_FAULT.clear()
    CLOSED.clear()


def opened(node: Node, of: TopicRow, *, skip_failed: bool = False) -> Any:
    known = [SimpleNamespace(group_names=["known", "used"])]

    async def open_partitions(topic: Any, partitions: int, *, skip_failed: bool) -> None:
        await TopicLoader.open_partitions(node.loader, topic, partitions, skip_failed=skip_failed)
        topic.partitions = known

    node.loader.open_partitions = open_partitions
    return asyncio.run(node.loader.open(of, skip_failed=skip_failed))


def test_a_topic_opens_with_its_groups_and_those_that_its_partitions_know() -> None:
    node = Node()
    node.group_rows = {"g": {"max_attempts": "3"}}
    topic = opened(node, row("t"))
    assert topic.steps == [("g", {"max_attempts": "3"}), ("open", 2, False)]
    assert topic.groups == {"known": {"a": "1"}, "used": {}}
    assert topic.doubt is None
    assert node.steps == [("partitions", 2)]


def test_settings_that_cannot_be_read_put_a_topic_in_doubt_and_delete_nothing() -> None:
    damaged = row("t")._replace(settings={"delivery.max_attempts": "many"})
    topic = opened(Node(), damaged)
    assert topic.doubt.kind is DoubtKind.READ_ONLY
    assert "the settings of topic t cannot be read" in topic.doubt.reason
    assert topic.settings == TopicSettings().changed(KEEP_ALL)
    doubt = TopicDoubt(DoubtKind.READ_ONLY, "earlier")
    assert opened(Node(), damaged._replace(doubt=doubt)).doubt == doubt
    node = Node()
    node.group_rows = {"g": {"max_attempts": "many"}}
    topic = opened(node, row("t"))
    assert "the settings of group g cannot be read" in topic.doubt.reason
    assert topic.steps[0] == ("g", {})


def test_a_topic_that_cannot_be_opened_is_closed_as_if_nobody_opened_it_again() -> None:
    OPEN_FAULT.append(PartitionOffline("bad"))
    with pytest.raises(PartitionOffline):
        opened(Node(), row("t"))
    assert CLOSED == [True]


@pytest.mark.parametrize(
    ("known", "is_offline", "is_put"), [(0, False, True), (2, False, False), (0, True, False)]
)
def test_the_number_of_partitions_is_stored_once_all_are_open(
    known: int, is_offline: bool, is_put: bool
) -> None:
    node = Node()
    node.known_partitions = known
    topic: Any = OpenTopic("t", 5, TopicSettings(), doubt=None)
    topic.partitions.offline = {0: "bad"} if is_offline else {}
    asyncio.run(node.loader.open_partitions(topic, 2))
    assert node.steps == [("partitions", 2)] * is_put


@pytest.mark.parametrize("skip_failed", [False, True])
def test_a_number_of_partitions_that_cannot_be_stored_fails_a_creation_and_no_start(
    caplog: pytest.LogCaptureFixture, *, skip_failed: bool
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    node = Node()
    node.faults["partitions"] = Unavailable("no quorum")
    topic: Any = OpenTopic("t", 5, TopicSettings(), doubt=None)
    work = node.loader.open_partitions(topic, 2, skip_failed=skip_failed)
    if skip_failed:
        asyncio.run(work)
        assert "a lost log of topic t would not be noticed" in caplog.text
        return
    with pytest.raises(Unavailable):
        asyncio.run(work)


def test_a_member_of_a_cluster_only_expects_its_partitions() -> None:
    topic: Any = OpenTopic("t", 5, TopicSettings(), doubt=None)
    asyncio.run(Node(is_member=True).loader.open_partitions(topic, 2))
    assert topic.steps == [("expect", 2)]
