"""A node that is ready before all topics are open: whoever asks for one of them waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from goq.storage.disk import RealDisk
from tests.support.api.calls import publish, receive, settle, values
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir

LATE = "late"


@contextmanager
def held_topic(name: str) -> Iterator[threading.Event]:
    """Let no log of a topic be opened before the event is set."""
    may_open = threading.Event()
    names = RealDisk.names

    def wait_then_list(disk: RealDisk, directory: Path) -> list[str]:
        topic = directory.parent.parent.name.rpartition("~")[0]
        if topic == name and directory.name == "messages":
            assert may_open.wait(30)
        return names(disk, directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealDisk, "names", wait_then_list)
        try:
            yield may_open
        finally:
            may_open.set()


def fill(path: Path) -> str:
    """Make a topic that opens first and one that opens late; return the receipt of a lease."""
    with running_node(path) as node:
        for topic in ("first", LATE):
            node.call("POST", "/v1/topics", {"name": topic, "partitions": 2})
            publish(node, topic, "one", "two", partition=0)
            publish(node, topic, "dead", partition=1)
        (dead,) = (m for m in receive(node, LATE, visibility="12h") if m["value"] == "dead")
        settle(node, LATE, "reject", dead["receipt"])
        publish(node, LATE, "delayed", partition=1, delay="1s")
        eventually(lambda: node.call("GET", f"/v1/topics/{LATE}/dead")["messages"])
        return str(dead["id"])


def ask_all(node: RunningNode, asked: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Send requests at one time; return their answers once ``late`` may be opened."""
    with ThreadPoolExecutor(len(asked)) as pool:
        futures = {name: pool.submit(ask) for name, ask in asked.items()}
        return {name: future.result(60) for name, future in futures.items()}


def test_requests_for_a_topic_wait_until_it_is_open_and_others_do_not(tmp_path: Path) -> None:
    dead = fill(tmp_path)
    with held_topic(LATE) as may_open, running_node(tmp_path, start_partitions=1) as node:
        assert publish(node, "first", "three", partition=0)[0]["offset"] == 2
        health = node.request("GET", "/healthz")
        assert health.status == 200
        assert health.json["opening"] >= 2
        for path in ("/readyz", "/livez", "/metrics", "/openapi.json"):
            assert node.request("GET", path).status == 200
        late = f"/v1/topics/{LATE}"
        body = {"name": LATE, "partitions": 2}
        asked: dict[str, Callable[[], Any]] = {
            "publish": lambda: publish(node, LATE, "three", partition=0)[0]["offset"],
            "create": lambda: node.request("POST", "/v1/topics", body).status,
            "group": lambda: node.call("GET", f"{late}/groups/g")["group"],
            "settings": lambda: node.request("PATCH", late, {"settings": {}}).status,
            "topics": lambda: [each["name"] for each in node.call("GET", "/v1/topics")["topics"]],
            "message": lambda: node.call("GET", f"/v1/messages/{dead}")["value"],
            "trace": lambda: node.request("GET", f"/v1/messages/{dead}/trace").status,
            "dead": lambda: len(node.call("GET", f"{late}/dead")["messages"]),
            "read": lambda: node.request("GET", f"{late}/messages?partition=1&offset=0").status,
            "none": lambda: node.request("GET", "/v1/topics/none").status,
        }
        threading.Timer(0.5, may_open.set).start()
        assert ask_all(node, asked) == {
            "publish": 2,
            "create": 409,
            "group": "g",
            "settings": 200,
            "topics": ["first", LATE, f"{LATE}.dlq"],
            "message": "dead",
            "trace": 200,
            "dead": 1,
            "read": 200,
            "none": 404,
        }
        assert node.call("GET", "/healthz") == {"status": "ok"}


def test_delayed_messages_of_a_topic_that_is_not_open_become_due(tmp_path: Path) -> None:
    fill(tmp_path)
    with running_node(tmp_path, start_partitions=1) as node:
        found: list[str] = []

        def has_come() -> bool:
            found.extend(values(receive(node, LATE, wait="1s")))
            return "delayed" in found

        eventually(has_come)
        assert found == ["delayed"]  # the others are leased for 12 hours, or dead


def test_damage_of_a_topic_is_told_once_it_is_open(tmp_path: Path) -> None:
    fill(tmp_path)
    (topic_dir(tmp_path, LATE) / "0" / "messages" / f"{1:020d}.log").write_bytes(b"x")
    with held_topic(LATE) as may_open, running_node(tmp_path, start_partitions=1) as node:
        assert node.request("GET", "/healthz").status == 200
        may_open.set()
        eventually(lambda: node.request("GET", "/healthz").json.get("offline") == [f"{LATE}:0"])
        assert node.request("GET", "/healthz").status == 503


def test_a_node_that_stops_before_all_topics_are_open_loses_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    with (
        held_topic(LATE) as may_open,
        running_node(tmp_path, start_partitions=1) as node,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(node.request, "GET", "/v1/topics")
        eventually(lambda: len(node.node.requests_under_way()) == 1)
        threading.Timer(0.5, may_open.set).start()
        node.stop()
        assert waiting.result(30).status in (200, 503)
    with running_node(tmp_path, start_partitions=1) as node:
        assert publish(node, LATE, "three", partition=0)[0]["offset"] == 2
        assert publish(node, "first", "three", partition=0)[0]["offset"] == 2
