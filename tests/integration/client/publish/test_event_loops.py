"""An asynchronous client that is used by one event loop after the other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from goq.client import AsyncClient
from goq.errors import InvalidInput
from tests.support.client.fake_node import FakeNode

RUNS = 5

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the loops that ended


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    yield
    gc.collect()


def test_a_client_publishes_exactly_once_under_each_of_several_runs(node: FakeNode) -> None:
    [partition] = node.create("orders")
    client = AsyncClient(node.url)

    async def publish(run: int) -> None:
        values = [b"%d" % (run * 10 + number) for number in range(3)]
        await asyncio.gather(*(client.publish("orders", value) for value in values))

    for run in range(RUNS):
        asyncio.run(publish(run))
    asyncio.run(client.aclose())
    wanted = {b"%d" % (run * 10 + number) for run in range(RUNS) for number in range(3)}
    stored = partition.values()
    assert len(stored) == len(wanted)
    assert set(stored) == wanted


def test_a_run_that_ended_within_a_publish_does_not_keep_the_next_one(node: FakeNode) -> None:
    [partition] = node.create("orders")
    client = AsyncClient(node.url)

    async def leave() -> None:
        for number in range(3):
            task = asyncio.create_task(client.publish("orders", b"%d" % number))
            task.add_done_callback(lambda _: None)
        await asyncio.to_thread(node.eventually, lambda: node.paths("POST", "/messages"))

    node.may_publish.clear()
    asyncio.run(leave())
    node.may_publish.set()
    asyncio.run(client.publish("orders", b"next"))
    asyncio.run(client.aclose())
    assert partition.values().count(b"next") == 1
    assert len(partition.values()) == len(set(partition.values()))


def test_a_client_is_refused_to_a_second_loop_while_the_first_runs(node: FakeNode) -> None:
    node.create("orders")
    client = AsyncClient(node.url)

    async def scenario() -> None:
        await client.publish("orders", b"first")
        raised: list[BaseException] = []

        def other() -> None:
            try:
                asyncio.run(client.publish("orders", b"second"))
            except InvalidInput as error:
                raised.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        await asyncio.to_thread(thread.join)
        with pytest.raises(InvalidInput, match="one event loop"):
            raise raised[0]
        await client.publish("orders", b"third")
        await client.aclose()

    asyncio.run(scenario())


def test_a_producer_in_a_task_that_the_end_of_a_run_cancels_stores_its_messages(
    node: FakeNode,
) -> None:
    [partition] = node.create("orders")

    async def produce(sent: asyncio.Event) -> None:
        async with AsyncClient(node.url).producer("orders", linger="1h") as producer:
            await producer.send(b"sent before")
            sent.set()
            await asyncio.Event().wait()

    async def scenario() -> asyncio.Task[None]:
        sent = asyncio.Event()
        task = asyncio.create_task(produce(sent))
        await sent.wait()
        await asyncio.sleep(0)
        return task

    run = threading.Thread(target=asyncio.run, args=[scenario()], daemon=True)
    run.start()
    run.join(10)
    assert not run.is_alive()
    assert partition.values() == [b"sent before"]


def test_a_producer_is_flushed_and_closed_under_a_later_run(node: FakeNode) -> None:
    [partition] = node.create("orders")
    client = AsyncClient(node.url)
    producer = client.producer("orders", linger="1h")
    asyncio.run(producer.send(b"first"))
    asyncio.run(producer.flush())
    asyncio.run(producer.send(b"second"))
    asyncio.run(producer.aclose())
    asyncio.run(client.aclose())
    assert partition.values() == [b"first", b"second"]
