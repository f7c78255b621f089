"""Topics that open after a node is ready: each once, named ones first, failed ones again."""

from __future__ import annotations

import asyncio

import pytest

from goq.broker.topic.admin.start_queue import StartQueue
from goq.errors import PartitionOffline, ShuttingDown, StorageFailed
from goq.storage.catalog.rows import TopicRow


def rows(count: int, partitions: int = 2) -> list[TopicRow]:
    return [TopicRow(f"t{number}", partitions, {}, id=number + 1) for number in range(count)]


class Opening:
    """Opens topics one after the other, once the gate is open; the names in ``failing`` fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self.failing: dict[str, Exception] = {}

    async def __call__(self, row: TopicRow) -> None:
        self.begun.append(row.name)
        await self.gate.wait()
        if row.name in self.failing:
            raise self.failing.pop(row.name)


def test_the_start_opens_topics_up_to_its_bound_and_at_least_one() -> None:
    for partitions_max, expected in ((1, 1), (2, 1), (5, 2), (6, 3), (100, 3)):
        queue = StartQueue(Opening(), partitions_max)
        first = queue.take(rows(3))
        assert len(first) == expected
        assert len(queue) == 3 - expected
        assert queue.partition_count == 2 * (3 - expected)


def test_a_topic_that_is_waited_for_opens_before_others_and_once() -> None:
    async def run() -> None:
        opening = Opening()
        queue = StartQueue(opening, 0)
        queue.take(rows(10))
        queue.start()
        waiting = [asyncio.create_task(queue.wait_for("t7")) for _ in range(3)]
        while len(opening.begun) < 3:
            await asyncio.sleep(0)
        assert sorted(opening.begun) == ["t1", "t2", "t7"]
        with pytest.raises(PartitionOffline):
            queue.check("t7")
        opening.gate.set()
        await asyncio.gather(*waiting)
        queue.check("t7")
        await queue.wait_for_all()
        assert sorted(opening.begun) == [f"t{number}" for number in range(1, 10)]
        assert len(queue) == 0
        await queue.close()

    asyncio.run(run())


def test_a_topic_that_fails_tells_who_waits_and_is_opened_again() -> None:
    async def run() -> None:
        opening = Opening()
        opening.gate.set()
        opening.failing = {"t1": StorageFailed("the disk failed"), "t2": RuntimeError("a bug")}
        queue = StartQueue(opening, 0)
        emptied: list[int] = []
        queue.on_empty = lambda: emptied.append(len(queue))
        queue.take(rows(4))
        with pytest.raises(StorageFailed):
            await queue.wait_for("t1")
        with pytest.raises(PartitionOffline, match="a bug"):
            await queue.wait_for("t2")
        assert "t1" in queue
        assert not emptied
        queue.start()
        await asyncio.wait_for(queue.tried.wait(), 30)
        await queue.wait_for_all()
        assert emptied == [0]
        await queue.close()

    asyncio.run(run())


def test_a_queue_that_is_stopped_opens_no_further_topic() -> None:
    async def run() -> None:
        opening = Opening()
        queue = StartQueue(opening, 0)
        queue.take(rows(5))
        queue.start()
        waiting = asyncio.create_task(queue.wait_for_all())
        while len(opening.begun) < 2:
            await asyncio.sleep(0)
        queue.stop()
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        assert not closing.done()  # a topic that is being opened is still to be closed
        opening.gate.set()
        await closing
        with pytest.raises(ShuttingDown):
            await waiting
        assert opening.begun == ["t1", "t2"]

    asyncio.run(run())


def test_a_topic_that_was_opened_meanwhile_is_not_opened_again() -> None:
    async def run() -> None:
        opening = Opening()
        opening.gate.set()
        queue = StartQueue(opening, 0)
        queue.take(rows(30))
        queue.start()
        await queue.wait_for("t29", "t28")
        await queue.wait_for_all()
        await queue.close()
        assert sorted(opening.begun) == sorted(f"t{number}" for number in range(1, 30))

    asyncio.run(run())


def test_a_queue_that_is_closed_opens_no_other_topic_though_one_waits_for_it() -> None:
    async def run() -> None:
        opening = Opening()
        queue = StartQueue(opening, 0)
        queue.take(rows(5))
        queue.start()
        while len(opening.begun) < 2:
            await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            async with asyncio.timeout(10):
                await queue.wait_for("t4")
        opening.gate.set()
        await closing
        assert opening.begun == ["t1", "t2"]

    asyncio.run(run())
