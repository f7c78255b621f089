"""Which files of keys are made in the background, and what ends or holds up that work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.broker.partition_context import PartitionId
from goq.broker.search.key_index_builder import KeyIndexBuilder
from goq.errors import ShuttingDown
from goq.storage.log.segment import Segment
from tests.support.storage.disk import InlineExecutor

HERE, GONE = PartitionId("t", 0), PartitionId("t", 1)


class Node:
    """A node whose partition 1 is not here; it notes the segments whose keys are indexed."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.built: list[int] = []
        self.fault: dict[int, Exception] = {}
        self.tasks: list[asyncio.Task[None]] = []
        given: Any = self
        self.builder = KeyIndexBuilder(
            given, InlineExecutor(), given, lambda identity: given if identity == HERE else None
        )

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def index_of(self, _partition: object) -> Node:
        return self

    def build(self, segment: Segment, _pause: object) -> None:
        self.built.append(segment.base_offset)
        if segment.base_offset in self.fault:
            raise self.fault[segment.base_offset]

    def seal(self, *offsets: int, identity: PartitionId = HERE) -> None:
        for offset in offsets:
            self.builder.on_seal(identity, Segment(Path("/t"), offset))

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)


def test_segments_are_indexed_in_turn_by_one_task_and_later_ones_by_another() -> None:
    async def run() -> None:
        node = Node()
        node.seal(0, 10, 20)
        assert len(node.tasks) == 1
        await node.done()
        assert node.built == [0, 10, 20]
        node.seal(30)
        assert len(node.tasks) == 2
        await node.done()
        assert node.built == [0, 10, 20, 30]

    asyncio.run(run())


def test_of_too_many_that_wait_the_oldest_are_left_to_a_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "KEYS_WAITING_MAX", 2)

    async def run() -> None:
        node = Node()
        node.seal(0, 10, 20)
        await node.done()
        assert node.built == [10, 20]

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError("no room"), ShuttingDown("stops")])
def test_a_file_that_cannot_be_made_and_a_partition_that_is_gone_hold_up_no_other(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.INFO, "goq.broker")

    async def run() -> None:
        node = Node()
        node.fault[0] = error
        node.seal(5, identity=GONE)
        node.seal(0, 10)
        await node.done()
        assert node.built == [0, 10]

    asyncio.run(run())
    assert len(caplog.messages) == 1


def test_a_node_that_stops_indexes_nothing_more() -> None:
    async def run() -> None:
        node = Node()
        node.seal(0, 10)
        node.is_stopped = True
        await node.done()
        assert node.built == []

    asyncio.run(run())
