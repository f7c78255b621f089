"""Leader election of a partition, repeated whenever anything changes that it depends on.

A partition has a leader exactly when one of its in-sync replicas is eligible: its node is up, and
it is not damaged. A replica on an unhealthy node, such as one with a full disk, leads only while no
healthy replica can. Without it no client could read the partition, or delete data to free the disk.
A valid leader stays. A new one is the preferred replica if eligible, else the one whose node leads
least. A leaving node is elected only without an alternative: otherwise data that it alone has could
not be moved away. The same holds for a replica that restarted since its leader last heard from it:
if its disk has lost data, no other node has noticed yet.

Without a leader nothing is written, so no replica falls behind: the in-sync set stays unchanged.
With a leader, only nodes that are up are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    active_partitions,
)


class LeaderCounts:
    """Number of partitions that each node leads; counted at the first query."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._changes: Counter[str] = Counter()
        self._counts: Counter[str] | None = None

    def count(self, node: str) -> int:
        """Return the number of partitions that a node leads."""
        if self._counts is None:
            self._counts = Counter(
                partition.leader
                for _, _, partition in active_partitions(self._state)
                if partition.leader
            )
        return self._counts[node] + self._changes[node]

    def change(self, before: str | None, after: str | None) -> None:
        """Count a change of leader since the state."""
        if before is not None:
            self._changes[before] -= 1
        if after is not None:
            self._changes[after] += 1


def can_node_lead(nodes: Mapping[str, NodeMetadata], node: str) -> bool:
    """Whether a node is up and healthy."""
    return node in nodes and nodes[node].is_up and nodes[node].can_lead


def eligible_leaders(
    nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata
) -> tuple[str, ...]:
    """Return the replicas that may be elected, in preferred order.

    Leaving nodes and restarted replicas are included only without an alternative. So are unhealthy
    nodes: their data can be read and deleted, and deleting may make them healthy again.
    """
    up = [
        node
        for node in partition.in_sync
        if node in nodes and nodes[node].is_up and node not in partition.damaged
    ]
    up = [node for node in up if node not in partition.restarted] or up
    eligible = [node for node in up if nodes[node].can_lead] or up
    return tuple(node for node in eligible if not nodes[node].leaving) or tuple(eligible)


def is_leader_valid(nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata) -> bool:
    """Whether the present leader can stay."""
    leader = partition.leader
    return (
        leader is not None
        and leader in partition.in_sync
        and leader in nodes
        and nodes[leader].is_up
        and (leader not in partition.damaged or partition.unclean)
        and (nodes[leader].can_lead or not _has_healthy_candidate(nodes, partition))
    )


def _has_healthy_candidate(nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata) -> bool:
    return any(nodes[node].can_lead for node in eligible_leaders(nodes, partition))


def with_elected_leader(
    nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata, counts: LeaderCounts
) -> PartitionMetadata:
    """Return the partition with the leader that it must have now; itself if nothing changes.

    The caller raises the version.
    """
    if not is_leader_valid(nodes, partition):
        eligible = eligible_leaders(nodes, partition)
        partition = with_leader(partition, _choose_leader(eligible, partition, counts), counts)
    if partition.leader is None:
        return partition
    in_sync = tuple(node for node in partition.in_sync if nodes[node].is_up)
    if in_sync == partition.in_sync:
        return partition
    restarted = tuple(node for node in partition.restarted if node in in_sync)
    return replace(partition, in_sync=in_sync, restarted=restarted)


def with_leader(
    partition: PartitionMetadata, leader: str | None, counts: LeaderCounts
) -> PartitionMetadata:
    """Return the partition with another leader, or with none, in a new epoch."""
    if leader is None and partition.leader is None:
        return partition
    counts.change(partition.leader, leader)
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        restarted=tuple(node for node in partition.restarted if node != leader),
        unclean=False,
    )


def with_restarted_node(
    before: Mapping[str, NodeMetadata],
    after: Mapping[str, NodeMetadata],
    partition: PartitionMetadata,
    counts: LeaderCounts,
    durable_node: str | None = None,
) -> PartitionMetadata:
    """Return the partition after one of its nodes restarted, as if the node had been fenced.

    ``before`` has the node fenced, ``after`` has it up. The node leads again only if no other can,
    and then in a new epoch. As ``durable_node``, whose disk kept everything that it acknowledged,
    it stays in sync, as restarted. Its absence was not noticed, so it may be one of the few
    replicas with all messages.
    """
    after_restart = with_elected_leader(
        after, with_elected_leader(before, partition, counts), counts
    )
    if after_restart.leader_epoch > partition.leader_epoch + 1:
        after_restart = replace(after_restart, leader_epoch=partition.leader_epoch + 1)
    if after_restart.leader in (None, durable_node) or durable_node not in partition.in_sync:
        return after_restart
    in_sync = tuple(
        node for node in partition.in_sync if node in (*after_restart.in_sync, durable_node)
    )
    restarted = tuple(node for node in in_sync if node in (*after_restart.restarted, durable_node))
    return replace(after_restart, in_sync=in_sync, restarted=restarted)


def _choose_leader(
    eligible: tuple[str, ...], partition: PartitionMetadata, counts: LeaderCounts
) -> str | None:
    if not eligible:
        return None
    if partition.replicas[0] in eligible:
        return partition.replicas[0]
    return min(eligible, key=lambda node: (counts.count(node), eligible.index(node)))
