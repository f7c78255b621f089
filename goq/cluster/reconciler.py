"""A node's topics and replicas follow what is agreed on: made, opened, dropped and deleted."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from goq.broker.broker import Broker
from goq.cluster.membership.durable_topics import DurableTopics
from goq.cluster.metadata.broker_store import group_settings, topic_rows
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    TopicMetadata,
    active_partitions,
)
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.config.topic import Fsync


def assignment_of(state: MetadataState, partition: PartitionMetadata) -> ReplicaAssignment:
    """Return what a replica of a partition goes by."""
    return ReplicaAssignment(
        partition.leader,
        partition.leader_epoch,
        partition.in_sync,
        partition.holders,
        min(state.settings.min_insync, len(partition.replicas)),
        partition.version,
        partition.damaged,
        tuple(
            node.incarnation if (node := state.nodes.get(name)) is not None else 0
            for name in partition.holders
        ),
        partition.restarted,
    )


def assignments_of(state: MetadataState, node: str) -> dict[PartitionKey, ReplicaAssignment]:
    """Return the parts of a node: of all replicas that it has or is to copy."""
    return {
        PartitionKey(place.topic, topic.topic_id, place.partition): assignment_of(state, partition)
        for place, topic, partition in active_partitions(state)
        if node in partition.holders
    }


def adding_replicas(state: MetadataState, leader: str) -> dict[PartitionKey, frozenset[str]]:
    """Return who copies partitions that a node leads because a move has begun."""
    return {
        PartitionKey(place.topic, topic.topic_id, place.partition): frozenset(copying)
        for place, topic, partition in active_partitions(state)
        if partition.is_reassigning
        and partition.leader == leader
        and (copying := set(partition.adding_replicas) - set(partition.in_sync))
    }


class _FsyncPolicy(NamedTuple):
    """Whether a topic is synced at once, by its settings at a version of it."""

    version: int
    at_once: bool


class Reconciler:
    """Makes a node what a state says it is. Nothing is lost if it fails half-way: do it again.

    ``deleted`` are ids of topics that were deleted, of which this node has no file any more.
    """

    def __init__(self, broker: Broker, replicas: ReplicaManager) -> None:
        self.deleted: set[int] = set()
        self.kept = DurableTopics(replicas.disk, broker.topics_dir)
        self._broker = broker
        self._replicas = replicas
        self._taken_up: dict[str, object] = {}
        self._syncs: dict[int, _FsyncPolicy] = {}
        self._noted: dict[int, bool] | None = None

    async def become(self, state: MetadataState) -> None:
        """Take up topics, let replicas be what they are to be, delete what is not here any more."""
        replicas = self._replicas
        rows = {row.name: row for row in topic_rows(state)}
        always = self.synced_at_once(state)
        if always != self._noted:  # before anything is written by other settings
            await replicas.in_thread(lambda: self.kept.note(always))
            self._noted = always
        for name, row in rows.items():
            known = state.topics[name].version, state.groups.get(name)
            if self._taken_up.get(name) != known:
                await self._broker.take_up(row, group_settings(state, name))
                self._taken_up[name] = known
        parts = assignments_of(state, replicas.name)
        copying = adding_replicas(state, replicas.name)
        replicas.server.pace(state.settings.move_bytes_per_s, copying)
        replicas.agree(parts)
        for key in [r.key for r in replicas if r.key not in parts and r.key.topic in rows]:
            await self._give_up(key)
        for name in self._broker.topics.keys() - rows.keys():
            await self._drop(name, state.topics.get(name))
        for name, topic in state.topics.items():
            if topic.deleting and topic.topic_id not in self.deleted:
                await self._drop(name, topic)

    def synced_at_once(self, state: MetadataState) -> dict[int, bool]:
        """Return of all topics, by id, whether here what is stored in them is synced before."""
        before, self._syncs = self._syncs, {}
        for row in topic_rows(state):
            topic = state.topics[row.name]
            known = before.get(topic.topic_id)
            if known is None or known.version != topic.version:
                fsync = self._broker.settings_of(row).fsync
                known = _FsyncPolicy(topic.version, fsync is Fsync.ALWAYS)
            self._syncs[topic.topic_id] = known
        return {topic_id: known.at_once for topic_id, known in self._syncs.items()}

    async def _give_up(self, key: PartitionKey) -> None:
        """Delete a replica that has moved to another node."""
        await self._replicas.drop(key)
        directory = self._broker.topics_dir / key.topic / str(key.number)
        await self._replicas.in_thread(lambda: self._replicas.disk.remove_dir(directory))

    async def _drop(self, name: str, topic: TopicMetadata | None) -> None:
        self._taken_up.pop(name, None)
        keys = [replica.key for replica in self._replicas if replica.key.topic == name]
        await asyncio.gather(*(self._replicas.drop(key) for key in keys))
        await self._broker.drop(name)
        if topic is not None:
            self.deleted.add(topic.topic_id)
