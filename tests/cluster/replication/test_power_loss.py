"""All lose power, and who led never comes back: the others have everything, and go on."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster.replication.world import KEY, NAMES, World, _values


async def _lose_the_leader_for_good(world: World) -> tuple[str, ...]:
    """Cut the power under load, start all but the leader before it is missed; return these."""
    for name in NAMES:
        world.start(name)
    producers = [asyncio.ensure_future(world.produce(number)) for number in range(3)]
    await world.until(lambda: len(world.books.acknowledged) > 60)
    await world.until(world.leader)
    lost = world.agreement.parts[KEY].leader
    assert lost is not None
    for name in NAMES:
        world.nodes[name].crash(power=True)
    others = tuple(name for name in NAMES if name != lost)
    for name in others:
        await asyncio.sleep(world.random.uniform(0.05, 0.5))
        world.start(name)
    await asyncio.sleep(world.random.uniform(0.05, 0.5))
    acknowledged = len(world.books.acknowledged)
    world.agreement.leave(lost)
    await world.until(lambda: len(world.books.acknowledged) > acknowledged + 20)
    world.is_calm = True
    async with asyncio.timeout(60):
        await asyncio.gather(*producers)
    await world.until(lambda: len(set(map(world._ends, map(world.nodes.get, others)))) == 1)
    return others


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_there_and_more_is_taken(seed: int) -> None:
    world = World(seed)
    others = world.run(_lose_the_leader_for_good(world))
    assert not world.loop.unexpected
    assert not world.books.problems
    for name in others:
        stored = list(_values(world.disks[name]))
        assert len(stored) == len(set(stored))
        for value, offset in world.books.acknowledged.items():
            assert stored[offset] == value
