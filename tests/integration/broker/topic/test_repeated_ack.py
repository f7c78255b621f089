"""An ack sent again: done if it was recorded by that very lease, else the lease is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import clock, limits
from goq.broker.partition import leases
from goq.broker.topic.publisher import RoutedMessage
from goq.delivery.events.event import Truncated
from goq.model import Message, Receipt
from tests.support.broker.harness import (
    ack,
    broker_on,
    leased,
    options,
    publish,
    receipts,
    run,
    settle_acked,
    settle_nacked,
    trim,
)


def test_an_ack_sent_again_is_done_and_counts_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b", b"c")
            given = receipts(await topic.receiver.receive("g", options()), topic.id)
            for _ in range(3):
                assert await settle_acked(topic, "g", given) == (3, [])
            assert await settle_acked(topic, "g", [*given, *given]) == (3, [])
            assert topic.stats.acked_messages == 3
        async with broker_on(tmp_path, metadata=broker.metadata) as broker:
            topic = broker.topic("t")
            assert await settle_acked(topic, "g", given) == (3, [])
            (receipt,) = given
            beyond = receipt._replace(end=receipt.end + 1)
            assert await settle_acked(topic, "g", [beyond]) == (0, [beyond])
            assert await settle_acked(topic, "other", given) == (0, given)

    run(main())


def test_a_message_that_another_lease_acknowledged_is_lost_for_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            first = receipts(await topic.receiver.receive("g", options()), topic.id)
            topic.partitions[0].leases.end_leases("g", [first[0].token], "gone")
            again = await topic.receiver.receive("g", options())
            assert [attempt for _, attempt, _ in leased(again)] == [2, 2]
            assert await settle_acked(topic, "g", first) == (0, first)
            await ack(topic, "g", again)
            assert await settle_acked(topic, "g", first) == (0, first)
            assert await settle_acked(topic, "g", receipts(again, topic.id)) == (2, [])

    run(main())


def test_each_piece_of_a_receipt_says_what_became_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *(b"%d" % n for n in range(9)))
            (whole,) = receipts(await topic.receiver.receive("g", options()), topic.id)

            def part(start: int, end: int) -> Receipt:
                return whole._replace(start=start, end=end)

            assert await settle_acked(topic, "g", [part(1, 3)]) == (2, [])
            assert await settle_nacked(topic, "g", [part(3, 5)], 60_000) == (2, [])
            assert await settle_acked(topic, "g", [part(5, 6), part(7, 8)]) == (2, [])
            await topic.settler.reject("g", [part(0, 1)], "")
            await topic.settler.release("g", [part(6, 7), part(8, 9)])
            done, lost = await settle_acked(topic, "g", [whole])
            assert (done, lost) == (4, [part(0, 1), part(3, 5), part(6, 7), part(8, 9)])

    run(main())


@pytest.mark.parametrize("is_deleted", [True, False])
def test_what_a_group_gets_again_is_not_done(tmp_path: Path, is_deleted: bool) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b", b"c")
            (whole,) = receipts(await topic.receiver.receive("g", options()), topic.id)
            assert await settle_acked(topic, "g", [whole]) == (3, [])
            await topic.partitions[0].reset("other", 0)
            await topic.partitions[0].delete_group("other")
            await topic.partitions[0].reset("g", 3)
            assert await settle_acked(topic, "g", [whole]) == (3, [])
            if is_deleted:
                await topic.partitions[0].delete_group("g")
                assert await settle_acked(topic, "g", [whole]) == (0, [whole])
            else:
                await topic.partitions[0].reset("g", 1)
                again = whole._replace(start=1)
                assert await settle_acked(topic, "g", [whole]) == (1, [again])
            second = await topic.receiver.receive("g", options())
            await ack(topic, "g", second)
            assert (await settle_acked(topic, "g", [whole]))[0] == (0 if is_deleted else 1)

    run(main())


def test_the_largest_ack_is_done_again_though_it_was_recorded_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    count = limits.RECEIPTS_PER_REQUEST_MAX

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await topic.publisher.publish_messages([RoutedMessage(0, Message(b""))] * count)
            (whole,) = receipts(await topic.receiver.receive("g", options(count)), topic.id)
            single = [whole._replace(start=n, end=n + 1) for n in range(count)]
            for _ in range(2):
                assert await settle_acked(topic, "g", single) == (count, [])

    run(main())


def test_a_request_searches_for_a_bounded_number_of_acks(tmp_path: Path) -> None:
    count = limits.ACK_SEARCHES_MAX + 1

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *(b"%d" % n for n in range(count)))
            (whole,) = receipts(await topic.receiver.receive("g", options(count)), topic.id)
            single = [whole._replace(start=n, end=n + 1) for n in range(count)]
            for each in single:
                assert await settle_acked(topic, "g", [each]) == (1, [])
            assert await settle_acked(topic, "g", single[1:]) == (count - 1, [])
            assert await settle_acked(topic, "g", single) == (count - 1, single[-1:])

    run(main())


def test_an_ack_is_lost_while_the_events_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("retention deletes them")

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            given = receipts(await topic.receiver.receive("g", options()), topic.id)
            assert await settle_acked(topic, "g", given) == (2, [])
            with monkeypatch.context() as patched:
                patched.setattr(leases, "split_recorded", fail)
                assert await settle_acked(topic, "g", given) == (0, given)
            assert await settle_acked(topic, "g", given) == (2, [])

    run(main())


def test_an_ack_whose_message_is_deleted_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, segment__bytes="64KiB") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            given = receipts(await topic.receiver.receive("g", options()), topic.id)
            assert await settle_acked(topic, "g", given) == (1, [])
            for _ in range(3):
                await publish(topic, bytes(65_000))
            await trim(topic.partitions[0], topic.partitions[0].end_offset - 1)
            assert topic.partitions[0].start_offset > 0
            assert await settle_acked(topic, "g", given) == (0, given)

    run(main())


def test_an_ack_of_a_message_that_lost_its_offset_to_another_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            (whole,) = receipts(await topic.receiver.receive("g", options()), topic.id)
            assert await settle_acked(topic, "g", [whole]) == (2, [])
            await topic.partitions[0].record([Truncated(1)])  # as after a crash that lost the end
            await publish(topic, b"another")
            assert topic.partitions[0].end_offset >= whole.end
            assert await settle_acked(topic, "g", [whole]) == (1, [whole._replace(start=1)])

    run(main())
