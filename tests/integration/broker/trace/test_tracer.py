"""The trace of a message says what was done to it, in order, whatever was done around it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.broker.dlq.redrive import RemovalRequest, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic, TopicParameters
from goq.broker.trace import tracer
from goq.broker.trace.trace import Trace, build_trace
from goq.broker.trace.tracer import Tracer
from goq.clock import ManualClock
from goq.delivery.events.event import Moved
from goq.errors import MessageNotFound, TopicNotFound
from goq.model import Message, MessageId
from goq.storage.disk import RealDisk
from tests.support.broker.copies import publish_copies
from tests.support.broker.harness import (
    MemoryMetadata,
    ack,
    broker_on,
    options,
    publish,
    quiet,
    receipts,
    run,
)
from tests.support.broker.partition_internals import event_log, event_writer, state_of
from tests.support.delivery.trace_model import TOPIC, TraceTwin, as_told, in_order
from tests.support.eventually import until

TURNS, STEPS = 3, 40
SETTINGS = {
    "delivery__max_attempts": 3,
    "delivery__backoff__initial": "1s",
    "delivery__backoff__jitter": 0,
    "delivery__ordering": "none",
}


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events and blocks of their index that a few steps fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 6_000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "EVENT_INDEX_BLOCK_BYTES", 600)


async def check(twin: TraceTwin) -> None:
    tracing = Tracer(twin.broker)
    for message_id, expected in twin.steps.items():
        trace = await tracing.trace(message_id)
        own = [each for each in trace.steps if each.id == message_id]
        assert in_order(as_told(own)) == in_order(expected), message_id
        assert not trace.incomplete
        for each in trace.copies:
            steps = [step for step in trace.steps if step.id == each.id]
            assert in_order(as_told(steps)) == in_order(twin.steps[each.id]), (message_id, each.id)
        reached = {step["to"] for step in expected if "to" in step}
        reached |= {step["origin"] for step in expected if "origin" in step}
        assert reached <= {each.id for each in trace.copies}
        delivered = [e for each in {step.id for step in trace.steps} for e in twin.steps[each]]
        assert trace.attempts == sum(
            {"DELIVERED": 1, "RETURNED": -1}.get(step["event"], 0) for step in delivered
        )


@pytest.mark.usefixtures("small_segments")
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_the_trace_of_every_message_is_what_was_done(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    async def main(path: Path) -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        twin = TraceTwin(seed, clock)
        for turn in range(TURNS):
            async with broker_on(path, metadata=metadata, clock=clock, **SETTINGS) as broker:
                twin.bind(broker)
                if not turn:
                    await broker.topic_admin.create(TOPIC, 1)
                for _ in range(STEPS):
                    await twin.act()
                await check(twin)

    run(main(tmp_path_factory.mktemp("life")))


def names(trace: Trace) -> list[str]:
    return [str(each.step.name) for each in trace.steps]


DAY_MS = 86_400_000


async def roll(topic: Topic) -> None:
    await topic.partitions[0].trimmer.roll()


def test_a_deleted_message_is_told_of_as_long_as_its_events_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="7d") as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"old")
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            await roll(topic)
            clock.advance_ms(1000)
            await publish(topic, b"new")
            tracing, old = Tracer(broker), MessageId(TOPIC, 0, 0)
            trace = await tracing.trace(old)
            assert (
                trace.message.retained_until_us == clock.wall_us() - 1_000_000 + 7 * DAY_MS * 1000
            )
            clock.advance_ms(7 * DAY_MS)
            await broker.retention_manager.apply()
            trace = await tracing.trace(old)
            assert names(trace) == ["DELIVERED", "ACKNOWLEDGED", "DELETED"]
            assert (trace.message.state, trace.message.message) == ("deleted", None)
            assert (trace.publish_to_ack_us, trace.attempts) == (None, 1)
            assert names(await tracing.trace(MessageId(TOPIC, 0, 1))) == ["PUBLISHED"]

    run(main())


def test_a_message_deleted_before_its_events_is_not_found_and_that_says_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 500)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)

    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="7d") as broker:
            topic = await broker.topic_admin.create(TOPIC)
            for _ in range(4):
                for _ in range(5):
                    await publish(topic, b"x")
                    await ack(topic, "g", await topic.receiver.receive("g", options()))
                await roll(topic)
                clock.advance_ms(4 * DAY_MS)
                await broker.retention_manager.apply()
            events = event_log(topic.partitions[0])
            assert events.start_offset > 0
            with pytest.raises(MessageNotFound, match="retention deleted it before 20") as raised:
                await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            assert f"begins at offset {state_of(topic.partitions[0]).start_offset}" in str(
                raised.value
            )

    run(main())


def test_the_time_until_which_it_is_kept_is_that_of_its_segment(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock, retention__age="none") as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"first")
            began_us = clock.wall_us()
            clock.advance_ms(5000)
            await publish(topic, b"second")
            tracing = Tracer(broker)
            first = MessageId(TOPIC, 0, 0)
            assert (await tracing.trace(first)).message.retained_until_us is None
            await broker.topic_admin.alter(TOPIC, {"retention.age": "1d"})
            day_us = DAY_MS * 1000
            found = (await tracing.trace(first)).message.retained_until_us
            assert found == began_us + day_us
            await roll(topic)
            await publish(topic, b"third")
            found = (await tracing.trace(first)).message.retained_until_us
            assert found == began_us + 5_000_000 + day_us

    run(main())


def test_a_message_that_was_due_when_it_came_was_not_scheduled(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            now_ms = broker.clock.wall_ms()
            placed = [RoutedMessage(0, Message(b"x", deliver_at_ms=now_ms + n)) for n in (-5, 0, 1)]
            await topic.publisher.publish_messages(placed)
            found = [names(await Tracer(broker).trace(MessageId(TOPIC, 0, n))) for n in range(3)]
            assert found == [["PUBLISHED"], ["PUBLISHED"], ["PUBLISHED", "SCHEDULED"]]

    run(main())


def test_a_message_that_has_come_due_since_is_told_of_though_that_is_not_written_yet(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            due_ms = clock.wall_ms() + 1000
            await topic.publisher.publish_messages(
                [RoutedMessage(0, Message(b"x", deliver_at_ms=due_ms))]
            )
            (partition,) = topic.partitions
            clock.advance_ms(2000)
            await until(lambda: event_writer(partition)._deferred)
            trace = await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            assert names(trace) == ["PUBLISHED", "SCHEDULED", "MATURED"]

    run(main())


def test_a_damaged_message_has_the_steps_that_its_events_tell(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"a" * 50)
            await publish(topic, b"b" * 50)
            await ack(topic, "g", await topic.receiver.receive("g", options()))
        (path,) = (tmp_path / "topics" / TOPIC / "0" / "messages").glob("*.log")
        data = path.read_bytes()
        path.write_bytes(data.replace(b"a" * 50, b"a" * 49 + b"c"))
        async with broker_on(tmp_path, metadata=metadata) as broker:
            trace = await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            assert names(trace) == ["DELIVERED", "ACKNOWLEDGED"]
            assert trace.message.state == "damaged"
            assert names(await Tracer(broker).trace(MessageId(TOPIC, 0, 1)))[0] == "PUBLISHED"

    run(main())


async def reject_all(topic: Topic, group: str, count: int) -> None:
    found = await topic.receiver.receive(group, options(count))
    await topic.settler.reject(group, receipts(found), "")


async def left(topic: Topic) -> None:
    await until(lambda: not any(p.outbox_entries for p in topic.partitions))
    for partition in topic.partitions:
        await quiet(partition)


def test_copies_are_found_between_those_of_others(tmp_path: Path) -> None:
    parameters = TopicParameters(outbox_frame_messages=3)

    async def main() -> None:
        async with broker_on(tmp_path, topic_parameters=parameters) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            for number in range(12):
                await publish(topic, b"%d" % number)
            dead = await broker.topic_admin.create(TOPIC + ".dlq")
            await reject_all(topic, "g", 12)
            while topic.partitions[0].outbox_entries:
                await publish(dead, b"another")
            await left(topic)
            copies = []
            for offset in range(12):
                trace = await Tracer(broker).trace(MessageId(TOPIC, 0, offset))
                (copy,) = trace.copies
                assert copy.message is not None
                assert copy.message.value == b"%d" % offset
                assert trace.steps[-1][2:4] == (None, trace.message.id)
                copies.append(copy.id.offset)
            assert copies == sorted(copies)
            assert copies[-1] - copies[0] > 11, "another's was published between them"

    run(main())


def test_headers_name_an_origin_only_in_copies(tmp_path: Path) -> None:
    """The origin is told, also where it is not known any more; not what a producer claims."""

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            claim = Message(b"x", headers=(("goq-dead-id", b"t:0:7"),))
            for name in ("t.dlq", "other"):
                topic = await broker.topic_admin.create(name, 1)
                await topic.publisher.publish_messages([RoutedMessage(0, claim)])
                await publish_copies(topic, [RoutedMessage(0, claim)])
                for offset, origin in enumerate((None, MessageId("t", 0, 7))):
                    trace = await Tracer(broker).trace(MessageId(name, 0, offset))
                    assert [step.origin for step in trace.steps] == [origin]

    run(main())


def test_a_life_of_many_deaths_is_followed_up_to_a_bound(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"x")
            for _ in range(4):
                await reject_all(topic, "g", 1)
                await left(topic)
                dead = broker.topic(TOPIC + ".dlq")
                await redrive(dead, topic, 0, RemovalRequest(DeadLetterQuery(), (-1, -1), 10))
                await left(dead)
            tracing, first, last = Tracer(broker), MessageId(TOPIC, 0, 0), MessageId(TOPIC, 0, 4)
            trace = await tracing.trace(first)
            assert len(trace.copies) == 8
            assert names(trace).count("REDRIVEN") == names(trace).count("DEAD_LETTERED") == 4
            assert (await tracing.trace(last)).steps == trace.steps
            assert (await Tracer(broker, 9).trace(first)).incomplete == []
            cut = await Tracer(broker, 8).trace(first)
            assert len(cut.copies) == 7
            assert [gap.reason for gap in cut.incomplete] == [
                "there are more copies than a trace follows"
            ]

    run(main())


class CountingDisk(RealDisk):
    """Counts the bytes that are read of events."""

    read_bytes = 0

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        data = super().read(path, position, size_bytes, wait=wait)
        self.read_bytes += len(data) if "events" in path.parts else 0
        return data


def test_a_trace_reads_few_events_for_each_of_many_copies(tmp_path: Path) -> None:
    async def main() -> None:
        disk = CountingDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"x")
            for _ in range(6):
                await reject_all(topic, "g", 1)
                await left(topic)
                dead = broker.topic(TOPIC + ".dlq")
                await redrive(dead, topic, 0, RemovalRequest(DeadLetterQuery(), (-1, -1), 10))
                await left(dead)
            for each in (topic, dead):
                for _ in range(12):  # 250 KiB about messages that are to come
                    await each.partitions[0].record([Moved(10**6 + n, 1) for n in range(3_000)])
            before = disk.read_bytes
            trace = await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            assert len(trace.copies) == 12
            assert disk.read_bytes - before < 13 * 64 * limits.KIB

    run(main())


def test_where_the_dead_letters_are_gone_the_message_is_still_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create(TOPIC)
            await publish(topic, b"x")
            await reject_all(topic, "g", 1)
            await left(topic)
            await broker.topic_admin.delete(TOPIC + ".dlq")
            trace = await Tracer(broker).trace(MessageId(TOPIC, 0, 0))
            assert names(trace) == ["PUBLISHED", "DELIVERED", "REJECTED", "DEAD_LETTERED"]
            assert trace.steps[-1].to is None
            with pytest.raises(TopicNotFound):
                await Tracer(broker).trace(MessageId(TOPIC + ".dlq", 0, 0))

    run(main())


@pytest.mark.parametrize("is_large", [False, True])
def test_a_trace_of_many_steps_is_put_together_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr(tracer, "_STEPS_AT_ONCE", 2 if is_large else 3)
    threads: list[int] = []

    def building(*arguments: Any, **options: Any) -> Trace:
        threads.append(threading.get_ident())
        return build_trace(*arguments, **options)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            await publish(topic, b"v")
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            monkeypatch.setattr(tracer, "build_trace", building)
            trace = await Tracer(broker).trace(MessageId("t", 0, 0))
            assert names(trace) == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]

    run(main())
    assert (threads != [threading.get_ident()]) is is_large


class _CountedTracer(Tracer):
    """A tracer that counts its looks."""

    looks = 0

    async def trace(self, *asked: Any) -> Trace:
        found = await super().trace(*asked)
        self.looks += 1
        return found


def test_a_trace_is_followed_until_something_is_done_to_the_message_or_to_a_copy(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            tracing, first = _CountedTracer(broker), MessageId("t", 0, 0)

            async def follow(seen: int) -> asyncio.Task[Trace]:
                """Wait for more steps than those; return once it has looked."""
                looks = tracing.looks
                following = tracing.follow(first, seen=seen, wait_ms=60_000)
                began = asyncio.ensure_future(following)
                await until(lambda: tracing.looks > looks)
                await asyncio.sleep(0)
                return began

            assert names(await (await follow(0))) == ["PUBLISHED"]
            waiting = await follow(1)
            assert not waiting.done()
            found = await topic.receiver.receive("g", options())
            assert names(await waiting) == ["PUBLISHED", "DELIVERED"]
            await topic.settler.reject("g", receipts(found), "bad")
            await left(topic)
            seen = len((await tracing.trace(first)).steps)
            waiting = await follow(seen)
            assert not waiting.done()
            (dead,) = (each for name, each in broker.topics.items() if name != "t")
            await dead.receiver.receive("reader", options())
            more = await waiting
            assert len(more.steps) > seen
            for wait_ms in (0, 1):
                looks = tracing.looks
                soon = await tracing.follow(first, seen=1_000, wait_ms=wait_ms)
                assert soon.steps == more.steps
                assert tracing.looks > looks
            waiting = await follow(len(more.steps) + 10)
            for number in range(3):
                looks = tracing.looks
                assert await dead.receiver.receive(f"reader-{number}", options())
                await until(lambda looks=looks: tracing.looks > looks)
                await asyncio.sleep(0.1)
                assert tracing.looks <= looks + 4  # it rests until the next event
            waiting.cancel()

    run(main())
