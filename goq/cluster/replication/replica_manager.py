"""All replicas of a node: applies their assignments and provides what they have in common."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

from goq import limits
from goq.broker.broker import Broker
from goq.broker.log.commit_turn import CommitTurn
from goq.broker.partition.loader import PartitionLogs
from goq.broker.partition_context import PartitionId
from goq.broker.topic.topic import Leadership
from goq.clock import Clock
from goq.cluster.replication.fetch.fetcher_manager import FetcherManager, FetchFrom
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.follower import FollowerReplica, SealedSegment
from goq.cluster.replication.follower_retention import FollowerRetention
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.leader_clocks import LeaderClocks
from goq.cluster.replication.progress import RestingFollowers
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Replica, ReplicaAssignment
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.config.topic import Cleanup, TopicSettings
from goq.errors import GoqError, NotLeader, TopicNotFound
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.segment import Segment

_log = logging.getLogger("goq.cluster")

ProposeInSync = Callable[
    [PartitionKey, ReplicaAssignment, frozenset[str]], Awaitable[ReplicaAssignment]
]
"""Proposes another in-sync set of a partition that is led here to the cluster.

Nodes in ``restarted`` of the assignment have not fetched from this leader since their restart.
Returns, once it is decided either way, the assignment that holds then.
"""

RenewLeadership = Callable[[PartitionKey, int], Awaitable[None]]
"""Asks the cluster for another epoch than this one of a partition that is led here."""

TopicReplicas = Mapping[PartitionKey, ReplicaAssignment]
"""The assignments of a node's replicas of one topic."""

_RENEWAL_PAUSE_S = 0.5


class TopicHost(Protocol):
    """The topics of this node, open to clients as far as it leads their partitions."""

    def directory(self, key: PartitionKey) -> Path:
        """Return the directory of a partition."""

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        """Open a partition to clients."""

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        """Close a partition to clients, and its logs."""


