"""A consumer behind a proxy that holds answers back: a stream would keep its leases inside it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from goq.client import AsyncClient, Client
from tests.support.effort import first_of
from tests.support.node.fixtures import node, topic
from tests.support.node.holding_proxy import holding_proxy
from tests.support.node.running_node import RunningNode

__all__ = ["node", "topic"]
COUNT = 30


def publish(node: RunningNode, topic: str) -> None:
    messages = [{"value": str(number)} for number in range(COUNT)]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "goq.client"]


@pytest.fixture(params=first_of([True, False], quick=1), ids=["the head passes", "nothing passes"])
def passes_head(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_consumer_polls_when_its_stream_is_held_back_and_says_so_once(
    node: RunningNode, topic: str, passes_head: bool, caplog: pytest.LogCaptureFixture
) -> None:
    publish(node, topic)
    found = []
    with (
        caplog.at_level(logging.WARNING, "goq.client"),
        holding_proxy(node.address, passes_head=passes_head) as url,
        Client(url) as client,
    ):
        for message in client.consume(topic, group="g", timeout="60s"):
            found.append(message)
            message.ack()
            if len(found) == COUNT:
                break
    assert sorted(int(message.value) for message in found) == list(range(COUNT))
    [line] = told(caplog)
    assert url in line
    assert "a proxy before it holds answers back" in line


def test_an_awaiting_consumer_polls_too(
    node: RunningNode, topic: str, passes_head: bool, caplog: pytest.LogCaptureFixture
) -> None:
    publish(node, topic)

    async def consume(url: str) -> list[int]:
        found: list[int] = []
        async with AsyncClient(url) as client:
            async for message in client.consume(topic, group="g", timeout="60s"):
                found.append(int(message.value))
                await message.ack()
                if len(found) == COUNT:
                    break
        return found

    with holding_proxy(node.address, passes_head=passes_head) as url:
        assert sorted(asyncio.run(consume(url))) == list(range(COUNT))
    assert len(told(caplog)) == 1


def test_a_consumer_without_a_proxy_says_nothing(
    node: RunningNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(node, topic)
    with Client(node.url) as client:
        for number, message in enumerate(client.consume(topic, group="g", timeout="60s"), 1):
            message.ack()
            if number == COUNT:
                break
    assert told(caplog) == []
