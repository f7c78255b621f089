"""A topic is told from an earlier one of its name, on a node as users run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from goq.errors import LeaseLost
from tests.support.api.calls import group_of, publish, receive, settle
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir


def create(node: RunningNode, name: str = "t") -> str:
    """Create a topic with one partition; return its id."""
    topic: dict[str, Any] = node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    topic_id: str = topic["id"]
    return topic_id


def recreate(node: RunningNode, name: str = "t") -> str:
    node.call("DELETE", f"/v1/topics/{name}")
    return create(node, name)


def by_json(node: RunningNode) -> str:
    (message,) = receive(node, "t")
    receipt: str = message["receipt"]
    return receipt


def by_frames(node: RunningNode) -> str:
    with Client(node.url) as client:
        (receipt,) = client.receive_batch("t", group="g").receipts()
        return receipt


@pytest.mark.parametrize("received", [by_json, by_frames])
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "extend"])
def test_a_receipt_of_a_deleted_topic_settles_nothing_of_a_new_one_of_its_name(
    received: Callable[[RunningNode], str], verb: str
) -> None:
    with running_node() as node:
        create(node)
        publish(node, "t", "old")
        old = received(node)
        recreate(node)
        publish(node, "t", "new")
        new = received(node)
        assert settle(node, "t", verb, old) == {
            "settled": 0,
            "failed": [{"receipt": old, "code": "lease_lost"}],
        }
        assert group_of(node, "t")["leased"] == 1
        assert settle(node, "t", verb, new) == {"settled": 1, "failed": []}


def test_a_message_of_a_deleted_topic_cannot_be_acknowledged_in_a_new_one() -> None:
    with running_node() as node, Client(node.url) as client:
        create(node)
        client.publish("t", "old")
        (old,) = client.receive("t", "g")
        recreate(node)
        client.publish("t", "new")
        (new,) = client.receive("t", "g")
        with pytest.raises(LeaseLost):
            old.ack()
        new.ack()
        assert client.describe_topic("t").id == client.list_topics()[0].id != ""


def test_a_topic_keeps_its_id_and_its_receipts_over_a_restart(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        topic_id = create(node)
        publish(node, "t", "value")
        receipt = by_json(node)
    assert topic_dir(tmp_path, "t").name == f"t~{topic_id}"
    with running_node(tmp_path) as node:
        assert node.call("GET", "/v1/topics/t")["id"] == topic_id
        node.call("PATCH", "/v1/topics/t", {"settings": {"fsync": "never"}, "partitions": 2})
        assert node.call("GET", "/v1/topics/t")["id"] == topic_id
        assert settle(node, "t", "ack", receipt)["settled"] == 1
    with running_node(tmp_path) as node:
        assert node.call("GET", "/v1/topics/t")["id"] == topic_id


def test_a_topic_that_node_db_lost_keeps_its_id(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        topic_id = create(node)
        publish(node, "t", "value")
        receipt = by_json(node)
    (tmp_path / "node.db").unlink()
    for _ in range(2):
        with running_node(tmp_path) as node:
            assert node.call("GET", "/v1/topics/t")["id"] == topic_id
            assert settle(node, "t", "extend", receipt)["settled"] == 1


def test_a_folder_of_an_earlier_topic_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_node(tmp_path) as node:
        create(node)
        publish(node, "t", "old")
    (tmp_path / "node.db").unlink()
    first = topic_dir(tmp_path, "t").rename(tmp_path / "aside")
    with running_node(tmp_path) as node:
        topic_id = create(node)
        publish(node, "t", "new")
    first.rename(tmp_path / "topics" / f"t~{2**52:014x}")
    with running_node(tmp_path) as node:
        assert node.call("GET", "/v1/topics/t")["id"] == topic_id
        assert [message["value"] for message in receive(node, "t")] == ["new"]
    assert f"t~{2**52:014x} is of an earlier topic t" in caplog.text
