"""Messages whose topic is deleted while a consumer has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from goq.client import Client, ReceivedMessage
from goq.client.messages import Settled
from goq.errors import TopicNotFound
from tests.support.node.running_node import running_node

Settle = Callable[[Client, list[ReceivedMessage]], Settled]
CALLS: dict[str, Settle] = {
    "ack": lambda q, messages: q.ack_many(messages),
    "nack": lambda q, messages: q.nack_many(messages, delay=0),
    "reject": lambda q, messages: q.reject_many(messages),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running_node() as node, Client(node.url) as client:
        yield client


def one_of_each(client: Client, *topics: str) -> list[ReceivedMessage]:
    """Return a message of each topic, leased for an hour."""
    for topic in topics:
        client.publish(topic, topic.encode())
    return [
        message
        for topic in topics
        for message in client.receive(topic, "g", max_messages=1, wait="30s", visibility="1h")
    ]


@pytest.mark.parametrize("verb", CALLS)
def test_only_receipts_of_the_deleted_topic_fail(client: Client, verb: str) -> None:
    messages = one_of_each(client, f"{verb}.a", f"{verb}.b", f"{verb}.c")
    client.delete_topic(f"{verb}.b")
    settled = CALLS[verb](client, messages)
    assert settled == (2, [(messages[1].receipt, TopicNotFound.code)])


def test_messages_of_other_topics_are_released(client: Client) -> None:
    messages = one_of_each(client, "left.a", "left.b")
    client.delete_topic("left.a")
    client.release_many(messages)
    assert [again.attempt for again in client.receive("left.b", "g", wait="30s")] == [1]


def test_a_message_by_itself_says_that_its_topic_is_gone(client: Client) -> None:
    [message] = one_of_each(client, "alone")
    client.delete_topic("alone")
    with pytest.raises(TopicNotFound):
        message.ack()
