"""Push streams: their credit, and what becomes of their messages at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from goq import clock, limits
from goq.errors import StreamNotFound, TimedOut, TooManyRequests
from tests.support.broker.harness import ack, leased, nack, options, receipts
from tests.support.broker.partition_internals import state_of
from tests.support.broker.push_streams import GROUP, Node, Reader, expire, on_node
from tests.support.eventually import until


def test_a_stream_gets_as_many_messages_as_its_credit_and_one_for_each_that_is_settled(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        reader = node.open(3)
        await node.publish(*(b"%d" % n for n in range(7)))
        await reader.got(b"0", b"1", b"2")
        assert reader.stream.account.in_flight == 3
        first = [receipts(reader.batches)[0]._replace(start=0, end=2)]
        count, failed = await node.topic.settler.acknowledge(GROUP, first)
        assert (count, failed) == (2, [])
        await reader.got(b"0", b"1", b"2", b"3", b"4")
        await node.topic.settler.nack(GROUP, [first[0]._replace(start=2, end=3)], None, "busy")
        await until(lambda: len(reader.values) == 6)
        assert reader.stream.account.in_flight == 3

    on_node(tmp_path, test)


def test_a_stream_ends_after_its_maximum_of_messages(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(b"0", b"1", b"2", b"3")
        reader = node.open(3, messages_max=3)
        await reader.ended()
        assert reader.values == [b"0", b"1", b"2"]
        assert await node.left() == [(b"3", 1)]
        with pytest.raises(StreamNotFound):
            node.broker.streams.find("t", GROUP, reader.stream.id)

    on_node(tmp_path, test, ordering="none")


def test_who_stops_waiting_for_a_stream_is_told_no_end_of_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        reader = node.open()
        await asyncio.sleep(0)
        reader.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.task
        assert not reader.is_over
        await node.publish(b"0")
        again = asyncio.ensure_future(reader.stream.next())
        assert [value for batch in await again for _, _, value in leased([batch])] == [b"0"]

    on_node(tmp_path, test)


def test_what_a_closed_connection_had_is_ready_again_at_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(b"0", b"1")
        await node.publish(b"2", partition=1)
        reader = node.open()
        await reader.got(b"0", b"1", b"2")
        one = receipts(reader.batches)[0]
        await node.topic.settler.acknowledge(GROUP, [one._replace(end=one.start + 1)])
        waiting = asyncio.ensure_future(node.topic.receiver.receive(GROUP, options(wait_ms=60_000)))
        await asyncio.sleep(0)
        assert len(node.broker.streams) == 1
        await reader.disconnect(node)
        assert len(node.broker.streams) == 0
        again = leased(await waiting) + leased(await node.topic.receiver.receive(GROUP, options()))
        settled = leased(reader.batches)[0][2]
        assert sorted(again_value for _, _, again_value in again) == sorted(
            {b"0", b"1", b"2"} - {settled}
        )
        assert {attempt for _, attempt, _ in again} == {2}

    on_node(tmp_path, test, partitions=2)


def test_thousands_of_leases_of_a_closed_connection_end_a_few_in_each_step_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEASES_ENDED_AT_ONCE", 2)
    monkeypatch.setattr(clock, "SLICE_S", 0.0)

    async def test(node: Node) -> None:
        reader = node.open()
        for number in range(5):
            await node.publish(b"%d" % number)
            await until(lambda number=number: len(reader.batches) == number + 1)
        group = state_of(node.topic.partitions[0]).groups[GROUP]
        assert len(group.leases) == 5
        await reader.disconnect(node)
        held = [len(group.leases)]
        while group.leases:
            await asyncio.sleep(0)
            held.append(len(group.leases))
        assert held == [3, 1, 0]

    on_node(tmp_path, test)


def test_leases_of_a_closed_connection_that_cannot_end_here_end_at_the_next_leader(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        elsewhere: list[object] = []
        node.broker.streams._end_elsewhere = lambda *leases: elsewhere.append(leases)
        await node.publish(b"0")
        await node.publish(b"1", partition=1)
        reader = node.open()
        await reader.got(b"0", b"1")
        tokens = {batch.partition: batch.token for batch in reader.batches}
        first, second = node.topic.partitions
        first.availability.take_offline("lost its latest events")
        lost = asyncio.get_running_loop().create_future()
        second.leases.end_leases = lambda *_leases: lost
        await reader.disconnect(node)
        assert elsewhere == [("t", GROUP, 0, [tokens[0]])]
        lost.set_exception(TimedOut("another node leads"))
        await asyncio.sleep(0)
        assert elsewhere[1:] == [("t", GROUP, 1, [tokens[1]])]

    on_node(tmp_path, test, partitions=2)


def test_a_consumer_that_ends_its_stream_keeps_its_messages(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(b"0", b"1")
        reader = node.open()
        await reader.got(b"0", b"1")
        streams = node.broker.streams
        assert streams.find("t", GROUP, reader.stream.id) is reader.stream
        for topic, group, name in (("u", GROUP, None), ("t", "h", None), ("t", GROUP, "x")):
            with pytest.raises(StreamNotFound):
                streams.find(topic, group, name or reader.stream.id)
        reader.stream.end()
        await reader.ended()
        with pytest.raises(StreamNotFound):
            streams.find("t", GROUP, reader.stream.id)
        streams.close(reader.stream)
        await node.publish(b"2")
        assert await node.left() == [(b"2", 1)]
        assert await ack(node.topic, GROUP, reader.batches) == 2

    on_node(tmp_path, test)


def test_all_streams_end_when_the_node_stops(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        readers = [node.open(consumer=name) for name in "ab"]
        await asyncio.sleep(0)
        node.broker.streams.end_all()
        for reader in readers:
            await reader.ended()

    on_node(tmp_path, test)


def test_a_stream_ends_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        has_room, full = node.open(), node.open(0, consumer="d")
        await until(lambda: node.topic.receiver.waiters.count(GROUP))
        await node.broker.topic_admin.delete("t")
        await has_room.ended()
        await full.ended()

    on_node(tmp_path, test)


def test_a_grant_is_a_number_beyond_what_is_in_flight_or_a_maximum(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(*(b"%d" % n for n in range(9)))
        reader = node.open(2)
        await reader.got(b"0", b"1")
        reader.stream.grant(3)
        assert reader.stream.account.credit == 5
        await reader.got(*(b"%d" % n for n in range(5)))
        reader.stream.grant(0, 7)
        await reader.got(*(b"%d" % n for n in range(7)))
        reader.stream.grant(0, 1)
        await ack(node.topic, GROUP, reader.batches[:1])
        await reader.got(*(b"%d" % n for n in range(7)))
        reader.stream.grant(10**9)
        assert reader.stream.account.credit == limits.STREAM_IN_FLIGHT_MESSAGES_MAX
        await reader.got(*(b"%d" % n for n in range(9)))

    on_node(tmp_path, test)


SIGNS: dict[str, Callable[[Node, Reader], Awaitable[object]]] = {}


def sign(of: Callable[[Node, Reader], Awaitable[object]]) -> None:
    SIGNS[of.__name__] = of


@sign
async def an_ack_that_comes_too_late(node: Node, reader: Reader) -> None:
    count, failed = await node.topic.settler.acknowledge(GROUP, receipts(reader.batches[:1]))
    assert (count, [each.code for each in failed]) == (0, ["lease_lost"])


@sign
async def a_nack(node: Node, reader: Reader) -> None:
    await nack(node.topic, GROUP, reader.batches[:1])


@sign
async def an_extension(node: Node, reader: Reader) -> None:
    deadline_ms = node.clock.wall_ms() + 1_000
    await node.topic.settler.extend(GROUP, receipts(reader.batches[:1]), deadline_ms)


@sign
async def a_heartbeat(node: Node, _reader: Reader) -> None:
    node.topic.settler.on_heartbeat(GROUP, "c")


@sign
async def more_credit(_node: Node, reader: Reader) -> None:
    reader.stream.grant(2)


@pytest.mark.parametrize("credit", [0, 2])
def test_a_maximum_counts_at_once_for_a_stream_that_waits_and_another_gets_the_rest(
    tmp_path: Path, credit: int
) -> None:
    async def test(node: Node) -> None:
        waiting = node.open(100)
        await until(lambda: node.topic.receiver.waiters.count(GROUP) == 1)
        other = node.open(100, consumer="d")
        await until(lambda: node.topic.receiver.waiters.count(GROUP) == 2)
        waiting.stream.grant(0, credit)
        values = [b"%d" % number for number in range(7)]
        await node.publish(*values)
        await waiting.got(*values[:credit])
        await other.got(*values[credit:])
        waiting.stream.grant(3)
        await node.publish(b"7")
        await until(lambda: len(waiting.values + other.values) == 8)

    on_node(tmp_path, test, ordering="none")


@pytest.mark.parametrize("name", SIGNS)
def test_a_hung_consumer_gets_no_more_than_its_credit_until_it_shows_life(
    tmp_path: Path, name: str
) -> None:
    async def test(node: Node) -> None:
        reader = node.open(2, visibility_ms=20)
        await node.publish(b"0", b"1", b"2")
        await reader.got(b"0", b"1")
        await expire(node, reader)
        node.topic.settler.on_heartbeat(GROUP, "another")
        node.topic.settler.on_heartbeat("h", "c")
        await node.publish(b"3")
        await reader.got(b"0", b"1")
        assert reader.stream.account.room == 0
        await SIGNS[name](node, reader)
        await until(lambda: len(reader.values) == 4)
        assert reader.stream.account.expired_count == 0
        assert reader.stream.account.in_flight == 2

    on_node(tmp_path, test)


def test_a_maximum_set_by_the_client_is_no_sign_of_life(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        reader = node.open(1, visibility_ms=20)
        await node.publish(b"0", b"1")
        await reader.got(b"0")
        await expire(node, reader)
        reader.stream.grant(0, 1)
        await reader.got(b"0")
        assert reader.stream.account.expired_count == 1

    on_node(tmp_path, test)


class Room:
    def __init__(self, messages: int) -> None:
        self.messages = messages

    def left(self) -> int:
        return self.messages

    def take(self, messages: int) -> None:
        self.messages -= messages


def test_a_stream_takes_no_more_than_its_sender_has_room_for(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(b"0", b"1", b"2")
        room = Room(2)
        reader = node.open(room=room)
        await reader.got(b"0", b"1")
        assert room.messages == 0
        room.messages = 5
        await reader.got(b"0", b"1", b"2")
        assert room.messages == 4

    on_node(tmp_path, test)


def test_no_stream_opens_where_too_many_consumers_wait(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.topic.receiver.waiters.count_max = 1
        node.broker.streams.check_room(node.topic, GROUP)
        node.open()
        await until(lambda: node.topic.receiver.waiters.count(GROUP))
        with pytest.raises(TooManyRequests) as caught:
            node.broker.streams.check_room(node.topic, GROUP)
        assert caught.value.retry_after_ms
        node.broker.streams.check_room(node.topic, "h")

    on_node(tmp_path, test)
