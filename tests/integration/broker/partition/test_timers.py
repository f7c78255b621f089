"""Which groups of a partition have a timer, and that what is due is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.broker import Broker
from goq.broker.partition import timers as timers_module
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.clock import ManualClock
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.harness import (
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    publish,
    quiet,
    receipts,
    run,
    settle_nacked,
)
from tests.support.broker.partition_internals import event_log, state_of
from tests.support.eventually import until

DAY_MS = 86_400_000


async def lease_one_and_nack_one(broker: Broker) -> None:
    """Leave one message of a new topic leased for 10 s, and one waiting for as long."""
    topic = await broker.topic_admin.create("t")
    await publish(topic, b"a", b"b")
    await topic.receiver.receive("g", options(1, visibility_ms=10_000))
    found = await topic.receiver.receive("g", options(1))
    await settle_nacked(topic, "g", receipts(found), 10_000)


async def check_that_both_end(broker: Broker, clock: ManualClock, left_ms: int) -> None:
    """Check that the lease and the wait end in so many milliseconds, and neither before."""
    (partition,) = broker.topic("t").partitions
    clock.advance_ms(left_ms - 1)
    partition._timers._on_time()
    counts = partition.group_counts("g", clock.wall_ms())
    assert (counts.leased, counts.retry, counts.ready) == (1, 1, 0)
    clock.advance_ms(1)
    partition._timers._on_time()
    await until(lambda: partition.group_counts("g", clock.wall_ms()).ready == 2)


@pytest.mark.parametrize("step_ms", [-400 * DAY_MS, -300, 300, 400 * DAY_MS])
def test_a_lease_keeps_its_length_and_a_retry_its_wait_when_the_clock_is_set(
    tmp_path: Path, step_ms: int
) -> None:
    async def main() -> None:
        clock = ManualClock(4_000_000_000_000_000)
        async with broker_on(tmp_path, clock=clock) as broker:
            await lease_one_and_nack_one(broker)
            clock.jump_ms(step_ms)
            await check_that_both_end(broker, clock, 10_000)

    run(main())


def test_a_lease_keeps_its_length_when_the_clock_was_set_back_before_a_restart(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(4_000_000_000_000_000), MemoryMetadata()
        async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            await lease_one_and_nack_one(broker)
        clock.jump_ms(-400 * DAY_MS)
        async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            await check_that_both_end(broker, clock, 10_000)

    run(main())


def test_an_extended_lease_has_its_new_length_by_a_clock_that_was_set_before(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock(4_000_000_000_000_000)
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            found = await topic.receiver.receive("g", options(visibility_ms=10_000))
            clock.jump_ms(-DAY_MS)
            await topic.settler.extend("g", receipts(found), clock.wall_ms() + 60_000)
            (partition,) = topic.partitions
            (lease,) = state_of(partition).groups["g"].leases.values()
            assert [part.time_ms for part in lease.parts] == [clock.wall_ms() + 60_000]

    run(main())


def test_a_timer_is_set_for_leases_that_are_held_and_not_for_those_that_have_ended(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            (partition,) = topic.partitions
            timers = partition._timers
            for seconds in (1, 2, 3, 4):
                group = f"after-{seconds}"
                await broker.group_admin.remember(topic, group)
                found = await topic.receiver.receive(group, options(visibility_ms=1000 * seconds))
                if seconds != 3:
                    await ack(topic, group, found)
            clock.advance_ms(1000)
            timers._on_time()  # a slice that was over early goes on by itself
            await until(lambda: [g for _, g in timers._groups] == ["after-3", "after-4"])
            clock.advance_ms(2000)
            timers._on_time()
            await until(lambda: timers._groups == [])
            assert partition.group_counts("after-3", clock.wall_ms()).ready == 1

    run(main())


def test_delayed_messages_that_could_not_be_read_are_read_again_though_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_LOAD_RETRY_S", 0.001)
    load, tries = ReadyState.load, list[object]()

    def fail_first(ready: ReadyState, *asked: object) -> object:
        tries.append(asked)
        if len(tries) <= 2:
            raise OSError("a bad sector")
        return load(ready, *asked)

    monkeypatch.setattr(ReadyState, "load", fail_first)

    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            frame = encode_frame(Columns([b"later"], deliver_at_ms=[clock.wall_ms() + 7_200_000]))
            await topic.publisher.publish_frames([(0, FrameView.parse(frame))])
            (partition,) = topic.partitions
            clock.advance_ms(7_200_000)
            partition._timers.cancel()
            partition._timers._on_time()
            await until(lambda: partition.delayed_count == 0)
            assert len(tries) == 3
            found = await topic.receiver.receive("g", options())
            assert [value for _, _, value in leased(found)] == [b"later"]

    run(main())


@pytest.mark.parametrize("ahead_ms", [60_000, 0])
def test_a_new_leader_reckons_times_by_its_own_clock_and_sets_its_timer_for_them(
    tmp_path: Path, ahead_ms: int
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a")
            (partition,) = topic.partitions
            found = await topic.receiver.receive("g", options(visibility_ms=20))
            last_event_us = clock.wall_us()
            clock.advance_ms(ahead_ms)
            partition.take_over_times("n2", last_event_us, lambda _node: ahead_ms)
            state = state_of(partition)
            assert state.clock_node == "n2"
            assert state.next_timer_ms("g") == found[0].deadline_ms + ahead_ms
            at = event_log(partition).end_offset
            partition.take_over_times("n2", last_event_us, lambda _node: ahead_ms)
            await quiet(partition)
            assert event_log(partition).end_offset == at + 1
            clock.advance_ms(10)
            partition._timers._on_time()
            assert partition.group_counts("g", clock.wall_ms()).leased == 1
            assert topic.stats.expired_messages == 0
            clock.advance_ms(10)
            await until(lambda: partition.group_counts("g", clock.wall_ms()).ready == 1)

    run(main())
