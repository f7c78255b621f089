"""A trace under a clock that was ahead and is set back: offsets decide, times are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.broker.dlq.redrive import RemovalRequest, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.topic.topic import Topic
from goq.broker.trace.trace import Trace
from goq.broker.trace.tracer import Tracer
from goq.clock import ManualClock
from goq.model import MessageId
from tests.support.broker.harness import (
    ack,
    broker_on,
    options,
    publish,
    quiet,
    receipts,
    run,
    trim,
)
from tests.support.broker.partition_internals import event_log
from tests.support.eventually import until

TOPIC = "t"
DAY_MS = 86_400_000
LIFE = ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events that a few messages fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 500)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)


def names(trace: Trace) -> list[str]:
    return [str(each.step.name) for each in trace.steps]


async def live(topic: Topic, count: int) -> None:
    """Publish messages, each of which is acknowledged before the next."""
    for _ in range(count):
        await publish(topic, b"x")
        await ack(topic, "g", await topic.receiver.receive("g", options()))


def test_events_of_live_messages_stay_when_a_clock_that_was_ahead_is_set_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="7d") as broker:
            topic = await broker.topic_admin.create(TOPIC)
            clock.advance_ms(DAY_MS)
            await publish(topic, b"first")
            clock.advance_ms(-DAY_MS)
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            await live(topic, 20)
            events = event_log(topic.partitions[0])
            assert len(events.segments) > 3
            await broker.retention_manager.apply()
            assert events.start_offset == 0
            for offset in range(21):
                trace = await Tracer(broker).trace(MessageId(TOPIC, 0, offset))
                assert names(trace) == LIFE
                assert not trace.incomplete
            first = await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            times_us = [each.step.time_us for each in first.steps]
            assert times_us == [clock.wall_us() + DAY_MS * 1000, *[clock.wall_us()] * 2]
            assert first.publish_to_ack_us is None

    run(main())


def test_events_of_deleted_messages_go_whatever_their_time_was(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            partition = topic.partitions[0]
            clock.advance_ms(DAY_MS)
            await live(topic, 20)
            clock.advance_ms(-DAY_MS)
            await partition.trimmer.roll()
            await live(topic, 20)
            await trim(partition, 20)
            events = event_log(partition)
            assert events.start_offset > 0
            for offset in range(20, 40):
                trace = await Tracer(broker).trace(MessageId(TOPIC, 0, offset))
                assert names(trace) == LIFE
                assert not trace.incomplete

    run(main())


def test_a_trace_says_that_events_of_a_live_message_were_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await live(topic, 20)
            (partition,) = topic.partitions
            segments = event_log(partition).segments
            kept_from = segments[len(segments) // 2].base_offset
            await partition.trimmer.trim_events(kept_from)
            whole = []
            for offset in range(20):
                trace = await Tracer(broker).trace(MessageId(TOPIC, 0, offset))
                reasons = [gap.reason for gap in trace.incomplete]
                whole.append(names(trace) == LIFE and not reasons)
                assert whole[-1] or "older events were deleted" in reasons
            assert whole == sorted(whole), "what was published later has all its events"
            assert True in whole
            assert False in whole

    run(main())


def test_a_copy_comes_after_its_original_whatever_the_clock_said(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"x")
            clock.advance_ms(1000)
            found = await topic.receiver.receive("g", options())
            await topic.settler.reject("g", receipts(found), "")
            await until(lambda: not any(p.outbox_entries for p in topic.partitions))
            await quiet(topic.partitions[0])
            clock.advance_ms(-DAY_MS)
            dead = broker.topic(f"{TOPIC}.dlq")
            await redrive(dead, topic, 0, RemovalRequest(DeadLetterQuery(), (-1, -1), 10))
            await until(lambda: not any(p.outbox_entries for p in dead.partitions))
            await quiet(dead.partitions[0])
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            for asked in (MessageId(TOPIC, 0, 0), MessageId(TOPIC, 0, 1)):
                trace = await Tracer(broker).trace(asked)
                assert [(each.id.offset, str(each.step.name)) for each in trace.steps] == [
                    (0, "PUBLISHED"),
                    (0, "DELIVERED"),
                    (0, "REJECTED"),
                    (0, "DEAD_LETTERED"),
                    (0, "PUBLISHED"),
                    (0, "REDRIVEN"),
                    (1, "PUBLISHED"),
                    (1, "DELIVERED"),
                    (1, "ACKNOWLEDGED"),
                ]
                assert trace.publish_to_ack_us is None

    run(main())
