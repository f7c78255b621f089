"""A receive that waits: its lease is in the record of its message, and nobody sees it before."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.log import commit_turn
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import GoqError, StorageFull, TimedOut
from goq.model import Message
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    publish,
    quick_broker_on,
    quiet,
    run,
)
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.storage.folder_copy import copy_in_use

Receive = asyncio.Task[list[tuple[int, int, bytes]]]


def records(broker: Broker) -> int:
    """Return how many records the journal has got."""
    assert broker.journal is not None
    return broker.journal.last_mark.number


async def waiting(topic: Topic, group: str, *, count: int = 10) -> Receive:
    """Begin a receive, and return it once it waits."""
    before = topic.receiver.waiters.count(group)

    async def receive() -> list[tuple[int, int, bytes]]:
        return leased(await topic.receiver.receive(group, options(count, wait_ms=60_000)))

    task = asyncio.ensure_future(receive())
    await until(lambda: topic.receiver.waiters.count(group) > before)
    return task


async def settled(topic: Topic) -> None:
    for partition in topic.partitions:
        await quiet(partition)


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine does, its disk counts as fast."""
    monkeypatch.setattr(commit_turn, "_SLOW_WRITE_S", 60.0)


def test_a_message_and_the_lease_of_who_waits_are_one_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            before = records(broker)
            assert await publish(topic, b"x") == [0]
            assert await receive == [(0, 1, b"x")]
            assert records(broker) == before + 1

    run(main())


def test_without_a_waiting_receive_the_lease_is_a_record_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            before = records(broker)
            await publish(topic, b"x")
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"x")]
            assert records(broker) == before + 2

    run(main())


def test_a_power_cut_keeps_both_or_neither(tmp_path: Path) -> None:
    """At each sync of the journal the disk is copied, as the cut would leave it."""
    states: list[Path] = []

    def keep(operation: str, path: Path) -> int | None:
        if operation == "sync" and path.suffix == ".journal":
            states.append(tmp_path / f"state{len(states)}")
            copy_in_use(tmp_path / "node", states[-1])
        return None

    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()
        async with broker_on(
            tmp_path / "node", disk=disk, metadata=metadata, journaled=True
        ) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            disk.fault = keep
            await publish(topic, b"x")
            await receive
            disk.heal()
        for state in states:  # what was appended is there, what is still in memory is not
            async with broker_on(state, metadata=metadata, journaled=True) as broker:
                topic = broker.topic("t")
                group = topic.partitions[0].group("g")
                assert group.counts(0, 0).leased == topic.partitions[0].end_offset

    run(main())
    assert states


