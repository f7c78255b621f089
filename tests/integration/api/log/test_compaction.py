"""What the API says of messages that compaction took away, and that it says nothing where it
should not.
"""

from __future__ import annotations

from typing import Any

import pytest

from goq.client import Client
from goq.errors import MessageCompacted
from tests.support.api.calls import publish, receive, settle, values
from tests.support.broker.partition_internals import state_of
from tests.support.node.running_node import RunningNode


@pytest.fixture
def compacted(node: RunningNode, topic: str) -> str:
    """A compacted topic whose partition 0 has but the offsets 3, 4 and 25 of 26."""
    settings = {"cleanup": "compact", "delivery.ordering": "none"}
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": settings})
    publish(node, topic, "a0", "a1", "a2", key="a", partition=0)
    publish(node, topic, "free", partition=0)
    publish(node, topic, "a4", key="a", partition=0)
    publish(node, topic, *(f"b{n}" for n in range(21)), key="b", partition=0)
    compact(node, topic)
    return topic


def compact(node: RunningNode, topic: str) -> None:
    broker = node.node.broker
    assert broker is not None
    node.on_loop(broker.topics[topic].partitions[0].trimmer.roll)
    node.on_loop(broker.compaction_manager.apply)


def read(node: RunningNode, topic: str, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/messages?partition=0&{query}")
    return answer


def test_reading_passes_over_what_is_gone_and_goes_on(node: RunningNode, compacted: str) -> None:
    whole = read(node, compacted)
    assert values(whole["messages"]) == ["free", "a4", "b20"]
    assert [m["offset"] for m in whole["messages"]] == [3, 4, 25]
    assert (whole["next"], whole["damaged"]) == (26, [])
    found, offset = [], 0
    while offset < 26:
        piece = read(node, compacted, f"offset={offset}&limit=1")
        assert piece["messages"], "a page with nothing on it looks like the end"
        found += values(piece["messages"])
        offset = piece["next"]
    assert found == ["free", "a4", "b20"]


def test_a_message_that_is_gone_is_said_to_be_compacted_away(
    node: RunningNode, compacted: str
) -> None:
    path = f"/v1/messages/{compacted}:0:1"
    for method, body in (("GET", None), ("PATCH", {"priority": "high"}), ("DELETE", None)):
        answer = node.request(method, path, body)
        assert (answer.status, answer.json["code"]) == (410, "message_compacted"), method
        assert "compacted away" in answer.json["detail"]
    assert node.call("GET", f"/v1/messages/{compacted}:0:4")["value"] == "a4"
    broker = node.node.broker
    assert broker is not None
    assert not node.on_loop(lambda: len(state_of(broker.topics[compacted].partitions[0]).moved))


def test_a_group_gets_what_is_left_and_lags_by_nothing_then(
    node: RunningNode, compacted: str
) -> None:
    messages = receive(node, compacted)
    assert values(messages) == ["free", "a4", "b20"]
    settle(node, compacted, "ack", *(m["receipt"] for m in messages))
    group = node.call("GET", f"/v1/topics/{compacted}/groups/g")
    assert (group["lag"], group["leased"]) == (0, 0)


def test_what_was_received_before_may_be_acknowledged_after(node: RunningNode, topic: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"cleanup": "compact"}})
    publish(node, topic, "old", key="a", partition=0)
    (held,) = receive(node, topic)
    publish(node, topic, "new", key="a", partition=0)
    compact(node, topic)
    assert settle(node, topic, "ack", held["receipt"]) == {"settled": 1, "failed": []}
    assert values(receive(node, topic)) == ["new"]


def test_peeking_shows_what_is_left(node: RunningNode, compacted: str) -> None:
    node.call("PUT", f"/v1/topics/{compacted}/groups/g", {"settings": {}})
    found: list[str] = []
    after = ""
    while True:
        path = f"/v1/topics/{compacted}/groups/g/peek?state=ready&limit=1{after}"
        page = node.call("GET", path)
        found += values(page["messages"])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert found == ["free", "a4", "b20"]


def test_the_client_reads_and_consumes_what_is_left(node: RunningNode, compacted: str) -> None:
    with Client(node.url) as client:
        assert [m.value for m in client.read_log(compacted, partition=0)] == [
            b"free",
            b"a4",
            b"b20",
        ]
        assert [m.offset for m in client.read_log(compacted, partition=0, from_offset=2)] == [
            3,
            4,
            25,
        ]
        batch = client.read(compacted, partition=0, offset=1)
        assert [(m.offset, m.key) for m in batch.messages] == [(3, None), (4, b"a"), (25, b"b")]
        assert batch.next == 26
        received = client.receive(compacted, "frames", max_messages=10)
        assert [(m.offset, m.value) for m in received] == [(3, b"free"), (4, b"a4"), (25, b"b20")]
        with pytest.raises(MessageCompacted):
            client.get_message(f"{compacted}:0:0")
