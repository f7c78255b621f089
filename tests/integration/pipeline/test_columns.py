"""Columns that are not read are not sent by the node, if its version can leave them out."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from goq.client import Client
from goq.pipeline.arrow.node_source import NodeSource
from tests.support.client.fake_node import FakeNode, Refused
from tests.support.node.running_node import RunningNode


@pytest.mark.parametrize(
    ("columns", "value", "headers"),
    [
        (["key", "offset"], b"", ()),
        (["value"], b"v" * 1000, ()),
        (["headers", "partition"], b"", (("h", b"1"),)),
        (["headers", "value"], b"v" * 1000, (("h", b"1"),)),
    ],
    ids=["neither", "value", "headers", "both"],
)
def test_values_and_headers_are_read_only_with_their_columns(
    node: RunningNode, topic: str, columns: list[str], value: bytes, headers: object
) -> None:
    with Client(node.url) as client:
        client.publish(topic, b"v" * 1000, key="k", headers={"h": "1"}, partition=0)
        ((frames, end, missing),) = NodeSource(client, columns=columns).read_messages(
            topic, 0, 0, 1
        )
    assert (end, missing) == (1, [])
    (message,) = frames[0].messages(0, 1)
    assert (message.key, message.value, tuple(message.headers)) == (b"k", value, headers)


def test_a_node_of_an_earlier_version_sends_whole_messages() -> None:
    with FakeNode() as node, Client(node.url) as client:
        node.create("orders", 1)
        for value in (b"1", b"2"):
            client.publish("orders", value, partition=0)
        node.refusals.append(Refused(400, "invalid_input", field="without"))
        asked = len(node.requests)
        source = NodeSource(client, columns=["offset"])
        for _ in range(2):
            frames = [f for b in source.read_messages("orders", 0, 0, 2) for f in b.frames]
            assert [f.values(0, f.header.message_count) for f in frames] == [[b"1"], [b"2"]]
        reads = ["without=" in target for _, target in node.requests[asked:]]
    assert reads[0]
    assert not any(reads[1:])  # refused once, it is not asked for again
