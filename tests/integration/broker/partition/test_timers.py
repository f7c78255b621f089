"""Which groups of a partition have a timer, and that what is due is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition import timers as timers_module
from goq.broker.partition.ready_state import ReadyState
from goq.clock import ManualClock
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.harness import ack, broker_on, leased, options, publish, run
from tests.support.eventually import until


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
            timers._on_time()
            assert [group for _, group in timers._groups] == ["after-3", "after-4"]
            clock.advance_ms(2000)
            timers._on_time()
            assert partition.group_counts("after-3", clock.wall_ms()).ready == 1
            assert timers._groups == []

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
        return load(ready, *asked)  # type: ignore[arg-type]

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
