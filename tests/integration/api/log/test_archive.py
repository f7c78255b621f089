"""Messages that retention deleted are read from the archive by the routes that read the log."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from goq.units import format_time_us, parse_time_us
from tests.support.api import frames as f
from tests.support.api.calls import publish, values
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir


@pytest.fixture
def archived(node: RunningNode, topic: str) -> list[dict[str, Any]]:
    """Six messages in partition 0 in segments of one, of which the first five are archived."""
    return fill(node, topic)


def fill(node: RunningNode, topic: str) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}"
    node.call("PATCH", path, {"settings": {"archive": True, "retention.age": None}})
    results = []
    for number in range(6):
        results += publish(node, topic, f"{number}" * 40_000, partition=0)
        roll(node, topic)
    keep = {"retention.bytes": "64KiB"}
    node.call("PATCH", path, {"settings": keep})
    apply_retention(node)
    assert node.call("GET", path)["partitions"][0]["start_offset"] == 5
    return results


def spoil(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def on_loop(node: RunningNode, work: Any) -> None:
    done = threading.Event()

    def start() -> None:
        task = asyncio.ensure_future(work())
        task.add_done_callback(lambda _: done.set())

    node.on_loop(start)
    assert done.wait(60)


def roll(node: RunningNode, topic: str) -> None:
    broker = node.node.broker
    assert broker is not None
    on_loop(node, broker.topics[topic].partitions[0].trimmer.roll)


def apply_retention(node: RunningNode) -> None:
    broker = node.node.broker
    assert broker is not None
    on_loop(node, broker.retention_manager.apply)


def read(node: RunningNode, topic: str, query: str) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/messages?partition=0&{query}")
    return answer


def numbers(found: dict[str, Any]) -> list[int]:
    return [int(value[0]) for value in values(found["messages"])]


@pytest.mark.usefixtures("archived")
def test_deleted_messages_are_read_where_that_is_asked_for(node: RunningNode, topic: str) -> None:
    assert numbers(read(node, topic, "")) == [5]
    found = read(node, topic, "include_deleted=true")
    assert (numbers(found), found["next"]) == ([0, 1, 2, 3, 4, 5], 6)
    assert numbers(read(node, topic, "include_deleted=true&offset=2&limit=2")) == [2, 3]
    assert numbers(read(node, topic, "include_deleted=false")) == [5]
    archived = node.call("GET", f"/v1/topics/{topic}")["archived"]
    assert (archived["segments"], archived["messages"]) == (5, 5)
    assert 0 < archived["bytes"] < 10_000


def test_times_choose_among_deleted_messages_too(
    node: RunningNode, topic: str, archived: list[dict[str, Any]]
) -> None:
    times = f"from_time={archived[1]['timestamp']}&to_time={archived[3]['timestamp']}"
    assert numbers(read(node, topic, f"include_deleted=true&{times}")) == [1, 2]
    assert numbers(read(node, topic, f"include_deleted=true&background=true&{times}")) == [1, 2]


def test_a_snapshot_is_the_log_as_it_stood_then(
    node: RunningNode, topic: str, archived: list[dict[str, Any]]
) -> None:
    found = read(node, topic, f"as_of={archived[3]['timestamp']}")
    assert numbers(found) == [0, 1, 2, 3]
    assert numbers(read(node, topic, "as_of=now")) == [5]
    assert numbers(read(node, topic, "as_of=2020-01-01")) == []
    before = format_time_us(parse_time_us(archived[3]["timestamp"], now_us=0, field="t") - 1)
    found = read(node, topic, f"include_deleted=true&as_of={before}&offset=1")
    assert numbers(found) == [1, 2]


@pytest.mark.usefixtures("archived")
def test_deleted_messages_come_as_frames_too(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/messages?partition=0&include_deleted=true&limit=2&offset=1"
    answer = node.request("GET", path, headers=f.ACCEPT_FRAMES)
    preface, frames = f.answered(answer.body)
    assert (preface["next"], preface["start"], preface["end"]) == (3, 0, 6)
    assert len(frames) == 2


@pytest.mark.usefixtures("archived")
def test_what_was_deleted_and_not_archived_is_named_where_frames_are_read(
    node: RunningNode, topic: str
) -> None:
    path = f"/v1/topics/{topic}"
    node.call("PATCH", path, {"settings": {"archive": False}})
    for number in range(6, 9):
        publish(node, topic, f"{number}" * 40_000, partition=0)
        roll(node, topic)
    apply_retention(node)
    for query in ("", "&background=true"):
        query = f"{path}/messages?partition=0&include_deleted=true&limit=100{query}"
        preface, _ = f.answered(node.request("GET", query, headers=f.ACCEPT_FRAMES).body)
        assert (preface["deleted"], preface["start"], preface["next"]) == ([[5, 8]], 0, 9)


@pytest.mark.parametrize("query", ["", "&background=true", "&include_deleted=true"])
def test_events_are_the_same_however_they_are_asked_for(
    node: RunningNode, topic: str, query: str
) -> None:
    publish(node, topic, "a", "b", partition=0)
    group = f"/v1/topics/{topic}/groups/g"
    received = node.call("POST", f"{group}/receive", {"max_messages": 2})
    receipts = [message["receipt"] for message in received["messages"]]
    node.call("POST", f"{group}/ack", {"receipts": receipts})
    path = f"/v1/topics/{topic}/events?partition=0{query}"
    found = node.call("GET", path)
    assert {"leased", "acked"} <= {event["event"] for event in found["events"]}
    preface, frames = f.answered(node.request("GET", path, headers=f.ACCEPT_FRAMES).body)
    assert preface["next"] == preface["end"] == found["next"]
    assert preface["start"] == 0
    assert frames


@pytest.mark.parametrize("query", ["include_deleted=maybe", "as_of=yesterdayish"])
def test_what_cannot_be_understood_is_refused(node: RunningNode, topic: str, query: str) -> None:
    answer = node.request("GET", f"/v1/topics/{topic}/messages?partition=0&{query}")
    assert (answer.status, answer.json["field"]) == (400, query.partition("=")[0])


def test_damage_that_a_read_of_deleted_messages_finds_is_told() -> None:
    """On a node of its own, which is not healthy afterwards."""
    with running_node() as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        fill(node, "t")
        check_damage_of_deleted(node, "t")


def check_damage_of_deleted(node: RunningNode, topic: str) -> None:
    publish(node, topic, "6" * 40_000, partition=0)
    roll(node, topic)
    spoil(topic_dir(node.data_dir, topic) / f"0/messages/{6:020}.log")
    spoil(topic_dir(node.data_dir, topic, "archive") / f"0/messages/{2:020}.log.zst")
    found = read(node, topic, "include_deleted=true")
    assert numbers(found) == [0, 1, 3, 4, 5]
    assert [each["start_offset"] for each in found["damaged"]] == [2, 6]
    health = node.request("GET", "/healthz").json
    assert health["damaged"] == [f"{topic}:0"]
    (problem,) = health["problems"]
    assert (problem["what"], problem["state"]) == (f"archived messages of {topic}:0", "damaged")
    assert "offsets 2 to 2" in problem["reason"]
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.total_bytes": "64KiB"}})
    apply_retention(node)
    assert "problems" not in node.request("GET", "/healthz").json


@pytest.mark.usefixtures("archived")
def test_deleting_a_topic_deletes_its_archive(node: RunningNode, topic: str) -> None:
    node.call("DELETE", f"/v1/topics/{topic}")
    node.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    assert "archived" not in node.call("GET", f"/v1/topics/{topic}")
    assert read(node, topic, "include_deleted=true")["messages"] == []


def test_what_is_archived_is_traced_and_found(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}"
    node.call("PATCH", path, {"settings": {"archive": True, "retention.age": None}})
    for number in range(6):
        message = {
            "value": f"{number}" * 40_000,
            "partition": 0,
            "key": "k",
            "dedup_id": f"d{number}",
        }
        sent = {"messages": [message]}
        assert (
            node.request("POST", f"{path}/messages", sent, {"Goq-Client-Id": "shop"}).status == 200
        )
        group = f"{path}/groups/g"
        received = node.call("POST", f"{group}/receive", {"max_messages": 1, "consumer": "till"})
        receipt = received["messages"][0]["receipt"]
        node.call("POST", f"{group}/ack", {"receipts": [receipt]})
        roll(node, topic)
    node.call("PATCH", path, {"settings": {"retention.bytes": "64KiB"}})
    apply_retention(node)
    found = node.call("GET", f"{path}/trace?key=k")["traces"]
    assert [each["message"]["offset"] for each in found] == [5, 4, 3, 2, 1, 0]
    assert [each["message"]["state"] for each in found] == ["live"] + ["archived"] * 5
    for each in found:
        is_archived = each["message"]["state"] == "archived"
        assert [step["event"] for step in each["events"]] == [
            "PUBLISHED",
            "DELIVERED",
            "ACKNOWLEDGED",
            *["ARCHIVED"] * is_archived,
        ]
        assert each["events"][0]["producer"] == each["message"]["producer"] == "shop"
        assert each["events"][1]["consumer"] == "till"
        assert each["incomplete"] == []
        assert node.call("GET", f"/v1/messages/{each['message']['id']}/trace") == each
    (one,) = node.call("GET", f"{path}/trace?dedup_id=d1")["traces"]
    assert one == found[4]
    first = node.call("GET", f"{path}/trace?key=k&limit=4")
    rest = node.call("GET", f"{path}/trace?key=k&limit=4&cursor={first['next']}")
    assert first["traces"] + rest["traces"] == found
