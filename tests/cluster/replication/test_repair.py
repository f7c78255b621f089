"""Disks that lose bits under replicas, in simulated time: what one has lost another has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq import limits
from goq.cluster.replication.repair.manager import DamageReport
from tests.support.cluster.replication.world import KEY, NAMES, World
from tests.support.effort import first_of
from tests.support.storage.disk import SimulatedDisk


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 1.0)


@pytest.mark.parametrize("seed", first_of(range(8), quick=4))
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


def test_a_gap_that_no_replica_can_fill_holds_up_no_other_replica() -> None:
    world = World(3)
    logs = ("messages", "events")

    def sealed(name: str, log: str) -> list[Path]:
        disk = world.disks[name]
        return sorted(p for p in disk.paths() if p.match(f"t/0/{log}/*.log"))[:-1]

    def are_sealed() -> bool:
        return all(len(sealed(name, log)) > 1 for name in NAMES for log in logs)

    def lost() -> list[int]:
        return [sum(r.lost_gaps for r in world.nodes[n].repairs.damage_reports()) for n in NAMES]

    def frames(name: str) -> list[list[tuple[int, int]]]:
        replica = world.nodes[name].replicas.get(KEY)
        open_logs = None if replica is None else replica.open_logs
        assert open_logs is not None
        read = [log.reader.read(0, log.end_offset, bytes_max=2**30) for log in open_logs.logs]
        return [[(v.header.base_offset, v.header.end_offset) for v in r.frames] for r in read]

    async def live() -> None:
        for name in NAMES:
            world.start(name)
        producing = asyncio.ensure_future(world.produce(0))
        consuming = asyncio.ensure_future(world.consume(0))
        await world.until(are_sealed)
        world.is_calm = True
        await producing
        await world.until(world.is_in_sync)
        world.nodes["c"].crash(power=True)
        world.agreement.leave("c")
        for log in logs:
            for name in "ab":
                world.disks[name].flip(sealed(name, log)[1], 100, 1)
        world.disks["c"] = SimulatedDisk(world.random)
        world.start("c")
        await world.until(lambda: world.is_in_sync() and lost() == [2, 2, 2])
        assert frames("a") == frames("b") == frames("c")
        leader_epoch = world.agreement.parts[KEY].leader_epoch
        while world.agreement.parts[KEY].leader != "c":
            world.agreement.depose(KEY)
        await world.until(world.is_in_sync)
        await world.until(world._is_done)
        assert world.agreement.parts[KEY].leader_epoch > leader_epoch
        consuming.cancel()
        assert not world.books.problems
        kept = {offset for first, end in frames("c")[0] for offset in range(first, end)}
        acknowledged = world.books.acknowledged
        assert not set(acknowledged.values()) <= kept
        missing = acknowledged.keys() - world.books.delivered.keys()
        assert not {acknowledged[value] for value in missing} & kept

    world.run(live())
