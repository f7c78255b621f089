"""What a member knows of its cluster, as its API shows it: see ``api.cluster.Seat``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import ReplicaStatus
from goq.cluster.metadata.state import MetadataState, PartitionMetadata, TopicMetadata
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.replication.repair.manager import DamageReport, RepairManager
from goq.cluster.replication.status import ReplicaReport

Reports = dict[tuple[str, int], ReplicaReport]


class ClusterView:
    """A member's view; ``elections`` counts the changes of leaders that were seen here."""

    is_cluster = True

    def __init__(
        self,
        node: str,
        state: Callable[[], MetadataState],
        view: Callable[[], RaftStatus],
        reporting: ReplicaStatus,
        administering: ClusterOperations,
        repairs: RepairManager,
    ) -> None:
        self.node = node
        self.administering = administering
        self.elections = 0
        self._state = state
        self._view = view
        self._reporting = reporting
        self._repairs = repairs
        self._seen = state()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def state(self) -> MetadataState:
        """What all nodes agree on, as far as it is known here."""
        return self._state()

    @property
    def view(self) -> RaftStatus:
        """How things stand in the Raft group."""
        return self._view()

    @property
    def controller(self) -> str | None:
        """Which node decides now, None while there is none or it is not known."""
        return self._view().leader

    @property
    def strangers(self) -> tuple[str, ...]:
        """Nodes under whose ids somebody comes with another disk, and is not let in here."""
        return self._view().rejected_members

    def led_here(self) -> list[ReplicaReport]:
        """Return what is known of the partitions that this node leads."""
        return self._reporting.led_here()

    def harm(self) -> list[DamageReport]:
        """Return what is and was wrong with this node's replicas, by topic."""
        return self._repairs.harm()

    async def led(self, topic: str | None) -> Reports:
        """Return what all leaders that answer say of their partitions."""
        return await self._reporting.led(topic)

    async def changed(self, version: int, wait_s: float) -> None:
        """Return when the state has another version than this, or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while self._state().version == version and (left_s := until - loop.time()) > 0:
            changed: asyncio.Future[None] = loop.create_future()
            self._waiting.add(changed)
            try:
                await asyncio.wait([changed], timeout=left_s)
            finally:
                self._waiting.discard(changed)

    def agreed(self) -> None:
        """Hear that the state has changed."""
        state = self._state()
        self.elections += elections_between(self._seen, state)
        self._seen = state
        for changed in self._waiting:
            if not changed.done():
                changed.set_result(None)


def elections_between(before: MetadataState, after: MetadataState) -> int:
    """Return how often a leader was elected, or lost, in topics that both states have."""
    if before.topics is after.topics:
        return 0
    return sum(
        _elections(known, topic)
        for name, topic in after.topics.items()
        if (known := before.topics.get(name)) is not None and known is not topic
    )


def _elections(before: TopicMetadata, after: TopicMetadata) -> int:
    if before.topic_id != after.topic_id:
        return 0
    pairs: zip[tuple[PartitionMetadata, PartitionMetadata]] = zip(
        before.partitions, after.partitions, strict=False
    )
    return sum(new.leader_epoch - old.leader_epoch for old, new in pairs)


def acknowledged_copies(state: MetadataState, topic: str) -> int:
    """Return how many nodes have what is safe in any partition of a topic, at least."""
    known = state.topics.get(topic)
    if known is None:
        return 1
    replicas = min(len(partition.replicas) for partition in known.partitions)
    return min(state.settings.min_insync, replicas)
