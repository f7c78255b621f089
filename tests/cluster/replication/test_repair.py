"""Disks that lose bits under replicas, in simulated time: what one has lost another has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq import limits
from goq.cluster.replication.repair.manager import DamageReport
from tests.support.cluster.replication.world import NAMES, World


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 1.0)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_disk_has_lost_comes_back_from_another_and_nothing_acknowledged_is_lost(
    seed: int,
) -> None:
    world = World(seed)
    world.rots_on = NAMES[seed % len(NAMES)]
    world.run(world.live(10))
    assert not world.loop.unexpected
    assert len(world.books.acknowledged) > 50
    assert world.faults["rot"]
    assert world.repaired_frames


def test_what_is_damaged_and_what_was_repaired_is_counted_by_topic() -> None:
    world = World(1)

    def sealed() -> list[Path]:
        disk = world.disks["a"]
        return sorted(p for p in disk.paths() if p.match("t/0/messages/*.log"))[:-1]

    def harm() -> list[DamageReport]:
        return world.nodes["a"].repairs.damage_reports()

    async def live() -> None:
        for name in NAMES:
            world.start(name)
        producing = asyncio.ensure_future(world.produce(0))
        await world.until(sealed)
        producing.cancel()
        assert harm() == [DamageReport("t", 0, 0, 0)]
        world.disks["a"].flip(sealed()[0], 200, 1)
        await world.until(lambda: harm() and harm()[0].damaged_gaps)
        await world.until(lambda: harm() and not harm()[0].damaged_gaps)
        assert harm() == [DamageReport("t", 0, 0, 1)]

    world.run(live())
