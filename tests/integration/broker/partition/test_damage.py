"""Damaged frames of messages: passed over, recorded and never served."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.events.replay import read_events
from goq.delivery.events.event import Corrupted
from goq.errors import PartitionOffline
from tests.support.broker.harness import (
    ack,
    leased,
    nack,
    options,
    publish,
    quick_broker_on,
    quiet,
    reopened,
    run,
)
from tests.support.broker.partition_internals import (
    cached_frames,
    event_writer,
    have_damage_repaired,
    state_of,
)
from tests.support.delivery.model import canonical


def _messages_log(path: Path, partition: int = 0) -> Path:
    return path / "topics" / "t" / str(partition) / "messages" / f"{0:020d}.log"


def _damage(path: Path, value: bytes) -> None:
    """Change a byte of a stored value."""
    log = _messages_log(path)
    data = bytearray(log.read_bytes())
    data[data.index(value)] ^= 0xFF
    log.write_bytes(data)


def test_a_damaged_frame_is_passed_over_and_the_others_are_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(5):
                await publish(topic, b"message-%d" % number, b"second-%d" % number)
            _damage(tmp_path, b"message-2")
            found = await topic.receiver.receive("g", options(10))
            offsets = [offset for offset, _, _ in leased(found)]
            assert offsets == [0, 1, 2, 3, 6, 7, 8, 9]
            assert [tuple(r) for r in state_of(topic.partitions[0]).corrupt] == [(4, 6)]
            await ack(topic, "g", found)
            assert await topic.receiver.receive("g", options(10)) == []
            assert [
                o for o, _, _ in leased(await topic.receiver.receive("h", options(10)))
            ] == offsets
            await quiet(topic.partitions[0])
            state = canonical(state_of(topic.partitions[0]))
        assert canonical(reopened(tmp_path / "topics/t/0").state) == state

    run(main())


def test_a_receive_that_meets_only_damage_goes_on_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"damaged" for _ in range(50)])
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            assert leased(await topic.receiver.receive("g", options(1))) == [(50, 1, b"sound")]

    run(main())


def test_damage_under_a_waiting_retry_does_not_hold_up_the_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for number in range(4):
                await publish(topic, b"message-%d" % number)
            await nack(topic, "g", await topic.receiver.receive("g", options(3)), 0)
            _damage(tmp_path, b"message-1")
            cached_frames(topic.partitions[0]).clear()  # else what was read before is at hand
            found = leased(await topic.receiver.receive("g", options(10)))
            assert [(o, a) for o, a, _ in found] == [(0, 2), (2, 2), (3, 1)]
            group = state_of(topic.partitions[0]).groups["g"]
            assert not group.retries.message_count

    run(main())


def test_damage_is_recorded_once_however_often_it_is_met(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            partition = topic.partitions[0]
            sequence = event_writer(partition).next_token
            for _ in range(5):
                reading = partition.read(0, messages_max=10)
                assert [v for f in reading.frames for v in f.values(0, 1)] == [b"sound"]
            assert event_writer(partition).next_token == sequence + 1
            assert any(r.start == 0 for r in state_of(partition).corrupt)

    run(main())


def test_damage_that_another_replica_may_repair_is_not_recorded_and_nothing_more_is_read(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            await publish(topic, b"sound")
            _damage(tmp_path, b"damaged")
            partition = topic.partitions[0]
            have_damage_repaired(partition)
            sequence = event_writer(partition).next_token
            with pytest.raises(PartitionOffline, match="another is to lead it"):
                partition.read(0, messages_max=10)
            assert not partition.is_online
            assert event_writer(partition).next_token == sequence
            assert not state_of(partition).corrupt

    run(main())


def test_the_corruption_event_is_in_the_log_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"damaged")
            _damage(tmp_path, b"damaged")
            assert await topic.receiver.receive("g", options()) == []
            partition = topic.partitions[0]
            await quiet(partition)
            events = [
                stored.event
                for stored in read_events(partition.event_reader, 0, partition.event_high_watermark)
                if stored
            ]
            (corrupted,) = [e for e in events if isinstance(e, Corrupted)]
            assert (corrupted.start, corrupted.end) == (0, 1)
            assert "CRC32C" in corrupted.reason

    run(main())
