"""A node refuses to hold more topics, partitions and groups than fit, and starts all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goq import limits
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node


def hold(monkeypatch: pytest.MonkeyPatch, partitions: int, *, groups: int = 0) -> None:
    """Let nodes that start from now on hold so much; ``groups`` counts them in each partition."""
    size_bytes = partitions * limits.PARTITION_BYTES + groups * limits.GROUP_BYTES
    monkeypatch.setattr(limits, "STATE_BYTES_MAX", size_bytes)


def create(node: RunningNode, name: str, partitions: int) -> Answer:
    return node.request("POST", "/v1/topics", {"name": name, "partitions": partitions})


def publish(node: RunningNode, topic: str) -> Answer:
    return node.request("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "x"}]})


def receive(node: RunningNode, topic: str, group: str) -> Answer:
    return node.request("POST", f"/v1/topics/{topic}/groups/{group}/receive", {})


def is_refused(answer: Answer) -> bool:
    return answer.status == 507 and answer.json["code"] == "node_full"


def limits_reached(node: RunningNode) -> Any:
    ready = node.request("GET", "/readyz")
    assert ready.status == 200
    assert node.call("GET", "/healthz").get("limits_reached") == ready.json.get("limits_reached")
    return ready.json.get("limits_reached")


def test_what_fits_exactly_is_created_and_nothing_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hold(monkeypatch, 8)
    with running_node(tmp_path) as node:
        assert create(node, "a", 6).status == 201
        assert is_refused(create(node, "b", 3))
        assert create(node, "b", 1).status == 201
        assert is_refused(node.request("PATCH", "/v1/topics/b", {"partitions": 3}))
        assert node.request("PATCH", "/v1/topics/b", {"partitions": 2}).status == 200
        caplog.clear()
        refused = publish(node, "created-by-a-client")
        assert is_refused(refused)
        assert "8 partitions and 0 groups" in refused.json["detail"]
        assert is_refused(node.request("PUT", "/v1/topics/created-by-a-client"))
        assert [topic["name"] for topic in node.call("GET", "/v1/topics")["topics"]] == ["a", "b"]
        assert is_refused(receive(node, "a", "g"))
        assert is_refused(node.request("PUT", "/v1/topics/a/groups/g", {"settings": {}}))
        assert publish(node, "a").status == 200

        node.call("DELETE", "/v1/topics/b")
        assert receive(node, "a", "g").status == 200
        assert receive(node, "a", "g").status == 200


def test_a_group_counts_in_each_partition_of_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, 2, groups=5)
    with running_node(tmp_path) as node:
        create(node, "a", 2)
        assert receive(node, "a", "one").status == 200
        assert receive(node, "a", "two").status == 200
        assert is_refused(receive(node, "a", "three"))
        node.call("DELETE", "/v1/topics/a/groups/one")
        assert receive(node, "a", "three").status == 200


def test_dead_letters_wait_until_their_topic_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, 3, groups=2)
    with running_node(tmp_path) as node:
        create(node, "a", 1)
        create(node, "other", 2)
        publish(node, "a")
        [message] = receive(node, "a", "g").json["messages"]
        receipts = {"receipts": [message["receipt"]]}
        node.call("POST", "/v1/topics/a/groups/g/reject", receipts)
        assert is_refused(publish(node, "a.dlq"))
        node.call("DELETE", "/v1/topics/other")
        eventually(lambda: node.request("GET", "/v1/topics/a.dlq").status == 200)
        read = "/v1/topics/a.dlq/messages?partition=0"
        eventually(lambda: len(node.call("GET", read)["messages"]) == 1)


def test_a_node_at_its_bound_is_ready_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hold(monkeypatch, 7)
    with running_node(tmp_path) as node:
        assert limits_reached(node) is None
        assert create(node, "a", 1).status == 201
        assert limits_reached(node) is None
        assert "no further topic fits" not in caplog.text
        assert create(node, "b", 1).status == 201
        [told] = limits_reached(node)
        assert told.startswith("no further topic fits: 2 partitions and 0 groups")
        assert told in caplog.text
        metrics = node.request("GET", "/metrics").body.decode()
        assert f"goq_state_bytes {float(2 * limits.PARTITION_BYTES)}" in metrics
        assert f"goq_state_bytes_max {float(7 * limits.PARTITION_BYTES)}" in metrics


def test_a_node_starts_with_more_than_it_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_node(tmp_path) as node:
        for name in ("a", "b"):
            assert publish(node, name).status == 200
            assert receive(node, name, "g").status == 200
    hold(monkeypatch, 3)
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    with running_node(tmp_path) as node:
        assert "no further topic fits" in caplog.text
        assert limits_reached(node)
        for name in ("a", "b"):
            assert publish(node, name).status == 200
            assert receive(node, name, "g").status == 200
        assert is_refused(publish(node, "c"))
        node.call("DELETE", "/v1/topics/a")
        assert is_refused(publish(node, "c"))
        node.call("DELETE", "/v1/topics/b")
        assert publish(node, "c").status == 507  # six partitions do not fit
        assert create(node, "c", 3).status == 201
