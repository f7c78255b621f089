"""Leases that reached nobody go back to the node that leads their partition by now."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from goq import limits
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.push_streams import CONNECTION_CLOSED
from goq.cluster.forwarding import lease_return
from goq.cluster.forwarding.lease_return import RETURN_HELD, RETURN_LEASES, LeaseReturn
from goq.errors import GoqError, NotLeader, TimedOut, TopicNotFound
from goq.model import Receipt

BATCH = LeasedBatch(2, 7, "c", 0, [(3, 5, 1)], [], is_cut=False)
ASKED = ["t", "g", 2, [[7, 3, 5]], ""]


class Led:
    """The leases of a partition that this node leads; each failure is that of a commit."""

    def __init__(self, *failures: GoqError) -> None:
        self.failures = list(failures)
        self.done: list[tuple[object, ...]] = []
        self.held: list[tuple[int, int, int]] = []
        self.asked_for: list[tuple[str, ...]] = []

    def check_room(self) -> None:
        pass

    def undo_receive(self, *lease: object) -> None:
        self.done.append(lease)

    def held_by(self, *holder: str) -> list[tuple[int, int, int]]:
        self.asked_for.append(holder)
        return self.held

    def end_leases(self, *leases: object) -> None:
        self.done.append(leases)

    async def wait_for_commit(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class Table(dict[int, Any]):
    def __missing__(self, number: int) -> Any:
        raise NotLeader(f"this node does not lead partition {number}")


class Case:
    """A node that leads nothing, and what the leaders of partitions answer, one after another."""

    def __init__(self, *failures: GoqError, led: Any = None) -> None:
        self.failures = list(failures)
        self.asked: list[Any] = []
        self.partitions = Table({} if led is None else {2: SimpleNamespace(leases=led)})
        receiver = SimpleNamespace(wake=lambda: None)
        topic = SimpleNamespace(partitions=self.partitions, receiver=receiver)
        broker: Any = SimpleNamespace(topic=lambda _name: topic)
        self.leading: list[str | None] = ["n2"]
        self.leases = LeaseReturn(broker, self._call, lambda _topic: self.leading)

    async def _call(self, topic: str, number: int, path: str, body: bytes) -> bytes:
        assert (topic, path) == ("t", RETURN_LEASES)
        self.asked.append(msgspec.msgpack.decode(body))
        assert self.asked[-1][2] == number
        if self.failures:
            raise self.failures.pop(0)
        return b""

    async def finish(self) -> None:
        await self.leases._tasks.finish()


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_return, "_RETRY_S", 0)


def test_a_lease_is_returned_once_the_partition_has_a_leader_that_answers() -> None:
    async def run() -> None:
        case = Case(NotLeader("none now"), TimedOut("lost"))
        case.leases.return_lease("t", "g", BATCH)
        await case.finish()
        assert case.asked == [ASKED] * 3

    asyncio.run(run())


def test_leases_of_several_partitions_wait_for_no_other_leader() -> None:
    async def run() -> None:
        case = Case(NotLeader("none now"))
        receipts = [Receipt(0, 5, 1, 2), Receipt(2, 7, 3, 5), Receipt(0, 6, 2, 3)]
        await case.leases.return_leases("t", "g", receipts)
        first = ["t", "g", 0, [[5, 1, 2], [6, 2, 3]], ""]
        assert case.asked == [first, ASKED, first]

    asyncio.run(run())


def test_what_cannot_be_returned_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        case = Case(TopicNotFound("it is deleted"))
        case.leases.return_lease("t", "g", BATCH)
        await case.finish()
        assert case.asked == [ASKED]
        monkeypatch.setattr(limits, "LEASE_RETURN_S", 0)
        case.failures = [NotLeader("none now")]
        case.leases.return_lease("t", "g", BATCH)
        await case.finish()
        await case.leases.close()
        case.leases.return_lease("t", "g", BATCH)
        await case.finish()
        assert case.asked == [ASKED] * 2

    asyncio.run(run())


def test_a_return_that_may_be_lost_with_its_leader_is_sent_again() -> None:
    async def run() -> None:
        led = Led(TimedOut("another node leads"))
        case = Case(led=led)
        case.leases.return_lease("t", "g", BATCH)
        await case.finish()
        assert led.done == [("g", 7, [(3, 5, 0)])] * 2
        asked = msgspec.msgpack.encode(ASKED)
        led.failures = [TimedOut("another node leads")]
        with pytest.raises(TimedOut):
            await case.leases.handle_return("n2", asked)
        assert await case.leases.handle_return("n2", asked) == []

    asyncio.run(run())


def test_a_leader_that_starts_and_has_not_opened_the_topic_is_asked_again() -> None:
    async def run() -> None:
        case = Case()

        def not_yet(_name: str) -> Any:
            raise TopicNotFound("it is not open yet")

        case.leases._broker.topic = not_yet  # type: ignore[method-assign]
        with pytest.raises(NotLeader):
            await case.leases.handle_return("n2", msgspec.msgpack.encode(ASKED))

    asyncio.run(run())


def test_a_node_that_stops_returns_what_is_under_way_but_waits_for_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        case = Case(NotLeader("none now"))
        case.leases.return_lease("t", "g", BATCH)
        closing = asyncio.ensure_future(case.leases.close())
        await asyncio.sleep(0)
        case.leases.return_lease("t", "g", BATCH)
        await closing
        assert case.asked == [ASKED] * 3
        case.asked.clear()
        monkeypatch.setattr(limits, "LEASE_RETURN_AT_STOP_S", 0)
        await case.leases.return_leases("t", "g", [Receipt(2, 7, 3, 5)])
        assert case.asked == []
        case = Case(*[NotLeader("none now")] * 1000)
        case.leases.return_lease("t", "g", BATCH)
        await case.leases.close()
        assert len(case.asked) < 1000

    asyncio.run(run())


def test_the_receipts_of_one_lease_are_returned_together() -> None:
    async def run() -> None:
        case = Case()
        receipts = [Receipt(2, 7, offset, offset + 1) for offset in (3, 4, 6, 7)]
        await case.leases.return_leases("t", "g", [*receipts, Receipt(2, 8, 8, 9)])
        assert case.asked == [["t", "g", 2, [[7, 3, 5], [7, 6, 8], [8, 8, 9]], ""]]

    asyncio.run(run())


@pytest.mark.parametrize("reason", ["", CONNECTION_CLOSED])
def test_what_a_stream_or_a_receive_held_is_asked_for_until_each_partition_has_a_leader(
    reason: str,
) -> None:
    async def run() -> None:
        led = Led()
        led.held = [(7, 3, 5), (9, 8, 9)]
        leader = Case(led=led)
        asked: list[list[int]] = []

        async def call(_topic: str, number: int, path: str, body: bytes) -> bytes:
            assert path == RETURN_HELD
            asked.append(msgspec.msgpack.decode(body)[3])
            assert asked[-1][0] == number
            if len(asked) == 1:
                raise NotLeader("it has not opened them")
            if len(asked) == 3:
                return msgspec.msgpack.encode(asked[-1])
            (answer,) = await leader.leases.handle_held("n1", body)
            case.leading = ["n3", "n3", "n2"]
            return bytes(answer)

        case = Case()
        case.leading = ["n2", None, "n2"]
        case.leases._call_leader = call
        case.leases.return_held("t", "g", "holder", reason)
        await case.finish()
        assert asked == [[0, 2], [0, 2], [0, 1]]
        done = [("g", [7, 9], reason)] if reason else [("g", 7, [(3, 5, 0)]), ("g", 9, [(8, 9, 0)])]
        assert led.done == done
        assert led.asked_for == [("g", "holder")]

    asyncio.run(run())


def test_a_lease_whose_connection_closed_ends_at_the_leader() -> None:
    async def run() -> None:
        led = Led()
        case, leader = Case(), Case(led=led)
        case.leases.end_leases("t", "g", 2, [7])
        await case.finish()
        await leader.leases.handle_return("n2", msgspec.msgpack.encode(case.asked[0]))
        assert led.done == [("g", [7], CONNECTION_CLOSED)]
        await case.leases.close()
        case.leases.end_leases("t", "g", 2, [7])
        await case.finish()
        assert len(case.asked) == 1

    asyncio.run(run())
