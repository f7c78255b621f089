"""What a second process makes of a running broker's folder is what the broker has in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goq.clock import ManualClock
from tests.integration.broker.test_random_history import live
from tests.support.broker.harness import MemoryMetadata, broker_on, run
from tests.support.broker.random_history import GROUP, TOPIC, Life
from tests.support.broker.rebuild import Copy, rebuild
from tests.support.effort import first_of

COPIES = 4
STEPS_BETWEEN = 60


def check_copies(path: Path, seed: int, copies: int) -> None:
    """Copy the folder now and then, drain the broker itself after the last copy, and compare."""
    taken: list[Copy] = []
    states: list[list[Any]] = []

    async def main() -> dict[int, list[int]]:
        metadata, clock = MemoryMetadata(), ManualClock()
        life = Life(seed, clock)
        async with broker_on(path / "live", metadata=metadata, clock=clock) as broker:
            life.bind(broker)
            topic = await broker.topic_admin.create(TOPIC, 2)
            await broker.group_admin.remember(topic, GROUP)
            for number in range(copies):
                await live(life, metadata, STEPS_BETWEEN, alters=bool(seed % 2))
                life.tick()
                copy, state = await life.copy(metadata, path / "live", path / f"copy-{number}")
                taken.append(copy)
                states.append(state)
            life.held.clear()  # what was leased before stays so, as in the copy
            before = len(life.ledger.deliveries)
            while await life.receive(7, 3_600_000):
                await life.settle("ack", list(life.held))
            drained: dict[int, list[int]] = {}
            for each in life.ledger.deliveries[before:]:
                drained.setdefault(each.place[0], []).append(each.place[1])
            return drained

    drained = run(main())
    found = rebuild(taken, TOPIC, GROUP)
    for rebuilt, state in zip(found, states, strict=True):
        assert rebuilt.states == state
    assert {n: sorted(o) for n, o in found[-1].drained.items()} == {
        n: sorted(o) for n, o in drained.items()
    }


@pytest.mark.parametrize("seed", first_of(range(4), quick=2))
def test_a_second_process_finds_the_state_as_it_is_and_hands_out_the_same(
    tmp_path: Path, seed: int
) -> None:
    check_copies(tmp_path, seed, COPIES)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_second_process_finds_the_same_at_length(tmp_path: Path, seed: int) -> None:
    check_copies(tmp_path, seed, 10)
