"""Replicas that a move makes are sent no more than the rate; all others as much as there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any, cast

import pytest

from goq import limits
from goq.broker.log.recent_batches import RecentBatchPool
from goq.clock import ManualClock
from goq.cluster.replication.fetch.follower_update import FramedUpdate
from goq.cluster.replication.fetch.server import FetchServer, Throttle
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import FetchRequest, PartitionKey, PartitionUpdate, Position
from tests.support.cluster.replication.loop import SimLoop

KEY, OTHER = PartitionKey("t", 1, 0), PartitionKey("t", 1, 1)
MIB = limits.MIB
END = 10_000 * MIB


def test_what_was_sent_is_paid_for_by_waiting() -> None:
    pacer = Throttle(1000)
    assert pacer.wait_ms(5) == 0
    pacer.on_sent(500, 5)
    assert pacer.wait_ms(5) == 500
    assert pacer.wait_ms(504) == 1
    assert pacer.wait_ms(505) == 0


def test_a_quiet_time_is_no_credit() -> None:
    pacer = Throttle(1000)
    pacer.on_sent(1000, 60_000)
    assert pacer.wait_ms(60_000) == 1000


def test_without_a_rate_nothing_waits() -> None:
    pacer = Throttle(0)
    pacer.on_sent(2**40, 0)
    assert pacer.wait_ms(0) == 0
    assert pacer.piece_bytes == limits.FETCH_LOG_BYTES_MAX


@pytest.mark.parametrize(
    ("bytes_per_s", "piece_bytes"),
    [
        (1, limits.REASSIGNMENT_CHUNK_BYTES_MIN),
        (MIB, MIB // 4),
        (limits.REASSIGNMENT_BYTES_PER_S_MAX, limits.FETCH_LOG_BYTES_MAX),
    ],
)
def test_a_piece_is_a_part_of_a_second_within_bounds(bytes_per_s: int, piece_bytes: int) -> None:
    assert Throttle(bytes_per_s).piece_bytes == piece_bytes


class Endless:
    """Stands for a partition that has more messages than anybody can fetch, of a byte each."""

    leader_epoch = 1

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.progress = ReplicaProgress("a", LogOffsets(END, 0), in_sync=["a"], min_insync=1)

    def on_fetch(self, _node: str, _ends: LogOffsets, _now_ms: int) -> None:
        """Nothing follows from it."""

    def on_follower_request(self, _node: str, _session: int) -> None:
        """Nobody waits for it."""

    def keep_recent_in(self, _pool: RecentBatchPool) -> None:
        """Nothing is in memory."""

    def recent_update(self, _position: Position, _ends: LogOffsets) -> None:
        return None

    def has_update(self, _position: Position) -> bool:
        return True

    def read_update(self, position: Position, *, is_checked: bool, bytes_max: int) -> FramedUpdate:
        end = LogOffsets(position.ends.messages + bytes_max, 0)
        head = PartitionUpdate(position.key, 1, LogOffsets(0, 0), None, None)
        return FramedUpdate(head, [memoryview(bytes(bytes_max))], end)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


class AtOnce(Executor):
    """Does everything where it is asked to."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done


async def server(*keys: PartitionKey) -> FetchServer:
    made = FetchServer(AtOnce(), ManualClock())
    for key in keys:
        made.add_leader(cast(LeaderReplica, Endless(key)))
    return made


async def fetched_bytes(server: FetchServer, seconds: float, *keys: PartitionKey) -> dict[Any, int]:
    """Fetch as a follower does, as fast as is answered; return the bytes of each partition."""
    loop = asyncio.get_running_loop()
    until, taken = loop.time() + seconds, dict.fromkeys(keys, 0)
    is_new, moved = True, list(keys)
    while loop.time() < until:
        positions = [Position(key, 1, LogOffsets(taken[key], 0), LogOffsets(1, 1)) for key in moved]
        answer, buffers = await server.fetch(FetchRequest("b", 7, is_new, positions, [], 500))
        moved = [update.key for update in answer.updates]
        for key, buffer in zip(moved, buffers, strict=True):
            taken[key] += len(buffer)
        is_new = False
        await asyncio.sleep(0.01)
    return taken


def test_a_replica_in_the_making_is_sent_what_the_rate_allows(loop: SimLoop) -> None:
    leader = loop.run_until_complete(server(KEY))
    leader.set_throttle(MIB, {KEY: frozenset({"b"})})
    taken = loop.run_until_complete(fetched_bytes(leader, 20, KEY))
    assert 19 * MIB <= taken[KEY] <= 21 * MIB


class Blinking(Throttle):
    """Has its wait end between the second look at it and the third."""

    looks = 0

    def wait_ms(self, now_ms: int) -> float:
        self.looks += 1
        return 1.0 if self.looks <= 2 else 0.0


def test_nothing_is_forgotten_when_the_wait_ends_between_two_looks(loop: SimLoop) -> None:
    leader = loop.run_until_complete(server(KEY))
    leader.set_throttle(MIB, {KEY: frozenset({"b"})})
    leader._pacer = Blinking(MIB)
    assert loop.run_until_complete(fetched_bytes(leader, 5, KEY))[KEY] > MIB


def test_several_replicas_in_the_making_share_the_rate(loop: SimLoop) -> None:
    leader = loop.run_until_complete(server(KEY, OTHER))
    leader.set_throttle(MIB, {KEY: frozenset({"b"}), OTHER: frozenset({"b"})})
    taken = loop.run_until_complete(fetched_bytes(leader, 20, KEY, OTHER))
    assert 19 * MIB <= sum(taken.values()) <= 21 * MIB
    assert min(taken.values()) > 5 * MIB


def test_a_replica_that_only_fell_behind_is_not_held_up(loop: SimLoop) -> None:
    leader = loop.run_until_complete(server(KEY, OTHER))
    leader.set_throttle(MIB, {KEY: frozenset({"b"})})
    taken = loop.run_until_complete(fetched_bytes(leader, 5, KEY, OTHER))
    assert taken[KEY] <= 6 * MIB
    assert taken[OTHER] > 100 * MIB


def test_a_rate_that_is_lifted_counts_at_once(loop: SimLoop) -> None:
    leader = loop.run_until_complete(server(KEY))
    leader.set_throttle(1, {KEY: frozenset({"b"})})
    assert (
        loop.run_until_complete(fetched_bytes(leader, 5, KEY))[KEY]
        <= limits.REASSIGNMENT_CHUNK_BYTES_MIN
    )
    leader.set_throttle(0, {KEY: frozenset({"b"})})
    assert loop.run_until_complete(fetched_bytes(leader, 1, KEY))[KEY] > 10 * MIB
