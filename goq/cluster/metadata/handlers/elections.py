"""Who leads a partition: decided whenever anything changes that it depends on.

A partition has a leader exactly when one of its in-sync replicas can lead: its node is up, and it
is not damaged. One whose node is not fit, as with a full disk, leads while no fit one can: else
nobody could read, nor delete what fills the disk. A leader that still can stays. A new one is the
preferred replica, or else the one whose node leads least. A node that is leaving is taken only when
there is no other: what it alone has could not be moved away from it otherwise. So is one that was
started anew since its leader heard of it: if its disk has lost something, nobody has noticed yet.

While nobody leads, nothing is written, so nobody falls behind: the in-sync set stands still.
When there is a leader, only up nodes are in it.
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
    """How many partitions each node leads; counted when it is first asked for."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._changes: Counter[str] = Counter()
        self._counts: Counter[str] | None = None

    def count(self, node: str) -> int:
        """Return how many partitions a node leads."""
        if self._counts is None:
            self._counts = Counter(
                partition.leader
                for _, _, partition in active_partitions(self._state)
                if partition.leader
            )
        return self._counts[node] + self._changes[node]

    def change(self, before: str | None, after: str | None) -> None:
        """Take note of a change of leader since the state."""
        if before is not None:
            self._changes[before] -= 1
        if after is not None:
            self._changes[after] += 1


def can_node_lead(nodes: Mapping[str, NodeMetadata], node: str) -> bool:
    """Whether a node is up and fit to lead."""
    return node in nodes and nodes[node].is_up and nodes[node].can_lead


def eligible_leaders(
    nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata
) -> tuple[str, ...]:
    """Return who may be elected, in preferred order; leaving nodes only if there are no others.

    Nor returned ones. Unfit ones only if there is nobody else: what they have can be read and
    deleted, and deleting may be what makes them fit.
    """
    up = [
        node
        for node in partition.in_sync
        if node in nodes and nodes[node].is_up and node not in partition.damaged
    ]
    up = [node for node in up if node not in partition.restarted] or up
    able = [node for node in up if nodes[node].can_lead] or up
    return tuple(node for node in able if not nodes[node].leaving) or tuple(able)


def is_leader_valid(nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata) -> bool:
    """Whether the present leader can go on."""
    leader = partition.leader
    return (
        leader is not None
        and leader in partition.in_sync
        and leader in nodes
        and nodes[leader].is_up
        and (leader not in partition.damaged or partition.unclean)
        and (nodes[leader].can_lead or not _has_fit(nodes, partition))
    )


def _has_fit(nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata) -> bool:
    return any(nodes[node].can_lead for node in eligible_leaders(nodes, partition))


def with_elected_leader(
    nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata, loads: LeaderCounts
) -> PartitionMetadata:
    """Return the partition with the leader that it has to have now; itself if nothing changes.

    The version is the caller's to raise.
    """
    if not is_leader_valid(nodes, partition):
        able = eligible_leaders(nodes, partition)
        partition = with_leader(partition, _chosen(able, partition, loads), loads)
    if partition.leader is None:
        return partition
    in_sync = tuple(node for node in partition.in_sync if nodes[node].is_up)
    if in_sync == partition.in_sync:
        return partition
    returned = tuple(node for node in partition.restarted if node in in_sync)
    return replace(partition, in_sync=in_sync, restarted=returned)


def with_leader(
    partition: PartitionMetadata, leader: str | None, loads: LeaderCounts
) -> PartitionMetadata:
    """Return the partition led by another node, or by nobody, in a new epoch."""
    if leader is None and partition.leader is None:
        return partition
    loads.change(partition.leader, leader)
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
    loads: LeaderCounts,
    keeper: str | None = None,
) -> PartitionMetadata:
    """Return the partition after a node in it was started anew, as if it had been away.

    ``before`` has the node fenced, ``after`` has it up. It leads again only if nobody else can,
    and then in a new epoch. If it is a ``keeper``, which has what it said it has, it stays in sync,
    as returned: nobody had noticed that it was away, and so it may be one of the few that have all.
    """
    back = with_elected_leader(after, with_elected_leader(before, partition, loads), loads)
    if back.leader_epoch > partition.leader_epoch + 1:
        back = replace(back, leader_epoch=partition.leader_epoch + 1)
    if back.leader in (None, keeper) or keeper not in partition.in_sync:
        return back
    in_sync = tuple(node for node in partition.in_sync if node in (*back.in_sync, keeper))
    returned = tuple(node for node in in_sync if node in (*back.restarted, keeper))
    return replace(back, in_sync=in_sync, restarted=returned)


def _chosen(able: tuple[str, ...], partition: PartitionMetadata, loads: LeaderCounts) -> str | None:
    if not able:
        return None
    if partition.replicas[0] in able:
        return partition.replicas[0]
    return min(able, key=lambda node: (loads.count(node), able.index(node)))
