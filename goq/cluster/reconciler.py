"""Reconciles local topics and replicas with the cluster metadata. Level-triggered: safe to repeat.

Topics are opened, replicas assigned, and what the metadata no longer places here is deleted. The
whole newest metadata is compared each time, so a change that was missed is made good by the next.
In the other direction, :class:`InSyncProposer` asks for changes of the in-sync sets led here, and
:class:`RenewalProposer` for another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from goq import limits
from goq.broker.broker import Broker
from goq.cluster.membership.durable_topics import DurableTopics
from goq.cluster.metadata.broker_store import group_settings, topic_rows
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import AlterInSync, ChangePartitions, RenewLeadership
from goq.cluster.metadata.features import has_batches
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    TopicMetadata,
    active_topics,
    required_in_sync,
)
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from goq.cluster.replication.replica_manager import ReplicaManager, TopicReplicas
from goq.config.topic import Fsync
from goq.errors import NotLeader


class _FsyncPolicy(NamedTuple):
    """Whether a topic's messages are synced before they count, by its settings at a version."""

    version: int
    is_always: bool


class Reconciler:
    """Makes a node what the metadata says it is. After a failure half-way, repeat it.

    ``deleted`` are the ids of topics of which this node has no file left, until the metadata forget
    them. ``newest`` returns the metadata now: a pass drops no topic that was created since it
    began.
    """

    def __init__(
        self,
        broker: Broker,
        replicas: ReplicaManager,
        durable_topics: DurableTopics,
        newest: Callable[[], MetadataState],
    ) -> None:
        self.deleted: set[int] = set()
        self._newest = newest
        self._durable_topics = durable_topics
        self._broker = broker
        self._replicas = replicas
        self._opened: dict[str, object] = {}
        self._assignments = Assignments(replicas.name)
        self._policies: dict[int, _FsyncPolicy] = {}
        self._recorded: dict[int, bool] | None = None

    async def reconcile(self, state: MetadataState) -> None:
        """Open topics, assign replicas, delete what is not placed here any more."""
        replicas = self._replicas
        rows = {row.name: row for row in topic_rows(state)}
        always = self._always_synced(state)
        if always != self._recorded:  # before anything is written under other settings
            await replicas.in_thread(lambda: self._durable_topics.record(always))
            self._recorded = always
        await self._delete_outdated(state)
        assignments = self._assignments.of(state)
        for name, row in rows.items():
            is_here = row.id in assignments
            known = row.id, state.topics[name].version, state.groups.get(name), is_here
            if self._opened.get(name) != known:
                groups = group_settings(state, name)
                await self._broker.topic_admin.take_up(row, groups, has_replicas=is_here)
                self._opened[name] = known
        settings, adding = state.settings, self._assignments.adding
        replicas.fetch_server.set_throttle(settings.move_bytes_per_s, adding)
        replicas.apply(assignments)
        for key in [key for key in replicas.unassigned if key.topic in rows]:
            await self._delete_replica(key)
        deleted = {topic.topic_id: topic.name for topic in state.deleted_topics.values()}
        deleted |= {topic.topic_id: name for name, topic in state.topics.items() if topic.deleting}
        for topic_id, name in deleted.items():
            if topic_id not in self.deleted:
                await self._delete_topic(name, topic_id)
        self.deleted.intersection_update(deleted)

    async def _delete_outdated(self, state: MetadataState) -> None:
        """Delete the open topics that the metadata no longer have, before others get their names.

        One that the newest metadata have was created since the pass began: it stays.
        """
        for name, topic in list(self._broker.topics.items()):
            for known in (state.topics.get(name), self._newest().topics.get(name)):
                if known is not None and known.topic_id == topic.id and not known.deleting:
                    break
            else:
                await self._delete_topic(name, topic.id)

    def forget(self) -> None:
        """Take up everything anew: the metadata so far was not the cluster's."""
        self._opened.clear()
        self._policies.clear()
        self._recorded = None

    def durable_topics(self, state: MetadataState) -> tuple[int, ...]:
        """Return the ids of topics that lost nothing here, even if the power failed."""
        always = self._always_synced(state)
        return tuple(sorted(t for t in self._durable_topics.ids if always.get(t)))

    def _always_synced(self, state: MetadataState) -> dict[int, bool]:
        """Return of all topics, by id, whether their messages are synced before they count."""
        before, self._policies = self._policies, {}
        for row in topic_rows(state):
            topic = state.topics[row.name]
            known = before.get(topic.topic_id)
            if known is None or known.version != topic.version:
                fsync = self._broker.topic_admin.settings_of(row).fsync
                known = _FsyncPolicy(topic.version, fsync is Fsync.ALWAYS)
            self._policies[topic.topic_id] = known
        return {topic_id: known.is_always for topic_id, known in self._policies.items()}

    async def _delete_replica(self, key: PartitionKey) -> None:
        """Delete a replica that was moved to another node."""
        await self._replicas.remove(key)
        directory = self._replicas.directory(key)
        await self._replicas.in_thread(lambda: self._replicas.disk.remove_dir(directory))

    async def _delete_topic(self, name: str, topic_id: int) -> None:
        self._opened.pop(name, None)
        keys = [replica.key for replica in self._replicas if replica.key.topic_id == topic_id]
        await asyncio.gather(*(self._replicas.remove(key) for key in keys))
        await self._broker.topic_admin.drop(name, topic_id)
        self.deleted.add(topic_id)


