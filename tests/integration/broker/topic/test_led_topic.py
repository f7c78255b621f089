"""A topic of one partition shows and settles only what its quorums have confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.partition.loader import open_logs
from goq.broker.partition_context import Quorums
from goq.broker.topic.settler import UnsettledReceipt
from goq.broker.topic.topic import Leadership, Topic
from goq.delivery.events.event import Reset
from goq.errors import NotLeader, TimedOut
from goq.frame.encoder import ProducerMark
from goq.storage.catalog.rows import TopicManifest
from goq.storage.disk import RealDisk
from tests.support.broker.harness import broker_on as broker_in
from tests.support.broker.harness import (
    frame,
    leased,
    options,
    publish,
    quiet,
    receipts,
    run,
    until,
)
from tests.support.broker.held_quorum import HeldQuorum
from tests.support.broker.partition_internals import event_writer

LOST = NotLeader("another node leads")


class _Led:
    """A topic of one partition that this node leads, with quorums that the test gives."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self.broker = broker
        self.topic = topic

    async def lead(self, epoch: int) -> None:
        self.messages, self.events = HeldQuorum(), HeldQuorum()
        logs = open_logs(self.topic.directory / "0", RealDisk(), self.topic.settings)
        quorums = Quorums(self.messages, self.events)
        leadership = Leadership(
            epoch, quorums, lambda: None, lambda _error: None, lambda _damage: False
        )
        await self.topic.lead(0, logs, leadership)


def _run_led(path: Path, test: Callable[[_Led], Awaitable[None]]) -> None:
    async def main() -> None:
        async with broker_in(path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await topic.resign(0, LOST)
            led = _Led(broker, topic)
            await led.lead(100)
            await test(led)

    run(main())


async def _reject_one(led: _Led) -> tuple[Topic, asyncio.Task[object]]:
    """Give up a message; return its dead letters and the reject when this node's disk has it."""
    publishing = asyncio.ensure_future(publish(led.topic, b"a"))
    await until(lambda: led.messages.appended_to == 1)
    led.messages.reach_end()
    await publishing
    receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options()))
    await until(lambda: led.events.appended_to > 0)
    led.events.reach_end()
    found = await receiving
    before = led.events.appended_to
    rejecting = asyncio.ensure_future(led.topic.settler.reject("g", receipts(found), "bad"))
    await until(lambda: led.events.appended_to > before)
    dead = await led.broker.topic_admin.create("t.dlq", 1)
    for _ in range(5):  # time enough for the dead letter to get between
        await publish(dead, b"other")
    return dead, rejecting


def test_a_dead_letter_leaves_when_it_is_safe_that_the_message_died(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        dead, rejecting = await _reject_one(led)
        assert dead.partitions[0].end_offset == 5
        led.events.reach_end()
        await rejecting
        await until(lambda: dead.partitions[0].end_offset == 6)

    _run_led(tmp_path, test)


def test_what_only_a_deposed_leader_gave_up_is_no_dead_letter(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        dead, rejecting = await _reject_one(led)
        await led.topic.resign(0, LOST)
        with pytest.raises(TimedOut):
            await rejecting
        await publish(dead, b"other")
        assert dead.partitions[0].end_offset == 6

    _run_led(tmp_path, test)


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_a_settlement_sent_again_is_not_called_lost_before_the_first_one_is_safe(
    tmp_path: Path, verb: str
) -> None:
    async def test(led: _Led) -> None:
        publishing = asyncio.ensure_future(publish(led.topic, b"a"))
        await until(lambda: led.messages.appended_to == 1)
        led.messages.reach_end()
        await publishing
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options()))
        await until(lambda: led.events.appended_to > 0)
        led.events.reach_end()
        given = receipts(await receiving, led.topic.id)

        async def settle() -> object:
            settler = led.topic.settler
            if verb == "nack":
                return await settler.nack("g", given, 0, "")
            if verb == "reject":
                return await settler.reject("g", given, "")
            return await (settler.acknowledge if verb == "ack" else settler.release)("g", given)

        before = led.events.appended_to
        first = asyncio.ensure_future(settle())
        await until(lambda: led.events.appended_to > before)
        again = asyncio.ensure_future(settle())
        await asyncio.sleep(0)
        await led.topic.resign(0, LOST)
        for asked in (first, again):
            with pytest.raises(TimedOut):
                await asked

    _run_led(tmp_path, test)


def test_a_message_is_read_and_delivered_when_it_is_safe_and_so_is_its_lease(
    tmp_path: Path,
) -> None:
    async def test(led: _Led) -> None:
        publishing = asyncio.ensure_future(publish(led.topic, b"a"))
        await until(lambda: led.messages.appended_to == 1)
        assert led.topic.partitions[0].read(0, messages_max=1).frames == []
        assert await led.topic.receiver.receive("g", options()) == []
        led.messages.reach_end()
        await publishing
        assert len(led.topic.partitions[0].read(0, messages_max=1).frames) == 1
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options()))
        await until(lambda: led.events.appended_to > 0)
        assert not receiving.done()
        led.events.reach_end()
        assert leased(await receiving) == [(0, 1, b"a")]

    _run_led(tmp_path, test)


