"""Replays of what compaction has left, and of what is in the archive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from goq.client import Client
from goq.client.replay_plan import REPLAYED_FROM
from goq.model import Message
from tests.support.node.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as node:
        node.on_loop(
            lambda: node.node.broker.compaction_manager._task.cancel()
        )  # only when it is told to
        yield node


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


def roll(node: RunningNode, topic: str) -> None:
    node.on_loop(lambda: node.node.broker.topic(topic).partitions[0].trimmer.roll())


def origins(client: Client, topic: str) -> list[str]:
    """Return which messages those of a topic are copies of."""
    return [dict(message.headers)[REPLAYED_FROM].decode() for message in client.read_log(topic)]


def fill(node: RunningNode, client: Client, topic: str, rounds: int) -> None:
    """Publish keys that come again, in frames of five, and seal a segment after each frame."""
    for number in range(rounds):
        batch = [Message(b"%d" % number, key) for key in (b"a", b"b", None, b"c%d" % number, b"a")]
        client.publish_many(topic, batch)
        roll(node, topic)


def test_what_compaction_left_is_replayed_once(node: RunningNode, client: Client) -> None:
    client.create_topic("kept", partitions=1, settings={"cleanup": "compact"})
    client.create_topic("whole", partitions=1)
    client.create_topic("left", partitions=1)
    fill(node, client, "kept", 6)
    before = client.replay("kept", from_offset=0)
    assert client.replay_into(before, "whole").stored == 30
    node.on_loop(lambda: node.node.broker.compaction_manager.apply())
    left = [str(message.id) for message in client.read_log("kept")]
    assert len(left) == 2 * 6 + 2
    assert client.replay_into(before, "whole").stored == 0
    after = client.replay("kept", from_offset=0)
    assert client.replay_into(after, "left").stored == len(left)
    assert origins(client, "left") == left
    fill(node, client, "kept", 6)
    node.on_loop(lambda: node.node.broker.compaction_manager.apply())
    again = client.replay_into(after, "left")
    assert (again.stored, origins(client, "left")) == (0, left)


def test_what_is_archived_is_replayed_with_what_is_live(node: RunningNode, client: Client) -> None:
    settings = {"archive": True, "retention.age": None}
    client.create_topic("archived", partitions=1, settings=settings)
    client.create_topic("back", partitions=1)
    for number in range(5):
        client.publish("archived", f"{number}" * 40_000, key="k")
        roll(node, "archived")
    node.call("PATCH", "/v1/topics/archived", {"settings": {"retention.bytes": "64KiB"}})
    node.on_loop(lambda: node.node.broker.retention_manager.apply())
    assert [message.offset for message in client.read_log("archived")] == [4]
    replay = client.replay("archived", from_offset=0, include_deleted=True)
    assert client.replay_into(replay, "back").stored == 5
    assert origins(client, "back") == [f"archived:0:{offset}" for offset in range(5)]
