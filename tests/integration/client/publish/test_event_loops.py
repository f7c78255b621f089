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
