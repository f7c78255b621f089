"""The fetch sessions of followers that have everything."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from goq.cluster.replication.fetcher import _confirms
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    LogUpdate,
    PartitionUpdate,
    Position,
)
from tests.support.cluster.replication.world import KEY, NAMES, World


@pytest.mark.parametrize("seed", range(3))
def test_followers_that_have_everything_go_on_asking_and_report_no_position(seed: int) -> None:
    world = World(seed)
    requests: list[FetchRequest] = []
    responses: list[FetchResponse] = []

    async def live() -> None:
        for name in NAMES:
            world.start(name)
        producing = asyncio.ensure_future(world.produce(0))
        await world.until(lambda: len(world.books.acknowledged) > 20)
        world.is_calm = True
        await producing
        await world.until(world.is_in_sync)
        await asyncio.sleep(20)
        leader = world.leader()
        assert leader is not None
        server = leader.replicas.fetch_server
        fetch = server.fetch

        async def recorded(request: FetchRequest) -> tuple[FetchResponse, list[memoryview]]:
            requests.append(request)
            answered = await fetch(request)
            responses.append(answered[0])
            return answered

        server.fetch = recorded  # type: ignore[method-assign]
        await asyncio.sleep(10)

    world.run(live())
    assert {request.node for request in requests} < set(NAMES)
    assert len({request.node for request in requests}) == 2
    assert not any(request.is_new or request.positions for request in requests)
    assert not any(response.updates for response in responses)


def test_only_an_empty_update_of_a_leader_that_has_no_more_confirms_a_position() -> None:
    position = Position(KEY, 1, LogOffsets(5, 2), LogOffsets(1, 1))
    empty = LogUpdate(0, 0, 0)
    safe = LogOffsets(5, 2)
    update = PartitionUpdate(KEY, 1, safe, empty, empty, ends=position.ends)
    assert _confirms(update, position)
    assert not _confirms(replace(update, ends=LogOffsets(6, 2)), position)  # it cannot send it now
    assert not _confirms(replace(update, ends=None), position)  # an earlier version
    for other in (LogUpdate(0, 0, 9), LogUpdate(0, 0, 0, 3), LogUpdate(0, 0, 0, must_reset=True)):
        assert not _confirms(replace(update, events=other), position)
