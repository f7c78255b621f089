"""The frames of a receive, which may not be in memory."""

from __future__ import annotations

from pathlib import Path

from goq.clock import ManualClock
from goq.model import Receipt
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    leased,
    nack,
    options,
    publish,
    quick_broker_on,
    run,
    settle_nacked,
)
from tests.support.broker.partition_internals import state_of


def test_messages_that_are_not_in_memory_are_fetched_by_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(6):
                await publish(topic, b"%d" % number)
            disk.cold = 1
            assert len(leased(await topic.receiver.receive("g", options(2)))) == 2
            assert not disk.cold
            disk.cold = 10**6  # what is fetched is gone again at once
            assert len(leased(await topic.receiver.receive("g", options(2)))) == 2
            found = await topic.receiver.receive("h", options(6))  # what is at hand, then the rest
            while more := await topic.receiver.receive("h", options(6)):
                found += more
            assert [o for o, _, _ in leased(found)] == list(range(6))
            group = state_of(topic.partitions[0]).groups["g"]
            assert [lease.parts.message_count for lease in group.leases.values()] == [2, 2]

    run(main())


def test_scattered_retries_that_are_not_in_memory_come_one_by_one_but_do_come(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(20):
                await publish(topic, b"%d" % number)
            for found in [await topic.receiver.receive("g", options(1)) for _ in range(20)]:
                await nack(topic, "g", found, 0 if found[0].spans[0][0] % 2 else 10**10)
            disk.cold = 10**6
            got: list[int] = []
            while found := await topic.receiver.receive("g", options(5)):
                got += [o for o, _, _ in leased(found)]
                await ack(topic, "g", found)
            assert sorted(got) == list(range(1, 20, 2))

    run(main())


def test_a_frame_asked_for_by_two_spans_is_sent_once(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        async with quick_broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(3):
                await publish(topic, *[b"%d" % number] * 4)
            found = await topic.receiver.receive("g", options(12))
            (delivery,) = found
            late = [Receipt(0, delivery.token, 9, 10)]
            rest = [Receipt(0, delivery.token, 0, 9)]
            for given, due_ms in ((late, 0), (rest, 5)):
                await settle_nacked(topic, "g", given, due_ms)
            clock.advance_ms(5)
            again = await topic.receiver.receive("g", options(12))
            assert len(leased(again)) == 10

    run(main())
