"""Waiting consumers: first come first served, and no wake-up is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq.broker.topic.topic import Topic, TopicParameters
from goq.broker.topic.waiters import Waiters
from goq.clock import ManualClock
from goq.errors import ShuttingDown, TooManyRequests, TopicNotFound
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    leased,
    nack,
    options,
    publish,
    run,
)
from tests.support.eventually import until


def test_waiters_are_woken_in_the_order_they_came() -> None:
    async def main() -> None:
        waiters, order = Waiters(), list[int]()

        async def wait(number: int) -> None:
            await waiters.wait("g", 100)
            order.append(number)

        tasks = [asyncio.ensure_future(wait(n)) for n in range(1000)]
        await until(lambda: waiters.count("g") == 1000)
        for _ in range(1000):
            waiters.wake("g")
        await asyncio.gather(*tasks)
        assert order == list(range(1000))
        assert not waiters.queues

    run(main())


def test_a_waiter_woken_in_vain_keeps_its_place() -> None:
    async def main() -> None:
        waiters = Waiters()
        old = asyncio.ensure_future(waiters.wait("g", 100))
        new = asyncio.ensure_future(waiters.wait("g", 100))
        await until(lambda: waiters.count("g") == 2)
        waiters.wake("g")
        await old
        old = asyncio.ensure_future(waiters.wait("g", 100, in_front=True))
        await until(lambda: waiters.count("g") == 2)
        waiters.wake("g")
        await old
        assert not new.done()
        waiters.wake("g")
        await new

    run(main())


def test_a_waiter_cancelled_as_it_is_woken_passes_that_on() -> None:
    async def main() -> None:
        waiters = Waiters()
        gone = asyncio.ensure_future(waiters.wait("g", 100))
        next_one = asyncio.ensure_future(waiters.wait("g", 100))
        await until(lambda: waiters.count("g") == 2)
        waiters.wake("g")
        gone.cancel()
        await next_one
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not waiters.queues

    run(main())


def test_another_waiter_that_takes_retries_is_woken_and_no_other() -> None:
    async def main() -> None:
        waiters = Waiters()
        tasks = {}
        for name in ("own", None, "first", "second"):
            tasks[name] = asyncio.ensure_future(waiters.wait("g", 100, consumer=name))
            await asyncio.sleep(0)
        assert waiters.other_takes_retries("g", "own")
        waiters.wake_other("g", "own")
        assert waiters.count("g") == 3
        await tasks["first"]
        assert [name for name, task in tasks.items() if task.done()] == ["first"]
        waiters.wake_other("g", "own")
        waiters.wake_other("g", "own")
        await tasks["second"]
        assert [name for name, task in tasks.items() if not task.done()] == ["own", None]
        assert not waiters.other_takes_retries("g", "own")
        assert waiters.other_takes_retries("g", "another")
        assert not waiters.other_takes_retries("h", "own")
        waiters.wake_all()
        await asyncio.gather(*tasks.values())

    run(main())


def test_waiters_that_take_no_retries_are_woken_when_they_may() -> None:
    async def main() -> None:
        waiters, tasks = Waiters(), dict[str, asyncio.Task[None]]()
        for name, group, consumer in (
            ("loud", "g", "c"),
            ("silent", "g", None),
            ("silent too", "g", None),
            ("elsewhere", "other", None),
        ):
            tasks[name] = asyncio.ensure_future(waiters.wait(group, 100, consumer=consumer))
            await asyncio.sleep(0)
        waiters.wake_silent("g")
        waiters.wake_silent("nobody")
        assert waiters.count("g") == 1
        await asyncio.gather(tasks.pop("silent"), tasks.pop("silent too"))
        assert not any(task.done() for task in tasks.values())
        waiters.wake_all()
        await asyncio.gather(*tasks.values())

    run(main())


def test_a_waiter_that_leaves_by_itself_wakes_nobody() -> None:
    async def main() -> None:
        waiters = Waiters()
        gone = asyncio.ensure_future(waiters.wait("g", 100))
        stays = asyncio.ensure_future(waiters.wait("g", 100))
        await until(lambda: waiters.count("g") == 2)
        gone.cancel()
        await waiters.wait("g", 0.001)
        assert waiters.count("g") == 1
        assert not stays.done()
        waiters.wake_all()
        await stays

    run(main())


def test_so_many_may_wait_in_a_group_and_no_more() -> None:
    async def main() -> None:
        waiters = Waiters(2)
        tasks = [asyncio.ensure_future(waiters.wait("g", 100)) for _ in range(2)]
        await until(lambda: waiters.count("g") == 2)
        with pytest.raises(TooManyRequests):
            await waiters.wait("g", 100)
        waiters.wake_all()
        await asyncio.gather(*tasks)
        await waiters.wait("g", 0)

    run(main())


async def _waiting(topic: Topic, count: int, **asked: int) -> list[asyncio.Task[object]]:
    tasks = []
    for _ in range(count):
        before = topic.receiver.waiters.count("g")
        work = topic.receiver.receive("g", options(wait_ms=60_000, **asked))
        tasks.append(asyncio.ensure_future(work))
        await until(lambda before=before: topic.receiver.waiters.count("g") > before)
    return tasks


def test_one_message_wakes_one_of_a_thousand_waiters(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            tasks = [
                asyncio.ensure_future(topic.receiver.receive("g", options(wait_ms=60_000)))
                for _ in range(1000)
            ]
            await until(lambda: topic.receiver.waiters.count("g") == 1000)
            looks = 0
            lease = topic.receiver._leases._lease

            def counted(*args: object) -> object:
                nonlocal looks
                looks += 1
                return lease(*args)

            topic.receiver._leases._lease = counted
            await publish(topic, b"x")
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert leased(await tasks[0]) == [(0, 1, b"x")]
            await until(lambda: topic.receiver.waiters.count("g") == 999)
            assert looks <= 3
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert topic.receiver.waiters.count("g") == 0

    run(main())


def test_a_thousand_waiters_get_a_thousand_messages_of_one_publish(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            tasks = [
                asyncio.ensure_future(topic.receiver.receive("g", options(1, wait_ms=60_000)))
                for _ in range(1000)
            ]
            await until(lambda: topic.receiver.waiters.count("g") == 1000)
            await publish(topic, *[b"%d" % n for n in range(1000)])
            found = [leased(deliveries) for deliveries in await asyncio.gather(*tasks)]
            assert found == [[(n, 1, b"%d" % n)] for n in range(1000)]

    run(main())


def test_a_retry_reaches_a_waiter_though_the_one_who_knew_of_it_left(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            deliveries = await topic.receiver.receive("g", options())
            first, second = await _waiting(topic, 2)
            await nack(topic, "g", deliveries, 30)
            topic.receiver.wake()
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            clock.advance_ms(30)
            assert leased(await second) == [(0, 2, b"x")]

    run(main())


def test_a_retry_that_is_due_wakes_one_waiter_not_all(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            deliveries = await topic.receiver.receive("g", options())
            tasks = await _waiting(topic, 50)
            looks = 0
            lease = topic.receiver._leases._lease

            def counted(*args: object) -> object:
                nonlocal looks
                looks += 1
                return lease(*args)

            topic.receiver._leases._lease = counted
            await nack(topic, "g", deliveries, 10)
            clock.advance_ms(10)
            assert leased(await tasks[0]) == [(0, 2, b"x")]
            assert looks <= 3
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_a_retry_in_a_partition_that_is_offline_does_not_keep_the_node_busy(tmp_path: Path) -> None:
    slow = TopicParameters(reopen_delay_s=30)

    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk, partitions=2, topic_parameters=slow) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            deliveries = await topic.receiver.receive("g", options())
            await nack(topic, "g", deliveries, 0)
            disk.fail("append", "0/events")
            with pytest.raises(Exception, match="no room"):
                await topic.receiver.receive("g", options())
            disk.heal()
            assert not topic.partitions[0].is_online
            (task,) = await _waiting(topic, 1)
            looks = topic.receiver._leases._turn
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert topic.receiver._leases._turn == looks
            await publish(topic, b"y", partition=1)
            assert leased(await task) == [(0, 1, b"y")]

    run(main())


def test_a_receive_woken_in_vain_is_still_served_before_later_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            first, second = await _waiting(topic, 2)
            topic.receiver.wake()
            assert topic.receiver.waiters.count("g") == 1
            await until(lambda: topic.receiver.waiters.count("g") == 2)
            await publish(topic, b"x")
            await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
            assert first.done()
            assert not second.done()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)

    run(main())


def test_a_consumer_that_leaves_before_its_lease_is_durable_gives_the_messages_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x", b"y")
            disk.hold("events")
            gone = asyncio.ensure_future(topic.receiver.receive("g", options()))
            await until(disk.holding.is_set)
            (waiting,) = await _waiting(topic, 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            disk.release()
            found = await waiting
            assert leased(found) == [(0, 1, b"x"), (1, 1, b"y")]
            assert topic.stats.delivered_messages == 2
            assert await ack(topic, "g", found) == 2

    run(main())


def test_a_woken_consumer_that_leaves_while_it_fetches_passes_that_on(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            first, second = await _waiting(topic, 2)
            fetching = asyncio.Event()

            async def stuck(*_: object) -> None:
                fetching.set()
                await asyncio.sleep(3600)

            warm = topic.partitions[0].leases.warm
            topic.partitions[0].leases.warm = stuck
            disk.cold = 1
            await publish(topic, b"x")
            await fetching.wait()
            topic.partitions[0].leases.warm = warm
            first.cancel()
            assert leased(await second) == [(0, 1, b"x")]
            await asyncio.gather(first, return_exceptions=True)

    run(main())


def test_waiting_ends_with_the_reason_when_the_topic_or_the_node_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            gone, stays = (
                await broker.topic_admin.create("gone"),
                await broker.topic_admin.create("stays"),
            )
            (first,) = await _waiting(gone, 1)
            (second,) = await _waiting(stays, 1)
            await broker.topic_admin.delete("gone")
            with pytest.raises(TopicNotFound):
                await first
        with pytest.raises(ShuttingDown):
            await second

    run(main())


def test_a_reader_of_the_log_is_woken_by_the_next_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            readers = [
                asyncio.ensure_future(topic.receiver.log_readers.wait(0, offset, 60_000))
                for offset in (0, 0, 1)
            ]
            await until(lambda: topic.receiver.log_readers.waiters.count("0") == 3)
            await publish(topic, b"x")
            await asyncio.gather(*readers[:2])
            assert not readers[2].done()
            await publish(topic, b"x")
            await readers[2]
            log_readers = topic.receiver.log_readers
            await log_readers.wait(0, 2, 1)  # no longer than that
            waiting = asyncio.ensure_future(log_readers.wait(0, 2, 60_000))
            await until(lambda: log_readers.waiters.count("0") == 1)
            log_readers.close()
            await waiting
            await log_readers.wait(0, 2, 60_000)

    run(main())
