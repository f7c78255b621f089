"""Which groups of a partition have a timer."""

from __future__ import annotations

from pathlib import Path

from goq.clock import ManualClock
from tests.support.broker.harness import ack, broker_on, options, publish, run


def test_a_timer_is_set_for_leases_that_are_held_and_not_for_those_that_have_ended(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.create_topic("t")
            await publish(topic, b"a")
            (partition,) = topic.partitions
            timers = partition._timers
            for seconds in (1, 2, 3, 4):
                group = f"after-{seconds}"
                await broker.remember_group(topic, group)
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