class InSyncProposer:
    """Proposes changes of in-sync sets to the metadata, as the leader ``name``."""

    def __init__(self, name: str, metadata: MetadataClient) -> None:
        self._name = name
        self._metadata = metadata
        self._waiting: list[tuple[AlterInSync, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def propose(
        self, key: PartitionKey, assignment: ReplicaAssignment, in_sync: frozenset[str]
    ) -> ReplicaAssignment:
        """Propose an in-sync set; return the assignment that holds then, accepted or not.

        A fenced node may still fetch. It would be refused, and with it the others that enter. So it
        is left out. Raises ``NotLeader`` if the topic is gone.
        """
        nodes, present = self._metadata.state.nodes, frozenset(assignment.in_sync)
        fenced = {node for node in in_sync - present if node in nodes and not nodes[node].is_up}
        if fenced and in_sync - fenced == present and not self._partition(key).restarted:
            return self._assignment(key)
        in_sync -= fenced
        seen = dict(zip(assignment.replicas, assignment.incarnations, strict=True))
        command = AlterInSync(
            key.topic,
            key.topic_id,
            key.number,
            assignment.version,
            self._name,
            assignment.leader_epoch,
            {node: seen.get(node, 0) for node in in_sync},
            assignment.restarted,
        )
        await self._decided(command)
        return self._assignment(key)

    def _assignment(self, key: PartitionKey) -> ReplicaAssignment:
        return assignment_of(self._metadata.state, self._topic(key), self._partition(key))

    def _partition(self, key: PartitionKey) -> PartitionMetadata:
        return self._topic(key).partitions[key.number]

    def _topic(self, key: PartitionKey) -> TopicMetadata:
        topic = self._metadata.state.topics.get(key.topic)
        if topic is None or topic.topic_id != key.topic_id:
            raise NotLeader(f"topic {key.topic} is gone")
        return topic

    async def _decided(self, command: AlterInSync) -> None:
        """Return once a command is decided, together with others that wait meanwhile."""
        if not has_batches(self._metadata.state):
            await self._metadata.propose_until_decided(command)
            return
        decided = asyncio.get_running_loop().create_future()
        self._waiting.append((command, decided))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._propose_waiting())
        await decided

    async def _propose_waiting(self) -> None:
        while self._waiting:
            some = self._waiting[: limits.PARTITION_CHANGES_MAX]
            del self._waiting[: limits.PARTITION_CHANGES_MAX]
            changes = ChangePartitions(tuple(command for command, _ in some))
            try:
                await self._metadata.propose_until_decided(changes)
            finally:
                for _, decided in some:
                    if not decided.done():
                        decided.set_result(None)


class RenewalProposer:
    """Asks the metadata for another epoch of partitions that the node ``name`` leads."""

    def __init__(self, name: str, metadata: MetadataClient) -> None:
        self._name = name
        self._metadata = metadata

    async def propose(self, key: PartitionKey, leader_epoch: int) -> None:
        """Propose the next epoch once, unless the partition has one by now or is gone."""
        topic = self._metadata.state.topics.get(key.topic)
        if topic is None or topic.topic_id != key.topic_id:
            return
        partition = topic.partitions[key.number]
        if (partition.leader, partition.leader_epoch) == (self._name, leader_epoch):
            where = (key.topic, key.topic_id, key.number, partition.version)
            command = RenewLeadership(*where, self._name, leader_epoch)
            await self._metadata.propose_until_decided(command)


def assignment_of(
    state: MetadataState, topic: TopicMetadata, partition: PartitionMetadata
) -> ReplicaAssignment:
    """Return what the replicas of a partition need of its metadata."""
    return ReplicaAssignment(
        partition.leader,
        partition.leader_epoch,
        partition.in_sync,
        partition.holders,
        required_in_sync(state, topic, partition),
        partition.version,
        partition.damaged,
        tuple(
            node.incarnation if (node := state.nodes.get(name)) is not None else 0
            for name in partition.holders
        ),
        partition.restarted,
    )


class Assignments:
    """The assignments of the node ``node``, kept by topic.

    A start of thousands of partitions changes the metadata a hundred times, few topics each time.
    The mapping of a topic that is unchanged is the same object as before.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._basis: tuple[object, object] | None = None
        self._by_topic: dict[int, _TopicAssignments] = {}

    def of(self, state: MetadataState) -> dict[int, TopicReplicas]:
        """Return by topic id the assignments of the replicas that the node has or is to copy."""
        basis = self._basis
        if basis is None or basis[0] is not state.nodes or basis[1] is not state.settings:
            self._basis, self._by_topic = (state.nodes, state.settings), {}
        before, self._by_topic = self._by_topic, {}
        for topic in active_topics(state):
            known = before.get(topic.topic_id)
            if known is None or known.topic is not topic:
                known = _TopicAssignments(
                    topic,
                    _replicas_in(state, topic, self._node),
                    _adding_in(topic, self._node),
                )
            self._by_topic[topic.topic_id] = known
        return {i: known.replicas for i, known in self._by_topic.items() if known.replicas}

    @property
    def adding(self) -> dict[PartitionKey, frozenset[str]]:
        """The nodes that copy partitions led here because of a reassignment under way."""
        return {key: nodes for n in self._by_topic.values() for key, nodes in n.adding.items()}


class _TopicAssignments(NamedTuple):
    topic: TopicMetadata
    replicas: TopicReplicas
    adding: dict[PartitionKey, frozenset[str]]


def _replicas_in(state: MetadataState, topic: TopicMetadata, node: str) -> TopicReplicas:
    return {
        PartitionKey(topic.name, topic.topic_id, number): assignment_of(state, topic, partition)
        for number, partition in enumerate(topic.partitions)
        if node in partition.holders
    }


def _adding_in(topic: TopicMetadata, leader: str) -> dict[PartitionKey, frozenset[str]]:
    return {
        PartitionKey(topic.name, topic.topic_id, number): frozenset(copying)
        for number, partition in enumerate(topic.partitions)
        if partition.is_reassigning
        and partition.leader == leader
        and (copying := set(partition.adding_replicas) - set(partition.in_sync))
    }
