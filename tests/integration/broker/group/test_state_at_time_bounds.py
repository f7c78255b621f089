"""The bounds of the past: its first and last moment, clocks that step, what is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.api.views.group_at_time import GroupAtTimeView
from goq.broker.broker import Broker
from goq.broker.group.state_at_time import GroupAtTime, earliest_us, group_at
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.delivery.events.event import Acked, AnyEvent, SnapshotStarted
from goq.delivery.events.frame_codec import begins_snapshot, decode_event_frame, encode_event_frame
from goq.errors import HistoryNotRetained
from goq.frame.header import HEADER_BYTES
from goq.frame.view import FrameView
from goq.storage.log.time_lookup import read_backward
from goq.units import format_time_us
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    nack,
    options,
    publish,
    quick_broker_on,
    quiet,
    run,
)
from tests.support.broker.partition_internals import event_log, event_writer
from tests.support.eventually import until

SECOND_US = 1_000_000


def at(topic: Topic, time_us: int, group: str = "g") -> GroupAtTime:
    partition = topic.partitions[0]
    return group_at(partition.message_reader, partition.event_reader, group, time_us)


def done(past: GroupAtTime) -> tuple[int, int, int]:
    """Return the lag, what is leased, and where the group is."""
    return past.counts.lag, past.counts.leased, past.cursor


async def topic_of(broker: Broker, *values: bytes) -> Topic:
    topic = await broker.topic_admin.create("t")
    if values:
        await publish(topic, *values)
    return topic


async def step(topic: Topic, clock: ManualClock, count: int) -> int:
    """Receive and acknowledge messages a second later; return when, after all is written."""
    clock.now_us += SECOND_US
    await ack(topic, "g", await topic.receiver.receive("g", options(count)))
    await quiet(topic.partitions[0])
    return clock.now_us


def test_a_moment_is_told_from_its_own_microsecond_on(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b", b"c")
            first_us = clock.now_us
            times = [await step(topic, clock, 1) for _ in range(3)]
            assert not at(topic, times[0] - 1).is_known
            assert [done(at(topic, t)) for t in times] == [(2, 0, 1), (1, 0, 2), (0, 0, 3)]
            assert [done(at(topic, t - 1)) for t in times[1:]] == [(2, 0, 1), (1, 0, 2)]
            assert [at(topic, first_us + n).counts.lag for n in (-1, 0)] == [0, 3]

    run(main())


@pytest.mark.parametrize("log", ["messages", "events"])
def test_what_is_being_stored_at_a_time_is_waited_for_so_that_answers_agree(
    tmp_path: Path, log: str
) -> None:
    async def main() -> None:
        clock, disk = ManualClock(), BrokenDisk()
        async with quick_broker_on(tmp_path, clock=clock, disk=disk) as broker:
            topic = await topic_of(broker, b"a", b"b", b"c")
            await step(topic, clock, 1)
            view = GroupAtTimeView(clock, broker.archive)
            clock.now_us += SECOND_US
            disk.hold(f"/{log}/")
            slow: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(publish(topic, b"d")),
                asyncio.ensure_future(topic.receiver.receive("g", options(1))),
            ]
            await until(disk.holding.is_set)
            before = await view.group(topic, "g", format_time_us(clock.now_us - 1))
            assert (before.lag, before.leased) == (2, 0)
            now = format_time_us(clock.now_us)
            clock.now_us += SECOND_US
            asking = asyncio.ensure_future(view.group(topic, "g", now))
            await asyncio.sleep(0.05)
            assert not asking.done()
            disk.release()
            found = await asking
            await asyncio.gather(*slow)
            again = await view.group(topic, "g", now)
            assert (again.lag, again.leased) == (found.lag, found.leased)

    run(main())


def test_a_time_that_came_twice_is_told_as_the_second_time(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b", b"c", b"d")
            before_us = await step(topic, clock, 1)
            later_us = await step(topic, clock, 1)
            clock.now_us = before_us - SECOND_US
            again_us = await step(topic, clock, 1)
            assert again_us == before_us
            assert done(at(topic, again_us)) == (1, 0, 3)
            assert done(at(topic, later_us)) == (1, 0, 3)
            assert not at(topic, again_us - 1).is_known

    run(main())


def test_messages_from_before_a_step_back_are_there_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b")
            clock.now_us -= 60 * SECOND_US
            now_us = await step(topic, clock, 2)
            past = at(topic, now_us)
            assert done(past) == (0, 0, 2)
            assert not past.incomplete

    run(main())


def test_what_was_due_is_ready_though_nothing_was_written_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b")
            now_us = await step(topic, clock, 1)
            await nack(topic, "g", await topic.receiver.receive("g", options(1)), delay_ms=5_000)
            await quiet(topic.partitions[0])
            counts = [at(topic, now_us + ms * 1000).counts for ms in (0, 4_999, 5_000)]
            assert [(c.ready, c.retry) for c in counts] == [(0, 1), (0, 1), (1, 0)]

    run(main())


def test_the_group_that_was_deleted_is_told_of_as_long_as_it_was_there(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a")
            there_us = await step(topic, clock, 1)
            clock.now_us += SECOND_US
            await broker.group_admin.delete(topic, "g")
            assert at(topic, clock.now_us - 1).is_known
            assert not at(topic, clock.now_us).is_known
            assert done(at(topic, there_us)) == (0, 0, 1)

    run(main())


def test_before_what_retention_left_nothing_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b")
            old_us = await step(topic, clock, 1)
            partition = topic.partitions[0]
            await partition.trimmer.roll()
            clock.now_us += SECOND_US
            kept_us = clock.now_us
            await publish(topic, b"c")
            await partition.trimmer.trim(2)
            logs = partition.message_reader, partition.event_reader
            assert earliest_us(*logs) == kept_us
            for time_us in (old_us, kept_us - 1):
                with pytest.raises(HistoryNotRetained, match="is not kept any more"):
                    at(topic, time_us)
            assert done(at(topic, kept_us)) == (1, 0, 2)

    run(main())


def test_what_was_deleted_before_it_was_done_is_told_of_and_said(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker, b"a", b"b")
            await step(topic, clock, 1)
            partition = topic.partitions[0]
            await partition.trimmer.roll()
            clock.now_us += SECOND_US
            await publish(topic, b"c")
            between_us = clock.now_us
            clock.now_us += SECOND_US
            await partition.trimmer.trim(2)
            past = at(topic, between_us)
            assert done(past) == (2, 0, 1)
            assert past.oldest_us == between_us
            (reason,) = past.incomplete
            assert reason.reason.startswith("1 messages that were not done then")
            assert done(at(topic, clock.now_us)) == (1, 0, 2)
            assert not at(topic, clock.now_us).incomplete

    run(main())


async def _with_damage(path: Path, clock: ManualClock, *, snapshot_after: bool) -> list[int]:
    """Leave a log whose second ack is damaged; return the times of its three."""
    async with broker_on(path, clock=clock) as broker:
        topic = await topic_of(broker, b"a", b"b", b"c")
        times = [await step(topic, clock, 1) for _ in range(3)]
        partition = topic.partitions[0]
        if snapshot_after:
            clock.now_us += SECOND_US
            event_writer(partition).record_snapshot()
            await quiet(partition)
            times.append(clock.now_us)
        position = _position_of(partition, times[1])
        with event_log(partition).active.path.open("r+b") as file:
            file.seek(position + HEADER_BYTES + 8)
            file.write(b"\xff\xff\xff")
        _check_damaged(topic, times)
        return times


def _position_of(partition: Partition, time_us: int) -> int:
    places = read_backward(partition.event_reader, partition.event_high_watermark)
    return next(
        place.position
        for place in places
        if place.view.header.append_time_us == time_us and _has(place.view, Acked)
    )


def _has(view: FrameView, kind: type[AnyEvent]) -> bool:
    return any(isinstance(stored.event, kind) for stored in decode_event_frame(view))


def _check_damaged(topic: Topic, times: Sequence[int]) -> None:
    assert not at(topic, times[0]).incomplete
    (at_once,) = at(topic, times[1]).incomplete
    assert at_once.reason == (
        "the events 3 to 3 are damaged: whether they were there by then is not known"
    )
    (lost,) = at(topic, times[2]).incomplete
    assert lost == ("the events 3 to 3 are damaged", times[1], times[2])
    assert done(at(topic, times[2])) == (1, 1, 3)
    for after_us in times[3:]:
        assert not at(topic, after_us).incomplete
        assert done(at(topic, after_us)) == (0, 0, 3)


@pytest.mark.parametrize("snapshot_after", [False, True])
def test_a_damaged_event_is_said_until_a_snapshot_makes_up_for_it(
    tmp_path: Path, snapshot_after: bool
) -> None:
    run(_with_damage(tmp_path, ManualClock(), snapshot_after=snapshot_after))


def _damage_message(partition: Partition, offset: int) -> None:
    end = offset + 1
    place = next(read_backward(partition.message_reader, end))
    assert place.view.header.base_offset == offset
    path = next(s for s in partition.message_reader.segments if s.base_offset <= offset).path
    with path.open("r+b") as file:
        file.seek(place.position + HEADER_BYTES + 8)
        file.write(b"\xff\xff\xff")


def test_damaged_messages_are_said_where_they_matter_to_a_moment(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await topic_of(broker)
            times = []
            for value in (b"a", b"b", b"c"):
                await publish(topic, value)
                times.append(clock.now_us)
                clock.now_us += SECOND_US
            partition = topic.partitions[0]
            await broker.group_admin.remember(topic, "g")
            _damage_message(partition, 1)
            said = [[each.reason for each in at(topic, time_us).incomplete] for time_us in times]
            there = "the messages 1 to 1 are damaged: whether they were there by then is not known"
            assert said == [[there], [there], []]
            assert [at(topic, time_us).oldest_us for time_us in times] == [times[0]] * 3
            await step(topic, clock, 1)
            past = at(topic, clock.now_us)
            assert past.oldest_us is None
            assert [each.reason for each in past.incomplete] == [
                "the message that had waited longest is damaged: since when is not known"
            ]
            _damage_message(partition, 2)
            assert at(topic, times[2]).incomplete[0].reason == (
                "the messages 1 to 2 are damaged: whether they were there by then is not known"
            )

    run(main())


def test_a_snapshot_is_known_by_the_first_bytes_of_its_frame() -> None:
    start = SnapshotStarted(0, 0, [])
    other = Acked("g", 1, [(0, 1)])
    for events, expected in (
        ([start], True),
        ([start, other], True),
        ([start, *[other] * 20], True),
        ([start, *[other] * 1000], True),
        ([other], False),
        ([other, start], False),
        ([other] * 300, False),
    ):
        assert begins_snapshot(encode_event_frame(events).body) is expected


@pytest.mark.parametrize(("events", "snapshots"), [(9, 0), (10, 1), (19, 1), (20, 2)])
def test_a_snapshot_is_written_after_so_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int, snapshots: int
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MAX", 10)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            partition = (await topic_of(broker)).partitions[0]
            for _ in range(events):
                await partition.reset("g", 0)
            await quiet(partition)
            end = partition.event_high_watermark
            found = read_backward(partition.event_reader, end, begins_snapshot)
            assert len(list(found)) == snapshots

    run(main())
