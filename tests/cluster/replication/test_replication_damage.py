"""Disks that lose bits under replicas, in simulated time: what one has lost another has."""

from __future__ import annotations

import pytest
from support.sim.world import NAMES, World

from goq import limits


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
