"""Where messages and frames without a key go, and what is refused, on a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.publisher import ANY_PARTITION, TopicPublisher
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput, NotLeader, PartitionNotFound, PartitionOffline, TopicReadOnly
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.cluster.replication.loop import run_simulated


class Case:
    """A topic with four partitions, of which this node leads those that are given."""

    def __init__(self, *here: int, chance: float = 0.3, remote: Any = None) -> None:
        self.table = PartitionTable("t")
        self.table.count = 4
        self.opened: dict[int, Any] = {}
        for number in here or range(4):
            identity, fine = SimpleNamespace(number=number), SimpleNamespace(error=None)
            self.opened[number] = SimpleNamespace(
                identity=identity, availability=fine, appender=f"appender {number}"
            )
            self.table.put(self.opened[number])
        self.publisher = TopicPublisher("t", TopicSettings(), self.table, remote, lambda: chance)

    def take_offline(self, number: int) -> None:
        self.opened[number].availability.error = PartitionOffline("no")

    def place(self, size_bytes: int = 1) -> int:
        return self.publisher._place(None, Message(bytes(size_bytes)))


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_simulated(steps())


@pytest.mark.parametrize(("chance", "first"), [(0.0, 0), (0.3, 1), (0.999, 3)])
def test_the_first_partition_is_by_chance_and_all_share_it(chance: float, first: int) -> None:
    async def steps() -> None:
        case = Case(chance=chance)
        assert [case.place() for _ in range(5)] == [first] * 5

    run(steps)


def test_the_next_partition_follows_after_enough_bytes() -> None:
    async def steps() -> None:
        case, half = Case(), limits.STICKY_BYTES // 2
        assert [case.place(half) for _ in range(7)] == [1, 1, 2, 2, 3, 3, 0]
        exact = Case()
        sizes = (limits.STICKY_BYTES - 1, 1, 1)
        assert [exact.place(size) for size in sizes] == [1, 1, 2]

    run(steps)


def test_the_next_partition_follows_after_some_time() -> None:
    async def steps() -> None:
        case = Case()
        assert case.place() == 1
        await asyncio.sleep(limits.STICKY_S * 0.99)
        assert case.place() == 1
        await asyncio.sleep(limits.STICKY_S * 0.01)
        assert case.place() == 2
        await asyncio.sleep(limits.STICKY_S * 0.99)
        assert case.place() == 2
        await asyncio.sleep(10 * limits.STICKY_S)
        assert case.place() == 3

    run(steps)


def test_partitions_that_are_offline_or_led_elsewhere_are_passed_over() -> None:
    async def steps() -> None:
        case = Case()
        for number in (1, 2):
            case.take_offline(number)
        assert case.place() == 3
        assert Case(0, 2).place() == 2
        assert Case(0).place() == 0
        nowhere = Case()
        for number in range(4):
            nowhere.take_offline(number)
        assert nowhere.place() == 1

    run(steps)


def test_a_key_or_a_dedup_id_decides_whatever_is_sticky() -> None:
    async def steps() -> None:
        case = Case()
        for message in (Message(b"v", b"key"), Message(b"v", dedup_id=b"0123456789abcdef")):
            assert len({case.publisher._place(None, message) for _ in range(9)}) == 1
        assert case.publisher._place(2, Message(b"v", b"key")) == 2
        places = {case.publisher._place(None, Message(b"v", b"%d" % n)) for n in range(99)}
        assert places == {0, 1, 2, 3}
        with pytest.raises(PartitionNotFound):
            case.publisher._place(4, Message(b"v"))

    run(steps)


def test_a_frame_may_leave_its_partition_open_unless_it_has_keys_or_dedup_ids() -> None:
    async def steps() -> None:
        case = Case()

        def place(partition: int, **columns: Any) -> int:
            view = FrameView.parse(encode_frame(Columns([b"v"], **columns)))
            return case.publisher._place_frame(partition, view)

        assert place(ANY_PARTITION) == 1
        assert place(3, keys=[b"k"]) == 3
        for columns in ({"keys": [b"k"]}, {"dedup_ids": [b"0123456789abcdef"]}):
            with pytest.raises(InvalidInput):
                place(ANY_PARTITION, **columns)
        with pytest.raises(PartitionNotFound):
            place(4)

    run(steps)


def test_a_partition_is_published_to_here_or_on_the_node_that_leads_it() -> None:
    async def steps() -> None:
        case = Case(0, remote=lambda topic, number: f"{topic} {number} elsewhere")
        assert case.publisher.target(0) == "appender 0"
        assert case.publisher.target(3) == "t 3 elsewhere"
        with pytest.raises(PartitionNotFound):
            case.publisher.target(4)
        with pytest.raises(NotLeader):
            Case(0).publisher.target(3)
        case.publisher.refusal = TopicReadOnly("it is in doubt")
        for number in (0, 3):
            with pytest.raises(TopicReadOnly):
                case.publisher.target(number)
            assert case.publisher.own_target(number)

    run(steps)
