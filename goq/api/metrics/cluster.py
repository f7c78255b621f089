"""Cluster metrics of a node: its view of the metadata, and the lag of the followers it leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from goq.api.views.cluster import is_under_replicated, status_of
from goq.cluster.metadata.state import MetadataState, active_partitions

if TYPE_CHECKING:
    from goq.cluster.raft.driver import RaftStatus
    from goq.cluster.replication.repair.manager import DamageReport
    from goq.cluster.replication.status import ReplicaReport

_STATUSES = ("up", "fenced", "leaving", "unfit")
_MS_PER_S = 1000


class ClusterCounts(Protocol):
    """The counts of a cluster in the metrics; a standalone node is a cluster of one."""

    node: str
    elections: int

    @property
    def state(self) -> MetadataState:
        """The cluster metadata."""

    @property
    def has_diverged(self) -> bool:
        """Whether the metadata of this node contradicts the cluster's."""

    @property
    def clock_skews_ms(self) -> Mapping[str, int]:
        """How far the clock of each node is ahead of their median."""

    @property
    def unreachable_nodes(self) -> Mapping[str, Sequence[str]]:
        """The nodes that are up and that a node does not reach, by that node."""

    @property
    def controller(self) -> str | None:
        """The current controller."""

    @property
    def raft_status(self) -> RaftStatus | None:
        """The status of this member of the Raft group, None on a standalone node."""

    def local_leaders(self) -> Sequence[ReplicaReport]:
        """Return reports of the partitions that this node leads, none on a standalone node."""

    def damage(self) -> Sequence[DamageReport]:
        """Return past and present damage of this node's replicas, by topic."""


class ClusterMetrics:
    """Collects the cluster metrics on each scrape."""

    def __init__(self, counts: ClusterCounts, *, partitions: bool = True) -> None:
        self._counts = counts
        self._has_partitions = partitions

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the cluster."""
        state = self._counts.state
        yield self._nodes(state)
        yield from self._sums(state)
        yield self._clocks()
        yield self._links()
        yield self._worst_lags()
        if self._has_partitions:
            yield self._in_sync(state)
            yield from self._lags()
        yield from self._damage()
        yield from self._raft()

    def _nodes(self, state: MetadataState) -> Metric:
        nodes = GaugeMetricFamily("goq_cluster_nodes", "Nodes by status", labels=["status"])
        counts = Counter(status_of(node) for node in state.nodes.values())
        for status in _STATUSES:
            nodes.add_metric([status], counts[status])
        return nodes

    def _sums(self, state: MetadataState) -> Iterator[Metric]:
        partitions = [partition for _, _, partition in active_partitions(state)]
        for name, text, value in (
            (
                "goq_cluster_under_replicated_partitions",
                "Partitions with a replica that is not in sync",
                sum(map(is_under_replicated, partitions)),
            ),
            (
                "goq_cluster_offline_partitions",
                "Partitions without a leader",
                sum(partition.leader is None for partition in partitions),
            ),
            (
                "goq_cluster_moving_partitions",
                "Partitions that are to be moved, or are",
                sum(bool(partition.target) for partition in partitions),
            ),
            (
                "goq_cluster_controller",
                "1 on the node that decides",
                self._counts.controller == self._counts.node,
            ),
            (
                "goq_cluster_diverged",
                "1 while this node's metadata contradicts the cluster's",
                self._counts.has_diverged,
            ),
            (
                "goq_cluster_feature_level",
                "The features that all nodes know, by their versions of goq",
                state.features.level,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            "goq_cluster_elections", "Changes of leaders seen", value=self._counts.elections
        )

    def _clocks(self) -> Metric:
        skews = GaugeMetricFamily(
            "goq_cluster_clock_skew_seconds",
            "How far a node's clock is ahead of their median; on the controller",
            labels=["node"],
        )
        if self._counts.controller == self._counts.node:
            for node, skew_ms in sorted(self._counts.clock_skews_ms.items()):
                skews.add_metric([node], skew_ms / _MS_PER_S)
        return skews

    def _links(self) -> Metric:
        """Count from this node only: each node tells of its own links."""
        return GaugeMetricFamily(
            "goq_cluster_unreachable_nodes",
            "Nodes that are up and that this node does not reach",
            value=len(self._counts.unreachable_nodes.get(self._counts.node, ())),
        )

    def _in_sync(self, state: MetadataState) -> Metric:
        metric = GaugeMetricFamily(
            "goq_partition_in_sync_replicas",
            "Replicas in sync, of partitions led here",
            labels=["topic", "partition"],
        )
        for place, _, partition in active_partitions(state):
            if partition.leader == self._counts.node:
                metric.add_metric([place.topic, str(place.partition)], len(partition.in_sync))
        return metric

    def _worst_lags(self) -> Metric:
        """Return a bounded number of series, also where there are none of single partitions."""
        worst: dict[str, int] = {}
        for report in self._counts.local_leaders():
            for node, follower in report.followers.items():
                worst[node] = max(worst.get(node, 0), follower.behind_ms or 0)
        metric = GaugeMetricFamily(
            "goq_replica_lag_max_seconds",
            "For how long the replica that lags most lacks messages, of partitions led here",
            labels=["node"],
        )
        for node, behind_ms in sorted(worst.items()):
            metric.add_metric([node], behind_ms / _MS_PER_S)
        return metric

    def _lags(self) -> Iterator[Metric]:
        labels = ["topic", "partition", "node"]
        messages = GaugeMetricFamily("goq_replica_lag_messages", "Messages lacking", labels=labels)
        seconds = GaugeMetricFamily("goq_replica_lag_seconds", "For how long", labels=labels)
        for report in self._counts.local_leaders():
            for node, follower in report.followers.items():
                values = [report.topic, str(report.number), node]
                if follower.end_offset is not None:
                    lag = max(report.end_offset - follower.end_offset, 0)
                    messages.add_metric(values, lag)
                if follower.behind_ms is not None:
                    seconds.add_metric(values, follower.behind_ms / _MS_PER_S)
        yield from (messages, seconds)

    def _damage(self) -> Iterator[Metric]:
        damaged = GaugeMetricFamily(
            "goq_replica_damaged_gaps", "Stretches of bad bytes in replicas here", labels=["topic"]
        )
        lost = GaugeMetricFamily(
            "goq_replica_lost_gaps", "Those that no other replica has", labels=["topic"]
        )
        repaired = CounterMetricFamily(
            "goq_replica_repaired_frames", "Frames got back from others", labels=["topic"]
        )
        for report in self._counts.damage():
            damaged.add_metric([report.topic], report.damaged_gaps)
            lost.add_metric([report.topic], report.lost_gaps)
            repaired.add_metric([report.topic], report.repaired_frames)
        yield from (damaged, lost, repaired)

    def _raft(self) -> Iterator[Metric]:
        view = self._counts.raft_status
        for name, text, value in (
            ("goq_raft_term", "The term", view and view.term),
            ("goq_raft_commit_index", "What is agreed on", view and view.commit_index),
            ("goq_raft_applied_index", "What of it was applied here", view and view.applied_index),
        ):
            yield GaugeMetricFamily(name, text, value=value or 0)
