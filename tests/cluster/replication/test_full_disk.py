"""Disks that are full for long, in simulated time."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster.replication.world import KEY, NAMES, World

_OPERATIONS_MAX = 400


async def _begun(world: World) -> tuple[str, list[asyncio.Future[None]]]:
    for name in NAMES:
        world.start(name)
    works = [asyncio.ensure_future(world.produce(n)) for n in range(2)]
    await world.until(lambda: len(world.books.acknowledged) > 20)
    leader = world.agreement.parts[KEY].leader
    assert leader is not None
    return leader, works


async def _ended(world: World, works: list[asyncio.Future[None]]) -> None:
    world.is_calm = True
    await asyncio.wait_for(asyncio.gather(*works), 60)
    await world.until(world.is_in_sync)
    for node in list(world.nodes.values()):
        await asyncio.wait_for(node.stop(), 60)
    world.check_logs()


def _fill(world: World, name: str) -> None:
    disk = world.disks[name]
    disk.capacity_bytes = disk.used_bytes


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_whose_disk_is_full_gives_its_leadership_away_until_there_is_room(
    seed: int,
) -> None:
    world = World(seed)

    async def story() -> None:
        leader, works = await _begun(world)
        _fill(world, leader)
        await world.until(lambda: world.agreement.parts[KEY].leader not in (None, leader))
        assert world.nodes[leader].fitness.reason
        stored = len(world.books.acknowledged)
        await world.until(lambda: len(world.books.acknowledged) > stored + 20)
        world.disks[leader].capacity_bytes = None
        await world.until(lambda: not world.nodes[leader].fitness.reason)
        await _ended(world, works)

    world.run(story())
    assert not world.loop.unexpected


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_whose_disk_is_full_falls_out_of_sync_waits_and_comes_back(seed: int) -> None:
    world = World(seed)

    async def story() -> None:
        leader, works = await _begun(world)
        follower = next(name for name in NAMES if name != leader)
        _fill(world, follower)
        await world.until(lambda: follower not in world.agreement.parts[KEY].in_sync)
        before = world.disks[follower].operations
        await asyncio.sleep(10)
        assert world.disks[follower].operations - before < _OPERATIONS_MAX, "it spins"
        world.disks[follower].capacity_bytes = None
        await _ended(world, works)

    world.run(story())
    assert not world.loop.unexpected


@pytest.mark.parametrize("seed", range(5))
def test_with_all_disks_full_somebody_leads(seed: int) -> None:
    world = World(seed)

    async def story() -> None:
        _, works = await _begun(world)
        for name in NAMES:
            _fill(world, name)
        await asyncio.sleep(10)
        assert world.agreement.parts[KEY].leader is not None
        for disk in world.disks.values():
            disk.capacity_bytes = None
        await _ended(world, works)

    world.run(story())
    assert not world.loop.unexpected
