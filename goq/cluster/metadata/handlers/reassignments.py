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
from goq.cluster.metadata.commands import CancelMove, FinishMove, MoveReplicas, StartMove
from goq.cluster.metadata.handlers.elections import Leaderships, settled
from goq.cluster.metadata.handlers.partitions import partition_of, put
from goq.cluster.metadata.handlers.replica_placement import racks_of, spread, usable
from goq.cluster.metadata.results import Applied, Refusal
from goq.cluster.metadata.state import Partition, State


def move_replicas(state: State, command: MoveReplicas) -> Applied:
    """Plan a move; one of the order alone is done."""
    partition = partition_of(state, command)
    target = command.target
    if partition.target:
        raise Refusal("move_under_way", "the partition is being moved; cancel that, or wait")
    wanted = len(target) if command.by_name else partition.wanted
    if target == partition.replicas and wanted == partition.wanted:
        raise Refusal("unchanged", "these are the partition's replicas already")
    if not 1 <= len(target) <= limits.REPLICAS_MAX or len(set(target)) < len(target):
        raise Refusal(
            "invalid_replicas", f"a partition has 1 to {limits.REPLICAS_MAX} different replicas"
        )
    for node in target:
        if node not in state.nodes:
            raise Refusal("node_not_found", f"there is no node {node!r} in the cluster")
    if set(target) == set(partition.replicas):
        after = replace(partition, replicas=target, wanted=wanted)
        return put(state, command, after, f"prefers {', '.join(target)}")
    _check_takers(state, replace(partition, target=target))
    _check_racks(state, partition, target)
    after = replace(partition, target=target, by_name=command.by_name)
    return put(state, command, after, f"is to be on {_list(target)}")


def start_move(state: State, command: StartMove) -> Applied:
    """Begin a planned move."""
    partition = partition_of(state, command)
    if not partition.target or partition.moving:
        raise Refusal("no_move_planned", "no move of the partition waits to begin")
    _check_takers(state, partition)
    return put(state, command, replace(partition, moving=True), "begins to move")


def cancel_move(state: State, command: CancelMove) -> Applied:
    """Give a move up."""
    partition = partition_of(state, command)
    if not partition.target:
        raise Refusal("no_move", "the partition is not being moved")
    after = cancelled(state, partition)
    if after is None:
        raise Refusal("needs_new_replicas", "only the new replicas could lead the partition now")
    is_filling = not partition.by_name and len(partition.target) > len(partition.replicas)
    if command.by_name and is_filling:
        after = replace(after, wanted=len(after.replicas))
    return put(state, command, after, "is not moved")


def finish_move(state: State, command: FinishMove) -> Applied:
    """Make the target the replicas."""
    partition = partition_of(state, command)
    if not partition.moving:
        raise Refusal("no_move", "no move of the partition has begun")
    after = finished(state, partition)
    if after is None:
        raise Refusal("not_in_sync", "the new replicas are not all in sync, or none can lead")
    return put(state, command, after, f"is on {_list(after.replicas)}")


def cancelled(state: State, partition: Partition) -> Partition | None:
    """Return the partition without its move; None if that would leave it without a leader."""
    return _ended(state, partition, partition.replicas)


def finished(state: State, partition: Partition) -> Partition | None:
    """Return the partition with its move finished; None if it cannot be yet.

    Where nobody loses a replica only who gets one has to be in sync: another one may be away.
    """
    loses = set(partition.replicas) - set(partition.target)
    needed = partition.target if loses else partition.incoming
    if not set(needed) <= set(partition.in_sync) - set(partition.returned):
        return None
    wanted = len(partition.target) if partition.by_name else partition.wanted
    return _ended(state, replace(partition, wanted=wanted), partition.target)


def _ended(state: State, partition: Partition, replicas: tuple[str, ...]) -> Partition | None:
    in_sync = tuple(node for node in replicas if node in partition.in_sync)
    if not in_sync:
        return None
    after = replace(
        partition,
        replicas=replicas,
        in_sync=in_sync,
        target=(),
        moving=False,
        by_name=False,
        damaged=tuple(node for node in replicas if node in partition.damaged),
        returned=tuple(node for node in in_sync if node in partition.returned),
    )
    after = settled(state.nodes, after, Leaderships(state))
    return None if after.leader is None and partition.leader is not None else after


def _check_takers(state: State, partition: Partition) -> None:
    for node in partition.incoming:
        if not state.nodes[node].takes_replicas:
            raise Refusal(
                "node_unusable", f"node {node!r} is fenced, leaving or unfit: it takes no replicas"
            )


def _check_racks(state: State, partition: Partition, target: tuple[str, ...]) -> None:
    """Refuse a target over fewer racks than it could be, unless the replicas are no better now."""
    racks = racks_of(state.nodes)
    best = min(len(target), spread(racks, {*usable(state.nodes), *target}))
    if spread(racks, target) < min(best, spread(racks, partition.replicas)):
        raise Refusal(
            "fewer_racks",
            f"the replicas would be on {spread(racks, target)} racks; {best} are possible",
        )


def _list(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes)