def test_the_event_loop_itself_writes_what_is_staged(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            writers: set[int] = set()
            disk.fault = lambda operation, _: (
                writers.add(threading.get_ident()) if operation in {"append", "sync"} else None
            )
            await publish(topic, b"x")
            await receive
            assert writers == {threading.get_ident()}

    run(main())


def test_nothing_is_staged_while_a_thread_writes(tmp_path: Path) -> None:
    """Then others run before the record is synced: they must not see the message."""

    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            broker.commit_turn._thread_until_s = asyncio.get_running_loop().time() + 60
            disk.hold(".journal")
            published = asyncio.ensure_future(publish(topic, b"x"))
            await until(disk.holding.is_set)
            assert topic.partitions[0].end_offset == 0
            assert not receive.done()
            assert not published.done()
            disk.release()
            assert await receive == [(0, 1, b"x")]

    run(main())


def test_a_larger_batch_is_delivered_after_its_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            for size_bytes, more in ((limits.JOURNAL_STAGED_BYTES_MAX // 2, 1), (40_000, 2)):
                receive = await waiting(topic, "g")
                await settled(topic)
                before = records(broker)
                value = bytes(size_bytes)
                (offset,) = await publish(topic, value)
                assert await receive == [(offset, 1, value)]
                assert records(broker) == before + more

    run(main())


def test_each_waiting_group_gets_the_message_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 2)
            names = [f"g{n}" for n in range(9)]
            receives = [await waiting(topic, name) for name in names]
            late = [await waiting(topic, name) for name in names]
            await publish(topic, b"x")
            assert [await receive for receive in receives] == [[(0, 1, b"x")]] * len(names)
            assert not any(receive.done() for receive in late)
            await publish(topic, b"y", partition=1)
            assert [await receive for receive in late] == [[(0, 1, b"y")]] * len(names)

    run(main())


def test_a_failed_sync_answers_neither_the_publish_nor_the_receive(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            disk.fail("sync", ".journal", errno.EIO)
            with pytest.raises(TimedOut):  # the record may be there
                await publish(topic, b"x")
            with pytest.raises(GoqError):
                await receive
            with pytest.raises(GoqError):
                await topic.receiver.receive("g", options())
            disk.heal()

    run(main())


def test_a_full_disk_leaves_no_lease_of_what_it_did_not_take(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 2)
            await publish(topic, b"before", b"before")
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            receive = await waiting(topic, "g")
            await settled(topic)
            disk.fail("append", "messages")
            with pytest.raises(StorageFull):
                await publish(topic, b"refused")
            disk.heal()
            await until(lambda: topic.partitions.failures() == {})
            assert topic.partitions[0].end_offset == 2
            assert await publish(topic, b"after") == [2]
            assert await receive == [(2, 1, b"after")]  # it has not noticed

    run(main())


def test_a_full_disk_leaves_no_message_that_it_did_not_take(tmp_path: Path) -> None:
    """Nobody can lease a delayed message now, so no lease fails with it."""

    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 2)
            receive = await waiting(topic, "g")
            await settled(topic)
            disk.fail("append", "messages")
            with pytest.raises(StorageFull):
                await topic.publisher.publish_messages(
                    [RoutedMessage(0, Message(b"refused", deliver_at_ms=2**42))]
                )
            disk.heal()
            await until(lambda: topic.partitions.failures() == {})
            assert (topic.partitions[0].end_offset, topic.partitions[0].delayed_count) == (0, 0)
            await publish(topic, b"after")
            assert await receive == [(0, 1, b"after")]

    run(main())


def test_a_message_outlives_the_failure_of_its_lease(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive = await waiting(topic, "g")
            await settled(topic)
            disk.fail("append", "events")
            assert await publish(topic, b"x") == [0]
            with pytest.raises(GoqError):
                await receive
            disk.heal()
            await until(lambda: topic.partitions.failures() == {})
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"x")]

    run(main())


def test_a_receive_that_ends_as_it_is_served_gives_the_message_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t", 1)
            receive, other = await waiting(topic, "g"), await waiting(topic, "g")
            serve = topic.receiver.waiters.wake

            def serve_and_cancel(group: str, *, serves: bool = False) -> None:
                serve(group, serves=serves)
                receive.cancel()

            topic.receiver.waiters.wake = serve_and_cancel
            await publish(topic, b"x")
            assert await other == [(0, 1, b"x")]  # no attempt was counted
            assert receive.cancelled()

    run(main())


@pytest.mark.parametrize("seed", first_of(range(6), quick=1))
def test_each_message_is_delivered_once_to_those_who_wait(tmp_path: Path, seed: int) -> None:
    """Consumers come, wait, ack and go; messages have lanes, keys and tenants; thrice a start."""

    async def main() -> None:
        chance, metadata, clock = random.Random(seed), MemoryMetadata(), ManualClock()
        taken = {name: Counter[bytes]() for name in ("a", "b")}
        sent: list[bytes] = []

        def is_done() -> bool:
            return all(len(seen) == len(sent) for seen in taken.values())

        async def consume(topic: Topic, group: str) -> None:
            while True:
                asked = options(chance.randint(1, 5), wait_ms=60_000)
                receiving = asyncio.ensure_future(topic.receiver.receive(group, asked))
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.002)
                    receiving.cancel()
                try:
                    batches = await receiving
                except asyncio.CancelledError:
                    if asyncio.current_task().cancelling():
                        raise
                    continue
                taken[group].update(value for _, _, value in leased(batches))
                await ack(topic, group, batches)

        for _ in range(3):
            async with broker_on(
                tmp_path, metadata=metadata, clock=clock, journaled=True, partitions=2
            ) as broker:
                settings = {"delivery.ordering": chance.choice(("none", "key"))}
                topic = broker.topics.get("t") or await broker.topic_admin.create("t", 2, settings)
                consumers = [
                    asyncio.ensure_future(consume(topic, group)) for group in "ab" for _ in range(3)
                ]
                for _ in range(40):
                    many = [b"%d" % (len(sent) + n) for n in range(chance.choice((1, 1, 2, 50)))]
                    sent += many
                    messages = [
                        RoutedMessage(
                            chance.randrange(2),
                            Message(
                                value,
                                key=chance.choice((None, b"k1", b"k2")),
                                lane=chance.choice((None, 0, 5)),
                                tenant=chance.choice((None, "x", "y")),
                            ),
                        )
                        for value in many
                    ]
                    await topic.publisher.publish_messages(messages)
                    await asyncio.sleep(chance.random() * 0.003)
                await until(is_done)
                for task in consumers:
                    task.cancel()
                await asyncio.gather(*consumers, return_exceptions=True)
        assert [set(seen.values()) for seen in taken.values()] == [{1}, {1}]

    run(main())
