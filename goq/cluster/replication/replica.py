"""One replica of a partition: opens its logs, leads or follows, and changes between the two.

Its assignment comes from the cluster metadata and may change at any time. A task makes the replica
what it is assigned, one step after the other. A change of the leader epoch is a change of role even
if the leader is the same: the leader's state is rebuilt from the logs, as after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from goq.broker.partition.loader import PartitionLogs, configure_logs, open_logs
from goq.broker.topic.topic import Leadership
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.leader_clocks import LeaderClocks
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.lost_gaps import LostGaps
from goq.cluster.replication.repair.protocol import ReplicaLogs
from goq.config.topic import Fsync, TopicSettings
from goq.errors import GoqError, NotLeader, PartitionOffline, StorageFailed
from goq.event_loop import wait_for_event
from goq.storage.compaction.checkpoint import forget_checkpoint
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.cluster")
_RETRY_S = 1.0


class ReplicaAssignment(NamedTuple):
    """The part of a partition's metadata that its replicas need.

    ``leader`` is None while no node can lead. ``version`` rises when leader, replicas or the
    in-sync set change, but not with the cluster's ``min_insync`` or a node's incarnation.
    ``damaged`` replicas are known to have bad frames. ``incarnations`` are those of the replicas'
    nodes, in their order. ``restarted`` replicas are in sync but have not fetched since their
    restart.
    """

    leader: str | None
    leader_epoch: int
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    min_insync: int
    version: int
    damaged: tuple[str, ...] = ()
    incarnations: tuple[int, ...] = ()
    restarted: tuple[str, ...] = ()


class ReplicaHost(Protocol):
    """The node, as its replicas see it."""

    name: str
    disk: Disk
    journal: NodeJournal | None
    has_session: Callable[[], bool]
    """Whether the cluster cannot have given this node's leaderships to others by now."""
    may_record_clocks: Callable[[], bool]
    """Whether all nodes know the event by which times change clocks."""
    may_renew_leaderships: Callable[[], bool]
    """Whether all nodes know the command that gives a leader another epoch."""
    leader_clocks: LeaderClocks

    async def in_thread(self, work: Callable[[], object]) -> object:
        """Run work that blocks on the disk."""

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""

    async def record_segments(self, key: PartitionKey, logs: PartitionLogs) -> None:
        """Record all sealed segments of a replica in the node's manifest, if it can be written."""

    def now_ms(self) -> int:
        """Return monotonic time."""

    def start_fetching(self, leader: str, follower: FollowerReplica) -> None:
        """Fetch a partition from its leader."""

    async def stop_fetching(self, key: PartitionKey) -> None:
        """Stop fetching a partition; on return nothing more is stored in it."""

    def start_serving(self, leader: LeaderReplica) -> None:
        """Serve a partition that is led here to followers."""

    def stop_serving(self, key: PartitionKey) -> None:
        """Refuse followers that fetch from a partition."""

    def renew_leadership(self, replica: Replica) -> None:
        """Ask the cluster for another epoch of a partition, until it decides anything about it."""

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        """Open a partition that is led here to clients; everything in its logs is safe."""

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        """Close a partition to clients, and its logs."""

    def on_storage_error(self, key: PartitionKey, error: Exception) -> None:
        """Report that the disk cannot hold the replica now."""


