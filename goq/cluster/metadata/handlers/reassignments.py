"""Commands that move replicas: planned, begun, given up, finished. All of a move is in the state.

    planned ─► begun ─► finished
       └────────┴─► given up

A planned move changes nothing yet. One that has begun adds nodes that copy the partition. It can be
finished when all of its target is in sync, or, where only replicas are added, these; then the
replicas are the target and the others delete what they have. Neither end may take the partition's
leader away without another.
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
    """Plan a move; one of the order alone is done."""
    partition = require_partition(state, command)
    target = command.target
    if partition.target:
        raise CommandRejected(
            "move_under_way", "the partition is being moved; cancel that, or wait"
        )
    wanted = len(target) if command.is_manual else partition.replication_factor
    if target == partition.replicas and wanted == partition.replication_factor:
        raise CommandRejected("unchanged", "these are the partition's replicas already")
    if not 1 <= len(target) <= limits.REPLICAS_MAX or len(set(target)) < len(target):
        raise CommandRejected(
            "invalid_replicas", f"a partition has 1 to {limits.REPLICAS_MAX} different replicas"
        )
    for node in target:
        if node not in state.nodes:
            raise CommandRejected("node_not_found", f"there is no node {node!r} in the cluster")
    if set(target) == set(partition.replicas):
        after = replace(partition, replicas=target, replication_factor=wanted)
        return accept_partition(state, command, after, f"prefers {', '.join(target)}")
    _check_takers(state, replace(partition, target=target))
    _check_racks(state, partition, target)
    after = replace(partition, target=target, is_manual=command.is_manual)
    return accept_partition(state, command, after, f"is to be on {_list(target)}")


def start_reassignment(state: MetadataState, command: StartReassignment) -> Applied:
    """Begin a planned move."""
    partition = require_partition(state, command)
    if not partition.target or partition.is_reassigning:
        raise CommandRejected("no_move_planned", "no move of the partition waits to begin")
    _check_takers(state, partition)
    return accept_partition(
        state, command, replace(partition, is_reassigning=True), "begins to move"
    )


def cancel_reassignment(state: MetadataState, command: CancelReassignment) -> Applied:
    """Give a move up."""
    partition = require_partition(state, command)
    if not partition.target:
        raise CommandRejected("no_move", "the partition is not being moved")
    after = without_reassignment(state, partition)
    if after is None:
        raise CommandRejected(
            "needs_new_replicas", "only the new replicas could lead the partition now"
        )
    is_filling = not partition.is_manual and len(partition.target) > len(partition.replicas)
    if command.is_manual and is_filling:
        after = replace(after, replication_factor=len(after.replicas))
    return accept_partition(state, command, after, "is not moved")


def finish_reassignment(state: MetadataState, command: FinishReassignment) -> Applied:
    """Make the target the replicas."""
    partition = require_partition(state, command)
    if not partition.is_reassigning:
        raise CommandRejected("no_move", "no move of the partition has begun")
    after = with_target_replicas(state, partition)
    if after is None:
        raise CommandRejected(
            "not_in_sync", "the new replicas are not all in sync, or none can lead"
        )
    return accept_partition(state, command, after, f"is on {_list(after.replicas)}")


def without_reassignment(
    state: MetadataState, partition: PartitionMetadata
) -> PartitionMetadata | None:
    """Return the partition without its move; None if that would leave it without a leader."""
    return _ended(state, partition, partition.replicas)


def with_target_replicas(
    state: MetadataState, partition: PartitionMetadata
) -> PartitionMetadata | None:
    """Return the partition with its move with_target_replicas; None if it cannot be yet.

    Where nobody loses a replica only who gets one has to be in sync: another one may be away.
    """
    loses = set(partition.replicas) - set(partition.target)
    needed = partition.target if loses else partition.new_replicas
    if not set(needed) <= set(partition.in_sync) - set(partition.restarted):
        return None
    wanted = len(partition.target) if partition.is_manual else partition.replication_factor
    return _ended(state, replace(partition, replication_factor=wanted), partition.target)


def _ended(
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


def _check_takers(state: MetadataState, partition: PartitionMetadata) -> None:
    for node in partition.new_replicas:
        if not state.nodes[node].takes_replicas:
            raise CommandRejected(
                "node_unusable", f"node {node!r} is fenced, leaving or unfit: it takes no replicas"
            )


def _check_racks(
    state: MetadataState, partition: PartitionMetadata, target: tuple[str, ...]
) -> None:
    """Refuse a target over fewer racks than it could be, unless the replicas are no better now."""
    racks = racks_of(state.nodes)
    best = min(len(target), rack_count(racks, {*assignable_nodes(state.nodes), *target}))
    if rack_count(racks, target) < min(best, rack_count(racks, partition.replicas)):
        raise CommandRejected(
            "fewer_racks",
            f"the replicas would be on {rack_count(racks, target)} racks; {best} are possible",
        )


def _list(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes)
