"""A broker that compacts when it is told to, and what its topics serve afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from goq.broker.broker import Broker
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.broker.harness import ack, broker_on, leased, options
from tests.support.broker.partition_internals import message_log

Pair = tuple[bytes | None, bytes | None]
HOUR_US = 3_600_000_000
COMPACT = {"cleanup": "compact", "segment__bytes": "64KiB", "compaction__tombstone_retention": "1h"}


@asynccontextmanager
async def by_hand(path: Path, **given: Any) -> AsyncIterator[Broker]:
    """Run a broker that compacts only when it is told to."""
    async with broker_on(path, **given) as broker:
        assert broker.compaction_manager._task is not None
        broker.compaction_manager._task.cancel()
        yield broker


async def put(topic: Topic, *pairs: Pair, deliver_at_ms: int = 0) -> list[int]:
    """Publish messages, each in a frame of its own; return their offsets."""
    offsets = []
    for key, value in pairs:
        message = Message(value, key, deliver_at_ms=deliver_at_ms)
        (stored,) = await topic.publisher.publish_messages([RoutedMessage(0, message)])
        offsets.append(stored.offset)
    return offsets


async def seal(topic: Topic) -> None:
    await topic.partitions[0].trimmer.roll()


def served(topic: Topic) -> dict[int, Pair]:
    """Return every message that reading the log gives, by offset."""
    log, found = message_log(topic.partitions[0]), dict[int, Pair]()
    offset = log.start_offset
    while offset < log.end_offset:
        reading = log.reader.read(offset, log.end_offset)
        assert not reading.damage
        assert reading.next_offset > offset
        for view in reading.frames:
            found.update(kept_of(view))
        offset = reading.next_offset
    return found


def kept_of(view: FrameView) -> dict[int, Pair]:
    count, base = view.header.message_count, view.header.base_offset
    kept = zip(view.messages(0, count), view.kept(0, count), strict=True)
    return {base + row: (m.key, m.value) for row, (m, is_kept) in enumerate(kept) if is_kept}


async def got(topic: Topic, group: str, count: int = 10) -> list[tuple[int, bytes]]:
    """Receive, acknowledge, and return offsets and values until there is nothing more."""
    found: list[tuple[int, bytes]] = []
    while deliveries := await topic.receiver.receive(group, options(count)):
        found += [(offset, value) for offset, _, value in leased(deliveries)]
        await ack(topic, group, deliveries)
    return found


async def compacted(broker: Broker) -> int:
    return await broker.compaction_manager.apply()
