"""Replication under faults, in simulated time: nothing is lost, and nothing done comes again."""

from __future__ import annotations

import pytest

from goq import limits
from tests.support.cluster.replication.world import World
from tests.support.effort import first_of


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "REPLICA_LAG_MS_MAX", 300)
    monkeypatch.setattr(limits, "PUSH_IN_FLIGHT_BYTES_MAX", 3000)


@pytest.mark.parametrize("seed", first_of(range(15), quick=4))
def test_nothing_acknowledged_is_lost_and_replicas_are_equal(seed: int) -> None:
    world = World(seed)
    world.run(world.live(10))
    assert not world.loop.unexpected
    assert len(world.books.acknowledged) > 50
    assert sum(node.pushes_stored for node in world.lives) > 50
