"""The state of a node that has lost its messages but nothing else, until the cluster knows it.

Such a node registers with no topics and copies everything from the other replicas. It counts as
having lost its messages until, wherever it was the only replica in sync, another replica leads.
"""

from __future__ import annotations

from pathlib import Path

from goq.cluster.membership.disk_identity import DiskId, write_topics_id
from goq.cluster.metadata.state import MetadataState, active_partitions
from goq.cluster.replication.replica_manager import ReplicaManager


class DataLoss:
    """Whether a node's messages are gone; false for nearly every node."""

    def __init__(self, own: DiskId, replicas: ReplicaManager, topics_dir: Path) -> None:
        self.has_lost_topics = own.has_lost_topics
        self._id = own.id
        self._replicas = replicas
        self._topics_dir = topics_dir

    async def clear_when_covered(self, state: MetadataState) -> None:
        """End the loss once no partition waits for a message that only this node had."""
        if not self.has_lost_topics or lost_sole_replicas(state, self._replicas.name):
            return
        await self._replicas.in_thread(
            lambda: write_topics_id(self._replicas.disk, self._topics_dir, self._id)
        )
        self.has_lost_topics = False

    def actually_repaired(
        self, repaired: frozenset[tuple[int, int]], state: MetadataState
    ) -> frozenset[tuple[int, int]]:
        """Return the replicas of ``repaired`` that are whole.

        An empty replica has no damage. That does not make it whole.
        """
        if not self.has_lost_topics:
            return repaired
        return repaired - lost_sole_replicas(state, self._replicas.name)


def lost_sole_replicas(state: MetadataState, node: str) -> frozenset[tuple[int, int]]:
    """Return the partitions, by topic id and number, whose only whole replica a node has lost.

    They have no leader: an operator must choose one, and accept what is lost.
    """
    return frozenset(
        (topic.topic_id, place.partition)
        for place, topic, partition in active_partitions(state)
        if partition.leader is None and node in partition.damaged and node in partition.in_sync
    )
