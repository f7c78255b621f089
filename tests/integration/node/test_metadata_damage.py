"""Damage of node.db, of topic files and of one partition: told, and nothing is deleted by it."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from goq.client import Client
from goq.errors import CorruptData
from goq.storage.catalog.topic_catalog import TopicCatalog
from goq.storage.catalog.topic_file import FILE_NAME
from goq.storage.disk import RealDisk
from goq.storage.node_db import NodeDb
from goq.storage.verification import verify_data_dir
from tests.support.api.calls import publish, receive, values
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir

MONTH_MS = 30 * 86_400_000
TOPICS: dict[str, dict[str, str]] = {
    "kept": {"retention.age": "none", "retention.bytes": "none"},
    "compacted": {"cleanup": "compact"},
    "short": {"retention.age": "100d"},
}
MESSAGES = [f"message {n}" for n in range(10)]


def fill(path: Path) -> None:
    """Leave topics with sealed segments and groups, as a stopped node does."""
    with running_node(path) as node:
        for name, settings in TOPICS.items():
            body = {"name": name, "partitions": 1, "settings": {**settings, "segment.age": "1s"}}
            node.call("POST", "/v1/topics", body)
            for number, value in enumerate(MESSAGES):
                publish(node, name, value, key=str(number))
            node.call("PUT", f"/v1/topics/{name}/groups/own", {"settings": {"ordering": "none"}})
            node.clock.ahead_ms += 2000
            apply_retention(node)
            publish(node, name, "last", key="last")


def apply_retention(node: RunningNode) -> None:
    broker = node.node.broker
    assert broker is not None
    node.on_loop(broker.retention_manager.apply)
    node.on_loop(broker.compaction_manager.apply)


@contextmanager
def after_a_month(path: Path) -> Iterator[RunningNode]:
    """Run a node a month later, after everything due was deleted and compacted."""
    with running_node(path) as node:
        node.clock.ahead_ms = MONTH_MS
        apply_retention(node)
        yield node


def stored(node: RunningNode, topic: str) -> list[str]:
    path = f"/v1/topics/{topic}/messages?partition=0&offset=0&limit=1000"
    return values(node.call("GET", path)["messages"])


def health(node: RunningNode) -> dict[str, Any]:
    answer = node.request("GET", "/healthz")
    found: dict[str, Any] = answer.json
    assert answer.status == (200 if found["status"] == "ok" else 503)
    return found


def told(node: RunningNode) -> dict[str, str]:
    """Return what ``healthz`` tells of, and its state."""
    return {problem["what"]: problem["state"] for problem in health(node).get("problems", [])}


def move_away(path: Path) -> None:
    for file in path.glob("node.db*"):
        file.rename(path.parent / file.name)


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path / "node.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


def metric(node: RunningNode, name: str) -> list[str]:
    text = node.request("GET", "/metrics").body.decode()
    return [line for line in text.splitlines() if line.startswith(name)]


# node.db is moved away


def test_topics_keep_their_settings_and_messages_when_node_db_is_moved_away(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "data")
    move_away(tmp_path / "data")
    with after_a_month(tmp_path / "data") as node:
        assert health(node) == {"status": "ok"}
        for name, settings in TOPICS.items():
            topic = node.call("GET", f"/v1/topics/{name}")
            assert topic["settings"].items() >= settings.items()
            assert stored(node, name) == [*MESSAGES, "last"]
            group = node.call("GET", f"/v1/topics/{name}/groups/own")
            assert group["settings"]["ordering"] == "none"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"goq-topic 1")])
def test_a_topic_without_any_settings_keeps_all_messages_until_a_user_decides(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    data = tmp_path / "data"
    fill(data)
    move_away(data)
    for name in TOPICS:
        spoil(topic_dir(data, name) / FILE_NAME)
    for _ in range(2):
        with after_a_month(data) as node:
            assert told(node) == {f"topic {name}": "adopted" for name in TOPICS}
            assert "goq topic alter kept" in json.dumps(health(node)["problems"])
            assert len(metric(node, 'goq_topic_in_doubt{state="adopted"')) == 3
            for name in TOPICS:
                assert stored(node, name) == [*MESSAGES, "last"]
                topic = node.call("GET", f"/v1/topics/{name}")
                assert topic["settings"]["retention.age"] == "none"
    with after_a_month(data) as node:
        node.call("PATCH", "/v1/topics/short", {"settings": {"retention.age": "1d"}})
        assert told(node) == {"topic kept": "adopted", "topic compacted": "adopted"}
        node.clock.ahead_ms += MONTH_MS
        apply_retention(node)
        assert stored(node, "short") == []
        assert stored(node, "kept") == [*MESSAGES, "last"]
    with running_node(data) as node:
        assert told(node) == {"topic kept": "adopted", "topic compacted": "adopted"}


def test_a_topic_without_any_settings_keeps_its_archive_whatever_new_topics_get(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    defaults = {"topic": {"partitions": 1, "retention": {"total_age": "30m"}}}
    with running_node(data, defaults=defaults) as node:
        with Client(node.url) as q:
            q.create_topic("t", settings={"retention.total_age": None})
        publish_segments(node, "t", range(3))
        retire(node, "t", archive=True)
    move_away(data)
    (topic_dir(data, "t") / FILE_NAME).unlink()
    with running_node(data, defaults=defaults) as node:
        node.clock.ahead_ms = 3_600_000
        apply_retention(node)
        assert told(node) == {"topic t": "adopted"}
        path = "/v1/topics/t/messages?partition=0&include_deleted=true"
        assert [m["offset"] for m in node.call("GET", path)["messages"]] == [0, 1, 2]


# A row is damaged


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE topics SET deleting = 1 WHERE name = 'short'",
        "UPDATE topics SET settings = replace(settings, '100d', '1s') WHERE name = 'short'",
        "UPDATE groups SET settings = X'7B22FF' WHERE topic = 'short'",
        "UPDATE topics SET settings = '{' WHERE name = 'short'",
    ],
)
def test_a_damaged_row_makes_its_topic_read_only_and_told_until_a_user_decides(
    tmp_path: Path, change: str
) -> None:
    fill(tmp_path)
    execute(tmp_path, change)
    assert any("damaged row" in p for p in verify_data_dir(RealDisk(), tmp_path).problems)
    for _ in range(2):
        with after_a_month(tmp_path) as node, Client(node.url) as client:
            assert told(node) == {"topic short": "read-only"}
            assert metric(node, "goq_topic_in_doubt{") == [
                'goq_topic_in_doubt{state="read-only",topic="short"} 1.0'
            ]
            refused = node.request(
                "POST", "/v1/topics/short/messages", {"messages": [{"value": "x"}]}
            )
            assert (refused.status, refused.json["code"]) == (503, "topic_read_only")
            assert "goq topic alter short" in refused.json["detail"]
            assert stored(node, "short") == [*MESSAGES, "last"]
            assert client.get_health().problems[0].what == "topic short"
            publish(node, "kept", "others go on")
    with running_node(tmp_path) as node:
        assert len(receive(node, "short", "own")) == 11
        node.call("PATCH", "/v1/topics/short", {})
        assert health(node) == {"status": "ok"}
        publish(node, "short", "written")
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "ok"}
        topic = node.call("GET", "/v1/topics/short")
        assert topic["settings"]["retention.age"] == "100d"
        group = node.call("GET", "/v1/topics/short/groups/own")
        assert group["settings"]["ordering"] == "none"
    assert verify_data_dir(RealDisk(), tmp_path).is_sound


@pytest.mark.parametrize(
    ("settings", "left"),
    [({"retention.age": "1h"}, []), ({"cleanup": "compact"}, [MESSAGES[-1], "last"])],
)
def test_nothing_of_a_read_only_topic_is_deleted_or_compacted(
    tmp_path: Path, settings: dict[str, str], left: list[str]
) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        for value in MESSAGES:
            publish(node, "t", value, key="one key")
        node.clock.ahead_ms = 2 * 86_400_000
        apply_retention(node)  # seals the segment
    db = NodeDb(tmp_path)
    catalog = TopicCatalog(db, RealDisk(), tmp_path / "topics")
    (topic,) = catalog.recover()
    catalog.put_topic(topic._replace(settings=topic.settings | settings))
    db.close()
    execute(tmp_path, "UPDATE topics SET crc = crc + 1")
    with running_node(tmp_path) as node:
        node.clock.ahead_ms = MONTH_MS
        apply_retention(node)
        apply_retention(node)
        assert stored(node, "t") == MESSAGES
        node.call("PATCH", "/v1/topics/t", {})
        if left:
            publish(node, "t", "last", key="another key")

        def is_done() -> bool:
            apply_retention(node)
            return stored(node, "t") == left

        eventually(is_done)


def test_a_read_only_topic_can_be_deleted(tmp_path: Path) -> None:
    fill(tmp_path)
    execute(tmp_path, "UPDATE topics SET partitions = 2 WHERE name = 'short'")
    with running_node(tmp_path) as node:
        node.call("DELETE", "/v1/topics/short")
        assert health(node) == {"status": "ok"}
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "ok"}
        assert [t["name"] for t in node.call("GET", "/v1/topics")["topics"]] == [
            "compacted",
            "kept",
        ]


def test_a_damaged_row_of_the_manifest_is_told_of_and_the_archive_is_found_anew(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with running_node(tmp_path) as node:
        settings = {"archive": "true", "retention.age": "1h"}
        node.call("PATCH", "/v1/topics/kept", {"settings": settings})
        node.clock.ahead_ms = MONTH_MS
        apply_retention(node)
        archived = node.call("GET", "/v1/topics/kept")["archived"]
    execute(tmp_path, "UPDATE archive SET end_offset = end_offset + 1")
    with running_node(tmp_path) as node:
        assert told(node) == {"node.db": "damaged"}
        assert node.call("GET", "/v1/topics/kept")["archived"] == archived
        assert metric(node, "goq_metadata_problems") == ["goq_metadata_problems 2.0"]
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "ok"}


def flip(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = [path / "node.db", *(topic_dir(path, name) / FILE_NAME for name in TOPICS)]
    for file in rng.sample(files, rng.choice((1, 1, 2, 4))):
        data = bytearray(file.read_bytes())
        used = [at for at, byte in enumerate(data) if byte]
        for _ in range(rng.choice((1, 1, 2))):
            data[rng.choice(used)] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def survive(first: Path, path: Path, seed: int) -> bool:
    """Start a node after random bits were flipped; return whether it refused to."""
    copytree(first, path)
    flip(path, seed)
    segments = {file.relative_to(path) for file in path.rglob("*.log")}
    try:
        with after_a_month(path) as node:
            doubts = told(node)
            for name, settings in TOPICS.items():
                assert stored(node, name) == [*MESSAGES, "last"], (seed, name)
                if f"topic {name}" not in doubts:
                    found = node.call("GET", f"/v1/topics/{name}")["settings"]
                    assert found.items() >= settings.items(), (seed, name)
    except CorruptData:
        assert not segments - {file.relative_to(path) for file in path.rglob("*.log")}
        return True
    return False


def test_no_flipped_bit_costs_a_message(tmp_path: Path) -> None:
    fill(tmp_path / "first")
    refused = [survive(tmp_path / "first", tmp_path / str(seed), seed) for seed in range(12)]
    assert sum(refused) < 8


@pytest.mark.long
def test_no_flipped_bit_costs_a_message_long(tmp_path: Path) -> None:
    fill(tmp_path / "first")
    refused = [survive(tmp_path / "first", tmp_path / str(seed), seed) for seed in range(100, 400)]
    assert sum(refused) < 150


# A partition cannot be opened


def surplus(partition: Path) -> Callable[[], None]:
    """Lay a segment file beside the log that begins inside another."""
    file = partition / "messages" / f"{1:020d}.log"
    file.write_bytes(b"x")
    return file.unlink


def unreadable(partition: Path) -> Callable[[], None]:
    """Put a folder in the place of the log's recovery point: each read of it fails."""
    file = partition / "messages" / "watermark"
    data = file.read_bytes()
    file.unlink()
    file.mkdir()

    def mend() -> None:
        file.rmdir()
        file.write_bytes(data)

    return mend


