"""A topic of a backup is restored into a running node, under another name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from goq import Node, limits
from goq.backup.node_restores import RESTORING_DIR, NodeRestores
from goq.client import Client
from goq.errors import (
    Conflict,
    CorruptData,
    GoqError,
    InvalidInput,
    NotFound,
    StorageFull,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from goq.model import AUDIT_TOPIC
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.cli.command import Run
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import running_node
from tests.support.storage.backup_source import SETTINGS, fill, view

WAIT_S = 60


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def node(data: Path, folder: Path) -> Iterator[Node]:
    with Node(data, settings=SETTINGS | {"backup.to": folder}) as running:
        yield running


@pytest.fixture
def q(node: Node) -> Iterator[Client]:
    with node.client() as client:
        yield client


def under(name: str, seen: dict[str, Any]) -> Any:
    """Return what was seen of ``orders``, as of a topic with another name."""
    settings, messages, groups, scheduled = seen["orders"]
    renamed = [(id_.replace("orders:", f"{name}:"), value, key) for id_, value, key in messages]
    return settings, renamed, groups, [id_.replace("orders:", f"{name}:") for id_ in scheduled]


def left(data: Path) -> list[str]:
    return RealDisk().names(data / RESTORING_DIR)


def test_a_topic_is_there_under_another_name_with_its_groups_beside_the_one_that_lives(
    q: Client, node: Node, data: Path, folder: Path, goq: Run
) -> None:
    fill(q)
    before = view(q)
    q.create_backup()
    q.publish("orders", b"after")
    q.delete_topic("payments")
    told = goq("restore", str(folder), "--topic", "orders=orders-old", "--server", node.url).stdout
    assert b"restored as orders-old: 62 messages" in told
    assert view(q, ["orders-old"])["orders-old"] == under("orders-old", before)
    again = q.restore_topic("payments", "payments")
    assert (again.topic, again.messages) == ("payments", 3)
    assert view(q, ["payments"])["payments"] == before["payments"]
    goq("restore", str(folder), "--topic", "nothing=old", "--server", node.url, code=3)
    assert len(view(q)["orders"][1]) == len(before["orders"][1]) + 1, "the living one is untouched"
    for message in q.receive("orders-old", "billing", max_messages=100, visibility="1h"):
        message.ack()
    q.publish("orders-old", b"new")
    assert left(data) == []


def test_a_restored_topic_outlives_the_next_start(data: Path, folder: Path) -> None:
    settings = SETTINGS | {"backup.to": folder}
    with Node(data, settings=settings) as node, node.client() as q:
        fill(q)
        q.create_backup()
        q.restore_topic("orders", "old")
        before = view(q, ["old", "orders"])
    with Node(data, settings=settings) as node, node.client() as q:
        assert view(q, ["old", "orders"]) == before
    assert verify_data_dir(RealDisk(), data).is_sound


def test_archived_segments_come_along(data: Path, folder: Path) -> None:
    defaults = {"topic": {"partitions": 1}}
    with running_node(data, defaults=defaults, backup={"to": str(folder)}) as node:
        with Client(node.url) as q:
            q.create_topic("orders")
            publish_segments(node, "orders", range(5))
            retire(node, "orders", archive=True)
            q.create_backup()
            path = "/v1/topics/{}/messages?partition=0&include_deleted=true&limit=9"
            before = node.call("GET", path.format("orders"))["messages"]
            q.restore_topic("orders", "old", settings={"retention.age": "none"})
            found = node.call("GET", path.format("old"))["messages"]
        assert [m["value"] for m in found] == [m["value"] for m in before]
        assert len(found) == 5


def test_a_moment_is_restored_exactly(q: Client) -> None:
    q.create_topic("orders", partitions=1)
    first = q.publish("orders", b"1")
    q.publish("orders", b"2")
    q.create_backup()
    q.restore_topic("orders", "old", at=first.timestamp / 1000)
    assert [m.value for m in q.read_log("old")] == [b"1"]


def test_names_that_no_such_topic_may_have_are_refused(q: Client, data: Path) -> None:
    q.create_topic("orders", partitions=1)
    q.create_backup()
    for name in ("../etc", "a/b", "orders~1", "", "old.dlq", AUDIT_TOPIC):
        with pytest.raises(GoqError):
            q.restore_topic("orders", name)
    assert left(data) == []


def test_what_exists_is_never_touched(q: Client, data: Path, tmp_path: Path) -> None:
    fill(q)
    q.create_backup()
    before = view(q)
    with pytest.raises(TopicExists):
        q.restore_topic("payments", "orders")
    q.delete_topic("orders")
    with pytest.raises(TopicExists, match=r"orders\.dlq"):
        q.restore_topic("payments", "orders")
    with pytest.raises(InvalidInput, match="backs up to"):
        q.restore_topic("orders", "old", place=str(tmp_path / "elsewhere"))
    with pytest.raises(TopicNotFound, match="has no topic"):
        q.restore_topic("nothing", "old")
    with pytest.raises(NotFound, match="there is no backup"):
        q.restore_topic("orders", "old", backup="20200101T000000.000000Z")
    with pytest.raises(InvalidInput, match="not a topic setting"):
        q.restore_topic("orders", "old", settings={"color": "red"})
    assert view(q, ["payments"])["payments"] == before["payments"]
    assert left(data) == []


def test_a_name_that_is_taken_meanwhile_stays_with_its_topic(
    q: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(q)
    q.create_backup()
    real = NodeRestores._stage

    def stage(self: NodeRestores, *arguments: Any) -> Any:
        staged = real(self, *arguments)
        q.create_topic("old", partitions=1)
        return staged

    monkeypatch.setattr(NodeRestores, "_stage", stage)
    with pytest.raises(TopicExists, match="exists already"):
        q.restore_topic("orders", "old")
    assert len(q.describe_topic("old").partitions) == 1
    assert left(data) == []
    names = [name for name in RealDisk().names(data / "topics") if name.startswith("old~")]
    assert len(names) == 1


def test_messages_that_retention_would_delete_at_once_are_not_restored_unasked(
    data: Path, folder: Path
) -> None:
    with running_node(data, backup={"to": str(folder)}) as node, Client(node.url) as q:
        q.create_topic("orders", partitions=1, settings={"retention.age": "1h"})
        q.publish("orders", b"1")
        q.create_backup()
        node.clock.ahead_ms += 2 * 3_600_000
        with pytest.raises(Conflict, match=r"--set retention\.age=none"):
            q.restore_topic("orders", "old")
        assert left(data) == []
        q.restore_topic("orders", "old", settings={"retention.age": "none"})
        assert [m.value for m in q.read_log("old")] == [b"1"]
        assert q.describe_topic("old").settings["retention.age"] == "none"


def test_a_damaged_object_is_named_and_leaves_nothing(q: Client, data: Path, folder: Path) -> None:
    fill(q)
    q.create_backup()
    for path in (folder / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CorruptData, match="damaged"):
        q.restore_topic("orders", "old")
    with pytest.raises(TopicNotFound):
        q.describe_topic("old")
    assert left(data) == []
    assert not [name for name in RealDisk().names(data / "topics") if name.startswith("old~")]


def test_a_topic_that_would_leave_no_room_is_refused(
    q: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", partitions=1)
    q.publish("orders", b"1")
    q.create_backup()
    usage = shutil.disk_usage(data)
    low_bytes = min(limits.DISK_LOW_BYTES, usage.total // 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=low_bytes + 1))
    with pytest.raises(StorageFull, match="nearly full"):
        q.restore_topic("orders", "old")
    assert left(data) == []


def _at_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: NodeRestores, _bytes: int) -> None:
        raise Killed

    monkeypatch.setattr(NodeRestores, "_check", die)


def _before_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_arguments: Any) -> None:
        raise Killed

    monkeypatch.setattr(NodeRestores, "_put_in_place", die)


def _between_the_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RealDisk.move_dir

    def move(self: RealDisk, directory: Path, target: Path) -> None:
        if target.parent.name == "topics":
            raise Killed
        real(self, directory, target)

    monkeypatch.setattr(RealDisk, "move_dir", move)


def _after_the_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NodeRestores._put_in_place

    def put(self: NodeRestores, row: Any) -> None:
        real(self, row)
        raise Killed

    monkeypatch.setattr(NodeRestores, "_put_in_place", put)


@pytest.mark.parametrize(
    ("kill", "is_there"),
    [
        (_at_object, False),
        (_before_the_move, False),
        (_between_the_moves, False),
        (_after_the_moves, True),
    ],
)
def test_a_node_that_is_killed_meanwhile_has_all_of_the_topic_or_nothing(
    data: Path,
    folder: Path,
    kill: Callable[[pytest.MonkeyPatch], None],
    is_there: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = {"topic": {"partitions": 1}}
    with running_node(data, defaults=defaults, backup={"to": str(folder)}) as node:
        with Client(node.url) as q:
            q.create_topic("orders")
            publish_segments(node, "orders", range(3))
            retire(node, "orders", archive=True)
            q.create_backup()
            with monkeypatch.context() as patch:
                kill(patch)
                with pytest.raises(Unavailable, match="no restore"):
                    q.restore_topic("orders", "old", settings={"retention.age": "none"})
        assert left(data), "as after a kill"
    with running_node(data, defaults=defaults, backup={"to": str(folder)}) as node:
        eventually(lambda: not left(data), seconds=WAIT_S)
        with Client(node.url) as q:
            assert ("old" in {topic.name for topic in q.list_topics()}) == is_there
            if not is_there:
                assert q.restore_topic("orders", "old", settings={"retention.age": "none"})
        path = "/v1/topics/old/messages?partition=0&include_deleted=true&limit=9"
        assert len(node.call("GET", path)["messages"]) == 3
    folders = {name.split("~")[0] for name in RealDisk().names(data / "archive")}
    assert folders == {"orders", "old"}
    assert len(RealDisk().names(data / "archive")) == 2
    assert verify_data_dir(RealDisk(), data).is_sound
