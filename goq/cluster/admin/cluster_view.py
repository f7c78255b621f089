"""The cluster as a member knows it: metadata, replicas, damage. The API shows it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from goq import limits
from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import ReplicaStatus
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    TopicMetadata,
    required_in_sync,
)
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.member import RaftMember
from goq.cluster.replication.repair.manager import DamageReport, RepairManager
from goq.cluster.replication.status import ReplicaReport

_OTHER_DISK = "has another disk than the one registered for it, and is refused"
Reports = dict[tuple[str, int], ReplicaReport]


class ClusterView:
    """A member's view; ``elections`` counts the changes of leaders that were seen here.

    ``raft_silent_s`` returns for how long this node has heard nothing of its Raft group.
    """

    is_cluster = True

    def __init__(
        self,
        node: str,
        state: Callable[[], MetadataState],
        raft_status: Callable[[], RaftStatus],
        raft_silent_s: Callable[[], float],
        replica_status: ReplicaStatus,
        operations: ClusterOperations,
        repairs: RepairManager,
        clock_skews_ms: Callable[[], Mapping[str, int]],
        unreachable_nodes: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        self.node = node
        self.operations = operations
        self.elections = 0
        self._state = state
        self._raft_status = raft_status
        self._raft_silent_s = raft_silent_s
        self._replica_status = replica_status
        self._repairs = repairs
        self._clock_skews_ms = clock_skews_ms
        self._unreachable_nodes = unreachable_nodes
        self._seen = state()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def state(self) -> MetadataState:
        """The cluster metadata, as far as it is known here."""
        return self._state()

    @property
    def raft_status(self) -> RaftStatus:
        """The status of this member of the Raft group."""
        return self._raft_status()

    @property
    def controller(self) -> str | None:
        """The node that runs the controller, None while there is none or it is not heard here."""
        is_heard = self._raft_silent_s() * 1000 <= limits.NODE_SESSION_TIMEOUT_MS
        return self._raft_status().leader if is_heard else None

    @property
    def peer_problems(self) -> Mapping[str, str]:
        """Why this node does not talk with some others, by their ids."""
        status = self._raft_status()
        return dict.fromkeys(status.rejected_members, _OTHER_DISK) | dict.fromkeys(
            status.other_secret, f"has another secret than {self.node}"
        )

    @property
    def absent_members(self) -> Mapping[str, str]:
        """The addresses of other members of the Raft group that never came, by their ids."""
        members = map(RaftMember, self._raft_status().members)
        known = {self.node, *self._state().nodes}
        return {str(m.id): m.address for m in members if m.id not in known}

    @property
    def has_diverged(self) -> bool:
        """Whether the metadata here contradicts the cluster's, and is being replaced."""
        return self._raft_status().has_diverged

    @property
    def clock_skews_ms(self) -> Mapping[str, int]:
        """How far the clock of each node is ahead of their median, as far as that is known."""
        return self._clock_skews_ms()

    @property
    def unreachable_nodes(self) -> Mapping[str, Sequence[str]]:
        """The nodes that are up and that a node does not reach, by that node.

        What this node does not reach over the Raft port is among them; that of others is not known.
        """
        found, state = dict(self._unreachable_nodes()), self._state()
        lost = {
            node.id
            for node in state.nodes.values()
            if node.is_up and node.id in self._raft_status().unconnected
        }
        if lost:
            found[self.node] = sorted({*found.get(self.node, ()), *lost})
        return found

    @property
    def unheard_s(self) -> float | None:
        """Seconds since the metadata here was that of the cluster, None while it is.

        Also None if this node has not heard the controller since its start.
        """
        silent_s = self._raft_silent_s()
        is_silent = silent_s * 1000 > limits.NODE_SESSION_TIMEOUT_MS
        return silent_s if is_silent and math.isfinite(silent_s) else None

    def local_leaders(self) -> list[ReplicaReport]:
        """Return reports of the partitions that this node leads."""
        return self._replica_status.local_leaders()

    def damage(self) -> list[DamageReport]:
        """Return past and present damage of this node's replicas, by topic."""
        return self._repairs.damage_reports()

    async def leader_reports(self, topic: str | None) -> Reports:
        """Return the reports of all leaders that answer, of one topic or of all."""
        return await self._replica_status.leader_reports(topic)

    async def wait_for_change(self, version: int, wait_s: float) -> None:
        """Return when the metadata has another version than this, or after ``wait_s``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while self._state().version == version and (left_s := until - loop.time()) > 0:
            changed: asyncio.Future[None] = loop.create_future()
            self._waiting.add(changed)
            try:
                await asyncio.wait([changed], timeout=left_s)
            finally:
                self._waiting.discard(changed)

    def on_metadata_change(self) -> None:
        """Count elections and wake all that wait for a change."""
        state = self._state()
        self.elections += max(0, elections_between(self._seen, state))
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


def topic_replication(state: MetadataState, topic: str) -> tuple[int, int]:
    """Return a topic's replication factor, and how many replicas must be in sync to write."""
    known = state.topics.get(topic)
    if known is None:
        return 1, 1
    own, factor = known.min_insync, known.replication_factor
    return factor, min(state.settings.min_insync if own is None else own, factor)


def acknowledged_copies(state: MetadataState, topic: str) -> int:
    """Return on how many nodes, at least, a message is when its publisher is acknowledged."""
    known = state.topics.get(topic)
    if known is None:
        return 1
    return min(required_in_sync(state, known, partition) for partition in known.partitions)
