"""Acks of many handlers against a real node: few requests, and each message settled."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from goq import AsyncClient, Client
from goq.errors import LeaseLost
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

_COUNT = 300
_ACKS = re.compile(r'^goq_http_requests_total\{[^}]*route="[^"]*/ack"[^}]*\} (\d+)', re.M)


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        yield running


def _ack_requests(node: RunningNode) -> int:
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=10) as answer:
        return sum(int(count) for count in _ACKS.findall(answer.read().decode()))


def _settled(node: RunningNode) -> int:
    with Client(node.url) as client:
        return _COUNT - len(list(client.consume("t", group="g", until_empty=True)))


def test_tasks_that_ack_their_own_message_share_requests(node: RunningNode) -> None:
    async def run() -> None:
        async with AsyncClient(node.url) as client:
            await client.publish_many("t", [b"x"] * _COUNT)
            loop = client.consume("t", group="g", max_messages=_COUNT, prefetch=_COUNT)
            messages = [message async for message in loop]
            await asyncio.gather(*[message.ack() for message in messages])
            assert all(message.settled for message in messages)

    asyncio.run(run())
    assert 1 <= _ack_requests(node) < _COUNT / 10
    assert _settled(node) == _COUNT


def test_threads_that_ack_their_own_message_settle_each(node: RunningNode) -> None:
    with Client(node.url) as client, ThreadPoolExecutor(32) as threads:
        client.publish_many("t", [b"x"] * _COUNT)
        messages = list(client.consume("t", group="g", max_messages=_COUNT, prefetch=_COUNT))
        list(threads.map(lambda message: message.ack(), messages))
    assert 1 <= _ack_requests(node) < _COUNT
    assert _settled(node) == _COUNT


def test_a_lost_lease_among_them_is_told_to_its_own_task_alone(node: RunningNode) -> None:
    async def run() -> None:
        async with AsyncClient(node.url) as client:
            await client.publish_many("t", [b"x"] * _COUNT)
            messages = await client.receive("t", "g", max_messages=_COUNT)
            await messages[7].nack(delay="1h")
            acks = [message.ack() for message in messages]
            found = await asyncio.gather(*acks, return_exceptions=True)
            assert [n for n, each in enumerate(found) if isinstance(each, LeaseLost)] == [7]
            assert [each for each in found if each is not None and each is not found[7]] == []

    asyncio.run(run())


def test_an_ack_that_waits_for_its_partition_holds_up_none_of_another(node: RunningNode) -> None:
    async def run() -> None:
        async with AsyncClient(node.url) as client:
            await client.create_topic("two", partitions=2)
            for partition in range(2):
                await client.publish("two", b"x", partition=partition)
            first, other = sorted(
                await client.receive("two", "g", max_messages=2), key=lambda each: each.partition
            )
            partitions = node.node.broker.topics["two"].partitions
            closed = node.on_loop(lambda: partitions.take(0))
            waiting = asyncio.ensure_future(first.ack())
            await asyncio.to_thread(eventually, lambda: _ack_requests(node) >= 1)
            await asyncio.wait_for(other.ack(), 20)
            assert not waiting.done()
            node.on_loop(lambda: partitions.put(closed))
            await waiting

    asyncio.run(run())
