"""Frames of many tenants enter in slices: nothing overtakes them, and nothing of them is missed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from goq import limits
from goq.broker.group.message_changes import MessageChanges
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import TooManyRequests
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.harness import (
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    publish,
    run,
)
from tests.support.effort import first_of
from tests.support.eventually import until

COUNT = 3 * limits.ROWS_ENTERED_AT_ONCE


async def put(topic: Topic, first: int, count: int, deliver_at_ms: int = 0) -> None:
    """Publish numbered messages, each of a tenant of its own."""
    numbers = range(first, first + count)
    columns = Columns(
        [b"%d" % number for number in numbers],
        tenants=[f"t{number % COUNT}" for number in numbers],
        deliver_at_ms=[deliver_at_ms] * count if deliver_at_ms else None,
    )
    await topic.publisher.publish_frames([(0, FrameView.parse(encode_frame(columns)))])


async def drain(topic: Topic, group: str) -> list[int]:
    """Receive and ack everything."""
    values: list[int] = []
    while found := await topic.receiver.receive(group, options(1_000)):
        values += [int(value) for _, _, value in leased(found)]
        await ack(topic, group, found)
    return values


@pytest.mark.parametrize("is_known", [False, True])
def test_messages_of_a_large_frame_are_received_once_and_in_order(
    tmp_path: Path, is_known: bool
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            if is_known:
                assert await drain(topic, "g") == await drain(topic, "h") == []
            await put(topic, 0, COUNT)
            assert topic.partitions[0].ready_manager.entering is not None
            batch = await topic.receiver.receive("h", options(2 * COUNT))
            assert len(leased(batch)) == COUNT
            await put(topic, COUNT, 2)  # of the first two tenants
            await put(topic, COUNT + 2, COUNT)
            await publish(topic, b"%d" % (2 * COUNT + 2))
            found = await drain(topic, "g")
            assert sorted(found) == list(range(2 * COUNT + 3))
            assert topic.partitions[0].ready_manager.entering_bytes == 0
            for tenant in (0, 1, 2, COUNT - 1):
                own = [n for n in found if n % COUNT == tenant and n <= 2 * COUNT + 1]
                assert own == sorted(own)
            assert await drain(topic, "another") != []

    run(main())


def test_delayed_messages_of_a_large_frame_mature_though_they_are_due_at_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            assert await drain(topic, "g") == []
            await put(topic, 0, COUNT, clock.wall_ms() + 5)
            assert topic.partitions[0].ready_manager.entering is not None
            await put(topic, COUNT, 1, clock.wall_ms() + 1)
            clock.advance_ms(10)
            found: list[int] = []

            async def has_all() -> bool:
                found.extend(await drain(topic, "g"))
                return len(found) > COUNT

            await until(has_all)
            assert sorted(found) == list(range(COUNT + 1))

    run(main())


def test_single_messages_cannot_be_changed_while_a_large_frame_enters(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await put(topic, 0, COUNT, clock.wall_ms() + 60_000)
            assert topic.partitions[0].ready_manager.entering is not None
            with pytest.raises(TooManyRequests):
                topic.partitions[0].ready_manager.check_changeable()
            await MessageChanges(topic.partitions[0], COUNT - 1, ()).cancel("late")
            assert topic.partitions[0].delayed_count == COUNT - 1

    run(main())


@pytest.mark.parametrize("seed", first_of(range(6), quick=1))
def test_rebuilds_and_restarts_meanwhile_miss_and_double_nothing(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        draw, metadata = random.Random(seed), MemoryMetadata()
        published, found = 0, list[int]()
        for _ in range(2):
            async with broker_on(tmp_path, metadata=metadata) as broker:
                topic = broker.topics.get("t") or await broker.topic_admin.create("t", 1)
                for _ in range(6):
                    count = draw.choice((1, 5, COUNT))
                    await put(topic, published, count)
                    published += count
                    what = draw.randrange(4)
                    if what == 0:
                        weights = f"t0={draw.randrange(1, 9)}"
                        await broker.topic_admin.alter("t", {"tenants.weights": weights})
                    elif what == 1:
                        batch = await topic.receiver.receive("g", options(700))
                        found += [int(value) for _, _, value in leased(batch)]
                        await ack(topic, "g", batch)
                    elif what == 2:
                        await asyncio.sleep(0)
        async with broker_on(tmp_path, metadata=metadata) as broker:
            found += await drain(broker.topic("t"), "g")
        assert sorted(found) == list(range(published))

    run(main())
