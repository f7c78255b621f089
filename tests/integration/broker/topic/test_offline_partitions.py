"""Waiting consumers are told when their last partition goes offline."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from goq.broker.topic import push_streams
from goq.broker.topic.push_streams import PushStream, PushStreamOptions
from goq.broker.topic.topic import Topic, TopicParameters
from goq.errors import GoqError, PartitionOffline
from tests.support.broker.harness import (
    BrokenDisk,
    broker_on,
    leased,
    options,
    publish,
    quick_broker_on,
    run,
)
from tests.support.eventually import until


async def _lose(disk: BrokenDisk, topic: Topic, number: int) -> None:
    disk.fail("sync", f"{number}/messages", errno.EIO)
    with pytest.raises(GoqError):
        await publish(topic, b"lost", partition=number)
    await until(lambda: not topic.partitions[number].is_online)


def test_a_waiting_receive_is_refused_when_the_last_partition_goes_offline(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            waiting = [
                asyncio.ensure_future(topic.receiver.receive("g", options(wait_ms=60_000)))
                for _ in range(2)
            ]
            await until(lambda: topic.receiver.waiters.count("g") == 2)
            await _lose(disk, topic, 0)
            await until(lambda: topic.receiver.waiters.count("g") == 2)
            await _lose(disk, topic, 1)
            for each in waiting:
                with pytest.raises(PartitionOffline):
                    await each

    run(main())


def test_a_stream_survives_a_short_fault_and_ends_when_nothing_is_left_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"first", b"second")
            stream = PushStream(topic, "g", PushStreamOptions("c", 1, None, None))
            broker.streams.open(stream)
            assert len(await stream.next()) == 1
            await _lose(disk, topic, 0)
            stream.grant(10)
            asked = asyncio.ensure_future(stream.next())
            await asyncio.sleep(0)
            assert not asked.done()
            monkeypatch.setattr(push_streams, "_OFFLINE_MAX", 0)
            with pytest.raises(PartitionOffline):
                await asked
            broker.streams.close(stream)

    run(main())


def test_who_waits_gets_the_messages_of_a_partition_that_is_online_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"stored")
            await _lose(disk, topic, 0)
            asked = options(wait_ms=60_000)
            waiting = asyncio.ensure_future(topic.receiver.receive("g", asked))
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            disk.heal()
            await broker.topic_admin.reopen_partition("t", 0)
            values = [value for _, _, value in leased(await waiting)]
            assert values[0] == b"stored"  # the other may be stored, too

    run(main())


def test_a_partition_opens_although_the_client_that_asked_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        disk = BrokenDisk()
        never = TopicParameters(reopen_delay_s=1_000)
        async with broker_on(tmp_path, disk=disk, topic_parameters=never) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"one")
            await _lose(disk, topic, 0)
            disk.heal()
            disk.hold("messages", operation="open")
            opening = asyncio.ensure_future(broker.topic_admin.reopen_partition("t", 0))
            await until(disk.holding.is_set)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            disk.release()
            await until(lambda: topic.partitions[0].is_online)
            await publish(topic, b"two")

    run(test())
