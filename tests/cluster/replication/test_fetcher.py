"""The fetch sessions of followers: at rest, and when their partitions change."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from goq.cluster.replication.fetch.fetcher import Fetcher, _confirms
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    LogUpdate,
    PartitionKey,
    PartitionUpdate,
    Position,
)
from goq.cluster.replication.segment_manifest import SegmentManifest
from tests.support.cluster.replication.world import KEY, NAMES, World
from tests.support.eventually import until


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

        server.fetch = recorded
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


class _Leader:
    """A node that answers when told."""

    def __init__(self) -> None:
        self.requests: list[FetchRequest] = []
        self.ended = 0
        self.may_answer = asyncio.Event()

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        self.requests.append(request)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return FetchResponse([]), memoryview(b"")

    def fetcher(self) -> Fetcher:
        def fail(key: PartitionKey, error: Exception) -> None:
            raise AssertionError(key, error)

        return Fetcher(
            "b",
            "a",
            self.fetch,
            ThreadPoolExecutor(1),
            cast(SegmentManifest, None),
            on_failure=fail,
            on_expired_segment=lambda _follower: None,
        )


def _follower(number: int) -> FollowerReplica:
    key = PartitionKey("t", 1, number)
    position = Position(key, 1, LogOffsets(0, 0), LogOffsets(-1, -1))
    return cast(FollowerReplica, SimpleNamespace(key=key, position=position))


def test_a_change_of_the_partitions_ends_the_request_under_way_and_its_session() -> None:
    async def run() -> None:
        leader = _Leader()
        fetcher = leader.fetcher()
        fetcher.add(_follower(0))
        await until(lambda: len(leader.requests) == 1)
        fetcher.add(_follower(1))
        fetcher.add(_follower(2))
        await until(lambda: len(leader.requests) == 2)
        assert leader.ended == 1
        first, second = leader.requests
        assert second.is_new
        assert second.session != first.session
        assert {position.key.number for position in second.positions} == {0, 1, 2}
        await fetcher.remove(_follower(1).key)
        await until(lambda: len(leader.requests) == 3)
        assert {position.key.number for position in leader.requests[2].positions} == {0, 2}
        leader.may_answer.set()
        await until(lambda: len(leader.requests) > 4)
        assert not leader.requests[-1].is_new
        await fetcher.stop()

    asyncio.run(run())


def test_a_fetcher_that_is_stopped_while_its_partitions_change_asks_no_more() -> None:
    async def run() -> None:
        leader = _Leader()
        fetcher = leader.fetcher()
        fetcher.add(_follower(0))
        await until(lambda: len(leader.requests) == 1)
        fetcher.add(_follower(1))
        await fetcher.stop()
        assert leader.ended == 1
        assert len(leader.requests) == 1

    asyncio.run(run())


class _Storing:
    """A follower whose first update is stored when it is let go on."""

    def __init__(self) -> None:
        self.key = PartitionKey("t", 1, 0)
        self.position = Position(self.key, 1, LogOffsets(0, 0), LogOffsets(-1, -1))
        self.sealed_segments: list[Any] = []
        self.log_lock = self
        self.is_storing = threading.Event()
        self.may_go_on = threading.Event()

    def truncated_logs(self, _update: PartitionUpdate, _frames: memoryview) -> list[int]:
        return []

    def apply(self, _update: PartitionUpdate, _frames: memoryview) -> None:
        self.is_storing.set()
        assert self.may_go_on.wait(30)
        self.position = replace(self.position, ends=LogOffsets(1, 0))

    def expired_segment(self) -> None:
        return None

    async def run(self, work: Any) -> None:
        await work()


def test_a_partition_that_is_removed_before_it_was_asked_for_is_not_asked_for() -> None:
    async def run() -> None:
        leader, storing = _Leader(), _Storing()
        update = PartitionUpdate(storing.key, 1, LogOffsets(0, 0), LogUpdate(0, 0, 0), None)
        answers = [FetchResponse([update])]

        async def fetch(request: FetchRequest) -> tuple[FetchResponse, memoryview]:
            if answers:
                leader.requests.append(request)
                return answers.pop(), memoryview(b"")
            return await _Leader.fetch(leader, request)

        leader.fetch = fetch
        fetcher = leader.fetcher()
        fetcher.add(cast(FollowerReplica, storing))
        await until(storing.is_storing.is_set)
        fetcher.add(_follower(1))
        removing = asyncio.ensure_future(fetcher.remove(_follower(1).key))
        await asyncio.sleep(0)
        storing.may_go_on.set()
        await removing
        await until(lambda: len(leader.requests) == 2)
        first, second = leader.requests
        assert second.session == first.session
        assert [position.key.number for position in second.positions] == [0]
        assert [key.number for key in second.forgotten] == [1]
        await fetcher.stop()

    asyncio.run(run())
