"""Loops and calls of a client that is closed meanwhile, or was before; on a whole node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from goq.client import AsyncClient, Client
from goq.errors import InvalidInput
from tests.support.node.running_node import RunningNode, running_node

TOPIC = "orders"


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": TOPIC, "partitions": 2})
        with Client(running.url) as client:
            client.publish_many(TOPIC, [b"one", b"two"])
        yield running


def test_a_loop_that_follows_a_log_ends_when_its_client_is_closed(node: RunningNode) -> None:
    client = Client(node.url)
    log = client.read_log([TOPIC, "later*"], follow=True)
    assert {next(log).value, next(log).value} == {b"one", b"two"}
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, log)
        client.close()
        assert rest.result(60) == []


def test_an_asynchronous_loop_that_follows_a_log_ends_when_its_client_is_closed(
    node: RunningNode,
) -> None:
    async def scenario() -> list[bytes | None]:
        client = AsyncClient(node.url)
        values: list[bytes | None] = []
        has_all = asyncio.Event()

        async def follow() -> None:
            async for message in client.read_log(TOPIC, follow=True):
                values.append(message.value)
                if len(values) == 2:
                    has_all.set()

        reader = asyncio.create_task(follow())
        await has_all.wait()
        await client.aclose()
        await asyncio.wait_for(reader, 60)
        return values

    assert set(asyncio.run(scenario())) == {b"one", b"two"}


def test_a_closed_client_leases_nothing(node: RunningNode) -> None:
    client = Client(node.url)
    before = client.consume(TOPIC, group="g", until_empty=True)
    client.close()
    after = client.consume(TOPIC, group="g")
    for loop in (before, after):
        with pytest.raises(InvalidInput, match="the client is closed"):
            next(loop)
    with Client(node.url) as other:
        assert len(other.receive(TOPIC, "g")) == 2


def test_every_call_of_a_closed_client_says_that_it_is_closed(node: RunningNode) -> None:
    client = Client(node.url)
    [message] = client.receive(TOPIC, "h", max_messages=1)
    producer = client.producer(TOPIC)
    client.close()
    for call in (
        client.list_topics,
        message.ack,
        lambda: client.publish(TOPIC, b"three"),
        lambda: client.publish_many(TOPIC, [b"three"]),
        lambda: client.receive(TOPIC, "h"),
        lambda: next(client.read_log(TOPIC)),
        lambda: producer.send(b"three"),
    ):
        with pytest.raises(InvalidInput, match="the client is closed"):
            call()
    assert producer.unsent == 0
    producer.close()