class Replica:
    """A replica of one partition, in ``directory``."""

    def __init__(self, key: PartitionKey, directory: Path, host: ReplicaHost) -> None:
        self.key = key
        self.assignment: ReplicaAssignment | None = None
        self.as_follower: FollowerReplica | None = None
        self.as_leader: LeaderReplica | None = None
        self.idle_logs: PartitionLogs | None = None
        """The logs while the partition has no leader."""
        self.logs_lock = asyncio.Lock()
        """Held while the logs are closed, and by work that needs them open."""
        self.lost_gaps = LostGaps()
        self.failure: Exception | None = None
        self._directory = directory
        self._host = host
        self._wanted: ReplicaAssignment | None = None
        self._is_open_to_clients = False
        self._must_reopen = False
        self._decided_version = 0
        self._former_leader = ""
        self._failed_epoch = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def open_logs(self) -> ReplicaLogs | None:
        """The logs and their known high watermarks, None while they are closed."""
        if self.as_leader is not None:
            return ReplicaLogs(self.as_leader.logs, self.as_leader.progress.high_watermark)
        if self.as_follower is not None:
            return ReplicaLogs(self.as_follower.logs, self.as_follower.high_watermark)
        return None if self.idle_logs is None else ReplicaLogs(self.idle_logs, LogOffsets(0, 0))

    @property
    def has_damage(self) -> bool:
        """Whether damage of its open logs is known."""
        if self.as_follower is not None:
            return self.as_follower.has_damage
        logs = self.idle_logs if self.as_leader is None else self.as_leader.logs
        return logs is not None and bool(logs.messages.reader.damage or logs.events.reader.damage)

    @property
    def spent_epoch(self) -> int | None:
        """The epoch in which this node should lead and must not; None if there is none.

        It led in this epoch, and its disk may have lost what followers have. It could give those
        offsets to other frames, and followers could not tell by the epoch.
        """
        wanted = self._wanted
        return wanted.leader_epoch if wanted is not None and self._is_spent(wanted) else None

    def _is_spent(self, assignment: ReplicaAssignment) -> bool:
        return (
            assignment.leader == self._host.name
            and assignment.leader_epoch == self._failed_epoch
            and self._host.may_renew_leaderships()
        )

    @property
    def other_nodes(self) -> list[str]:
        """The other nodes with a replica, the leader first."""
        assignment = self.assignment
        if assignment is None:
            return []
        others = sorted(node for node in assignment.replicas if node != self._host.name)
        return sorted(others, key=lambda node: node != assignment.leader)

    def is_repairable(self, which: int, damage: Damage) -> bool:
        """Whether another replica may have what is damaged in one of the logs."""
        return bool(self.other_nodes) and not self.lost_gaps.cover(
            which, damage.start_offset, damage.end_offset
        )

    def is_segment_repairable(self, which: int, segment: Segment) -> bool:
        """Whether a follower has damage in a segment that another replica may have whole."""
        return self.as_follower is not None and any(
            segment.base_offset < damage.end_offset
            and damage.start_offset < segment.end_offset
            and self.is_repairable(which, damage)
            for damage in self.as_follower.logs[which].damage
        )

    def assign(self, assignment: ReplicaAssignment | None) -> None:
        """Set the assignment of the replica; None closes it.

        A leader acknowledges nothing more by the replicas and the ``min_insync`` of before.
        """
        if assignment == self._wanted == self.assignment and not self._must_reopen:
            return
        self._wanted = assignment
        if assignment is not None:
            self._adopt_from_metadata(assignment)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Close the replica; its logs are closed on return."""
        self.assign(None)
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._must_reopen or self.assignment != self._wanted or self._must_open():
            self._changed.clear()
            wanted = self._wanted
            if self._must_reopen:
                self._must_reopen, self.assignment = False, None
                if self.failure is not None:
                    await self._close(_offline(self.failure))
                    await self._pause()
                    wanted = self._wanted
            try:
                await self._change(wanted)
            except Exception as error:  # after a bug too, it must be tried again, and told
                if not isinstance(error, GoqError | OSError):
                    _log.exception("the replica of %s could not be changed", self.key)
                self.failure = error
                self._host.on_storage_error(self.key, error)
                await self._close(_offline(error))
                await self._pause()
                continue
            self.assignment, self.failure = wanted, None
            if self._must_open() and wanted == self._wanted:
                await self._open_when_safe()

    async def _pause(self) -> None:
        """Wait before the next try, unless the assignment changes meanwhile."""
        await wait_for_event(self._changed, _RETRY_S)

    def _must_open(self) -> bool:
        return self.as_leader is not None and not self._is_open_to_clients

    async def _change(self, wanted: ReplicaAssignment | None) -> None:
        before = self.assignment
        if wanted is not None and before is not None and _is_same_leadership(before, wanted):
            self._adopt_from_metadata(wanted)  # it began to lead by an earlier one
            return
        if self.as_follower is not None and before is not None and before.leader is not None:
            wrote_last = self.as_follower.position.epochs.events == before.leader_epoch
            if wrote_last:  # deadlines are by its clock, unless the log says otherwise
                self._former_leader = before.leader
        if wanted is not None and self.as_leader is None and await self._change_role(wanted):
            return
        await self._close(NotLeader("the partition has another leader now; ask for the map"))
        self.assignment = None
        if wanted is None:
            return
        opened = await self._host.in_thread(self._open_files)
        assert isinstance(opened, PartitionLogs)
        await self._host.record_segments(self.key, opened)
        self._begin_role(wanted, opened)

    def _begin_role(self, wanted: ReplicaAssignment, logs: PartitionLogs) -> None:
        if wanted.leader is None:
            self.idle_logs = logs  # another replica may need what this one has
        elif self._is_spent(wanted):
            self.idle_logs = logs
            self._host.renew_leadership(self)
        elif wanted.leader == self._host.name:
            self._lead(wanted, logs)
        else:
            self.as_follower = FollowerReplica(
                self.key, wanted.leader_epoch, logs, self._reset_log, self.lost_gaps
            )
            self._host.start_fetching(wanted.leader, self.as_follower)

    async def _change_role(self, wanted: ReplicaAssignment) -> bool:
        """Take another role with the logs as they are open; False if they must be opened anew.

        A failover changes the role of many replicas at once, and opening a log costs several syncs.
        Unlike a leader, a follower has nothing in memory that its logs do not have on the disk.
        """
        async with self.logs_lock:
            follower = self.as_follower
            if follower is not None:
                await self._host.stop_fetching(self.key)
            logs = self.idle_logs if follower is None else follower.logs
            if logs is None or any(log.failed for log in logs):
                return False
            if follower is not None:
                if follower.sealed_segments:
                    await self._host.record_segments(self.key, logs)
                self.as_follower, self.idle_logs = None, logs
            self.assignment = None
            must_sync = _may_lack_syncs(logs)
            configure_logs(logs, self._host.settings(self.key.topic))
            if must_sync or _may_lack_syncs(logs):
                await self._host.in_thread(lambda: _sync_files(logs))
            self.idle_logs = None
            self._begin_role(wanted, logs)
        return True

    def _open_files(self) -> PartitionLogs:
        host = self._host
        settings = host.settings(self.key.topic)
        return open_logs(self._directory, host.disk, settings, journal=host.journal)

    def _reset_log(self, log: Log, offset: int) -> Log:
        """Reopen a closed log as an empty log that begins at ``offset``."""
        disk, journal = self._host.disk, self._host.journal
        forget_checkpoint(disk, log.directory, 0)  # a crash may leave some of the files
        disk.remove_dir(log.directory)
        return Log.open(log.directory, disk, log.config, base_offset=offset, journal=journal)

    def _lead(self, assignment: ReplicaAssignment, logs: PartitionLogs) -> None:
        ends = LogOffsets(logs.messages.end_offset, logs.events.end_offset)
        name = self._host.name
        progress = ReplicaProgress(
            name, ends, in_sync=assignment.in_sync, min_insync=assignment.min_insync
        )
        _set_replicas(progress, assignment, self._host.now_ms())
        self._decided_version = assignment.version
        self.as_leader = LeaderReplica(
            self.key, assignment.leader_epoch, logs, progress, self.lost_gaps
        )
        self.as_leader.has_session = self._host.has_session
        self._host.start_serving(self.as_leader)

    async def _open_when_safe(self) -> None:
        """Open the partition to clients once all that its logs held at first is safe."""
        leader, assignment = self.as_leader, self.assignment
        assert leader is not None
        assert assignment is not None
        leader.on_high_watermark_change = self._changed.set
        while not leader.is_caught_up:
            if self._wanted != assignment or self._must_reopen:
                return  # checked before the event is cleared, so that no change is missed
            self._changed.clear()
            await self._changed.wait()
        leadership = Leadership(
            assignment.leader_epoch,
            leader.quorums,
            self.reopen,
            lambda error: self._host.on_storage_error(self.key, error),
            lambda damage: self.is_repairable(0, damage),
            node=self._host.name if self._host.may_record_clocks() else "",
            ahead_of=lambda node: self._host.leader_clocks.ahead_of(
                node or self._former_leader, self.key
            ),
        )
        await self._host.open_partition(self.key, leader.logs, leadership)
        self._is_open_to_clients = True

    def on_in_sync_decided(self, assignment: ReplicaAssignment) -> None:
        """Adopt the in-sync set that holds once a proposal is decided, if it is of this leadership.

        It may arrive before the rest of the metadata, and an older one after it.
        """
        self._adopt_in_sync(assignment, is_decided=True)

    def _adopt_from_metadata(self, assignment: ReplicaAssignment) -> None:
        # Of the same version, as with another min_insync, a proposal can still be accepted.
        self._adopt_in_sync(assignment, is_decided=assignment.version > self._decided_version)

    def _adopt_in_sync(self, assignment: ReplicaAssignment, *, is_decided: bool) -> None:
        leader = self.as_leader
        if leader is None or assignment.version < self._decided_version:
            return
        if (assignment.leader, assignment.leader_epoch) == (self._host.name, leader.leader_epoch):
            self._decided_version = assignment.version
            _set_replicas(leader.progress, assignment, self._host.now_ms())
            in_sync, min_insync = assignment.in_sync, assignment.min_insync
            leader.set_in_sync(in_sync, min_insync, is_decided=is_decided)

    def reopen(self, failure: Exception | None = None) -> None:
        """Close and open everything again, because the last write was lost to the disk.

        After a ``failure`` that probably persists, with a pause.
        """
        self._must_reopen, self.failure = True, failure
        self.assign(self._wanted)

    async def _close(self, reason: GoqError) -> None:
        """Close the open logs."""
        async with self.logs_lock:
            await self._close_locked(reason)

    async def _close_locked(self, reason: GoqError) -> None:
        follower, leader, logs = self.as_follower, self.as_leader, self.idle_logs
        self.as_follower = self.as_leader = self.idle_logs = None
        if follower is not None:
            await self._host.stop_fetching(self.key)
            logs = follower.logs
        elif leader is not None:
            self._host.stop_serving(self.key)
            if self._is_open_to_clients:
                self._is_open_to_clients = False
                await self._host.close_partition(self.key, reason)
            else:
                logs = leader.logs
        if logs is not None:
            await self._host.in_thread(lambda: _close_files(logs))
        if leader is not None and any(log.failed for log in leader.logs):
            self._failed_epoch = leader.leader_epoch


def _is_same_leadership(before: ReplicaAssignment, wanted: ReplicaAssignment) -> bool:
    return (before.leader, before.leader_epoch) == (wanted.leader, wanted.leader_epoch)


def _offline(error: Exception) -> GoqError:
    return error if isinstance(error, GoqError) else PartitionOffline(str(error))


def _set_replicas(progress: ReplicaProgress, assignment: ReplicaAssignment, now_ms: int) -> None:
    progress.set_replicas(
        assignment.replicas, now_ms, assignment.incarnations, assignment.restarted
    )


def _may_lack_syncs(logs: PartitionLogs) -> bool:
    return any(log.config.fsync is not Fsync.ALWAYS for log in logs)


def _sync_files(logs: PartitionLogs) -> None:
    for log in logs:
        log.sync()


def _close_files(logs: PartitionLogs) -> None:
    for log in logs:
        try:
            log.close()
        except (StorageFailed, OSError) as error:
            _log.warning("%s was not closed cleanly: %s", log.directory, error)
