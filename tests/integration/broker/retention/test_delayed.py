"""Retention keeps what waits for its time."""

from __future__ import annotations

from pathlib import Path

from goq.broker.group.message_changes import MessageChanges
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.harness import ack, broker_on, leased, options, publish, run
from tests.support.eventually import until

HOUR_MS = 3_600_000
SETTINGS = {"retention__age": "1h", "segment__bytes": "64KiB"}


async def put_later(topic: Topic, value: bytes, due_ms: int) -> int:
    frame = FrameView.parse(encode_frame(Columns([value], deliver_at_ms=[due_ms])))
    (stored,) = await topic.publisher.publish_frames([(0, frame)])
    return stored.offset


async def fill(topic: Topic) -> None:
    """Publish enough to begin a new segment."""
    for _ in range(3):
        await publish(topic, bytes(30_000))


def test_segments_with_scheduled_messages_outlive_retention(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await fill(topic)
            due_ms = clock.wall_ms() + 10 * HOUR_MS
            offset = await put_later(topic, b"later", due_ms)
            await fill(topic)
            await fill(topic)
            clock.advance_ms(2 * HOUR_MS)
            await broker.retention_manager.apply()
            (partition,) = topic.partitions
            assert 0 < partition.log_start_offset <= offset
            clock.advance_ms(8 * HOUR_MS)
            await until(lambda: partition.delayed_count == 0)
            found = await topic.receiver.receive("g", options(1000))
            assert (offset, 1, b"later") in leased(found)
            await ack(topic, "g", found)
            await broker.retention_manager.apply()
            assert partition.log_start_offset > offset

    run(main())


def test_what_was_cancelled_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            topic = await broker.topic_admin.create("t", 1)
            offset = await put_later(topic, b"later", clock.wall_ms() + 10 * HOUR_MS)
            await fill(topic)
            await fill(topic)
            clock.advance_ms(2 * HOUR_MS)
            (partition,) = topic.partitions
            await MessageChanges(partition, offset, ()).cancel("")
            await broker.retention_manager.apply()
            assert partition.log_start_offset > offset
            assert partition.marks.count == 0

    run(main())


def test_what_was_put_off_is_kept_although_its_first_time_has_come(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, **SETTINGS) as broker:
            topic = await broker.topic_admin.create("t", 1)
            offset = await put_later(topic, b"later", clock.wall_ms() + HOUR_MS // 2)
            await fill(topic)
            await put_later(topic, b"other", clock.wall_ms() + HOUR_MS)
            await fill(topic)
            (partition,) = topic.partitions
            await MessageChanges(partition, offset, ()).reschedule(clock.wall_ms() + 10 * HOUR_MS)
            clock.advance_ms(2 * HOUR_MS)
            await until(lambda: partition.delayed_count == 1)
            await broker.retention_manager.apply()
            assert partition.log_start_offset == offset

    run(main())
