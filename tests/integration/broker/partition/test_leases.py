"""What a partition leases and to whom, and what it refuses while it is offline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from goq import limits
from goq.broker.partition import leases
from goq.broker.topic.publisher import RoutedMessage
from goq.delivery.selection.redelivery import RetryRule
from goq.errors import InvalidFrame, PartitionOffline
from goq.model import Message
from goq.storage.log.segment import SUFFIX
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    publish,
    receipts,
    run,
)
from tests.support.broker.partition_internals import cached_frames, event_log, state_of
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
                lambda: leases.end_leases("g", [one.token], ""),
                lambda: leases.undo_receive("g", one.token, found[0].spans),
                lambda: leases.receive(
                    "g", "c", 1, None, bytes_max=2**20, wait=True, rule=RetryRule(), session_id=""
                ),
            ]
            partition.availability.take_offline("is damaged", retry_after_ms=1000)
            for ask in refused:
                with pytest.raises(PartitionOffline):
                    ask()
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


class ThreadsOfReads(BrokenDisk):
    """Notes which thread read the messages of a broker, and how much at once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[threading.Thread, int]] = []

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        data = super().read(path, position, size_bytes, wait=wait)
        if "messages" in path.parts and path.suffix == SUFFIX:
            self.found.append((threading.current_thread(), len(data)))
        return data


def test_a_large_frame_is_read_in_a_thread_and_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        metadata, disk = MemoryMetadata(), ThreadsOfReads()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, *(b"%d" % n + bytes(100_000) for n in range(20)))
        monkeypatch.setattr(limits, "READ_AT_ONCE_BYTES", limits.READ_CHUNK_BYTES)
        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            topic = broker.topic("t")
            disk.found.clear()
            found = leased(await topic.receiver.receive("g", options(10)))
            large = [each for each, size in disk.found if size > limits.READ_AT_ONCE_BYTES]
            assert large
            assert threading.current_thread() not in large
            disk.found.clear()
            found += leased(await topic.receiver.receive("g", options(10)))
            assert disk.found == []
            assert [value.rstrip(b"\0") for _, _, value in found] == [b"%d" % n for n in range(20)]

    run(main())


def test_frames_that_were_read_before_the_cache_was_cleared_do_not_come_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"a")
        async with broker_on(tmp_path, metadata=metadata, disk=disk) as broker:
            (partition,) = broker.topic("t").partitions
            cached = cached_frames(partition)
            await partition.leases.warm(0, 1)
            assert cached.at(0) is not None
            cached.clear()
            disk.hold("messages", operation="read")
            warming = asyncio.create_task(partition.leases.warm(0, 1))
            await until(disk.holding.is_set)
            cached.clear()  # as a compaction does
            disk.release()
            await warming
            assert cached.at(0) is None

    run(main())


@pytest.mark.parametrize("error", [InvalidFrame("its columns are cut off"), OSError("gone")])
def test_frames_that_cannot_be_read_ahead_are_left_to_the_receive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_view: object) -> None:
        raise error

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"a")
            (partition,) = topic.partitions
            cached_frames(partition).clear()
            with monkeypatch.context() as patched:
                patched.setattr(leases, "CachedFrame", fail)
                await partition.leases.warm(0, 1)
            assert cached_frames(partition).at(0) is None
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"a")]

    run(main())