class ReplicaManager:
    """The replicas of the node ``name``.

    ``on_failure`` is called with a partition that the disk cannot hold now, and the error.
    ``may_record_clocks`` returns whether all nodes know the event by which times change clocks,
    ``may_renew_leaderships`` whether they know the command that gives a leader another epoch.
    """

    def __init__(
        self,
        name: str,
        topics: TopicHost,
        manifest: SegmentManifest,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        fetch_from: FetchFrom,
        propose_in_sync: ProposeInSync,
        propose_renewal: RenewLeadership,
        *,
        journal: NodeJournal | None = None,
        turn: CommitTurn | None = None,
        on_failure: Callable[[PartitionKey, Exception], None],
        has_session: Callable[[], bool] = lambda: True,
        may_record_clocks: Callable[[], bool] = lambda: True,
        may_renew_leaderships: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.has_session = has_session
        self.may_record_clocks = may_record_clocks
        self.may_renew_leaderships = may_renew_leaderships
        self.disk = disk
        self.journal = journal
        self.fetch_server = FetchServer(executor, clock)
        if turn is not None:
            turn.before_write = self.fetch_server.flush
        self._topics = topics
        self._manifest = manifest
        self.tiered_reader = manifest.tiered_reader
        self.executor = executor
        self.leader_clocks = LeaderClocks(clock)
        self.fetchers = FetcherManager(
            name,
            fetch_from,
            self.fetch_server,
            self.leader_clocks,
            executor,
            manifest,
            turn=turn,
            on_failure=self._on_fetch_failed,
            on_expired_segment=self._start_retention,
        )
        self._propose_in_sync = propose_in_sync
        self._propose_renewal = propose_renewal
        self._on_failure = on_failure
        self.unassigned: set[PartitionKey] = set()
        """The replicas without an assignment, until they are removed."""
        self._replicas: dict[PartitionKey, Replica] = {}
        self._applied: dict[int, TopicReplicas] = {}
        self._retentions: dict[PartitionKey, FollowerRetention] = {}
        self._proposing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._renewing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._steady_until_ms = -math.inf
        """Until then no in-sync set of a partition led here is to change, if none changes."""
        self._resting: RestingFollowers | None = None

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def get(self, key: PartitionKey) -> Replica | None:
        """Return a replica, None if the node has none."""
        return self._replicas.get(key)

    def directory(self, key: PartitionKey) -> Path:
        """Return the directory of a replica."""
        return self._topics.directory(key)

    def apply(self, assignments: Mapping[int, TopicReplicas]) -> None:
        """Apply the assignments of all replicas, by topic id; a replica without one is closed.

        Nothing is done for a topic whose mapping is the very one of the last time.
        """
        before, self._applied = self._applied, dict(assignments)
        for topic_id in before.keys() - assignments.keys():
            self._unassign(before[topic_id])
        for topic_id, of_topic in assignments.items():
            known = before.get(topic_id, {})
            if known is not of_topic:
                self._unassign(known.keys() - of_topic.keys())
                for key, assignment in of_topic.items():
                    self._assign(key, assignment)

    def _unassign(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            if key in self._replicas:
                self._replicas[key].assign(None)
                self.unassigned.add(key)

    def _assign(self, key: PartitionKey, assignment: ReplicaAssignment) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = Replica(key, self.directory(key), self)
        self.unassigned.discard(key)
        replica.assign(assignment)

    def needed_from(self, partition: PartitionId) -> int | None:
        """Return the first message of a partition led here that some replica in sync lacks.

        None if the partition is not led here.
        """
        replica = self._replicas.get(
            PartitionKey(partition.topic, partition.topic_id, partition.number)
        )
        if replica is None or replica.as_leader is None:
            return None
        return replica.as_leader.progress.in_sync_to.messages

    async def remove(self, key: PartitionKey) -> None:
        """Remove a replica for good; its logs are closed on return."""
        self.leader_clocks.forget(key)
        self.unassigned.discard(key)
        if key.topic_id in self._applied:
            self._applied[key.topic_id] = dict(self._applied[key.topic_id])  # apply it anew
        replica = self._replicas.pop(key, None)
        if replica is not None:
            await replica.close()
        for log in LOGS:
            await self._manifest.remove(key, log)

    async def close_replicas(self) -> None:
        """Close all replicas until the next assignments; all logs are closed on return."""
        self._applied = {number: dict(each) for number, each in self._applied.items()}
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))

    async def close(self) -> None:
        """Close all replicas; all logs are closed on return."""
        for task in (*self._proposing.values(), *self._renewing.values()):
            task.cancel()
        await self.close_replicas()
        await self.fetchers.close()

    def _on_bounds_change(self, key: PartitionKey) -> None:
        self._steady_until_ms, self._resting = -math.inf, None
        self.fetch_server.on_bounds_change(key)

    def check_in_sync(self) -> None:
        """Propose in-sync sets that should change; call it periodically, it is quick at rest."""
        now_ms = self.now_ms()
        if now_ms > self._steady_until_ms and self._resting is not None:
            self._steady_until_ms = self._resting.steady_until_ms(limits.REPLICA_LAG_MS_MAX)
        if now_ms <= self._steady_until_ms:
            return
        self._propose_due(now_ms)
        leaders = [replica.as_leader for replica in self._replicas.values()]
        led = [leader.progress for leader in leaders if leader is not None]
        self._steady_until_ms = min((each.steady_until_ms for each in led), default=math.inf)
        self._resting = RestingFollowers(led)

    def _propose_due(self, now_ms: int) -> None:
        for replica in self._replicas.values():
            leader, assignment = replica.as_leader, replica.assignment
            if leader is None or leader.progress.is_steady(now_ms):
                continue
            if assignment is None or replica.key in self._proposing:
                continue
            wanted = leader.progress.desired_in_sync(now_ms, limits.REPLICA_LAG_MS_MAX)
            if wanted is None:
                continue
            leader.progress.begin_change(wanted)
            seen = assignment._replace(restarted=tuple(sorted(leader.progress.unconfirmed)))
            task = asyncio.ensure_future(self._propose(replica.key, seen, wanted))
            self._proposing[replica.key] = task

    async def _propose(
        self, key: PartitionKey, assignment: ReplicaAssignment, wanted: frozenset[str]
    ) -> None:
        try:
            decided = await self._propose_in_sync(key, assignment, wanted)
        except NotLeader:  # the topic is deleted, and the replica is about to be closed
            return
        finally:
            self._proposing.pop(key, None)
        replica = self._replicas.get(key)
        if replica is not None:
            replica.on_in_sync_decided(decided)

    async def _renew(self, replica: Replica) -> None:
        """Ask for another epoch until the replica has other work."""
        try:
            while (epoch := replica.spent_epoch) is not None:
                await self._propose_renewal(replica.key, epoch)
                await asyncio.sleep(_RENEWAL_PAUSE_S)
        finally:
            self._renewing.pop(replica.key, None)

    # The services of ReplicaHost

    async def in_thread(self, work: Callable[[], object]) -> object:
        """Run work that blocks on the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""
        return self._topics.settings(topic)

    def is_compacted(self, key: PartitionKey) -> bool:
        """Whether messages of a partition are removed when newer ones of their keys arrive."""
        return self.settings(key.topic).cleanup is Cleanup.COMPACT

    def now_ms(self) -> int:
        """Return monotonic time."""
        return int(asyncio.get_running_loop().time() * 1000)

    def start_fetching(self, leader: str, follower: FollowerReplica) -> None:
        """Fetch a partition from its leader."""
        self.fetchers.add(leader, follower)

    def _on_fetch_failed(self, key: PartitionKey, error: Exception) -> None:
        self.on_storage_error(key, error)
        replica = self._replicas.get(key)
        if replica is not None:
            replica.reopen(error)

    async def stop_fetching(self, key: PartitionKey) -> None:
        """Stop fetching a partition; on return nothing more is stored in it."""
        await self.fetchers.remove(key)
        retention = self._retentions.pop(key, None)
        if retention is not None:
            await retention.stop()

    def _start_retention(self, follower: FollowerReplica) -> None:
        under_way = self._retentions.get(follower.key)
        if under_way is None or under_way.is_done:
            self._retentions[follower.key] = FollowerRetention(
                follower, self._manifest, self.in_thread, self._is_repairable
            )

    def _is_repairable(self, key: PartitionKey, sealed: SealedSegment) -> bool:
        """Whether a follower's segment can be repaired before it is deleted."""
        replica = self._replicas.get(key)
        return replica is not None and replica.is_segment_repairable(*sealed)

    async def record_segments(
        self, key: PartitionKey, logs: PartitionLogs, merged: Sequence[Segment] = ()
    ) -> None:
        """Record all sealed segments of a replica in the manifest, if it can be written.

        Of the messages the ``merged`` ones are none any more: another holds what they held.
        """
        replica = self._replicas.get(key)
        follower = None if replica is None else replica.as_follower
        try:
            async with nullcontext() if follower is None else follower.manifest_lock:
                for name, log in zip(LOGS, logs, strict=True):
                    await self._manifest.add(key, name, log.segments[:-1])
                if merged:
                    await self._manifest.remove(key, LOGS[0], merged)
        except (GoqError, OSError) as error:
            _log.warning("the manifest lacks segments of %s: %s", key, error)

    def start_serving(self, leader: LeaderReplica) -> None:
        """Serve a partition that is led here to followers."""
        leader.on_new_data = self.fetch_server.on_new_data
        leader.on_offer = self.fetch_server.on_offer
        leader.is_pushed = self.fetch_server.is_pushed
        leader.on_bounds_change = self._on_bounds_change
        self._steady_until_ms, self._resting = -math.inf, None
        self.fetch_server.add_leader(leader)

    def stop_serving(self, key: PartitionKey) -> None:
        """Refuse followers that fetch from a partition."""
        self.fetch_server.remove_leader(key)

    def renew_leadership(self, replica: Replica) -> None:
        """Ask the cluster for another epoch of a partition that is led here."""
        if replica.key not in self._renewing:
            self._renewing[replica.key] = asyncio.ensure_future(self._renew(replica))

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        """Open a partition that is led here to clients; everything in its logs is safe."""
        await self._topics.open_partition(key, logs, leadership)

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        """Close a partition to clients, and its logs."""
        await self._topics.close_partition(key, reason)

    def on_storage_error(self, key: PartitionKey, error: Exception) -> None:
        """Report that the disk cannot hold a replica now."""
        self._on_failure(key, error)


class BrokerTopics:
    """The topics of the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def directory(self, key: PartitionKey) -> Path:
        """Return the directory of a partition."""
        return self._broker.topics_dir / key.folder / str(key.number)

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""
        return self._broker.topic(topic).settings

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        """Open a partition to clients."""
        topic = self._broker.topic(key.topic)
        if topic.id != key.topic_id:
            raise TopicNotFound(f"topic {key.topic} was deleted", field="topic")
        await topic.lead(key.number, logs, leadership)
        self._broker.retention_manager.wake_topic(topic)

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        """Close a partition to clients, and its logs."""
        topic = self._broker.topics.get(key.topic)
        if topic is not None and topic.id == key.topic_id:
            await topic.resign(key.number, reason)
