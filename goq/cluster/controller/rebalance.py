"""The plan that makes the replicas and preferred leaderships of a cluster even again.

First, partitions that are on fewer racks than they could be get a replica onto another. Then
replicas go from nodes with more to nodes with fewer until these differ by one at most: without
racks, that is the smallest number of moves there can be. Of a node's replicas the one goes whose
topic it has the most of, compared with the node that gets it. Last, the order of replicas makes
preferred leaderships even, which copies nothing.

Partitions that are being moved stay as they are and count as moved. So does what is on nodes
that are fenced or unfit: the plan is over the nodes that take replicas.
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


def plan_rebalance(state: MetadataState) -> list[ReassignPartition]:
    """Return the moves to propose, at most ``limits.MOVES_PLANNED_MAX``; none if all is even.

    Takes some seconds for a cluster as large as can be.
    """
    nodes, racks, loads = assignable_nodes(state.nodes), racks_of(state.nodes), ReplicaCounts(state)
    still = [found for found in active_partitions(state) if not found[2].target]
    rows: ReplicaRows = [list(partition.replicas) for _, _, partition in still]
    steps = limits.MOVES_PLANNED_MAX
    _repair_racks(rows, nodes, racks, loads, steps)
    balance_replicas(
        rows, nodes, racks, (loads.replicas,), [place.topic for place, _, _ in still], steps
    )
    loads.leaders = Counter(
        p.planned_replicas[0] for _, _, p in active_partitions(state) if p.target
    )
    loads.leaders.update(row[0] for row in rows)
    balance_leaders(rows, nodes, (loads.leaders,), steps)
    plan = [
        ReassignPartition(
            place.topic, topic.topic_id, place.partition, partition.version, tuple(row)
        )
        for (place, topic, partition), row in zip(still, rows, strict=True)
        if tuple(row) != partition.replicas
    ]
    return plan[:steps]


def _repair_racks(
    rows: ReplicaRows, nodes: list[str], racks: dict[str, str], loads: ReplicaCounts, steps: int
) -> None:
    """Replace replicas that share a rack while there are racks without one."""
    for row in rows:
        while steps > 0 and (pair := _better(row, nodes, racks, loads)) is not None:
            giver, taker = pair
            row[row.index(giver)] = taker
            loads.replicas[giver] -= 1
            loads.replicas[taker] += 1
            steps -= 1


def _better(
    row: list[str], nodes: list[str], racks: dict[str, str], loads: ReplicaCounts
) -> tuple[str, str] | None:
    best = min(len(row), rack_count(racks, {*nodes, *row}))
    if rack_count(racks, row) >= best:
        return None
    used = Counter(racks[node] for node in row)
    givers = [node for node in row if used[racks[node]] > 1]
    takers = [node for node in nodes if racks[node] not in used]
    return (
        max(givers, key=lambda node: (loads.replicas[node], node)),
        min(takers, key=lambda node: (loads.replicas[node], node)),
    )
