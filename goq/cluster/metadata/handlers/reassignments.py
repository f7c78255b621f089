"""Handlers of reassignments: moving a partition's replicas to other nodes.

    planned ─► started ─► finished
       └──────────┴─► cancelled

A planned reassignment changes nothing yet. A started one adds nodes that copy the partition. It can
finish when all of its target is in sync, or, if no replica is removed, when all new ones are. Then
the target becomes the replica list, and other nodes delete their copies. Neither end may leave a
partition without a leader if it has one.
"""

from __future__ import annotations

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    CancelReassignment,
    FinishReassignment,
    ReassignPartition,
    StartReassignment,
)
from goq.cluster.metadata.handlers.elections import LeaderCounts, with_elected_leader
from goq.cluster.metadata.handlers.partitions import accept_partition, require_partition
from goq.cluster.metadata.handlers.replica_placement import assignable_nodes, rack_count, racks_of
from goq.cluster.metadata.results import Applied, CommandRejected
from goq.cluster.metadata.state import MetadataState, PartitionMetadata


def reassign_partition(state: MetadataState, command: ReassignPartition) -> Applied:
    """Plan a reassignment; a different order alone takes effect at once."""
    partition = require_partition(state, command)
    target = command.target
    if partition.target:
        raise CommandRejected("move_under_way", "a reassignment is in progress; cancel it, or wait")
    wanted = len(target) if command.is_manual else partition.replication_factor
    if target == partition.replicas and wanted == partition.replication_factor:
        raise CommandRejected("unchanged", "the partition already has these replicas")
    if not 1 <= len(target) <= limits.REPLICAS_MAX or len(set(target)) < len(target):
        raise CommandRejected(
            "invalid_replicas", f"a partition has 1 to {limits.REPLICAS_MAX} different replicas"
        )
    for node in target:
        if node not in state.nodes:
            raise CommandRejected("node_not_found", f"there is no node {node!r} in the cluster")
    if set(target) == set(partition.replicas):
        after = replace(partition, replicas=target, replication_factor=wanted)
        return accept_partition(state, command, after, f"prefers {_join(target)}")
    _check_receivers(state, replace(partition, target=target))
    _check_racks(state, partition, target)
    after = replace(partition, target=target, is_manual=command.is_manual)
    return accept_partition(state, command, after, f"is to be reassigned to {_join(target)}")


def start_reassignment(state: MetadataState, command: StartReassignment) -> Applied:
    """Start a planned reassignment."""
    partition = require_partition(state, command)
    if not partition.target or partition.is_reassigning:
        raise CommandRejected(
            "no_move_planned", "no reassignment of the partition is waiting to start"
        )
    _check_receivers(state, partition)
    return accept_partition(
        state, command, replace(partition, is_reassigning=True), "is being reassigned"
    )


def cancel_reassignment(state: MetadataState, command: CancelReassignment) -> Applied:
    """Cancel a reassignment."""
    partition = require_partition(state, command)
    if not partition.target:
        raise CommandRejected("no_move", "the partition is not being reassigned")
    after = without_reassignment(state, partition)
    if after is None:
        raise CommandRejected(
            "needs_new_replicas", "only the new replicas could lead the partition now"
        )
    is_automatic_resize = not partition.is_manual and (
        len(partition.target) > len(partition.replicas) or partition.has_surplus_replicas
    )
    if command.is_manual and is_automatic_resize:
        after = replace(after, replication_factor=len(after.replicas))
    return accept_partition(state, command, after, "keeps its replicas")


def finish_reassignment(state: MetadataState, command: FinishReassignment) -> Applied:
    """Replace the replicas by the target."""
    partition = require_partition(state, command)
    if not partition.is_reassigning:
        raise CommandRejected("no_move", "no reassignment of the partition has started")
    after = with_target_replicas(state, partition)
    if after is None:
        raise CommandRejected(
            "not_in_sync", "the new replicas are not all in sync, or none can lead"
        )
    return accept_partition(state, command, after, f"is on {_join(after.replicas)}")


def without_reassignment(
    state: MetadataState, partition: PartitionMetadata
) -> PartitionMetadata | None:
    """Return the partition without its reassignment; None if it would lose its leader."""
    return _with_replicas(state, partition, partition.replicas)


def with_target_replicas(
    state: MetadataState, partition: PartitionMetadata
) -> PartitionMetadata | None:
    """Return the partition with its reassignment finished; None if it cannot finish yet.

    If no replica is removed, only new ones must be in sync: another replica may be down.
    """
    removed = set(partition.replicas) - set(partition.target)
    needed = partition.target if removed else partition.new_replicas
    if not set(needed) <= set(partition.in_sync) - set(partition.restarted):
        return None
    wanted = len(partition.target) if partition.is_manual else partition.replication_factor
    return _with_replicas(state, replace(partition, replication_factor=wanted), partition.target)


def _with_replicas(
    state: MetadataState, partition: PartitionMetadata, replicas: tuple[str, ...]
) -> PartitionMetadata | None:
    in_sync = tuple(node for node in replicas if node in partition.in_sync)
    if not in_sync:
        return None
    after = replace(
        partition,
        replicas=replicas,
        in_sync=in_sync,
        target=(),
        is_reassigning=False,
        is_manual=False,
        damaged=tuple(node for node in replicas if node in partition.damaged),
        restarted=tuple(node for node in in_sync if node in partition.restarted),
    )
    after = with_elected_leader(state.nodes, after, LeaderCounts(state))
    return None if after.leader is None and partition.leader is not None else after


def _check_receivers(state: MetadataState, partition: PartitionMetadata) -> None:
    for node in partition.new_replicas:
        if not state.nodes[node].takes_replicas:
            raise CommandRejected(
                "node_unusable", f"node {node!r} is fenced, leaving or unfit: it takes no replicas"
            )


def _check_racks(
    state: MetadataState, partition: PartitionMetadata, target: tuple[str, ...]
) -> None:
    """Reject a target on fewer racks than possible, unless the replicas are no better now."""
    racks = racks_of(state.nodes)
    best = min(len(target), rack_count(racks, {*assignable_nodes(state.nodes), *target}))
    if rack_count(racks, target) < min(best, rack_count(racks, partition.replicas)):
        raise CommandRejected(
            "fewer_racks",
            f"the replicas would be on {rack_count(racks, target)} racks; {best} are possible",
        )


def _join(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes)
