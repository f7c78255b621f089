"""The cluster metadata as clients see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from goq.api.schemas.cluster import (
    AbsentNodeOut,
    ClusterOut,
    ClusterPartitionOut,
    ClusterSettingsOut,
    ClusterTopicOut,
    FollowerOut,
    NodeOut,
    ReassignmentOut,
)
from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    active_partitions,
)

if TYPE_CHECKING:
    from goq.cluster.admin.operations import ClusterOperations
    from goq.cluster.replication.status import ReplicaReport

Reports = Mapping[tuple[str, int], "ReplicaReport"]
_MS_PER_S = 1000


class ClusterInfo(Protocol):
    """The cluster as a node knows it; a standalone node is a cluster of one."""

    node: str
    is_cluster: bool

    @property
    def operations(self) -> ClusterOperations | None:
        """The operations on the cluster, None on a standalone node."""

    @property
    def state(self) -> MetadataState:
        """The cluster metadata."""

    @property
    def controller(self) -> str | None:
        """The node that runs the controller, if that is known."""

    @property
    def has_diverged(self) -> bool:
        """Whether the metadata here contradicts the cluster's, and is being replaced."""

    @property
    def clock_skews_ms(self) -> Mapping[str, int]:
        """How far the clock of each node is ahead of their median, as far as that is known."""

    @property
    def unreachable_nodes(self) -> Mapping[str, Sequence[str]]:
        """The nodes that are up and that a node does not reach, by that node."""

    @property
    def unheard_s(self) -> float | None:
        """Seconds since the metadata here was that of the cluster, None while it is."""

    @property
    def peer_problems(self) -> Mapping[str, str]:
        """Why this node does not talk with some others, by their ids."""

    @property
    def absent_members(self) -> Mapping[str, str]:
        """The addresses of configured or admitted nodes that never came, by their ids."""

    async def wait_for_change(self, version: int, wait_s: float) -> None:
        """Return when the metadata has another version than this, or after ``wait_s``."""

    async def leader_reports(self, topic: str | None) -> Reports:
        """Return the reports of all leaders, of one topic or of all."""


def cluster_out(
    cluster: ClusterInfo, topics: Collection[str] | None, reports: Reports
) -> ClusterOut:
    """Return the cluster as its node knows it, with all topics or some."""
    state, unheard_s = cluster.state, cluster.unheard_s
    peer_problems, skews_ms = cluster.peer_problems, cluster.clock_skews_ms
    unreachable = cluster.unreachable_nodes
    out = ClusterOut(
        version=state.version,
        node=cluster.node,
        cluster=cluster.is_cluster,
        controller=cluster.controller,
        diverged=cluster.has_diverged,
        feature_level=state.features.level,
        nodes=[
            _node(known, peer_problems.get(name), skews_ms.get(name), unreachable.get(name, ()))
            for name, known in sorted(state.nodes.items())
        ],
        absent=[
            AbsentNodeOut(name, address, peer_problems.get(name))
            for name, address in sorted(cluster.absent_members.items())
        ],
        unheard_s=None if unheard_s is None else round(unheard_s, 1),
        settings=ClusterSettingsOut(
            state.settings.replication_factor,
            state.settings.min_insync,
            state.settings.moves_at_once,
            state.settings.move_bytes_per_s,
        ),
        topics=[],
        under_replicated=[],
        offline=[],
        moves=[],
    )
    for place, topic, partition in active_partitions(state):
        if topics is not None and place.topic not in topics:
            continue
        if not out.topics or out.topics[-1].name != place.topic:
            factor = max(topic.replication_factor, 1)
            own = state.settings.min_insync if topic.min_insync is None else topic.min_insync
            out.topics.append(ClusterTopicOut(place.topic, [], factor, min(own, factor)))
        report = reports.get(place)
        out.topics[-1].partitions.append(_partition(place.partition, partition, report))
        name = f"{place.topic}:{place.partition}"
        if partition.leader is None:
            out.offline.append(name)
        if is_under_replicated(partition):
            out.under_replicated.append(name)
        if partition.target:
            out.moves.append(_move(place.topic, place.partition, partition, report))
    return out


def is_under_replicated(partition: PartitionMetadata) -> bool:
    """Whether a replica of a partition is missing or out of sync."""
    return partition.is_missing_replicas or not set(partition.replicas) <= set(partition.in_sync)


def status_of(node: NodeMetadata) -> str:
    """Return the status of a node in a word; reasons that stop it win over operations under way."""
    if not node.is_up:
        return "fenced"
    if not node.can_lead:
        return "unfit"
    return "leaving" if node.leaving else "up"


def _node(
    node: NodeMetadata,
    problem: str | None,
    clock_skew_ms: int | None,
    unreachable_nodes: Sequence[str],
) -> NodeOut:
    return NodeOut(
        node.id,
        node.http_url,
        status_of(node),
        node.incarnation,
        node.rack,
        problem or node.unfit_reason or None,
        None if clock_skew_ms is None else clock_skew_ms / _MS_PER_S,
        list(unreachable_nodes),
    )


def _partition(
    number: int, partition: PartitionMetadata, report: ReplicaReport | None
) -> ClusterPartitionOut:
    out = ClusterPartitionOut(
        partition=number,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=list(partition.replicas),
        in_sync=list(partition.in_sync),
        offline=partition.leader is None,
        wanted=max(partition.replication_factor, len(partition.replicas)),
        adding=list(partition.adding_replicas),
        removing=list(partition.removing_replicas),
        damaged=list(partition.damaged),
        unclean=partition.unclean,
    )
    if report is not None:
        out.start_offset, out.end_offset = report.start_offset, report.end_offset
        out.followers = [
            FollowerOut(
                node,
                follower.end_offset,
                None
                if follower.end_offset is None
                else max(report.end_offset - follower.end_offset, 0),
                None if follower.behind_ms is None else follower.behind_ms / _MS_PER_S,
            )
            for node, follower in sorted(report.followers.items())
        ]
    return out


def _move(
    topic: str, number: int, partition: PartitionMetadata, report: ReplicaReport | None
) -> ReassignmentOut:
    return ReassignmentOut(
        topic,
        number,
        list(partition.replicas),
        list(partition.target),
        "copying" if partition.is_reassigning else "waiting",
        None if report is None or not partition.is_reassigning else _progress(partition, report),
    )


def _progress(partition: PartitionMetadata, report: ReplicaReport) -> float:
    """Return the share of the messages that the new replicas have, from 0 to 1."""
    whole = report.end_offset - report.start_offset
    shares = []
    for node in partition.adding_replicas:
        follower = report.followers.get(node)
        end = None if follower is None else follower.end_offset
        copied = 0 if end is None else max(end - report.start_offset, 0)
        shares.append(min(copied / whole, 1.0) if whole else float(end is not None))
    return round(min(shares, default=1.0), 3)
