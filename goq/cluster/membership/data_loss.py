"""A node that has lost its messages, and nothing else: what it says until others know of it."""

from __future__ import annotations

from pathlib import Path

from goq.cluster.membership.disk_identity import DiskId, acknowledge_topic_loss, lost_sole_replicas
from goq.cluster.metadata.state import MetadataState
from goq.cluster.replication.replica_manager import ReplicaManager


class DataLoss:
    """Whether a node's messages are gone. They are not, for nearly every node."""

    def __init__(self, own: DiskId, replicas: ReplicaManager, topics_dir: Path) -> None:
        self.are_lost = own.has_lost_topics
        self._id = own.id
        self._replicas = replicas
        self._topics_dir = topics_dir

    async def make_up(self, state: MetadataState) -> None:
        """Forget that they were lost, once others have led wherever they were the only ones."""
        if not self.are_lost or lost_sole_replicas(state, self._replicas.name):
            return
        await self._replicas.in_thread(
            lambda: acknowledge_topic_loss(self._replicas.disk, self._topics_dir, self._id)
        )
        self.are_lost = False

    def whole(
        self, repaired: frozenset[tuple[int, int]], state: MetadataState
    ) -> frozenset[tuple[int, int]]:
        """Return what is whole again; what is empty has no damage, and is not whole for that."""
        if not self.are_lost:
            return repaired
        return repaired - lost_sole_replicas(state, self._replicas.name)
