"""What a partition leases and to whom, and what it refuses while it is offline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from goq.broker.topic.publisher import RoutedMessage
from goq.delivery.selection.redelivery import RetryRule
from goq.errors import PartitionOffline
from goq.model import Message
from tests.support.broker.harness import ack, broker_on, leased, options, publish, receipts, run
from tests.support.broker.partition_internals import event_log, state_of
from tests.support.eventually import until


def test_a_partition_that_is_offline_leases_nothing_and_settles_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            (partition,) = topic.partitions
            found = await topic.receiver.receive("g", options(1))
            (one,) = receipts(found, topic.id)
            leases, before = partition.leases, event_log(partition).end_offset
            refused: list[Callable[[], object]] = [
                leases.check_room,
                lambda: leases.acknowledge("g", [one]),
                lambda: leases.extend("g", [one], 10**15),
                lambda: leases.nack("g", [one], 0, ""),
                lambda: leases.reject("g", [one], ""),
                lambda: leases.release("g", [one]),
                lambda: leases.end_lease("g", one.token, ""),
                lambda: leases.receive(
                    "g", "c", 1, None, bytes_max=2**20, wait=True, rule=RetryRule(), session_id=""
                ),
            ]
            partition.availability.take_offline("is damaged", retry_after_ms=1000)
            for ask in refused:
                with pytest.raises(PartitionOffline):
                    ask()
            leases.undo_receive("g", one.token, found[0].spans)
            assert event_log(partition).end_offset == before
            assert state_of(partition).groups["g"].outstanding()

    run(main())


def test_messages_that_were_leased_and_never_left_are_ready_again_and_count_no_attempt(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            (partition,) = topic.partitions
            for _ in range(2):
                (batch,) = await topic.receiver.receive("g", options())
                assert batch.spans == [(0, 1, 1)]
                assert partition.leases.holder("g", None) == batch.consumer
                assert partition.leases.unsettled_count("g", batch.token) == 1
                partition.leases.undo_receive("g", batch.token, batch.spans)
                assert partition.leases.holder("g", None) is None
            partition.leases.undo_receive("other", batch.token, batch.spans)
            assert partition.leases.unsettled_count("g", batch.token) == 0

    run(main())


def test_a_consumer_that_waits_gets_the_next_message_of_a_key_once_the_one_before_is_settled(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            placed = [RoutedMessage(0, Message(value, b"key")) for value in (b"first", b"next")]
            await topic.publisher.publish_messages(placed)
            first = await topic.receiver.receive("g", options(1))
            assert [value for *_, value in leased(first)] == [b"first"]
            waiting = asyncio.ensure_future(topic.receiver.receive("g", options(wait_ms=3_600_000)))
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            await ack(topic, "g", first)
            assert [value for *_, value in leased(await asyncio.wait_for(waiting, 60))] == [b"next"]

    run(main())
