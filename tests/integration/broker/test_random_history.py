"""Whatever is done to a topic while its clock steps, each message ends once, in time, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.topic.ready_partitions import ReadyPartitions
from goq.clock import ManualClock
from tests.support.broker.harness import MemoryMetadata, broker_on, run
from tests.support.broker.random_history import GROUP, TOPIC, Life
from tests.support.effort import first_of

STEPS = 150
LONG_STEPS = 600


async def live(life: Life, metadata: MemoryMetadata, steps: int, *, alters: bool) -> None:
    """Do so many things to the topic, by chance."""
    for _ in range(steps):
        kind = life.chance.choices(
            ("publish", "receive", "settle", "mark", "clock", "alter"),
            (20, 30, 30, 6, 14, 2 if alters else 0),
        )[0]
        if kind == "publish":
            await life.publish()
        elif kind == "receive":
            await life.receive()
        elif kind == "settle":
            await life.settle_some()
        elif kind == "mark":
            await life.mark()
        elif kind == "clock":
            life.step_clock()
        else:
            await alter(life)
        assert known_lanes(life) == true_lanes(life)


def known_lanes(life: Life) -> dict[int, int]:
    """Return where the next receive expects messages."""
    return life.topic.receiver.ready_partitions.lanes(GROUP)


def true_lanes(life: Life) -> dict[int, int]:
    """Return where it would expect them had it to look at each partition."""
    return ReadyPartitions(life.topic.partitions).lanes(GROUP)


async def alter(life: Life) -> None:
    """Change a setting that the ready queues or the order follow."""
    topic, chance = life.topic, life.chance
    kind = chance.randrange(5)
    if kind == 0:
        lanes = chance.choice(("high,normal,low", "a,b,c,d", "numbers"))
        await life.broker.topic_admin.alter(TOPIC, {"priority.lanes": lanes})
    elif kind == 1:
        weights = {"priority.weights": chance.choice(("strict", "3,2,1"))}
        await life.broker.topic_admin.alter(TOPIC, weights)
    elif kind == 2:
        in_flight = {"tenants.max_in_flight": chance.choice(("none", "2"))}
        await life.broker.topic_admin.alter(TOPIC, in_flight)
    else:
        ordering = chance.choice(("key", "none", "partition"))
        if kind == 3:
            await life.broker.group_admin.configure(topic, GROUP, {"ordering": ordering})
        else:
            await life.broker.topic_admin.alter(TOPIC, {"delivery.ordering": ordering})


def one_life(path: Path, seed: int, steps: int, *, alters: bool) -> None:
    async def main() -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        life = Life(seed, clock)
        for turn in range(3):
            async with broker_on(path, metadata=metadata, clock=clock) as broker:
                life.bind(broker)
                if not turn:
                    topic = await broker.topic_admin.create(TOPIC, 2)
                    await broker.group_admin.remember(topic, GROUP)
                await live(life, metadata, steps, alters=alters)
                if turn == 2:
                    await life.drain()
                    await life.check()

    run(main())


@pytest.mark.parametrize("seed", first_of(range(8), quick=3))
def test_each_message_ends_once_in_time_and_in_order(tmp_path: Path, seed: int) -> None:
    one_life(tmp_path, seed, STEPS, alters=False)


@pytest.mark.parametrize("seed", first_of(range(8), quick=3))
def test_each_message_ends_once_also_when_settings_change(tmp_path: Path, seed: int) -> None:
    one_life(tmp_path, seed, STEPS, alters=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_each_message_ends_once_at_length(tmp_path: Path, seed: int) -> None:
    one_life(tmp_path, seed, LONG_STEPS, alters=bool(seed % 2))
