"""What a partition that is offline refuses: it leases nothing, and takes no decision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from goq.delivery.selection.redelivery import RetryRule
from goq.errors import PartitionOffline
from tests.support.broker.harness import broker_on, options, publish, receipts, run
from tests.support.broker.partition_internals import event_log, state_of


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