@pytest.mark.parametrize("damage", [surplus, unreadable])
def test_a_partition_that_cannot_be_opened_is_offline_until_it_can(
    tmp_path: Path, damage: Callable[[Path], Callable[[], None]]
) -> None:
    with running_node(tmp_path) as node:
        for name in ("t", "u"):
            node.call("POST", "/v1/topics", {"name": name, "partitions": 2})
            for number in range(2):
                publish(node, name, f"{name} {number}", "second", partition=number)
    mend = damage(topic_dir(tmp_path, "t") / "1")
    with running_node(tmp_path) as node, Client(node.url) as client:
        assert health(node)["offline"] == ["t:1"]
        (problem,) = health(node)["problems"]
        assert (problem["what"], problem["state"]) == ("t:1", "offline")
        assert "goq topic reopen t 1" in problem["advice"]
        assert metric(node, 'goq_partition_online{partition="1",topic="t"}')[0].endswith(" 0.0")
        assert values(receive(node, "t")) == ["t 0", "second"]
        assert len(receive(node, "u")) == 4
        shown = client.describe_topic("t").partitions
        assert [part.online for part in shown] == [True, False]
        refused = node.request(
            "POST", "/v1/topics/t/messages", {"messages": [{"value": "x", "partition": 1}]}
        )
        assert refused.json["code"] == "partition_offline"
        assert publish(node, "t", "x", partition=0)
        for path, body in (
            ("/v1/topics/t/partitions/1/reopen", None),
            ("/v1/topics/t/groups/g/reset", {"to": "earliest"}),
        ):
            assert node.request("POST", path, body).json["code"] == "partition_offline"
        assert node.request("DELETE", "/v1/topics/t/groups/g").json["code"] == "partition_offline"
        mend()
        client.reopen_partition("t", 1)
        client.reopen_partition("t", 1)
        assert health(node) == {"status": "ok"}
        assert sorted(values(receive(node, "t"))) == ["second", "t 1", "x"]
        assert publish(node, "t", "y", partition=1)[0]["offset"] == 2


def test_a_topic_with_an_offline_partition_is_deleted_whole(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        publish(node, "t", "x", "y", partition=1)
    surplus(topic_dir(tmp_path, "t") / "1")
    with running_node(tmp_path) as node:
        assert health(node)["offline"] == ["t:1"]
        node.call("DELETE", "/v1/topics/t")
        assert health(node) == {"status": "ok"}
    assert list((tmp_path / "topics").iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [("2", "partition_not_found"), ("x", "invalid_input")])
def test_only_a_partition_of_the_topic_can_be_reopened(
    tmp_path: Path, number: str, code: str
) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        answer = node.request("POST", f"/v1/topics/t/partitions/{number}/reopen")
        assert answer.json["code"] == code
