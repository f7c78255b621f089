"""Topics that a test archives and compacts by hand, and each way to look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from goq.broker.broker import Broker
from goq.broker.search.partition_search import MessageQuery
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.broker.trace.trace import Trace
from goq.broker.trace.tracer import Tracer
from goq.clock import ManualClock
from goq.model import Message, MessageId, Receipt
from tests.support.broker.harness import MemoryMetadata, ack, broker_on, options, quiet
from tests.support.eventually import until

HOUR_MS = 3_600_000
ARCHIVE = {"retention__age": "1h", "segment__bytes": "64KiB", "archive": "true"}
COMPACT = {"cleanup": "compact", "segment__bytes": "64KiB", "compaction__tombstone_retention": "1h"}
BY_KEY, BY_HEADER = MessageQuery(key=b"k"), MessageQuery(header=("h", b"1"))


class World:
    """A broker that may be started again, with its clock and its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.metadata = MemoryMetadata()

    @asynccontextmanager
    async def broker(self, **settings: Any) -> AsyncIterator[Broker]:
        """Run the broker; nothing is compacted or deleted but when it is told to."""
        async with broker_on(
            self.path, clock=self.clock, metadata=self.metadata, **settings
        ) as broker:
            assert broker.compaction_manager._task is not None
            broker.compaction_manager._task.cancel()
            yield broker


async def put(topic: Topic, value: bytes, client_id: str | None = None, **more: Any) -> int:
    """Publish a message; return its offset."""
    placed = [RoutedMessage(0, Message(value, **more))]
    (stored,) = await topic.publisher.publish_messages(placed, client_id)
    return stored.offset


async def take(topic: Topic, group: str = "g", count: int = 10) -> int:
    """Receive and acknowledge; return how many."""
    return await ack(topic, group, await topic.receiver.receive(group, options(count)))


async def rejected(topic: Topic, group: str, given: Sequence[Receipt]) -> None:
    """Reject what was received."""
    await topic.settler.reject(group, given, "")


async def settled(topic: Topic) -> None:
    """Return when all that leaves has arrived, and everything is written."""
    await until(lambda: not any(p.outbox_entries for p in topic.partitions))
    for partition in topic.partitions:
        await quiet(partition)


async def retire(broker: Broker, clock: ManualClock, topic: Topic) -> None:
    """Seal what there is, and let retention have it."""
    await topic.partitions[0].trimmer.roll()
    clock.advance_ms(2 * HOUR_MS)
    await broker.retention_manager.apply()


def names(trace: Trace) -> list[str]:
    return [str(each.step.name) for each in trace.steps]


async def trace_of(broker: Broker, offset: int, topic: str = "t") -> Trace:
    return await Tracer(broker).trace(MessageId(topic, 0, offset))


async def life(world: World, broker: Broker, count: int) -> None:
    """Publish, acknowledge and archive messages, one after the other."""
    topic = await broker.topic_admin.create("t")
    for number in range(count):
        await put(topic, b"%d" % number, "shop", key=b"k%d" % (number % 2))
        await take(topic)
        await retire(broker, world.clock, topic)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 0x40
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


async def pages(broker: Broker, wanted: MessageQuery, limit: int) -> list[int]:
    """Return the offsets that all pages of a search have."""
    found: list[int] = []
    cursor = None
    while True:
        page = await broker.finder.find(broker.topic("t"), wanted, limit, cursor)
        assert not page.unreadable
        found += [each.offset for each in page.found]
        cursor = page.next
        if cursor is None:
            return found


async def sealed_keys(topic: Topic, *keys: bytes) -> None:
    """Publish a message of each key, and seal their segment."""
    for number, key in enumerate(keys):
        await put(topic, b"%d" % number, key=key, headers=(("h", b"1"),))
    await topic.partitions[0].trimmer.roll()
