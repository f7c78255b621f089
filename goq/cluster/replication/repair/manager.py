"""The repair manager of a node: when its replicas are scanned and repaired.

Damage is found when a log is opened or read, and by a slow scrub of all sealed segments, because
nobody reads a follower's log. A replica that the cluster counts as damaged, and that knows of no
damage, is scanned whole: the damage was found in an earlier run.

A node reports damage in its heartbeats. So another node leads the partition, and the replica, which
then follows or is idle, is repaired. What no replica has stays quarantined. That is logged once,
and the replica then counts as whole as it can be: otherwise no node could lead any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.frame_source import (
    FramesMerged,
    FrameSource,
    RepairCall,
    RepairDeferred,
)
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse, answer_repair
from goq.cluster.replication.repair.replica_repair import (
    ReplicaRepair,
    name_of,
    repairable_damage,
)
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.errors import GoqError
from goq.storage.log.log import Log
from goq.storage.log.repair import known_damage, scan_segment

_log = logging.getLogger("goq.cluster")
_PAUSE_MS_MIN = 500
_PAUSE_MS_MAX = 30_000


class _RepairState:
    """The state of one replica's repair, besides what its logs say."""

    def __init__(self) -> None:
        self.is_whole = False
        self.retry_at_ms = 0
        self.pause_ms = _PAUSE_MS_MIN
        self.task: asyncio.Task[None] | None = None


class DamageReport(NamedTuple):
    """Past and present damage of a topic's replicas on a node.

    ``damaged_gaps`` are ranges of bad bytes known now. ``lost_gaps`` are those of them that no
    other replica has. ``repaired_frames`` have been restored since the node started.
    """

    topic: str
    damaged_gaps: int
    lost_gaps: int
    repaired_frames: int


class RepairManager:
    """Repairs the replicas of a node."""

    def __init__(self, replicas: ReplicaManager, call: RepairCall) -> None:
        self._name = replicas.name
        self._replicas = replicas
        self._repair = ReplicaRepair(replicas, FrameSource(call, replicas.in_thread))
        self._in_thread = replicas.in_thread
        self._now_ms = replicas.now_ms
        self._states: dict[PartitionKey, _RepairState] = {}
        self._suspects: list[Replica] = []
        """The replicas that may be damaged, or count as damaged, as of the last check."""

    @property
    def repaired_frames(self) -> int:
        """The number of frames restored since the node started."""
        return self._repair.repaired.total()

    def damage_reports(self) -> list[DamageReport]:
        """Return past and present damage, by topic."""
        damaged, lost = Counter[str](), Counter[str]()
        for replica in self._replicas:
            open_logs, topic = replica.open_logs, replica.key.topic
            if open_logs is not None:
                known = sum(len(known_damage(log)) for log in open_logs.logs)
                damaged[topic] += known
                lost[topic] += known - len(repairable_damage(replica))
        topics = sorted(damaged.keys() | self._repair.repaired.keys())
        return [DamageReport(t, damaged[t], lost[t], self._repair.repaired[t]) for t in topics]

    @property
    def damaged(self) -> frozenset[tuple[int, int]]:
        """The replicas with damage that may be repairable, by topic id and number.

        New damage is in it from the next check on.
        """
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._suspects
            if repairable_damage(replica)
        )

    @property
    def repaired(self) -> frozenset[tuple[int, int]]:
        """The replicas that count as damaged and are as whole as they can be."""
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._suspects
            if self._is_reported_damaged(replica)
            and (state := self._states.get(replica.key)) is not None
            and state.is_whole
            and not repairable_damage(replica)
        )

    def start_due_repairs(self) -> None:
        """Check all replicas, and start the repairs that are due; call it periodically."""
        for key in [key for key in self._states if self._replicas.get(key) is None]:
            self._cancel(self._states.pop(key))
        self._suspects = [
            replica
            for replica in self._replicas
            if replica.has_damage
            or self._is_reported_damaged(replica)
            or replica.key in self._states
        ]
        now_ms = self._now_ms()
        for replica in self._suspects:
            damage, is_reported = repairable_damage(replica), self._is_reported_damaged(replica)
            state = self._states.get(replica.key)
            if state is not None and state.task is not None and not state.task.done():
                continue
            if not damage and not is_reported:
                self._states.pop(replica.key, None)
                continue
            state = self._states.setdefault(replica.key, _RepairState())
            state.is_whole = state.is_whole and not damage
            if state.is_whole or now_ms < state.retry_at_ms or replica.open_logs is None:
                continue
            if damage and replica.as_leader is not None:
                continue  # another node must lead first: a log has only one writer
            state.task = asyncio.ensure_future(self._repair_replica(replica, state))

    async def scrub(self) -> None:
        """Scan all sealed segments slowly, again and again, until cancelled."""
        while True:
            await asyncio.sleep(limits.SCRUB_PAUSE_S)
            for replica in list(self._replicas):
                open_logs = replica.open_logs
                for log in open_logs.logs if open_logs is not None else ():
                    await self._scrub_log(log)

    async def _scrub_log(self, log: Log) -> None:
        for segment in log.segments[:-1]:
            await asyncio.sleep(segment.size_bytes / limits.SCRUB_BYTES_PER_S)
            try:
                await self._in_thread(partial(scan_segment, log, segment))
            except OSError as error:
                _log.warning("%s cannot be read: %s", segment.path, error)

    async def answer(self, request: RepairRequest) -> tuple[RepairResponse, list[memoryview]]:
        """Return what this node has of what another asks for."""
        replica = self._replicas.get(request.key)
        open_logs = None if replica is None else replica.open_logs
        return await asyncio.get_running_loop().run_in_executor(
            self._replicas.executor, answer_repair, request, open_logs, self._replicas.tiered_reader
        )

    async def close(self) -> None:
        """Start nothing more, and cancel what is under way."""
        tasks = [state.task for state in self._states.values() if state.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _cancel(self, state: _RepairState) -> None:
        if state.task is not None:
            state.task.cancel()

    def _is_reported_damaged(self, replica: Replica) -> bool:
        return replica.assignment is not None and self._name in replica.assignment.damaged

    async def _repair_replica(self, replica: Replica, state: _RepairState) -> None:
        try:
            if not repairable_damage(replica):
                await self._scan_all(replica)
            await self._repair.run(replica)
        except (GoqError, OSError, RepairDeferred, FramesMerged) as error:
            _log.warning("%s is damaged and not repaired yet: %s", name_of(replica), error)
            state.retry_at_ms = self._now_ms() + state.pause_ms
            state.pause_ms = min(2 * state.pause_ms, _PAUSE_MS_MAX)
            return
        state.pause_ms = _PAUSE_MS_MIN
        state.is_whole = not repairable_damage(replica)

    async def _scan_all(self, replica: Replica) -> None:
        """Read everything: what the cluster knows of the replica was found in an earlier run."""
        open_logs = replica.open_logs
        assert open_logs is not None
        for log in open_logs.logs:
            for segment in log.segments:
                await self._in_thread(partial(scan_segment, log, segment))
