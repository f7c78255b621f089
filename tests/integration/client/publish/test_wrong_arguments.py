"""Arguments that no message can have: each is an error of goq that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from goq.client import Client
from goq.errors import InvalidInput, LeaseLost
from tests.support.node.running_node import running_node

HALF = "half \ud800"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", partitions=1)
        yield client


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("message", lambda q: q.publish("t", HALF)),
        ("message", lambda q: q.publish("t", "v", key=HALF)),
        ("headers", lambda q: q.publish("t", "v", headers={HALF: "v"})),
        ("headers", lambda q: q.publish("t", "v", headers={5: "v"})),
        ("message", lambda q: q.publish("t", "v", headers={"h": HALF})),
        ("tenant", lambda q: q.publish("t", "v", tenant=HALF)),
        ("tenant", lambda q: q.publish("t", "v", tenant=5)),
        ("message", lambda q: q.publish_many("t", [HALF])),
        ("partition", lambda q: q.publish("t", "v", partition=-1)),
        ("partition", lambda q: q.publish("t", "v", partition="0")),
        ("partition", lambda q: q.producer("t", partition=-1)),
        ("partition", lambda q: q.producer("t", partition=2**32)),
        ("partition", lambda q: q.producer("t", partition=True)),
        ("topic", lambda q: q.publish(5, "v")),
        ("topic", lambda q: q.describe_topic(None)),
        ("dedup_id", lambda q: q.publish("t", "v", dedup_id=HALF)),
        ("reason", lambda q: q.nack("t", "g", ["0:1:2"], reason=HALF)),
    ],
)
def test_a_wrong_argument_is_named(client: Any, field: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput) as raised:
        call(client)
    assert raised.value.field is not None
    assert field in raised.value.field
    assert raised.value.field in raised.value.detail or field in raised.value.detail


def test_a_message_that_this_caller_has_settled_is_not_said_to_be_anothers(client: Client) -> None:
    client.publish("t", b"v")
    [message] = client.receive("t", "again", max_messages=1)
    message.ack()
    with pytest.raises(LeaseLost, match="it was settled before, or its lease ended"):
        message.nack()
