"""Arguments that no message can have: each is an error of goq that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from goq.client import Client
from goq.errors import InvalidInput, LeaseLost
from tests.support.node.running_node import running_node

HALF = "half \ud800"
NAIVE = datetime(2026, 1, 1)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", partitions=1)
        yield client


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("value", lambda q: q.publish("t", HALF)),
        ("key", lambda q: q.publish("t", "v", key=HALF)),
        ("headers", lambda q: q.publish("t", "v", headers={HALF: "v"})),
        ("headers", lambda q: q.publish("t", "v", headers={5: "v"})),
        ("headers", lambda q: q.publish("t", "v", headers={"h": HALF})),
        ("tenant", lambda q: q.publish("t", "v", tenant=HALF)),
        ("tenant", lambda q: q.publish("t", "v", tenant=5)),
        ("value", lambda q: q.publish_many("t", [HALF])),
        ("partition", lambda q: q.publish("t", "v", partition=-1)),
        ("partition", lambda q: q.publish("t", "v", partition="0")),
        ("partition", lambda q: q.producer("t", partition=-1)),
        ("partition", lambda q: q.producer("t", partition=2**32)),
        ("partition", lambda q: q.producer("t", partition=True)),
        ("topic", lambda q: q.publish(5, "v")),
        ("topic", lambda q: q.describe_topic(None)),
        ("dedup_id", lambda q: q.publish("t", "v", dedup_id=HALF)),
        ("reason", lambda q: q.nack("t", "g", ["0:1:2"], reason=HALF)),
        ("topic", lambda q: q.publish(["t"], "v")),
        ("acks", lambda q: q.publish("t", "v", acks=[])),
        ("headers", lambda q: q.publish("t", "v", headers=[("one", "two", "three")])),
        ("headers", lambda q: q.publish("t", "v", headers=5)),
        ("deliver_at", lambda q: q.publish("t", "v", deliver_at=NAIVE)),
        ("messages", lambda q: q.publish_many("t", "hello")),
        ("messages", lambda q: q.publish_many("t", b"hello")),
        ("messages", lambda q: q.publish_many("t", 5)),
        ("messages", lambda q: q.producer("t").send_many("hello")),
        ("values", lambda q: q.producer("t").send_values(["text"])),
        ("values", lambda q: q.producer("t").send_values([b"good", None])),
        ("values", lambda q: q.producer("t").send_values(b"hello")),
        ("values", lambda q: q.producer("t").send_values(iter([b"hello"]))),
        ("batch", lambda q: q.producer("t", batch="many")),
        ("topics", lambda q: q.consume(None, group="g")),
        ("topics", lambda q: q.consume(["t", 3], group="g")),
        ("max_messages", lambda q: q.consume("t", group="g", max_messages="3")),
        ("prefetch", lambda q: q.consume("t", group="g", prefetch=None)),
        ("consumer", lambda q: q.consume("t", group="g", consumer=-1)),
        ("consumer", lambda q: q.consume("t", group="g", consumer=HALF)),
        ("max_messages", lambda q: q.receive("t", "g", max_messages=None)),
        ("consumer", lambda q: q.receive("t", "g", consumer=HALF)),
        ("receipts", lambda q: q.ack("t", "g", None)),
        ("receipts", lambda q: q.ack("t", "g", "0:1:2")),
        ("receipts", lambda q: q.ack("t", "g", [HALF])),
        ("partition", lambda q: q.read("t", partition=HALF)),
        ("offset", lambda q: q.read("t", partition=0, offset="x")),
        ("limit", lambda q: q.read("t", partition=0, limit="x")),
        ("without", lambda q: q.read("t", partition=0, without="value")),
        ("without", lambda q: q.read("t", partition=0, without=[5])),
        ("from_time", lambda q: q.read("t", partition=0, from_time=NAIVE)),
        ("to_time", lambda q: q.read("t", partition=0, to_time=object())),
        ("partition", lambda q: q.read_log("t", partition=[])),
        ("from_offset", lambda q: q.read_log("t", from_offset="1")),
        ("last", lambda q: q.read_log("t", last="1")),
        ("servers", lambda q: Client(5)),
        ("servers", lambda q: Client([5])),
        ("token", lambda q: Client(token=5)),
        ("client_id", lambda q: Client(client_id=5)),
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


def test_wrong_values_leave_a_producer_as_it_was(client: Client) -> None:
    client.create_topic("poison", partitions=1)
    with client.producer("poison", linger="1h") as producer:
        producer.send(b"good")
        with pytest.raises(InvalidInput):
            producer.send_values(["text"])
        producer.flush()
        assert producer.unsent == 0
    assert [message.value for message in client.read_log("poison")] == [b"good"]


def test_a_producer_of_a_closed_client_takes_no_message() -> None:
    with running_node() as node:
        closed = Client(node.url)
        producer = closed.producer("t")
        closed.close()
        for send in (producer.send, lambda value: producer.send_values([value])):
            with pytest.raises(InvalidInput, match="the client is closed"):
                send(b"late")
        assert producer.unsent == 0
        producer.close()