def test_what_was_not_safe_when_the_leadership_ended_can_be_sent_to_the_next_leader(
    tmp_path: Path,
) -> None:
    async def test(led: _Led) -> None:
        view = frame(b"a", mark=ProducerMark(5, 1, 0))
        partition = led.topic.partitions[0]
        partition.appender.publish(view)
        await until(lambda: led.messages.appended_to == 1)
        event_writer(partition).record_snapshot()
        await event_writer(partition).commit.run_exclusive(lambda: None)
        await led.topic.resign(0, LOST)
        logs = open_logs(led.topic.directory / "0", RealDisk(), led.topic.settings)
        logs.messages.truncate(0)  # as a follower of a leader that never had it
        logs.messages.close()
        logs.events.close()
        await led.lead(101)
        done = led.topic.partitions[0].appender.publish(view)
        await until(lambda: led.messages.appended_to == 1)
        led.messages.reach_end()
        assert not (await done).duplicate

    _run_led(tmp_path, test)


def test_a_partition_that_is_led_elsewhere_says_so(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options(wait_ms=60_000)))
        await asyncio.sleep(0)
        await led.topic.resign(0, LOST)
        with pytest.raises(NotLeader):
            led.topic.partitions[0]
        with pytest.raises(NotLeader):
            await publish(led.topic, b"a")
        await led.lead(102)
        publishing = asyncio.ensure_future(publish(led.topic, b"b"))
        await until(lambda: led.messages.appended_to == 1)
        led.messages.reach_end()
        await until(lambda: led.events.appended_to > 0)
        led.events.reach_end()
        deliveries = await receiving
        assert leased(deliveries) == [(0, 1, b"b")]
        assert receipts(deliveries)[0].token > 0
        await publishing

    _run_led(tmp_path, test)


def test_an_ack_that_is_not_safe_when_the_leadership_ends_may_hold(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        publishing = asyncio.ensure_future(publish(led.topic, b"a"))
        await until(lambda: led.messages.appended_to == 1)
        led.messages.reach_end()
        await publishing
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options()))
        await until(lambda: led.events.appended_to > 0)
        led.events.reach_end()
        given = receipts(await receiving)
        before = led.events.appended_to
        acking = asyncio.ensure_future(led.topic.settler.acknowledge("g", given))
        await until(lambda: led.events.appended_to > before)
        await led.topic.resign(0, LOST)
        with pytest.raises(TimedOut):
            await acking

    _run_led(tmp_path, test)


def test_an_ack_sent_again_is_done_once_the_first_is_safe(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        publishing = asyncio.ensure_future(publish(led.topic, b"a", b"b"))
        await until(lambda: led.messages.appended_to == 2)
        led.messages.reach_end()
        await publishing
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options()))
        await until(lambda: led.events.appended_to > 0)
        led.events.reach_end()
        (whole,) = receipts(await receiving)
        first, second = whole._replace(end=1), whole._replace(start=1)
        before = led.events.appended_to
        acks = [
            asyncio.ensure_future(led.topic.settler.acknowledge("g", [receipt]))
            for receipt in (first, second)
        ]
        await until(lambda: led.events.appended_to == before + 2)
        again = asyncio.ensure_future(led.topic.settler.acknowledge("g", [first]))
        await quiet(led.topic.partitions[0])
        led.events.reach(before + 1)
        assert not again.done(), "events behind it may matter"
        led.events.reach(before + 2)
        assert [await each for each in (*acks, again)] == [(1, [])] * 3
        event_writer(led.topic.partitions[0]).record([Reset("other", 0)])
        again = asyncio.ensure_future(led.topic.settler.acknowledge("g", [first]))
        await quiet(led.topic.partitions[0])
        await led.topic.resign(0, LOST)
        with pytest.raises(TimedOut):
            await again

    _run_led(tmp_path, test)


def test_receipts_of_a_lost_partition_fail_by_themselves(tmp_path: Path) -> None:
    async def test(led: _Led) -> None:
        await led.topic.opener.open(2, TopicManifest())
        here = led.topic.partitions[1]
        await here.appender.publish(frame(b"b"))
        publishing = asyncio.ensure_future(led.topic.partitions[0].appender.publish(frame(b"a")))
        await until(lambda: led.messages.appended_to == 1)
        led.messages.reach_end()
        await publishing
        receiving = asyncio.ensure_future(led.topic.receiver.receive("g", options(2)))
        await until(lambda: led.events.appended_to > 0)
        led.events.reach_end()
        given = {receipt.partition: receipt for receipt in receipts(await receiving)}
        assert set(given) == {0, 1}
        before = led.events.appended_to
        acking = asyncio.ensure_future(led.topic.settler.acknowledge("g", list(given.values())))
        await until(lambda: led.events.appended_to > before)
        await led.topic.resign(0, LOST)
        assert await acking == (1, [UnsettledReceipt(given[0], "timed_out")])

    _run_led(tmp_path, test)
