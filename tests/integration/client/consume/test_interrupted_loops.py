"""Consume loops that are cancelled at any moment, on a whole node with its real clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from goq.client import AsyncClient, Client
from goq.client._sync.consume.delivery_stream import DeliveryStream
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

TOPIC = "orders"
GROUP = "billing"
STEPS = 60
STEP_S = 0.0005


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": TOPIC, "partitions": 1})
        yield running


def publish(node: RunningNode, count: int) -> None:
    with Client(node.url) as client:
        client.publish_many(TOPIC, [b"%d" % number for number in range(count)])


def streams(node: RunningNode) -> int:
    broker = node.node.broker
    assert broker is not None
    return len(broker.streams._streams)


async def take_nothing(client: AsyncClient) -> None:
    """Consume, and release what comes: the loop is cancelled while it waits."""
    async for message in client.consume(TOPIC, group=GROUP):
        try:
            await asyncio.sleep(3600)
        finally:
            await client.release_many([message])


async def cancel(task: asyncio.Task[None], *, times: int = 1) -> None:
    for _ in range(times - 1):
        task.cancel()
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def attempts(client: AsyncClient, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:  # a loop that was left may still give some back
        batch = await client.receive(TOPIC, GROUP, max_messages=count, wait="20s")
        assert batch
        found += [message.attempt for message in batch]
    return found


def test_a_loop_that_is_cancelled_costs_no_message_an_attempt_whenever_that_is(
    node: RunningNode,
) -> None:
    publish(node, 3)

    async def scenario() -> list[int]:
        async with AsyncClient(node.url) as client:
            for step in range(STEPS):
                loop = asyncio.create_task(take_nothing(client))
                await asyncio.sleep(step * STEP_S)
                await cancel(loop)
            return await attempts(client, 3)

    assert asyncio.run(scenario()) == [1, 1, 1]


@pytest.mark.parametrize("times", [2, 3])
def test_a_loop_whose_end_is_cancelled_too_takes_no_more_messages(
    node: RunningNode, times: int
) -> None:
    async def scenario() -> list[int]:
        async with AsyncClient(node.url) as cancelled, AsyncClient(node.url) as other:
            loop = asyncio.create_task(take_nothing(cancelled))
            await asyncio.to_thread(eventually, lambda: streams(node))
            await cancel(loop, times=times)
            await asyncio.to_thread(eventually, lambda: not streams(node))
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await asyncio.to_thread(publish, node, 3)
            return await attempts(other, 3)

    assert asyncio.run(scenario()) == [1, 1, 1]


def test_a_loop_whose_end_is_interrupted_leaves_its_connections(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: DeliveryStream) -> None:
        raise KeyboardInterrupt

    publish(node, 1)
    with Client(node.url) as client:
        loop = client.consume(TOPIC, group=GROUP)
        next(loop)
        monkeypatch.setattr(DeliveryStream, "end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.close()
        eventually(lambda: not streams(node))
