"""A leader with a log of twenty messages, and a follower that asks as another node does."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

from goq.broker.partition.loader import PartitionLogs
from goq.clock import ManualClock
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position
from goq.frame.header import HEADER_BYTES, parse_header
from tests.support.storage.logs import append, frame_of

KEY = PartitionKey("t", 1, 0)
PATIENCE_S = 30.0


def leading_of(logs: PartitionLogs) -> LeaderReplica:
    """Return the leadership of ``a`` in epoch 2; it has written ten messages more than it found."""
    ends = LogOffsets(logs.messages.end_offset, 0)
    leading = LeaderReplica(
        KEY, 2, logs, ReplicaProgress("a", ends, in_sync=["a", "b"], min_insync=2)
    )
    leading.progress.set_replicas(["a", "b"], 0)
    append(logs.messages, [frame_of([b"w"] * 10)], epoch=2)
    leading.on_append(0, logs.messages.end_offset)
    return leading


class Follower:
    """Asks as ``b`` does."""

    def __init__(self, leading: LeaderReplica, executor: Executor | None = None) -> None:
        self.server = FetchServer(executor or ThreadPoolExecutor(1), ManualClock())
        self.server.add_leader(leading)
        leading.on_new_data = self.server.on_new_data
        leading.on_bounds_change = self.server.on_bounds_change
        self._is_new = True

    async def ask(self, end: int, epoch: int) -> FetchResponse:
        return await self._ask([self.position(end, epoch)])

    def position(self, end: int, epoch: int, leader_epoch: int = 2) -> Position:
        return Position(KEY, leader_epoch, LogOffsets(end, 0), LogOffsets(epoch, -1))

    async def fetch_again(self) -> tuple[FetchResponse, list[memoryview]]:
        """Ask from the same position; return the frames too."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.server.fetch(FetchRequest("b", 7, False, [], [], 10))

    async def ask_again(self) -> FetchResponse:
        """Ask from the same position."""
        return await self._ask([])

    async def _ask(self, positions: list[Position]) -> FetchResponse:
        request = FetchRequest("b", 7, self._is_new, positions, [], 10)
        self._is_new = False
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await self.server.fetch(request)
        return answer


def write_kept(leading: LeaderReplica, which: int, values: list[bytes]) -> None:
    """Have the leader write a frame and keep it in memory, as its writer does."""
    log, frame = leading.logs[which], frame_of(list(values))
    batch = log.begin(0)
    body = memoryview(frame)[HEADER_BYTES:]
    batch.add(parse_header(frame), body, append_time_us=0, leader_epoch=2)
    log.write(batch)
    log.commit(batch)
    quorum = leading.quorums[which]
    assert quorum is not None
    quorum.keep(batch)
    quorum.appended(batch.end_offset)
