"""Push streams of a broker with one topic, and consumers that read them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from goq.broker.broker import Broker
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.push_streams import PushStream, PushStreamOptions
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from tests.support.broker.harness import broker_on, leased, options, publish, run
from tests.support.eventually import until

GROUP = "g"


class Node:
    """A broker with one topic, and streams of it whose batches are kept."""

    def __init__(self, broker: Broker, topic: Topic, clock: ManualClock) -> None:
        self.broker, self.topic, self.clock = broker, topic, clock

    def open(self, credit: int = 100, **parameters: object) -> Reader:
        asked = {"consumer": "c", "messages_max": None, "visibility_ms": None} | parameters
        stream = PushStream(self.topic, GROUP, PushStreamOptions(credit=credit, **asked))
        self.broker.streams.open(stream)
        return Reader(stream)

    async def publish(self, *values: bytes, partition: int = 0) -> None:
        await publish(self.topic, *values, partition=partition)

    async def left(self) -> list[tuple[bytes, int]]:
        """Return value and attempt of what another consumer gets now, and lease it."""
        batches = await self.topic.receiver.receive(GROUP, options(100))
        return [(value, attempt) for _, attempt, value in leased(batches)]


class Reader:
    """A consumer that reads a stream as messages come."""

    def __init__(self, stream: PushStream) -> None:
        self.stream = stream
        self.batches: list[LeasedBatch] = []
        self.is_over = False
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while batches := await self.stream.next():
            self.batches += batches
        self.is_over = True

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.batches for _, _, value in leased([batch])]

    async def got(self, *values: bytes) -> None:
        """Wait for messages; they are all that came, and no more come."""
        await until(lambda: len(self.values) >= len(values))
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(self.values) == sorted(values)

    async def disconnect(self, node: Node) -> None:
        """Stop to read, and close the stream, as a broken connection does."""
        self.task.cancel()
        await asyncio.wait([self.task])
        node.broker.streams.close(self.stream)

    async def ended(self) -> None:
        await self.task
        assert self.is_over


def on_node(
    path: Path,
    test: Callable[[Node], Awaitable[None]],
    *,
    partitions: int = 1,
    ordering: str = "key",
) -> None:
    async def main() -> None:
        clock = ManualClock()
        settings = {"delivery__ordering": ordering}
        async with broker_on(path, clock=clock, partitions=partitions, **settings) as broker:
            node = Node(broker, await broker.topic_admin.create("t"), clock)
            await test(node)
            broker.streams.end_all()
            for stream in list(broker.streams._streams.values()):
                broker.streams.close(stream)

    run(main())


async def expire(node: Node, reader: Reader) -> None:
    """Let the leases of a stream run out, and another consumer take the messages."""
    count = reader.stream.account.in_flight
    node.clock.advance_ms(21)
    await until(lambda: reader.stream.account.expired_count == count)
