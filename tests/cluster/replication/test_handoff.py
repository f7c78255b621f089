"""A leader that stops in good order writes nothing that others would have to cut off."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster.replication.world import LOGS, NAMES, World


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_stops_leaves_its_logs_as_its_followers_have_them(seed: int) -> None:
    world = World(seed)

    def has_published() -> bool:
        return len(world.books.acknowledged) > 20

    async def live() -> None:
        for name in NAMES:
            world.start(name)
        producing = asyncio.ensure_future(world.produce(0))
        await world.until(has_published)
        world.is_calm = True
        await producing
        await world.until(lambda: world.is_in_sync() and world._are_equal())
        leader = world.leader()
        assert leader is not None
        before = {log: world._bytes_of(leader.name, log) for log in LOGS}
        await leader.stop()
        assert {log: world._bytes_of(leader.name, log) for log in LOGS} == before

    world.run(live())
