"""Plan that balances the replicas and preferred leaderships of a cluster.

First, partitions on fewer racks than possible get a replica on another rack. Then replicas go from
nodes with more to nodes with fewer until these differ by one at most; without racks, that is the
smallest possible number of moves. Of a donor's replicas the one moves whose topic has the greatest
surplus there, compared with the receiver. Last, the order of replicas balances preferred
leaderships, which copies nothing.

Partitions with a reassignment stay as they are, and count as reassigned. Replicas on fenced or
unhealthy nodes also stay: the plan covers the nodes that take replicas.
"""

from __future__ import annotations

from collections import Counter

from goq import limits
from goq.cluster.metadata.commands import ReassignPartition
from goq.cluster.metadata.handlers.balance import ReplicaRows, balance_leaders, balance_replicas
from goq.cluster.metadata.handlers.replica_placement import (
    ReplicaCounts,
    assignable_nodes,
    rack_count,
    racks_of,
)
from goq.cluster.metadata.state import MetadataState, active_partitions


def plan_rebalance(
    state: MetadataState, moves_max: int = limits.REBALANCE_MOVES_MAX
) -> list[ReassignPartition]:
    """Return the reassignments to propose: none if balanced, ``moves_max`` at most.

    Takes some seconds for the largest possible cluster.
    """
    nodes, racks, counts = (
        assignable_nodes(state.nodes),
        racks_of(state.nodes),
        ReplicaCounts(state),
    )
    movable = [found for found in active_partitions(state) if not found[2].target]
    rows: ReplicaRows = [list(partition.replicas) for _, _, partition in movable]
    _repair_racks(rows, nodes, racks, counts, moves_max)
    balance_replicas(
        rows, nodes, racks, (counts.replicas,), [place.topic for place, _, _ in movable], moves_max
    )
    counts.leaders = Counter(
        p.planned_replicas[0] for _, _, p in active_partitions(state) if p.target
    )
    counts.leaders.update(row[0] for row in rows)
    balance_leaders(rows, nodes, (counts.leaders,), moves_max)
    plan = [
        ReassignPartition(
            place.topic, topic.topic_id, place.partition, partition.version, tuple(row)
        )
        for (place, topic, partition), row in zip(movable, rows, strict=True)
        if tuple(row) != partition.replicas
    ]
    return plan[:moves_max]


def _repair_racks(
    rows: ReplicaRows, nodes: list[str], racks: dict[str, str], counts: ReplicaCounts, steps: int
) -> None:
    """Replace replicas that share a rack while there are racks without a replica."""
    for row in rows:
        while steps > 0 and (pair := _better_spread(row, nodes, racks, counts)) is not None:
            donor, receiver = pair
            row[row.index(donor)] = receiver
            counts.replicas[donor] -= 1
            counts.replicas[receiver] += 1
            steps -= 1


def _better_spread(
    row: list[str], nodes: list[str], racks: dict[str, str], counts: ReplicaCounts
) -> tuple[str, str] | None:
    best = min(len(row), rack_count(racks, {*nodes, *row}))
    if rack_count(racks, row) >= best:
        return None
    used = Counter(racks[node] for node in row)
    donors = [node for node in row if used[racks[node]] > 1]
    receivers = [node for node in nodes if racks[node] not in used]
    return (
        max(donors, key=lambda node: (counts.replicas[node], node)),
        min(receivers, key=lambda node: (counts.replicas[node], node)),
    )
