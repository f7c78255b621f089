"""Placement of replicas: on distinct nodes, over as many racks as possible, and evenly.

A topic's own replicas and leaders are spread first, so that no topic ends up entirely on the newest
node. A tie goes to the node with the fewest replicas in the cluster, then to the one that shares
the fewest of the topic's partitions with the nodes chosen so far. The leaderships of a dead node
thus go to many others. A node without a rack counts as its own rack. The result follows from the
state alone: no randomness, and no order of a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from goq.cluster.metadata.handlers.balance import balance_leaders, balance_replicas
from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
    active_partitions,
)


def rack_of(node: NodeMetadata) -> str:
    """Return the rack of a node; without one, a rack of its own that no real rack is named."""
    return f".{node.id}" if node.rack is None else node.rack


def racks_of(nodes: Mapping[str, NodeMetadata]) -> dict[str, str]:
    """Return the rack of each node."""
    return {node.id: rack_of(node) for node in nodes.values()}


def rack_count(racks: Mapping[str, str], replicas: Iterable[str]) -> int:
    """Return the number of racks that the replicas are on."""
    return len({racks[node] for node in replicas})


def assignable_nodes(nodes: Mapping[str, NodeMetadata]) -> list[str]:
    """Return the ids of nodes that new replicas may be placed on, sorted."""
    return sorted(node.id for node in nodes.values() if node.takes_replicas)


class ReplicaCounts:
    """Replicas and preferred leaderships by node, in total and of one topic.

    Planned reassignments count as finished.
    """

    def __init__(self, state: MetadataState, topic: TopicMetadata | None = None) -> None:
        self.replicas: Counter[str] = Counter()
        self.leaders: Counter[str] = Counter()
        for _, _, partition in active_partitions(state):
            self.replicas.update(partition.planned_replicas)
            self.leaders[partition.planned_replicas[0]] += 1
        self.topic_replicas: Counter[str] = Counter()
        self.topic_leaders: Counter[str] = Counter()
        for partition in () if topic is None else topic.partitions:
            self.topic_replicas.update(partition.planned_replicas)
            self.topic_leaders[partition.planned_replicas[0]] += 1
        self.shared: Counter[tuple[str, str]] = Counter()
        for partition in () if topic is None else topic.partitions:
            for number, node in enumerate(partition.planned_replicas):
                self._count_shared(partition.planned_replicas[:number], node)

    def add(self, row: Sequence[str], node: str) -> None:
        """Count one more replica on a node, of a partition already on the nodes of ``row``."""
        self.replicas[node] += 1
        self.topic_replicas[node] += 1
        self._count_shared(row, node)

    def add_leaderships(self, node: str, more: int) -> None:
        """Count more or, if negative, fewer preferred leaderships on a node."""
        self.leaders[node] += more
        self.topic_leaders[node] += more

    def _count_shared(self, row: Sequence[str], node: str) -> None:
        for other in row:
            self.shared[other, node] += 1
            self.shared[node, other] += 1


def place_replicas(
    state: MetadataState, topic: TopicMetadata | None, count: int, factor: int
) -> list[tuple[str, ...]]:
    """Return the replicas of ``count`` new partitions of a topic, in preferred order.

    ``topic`` is None for a new one. At least ``factor`` nodes must be assignable.
    """
    counts, racks, nodes = (
        ReplicaCounts(state, topic),
        racks_of(state.nodes),
        assignable_nodes(state.nodes),
    )
    rows = []
    for _ in range(count):
        row: list[str] = []
        for _ in range(factor):
            node = _best_node(row, nodes, racks, counts)
            counts.add(row, node)
            row.append(node)
        counts.add_leaderships(row[0], 1)
        rows.append(row)
    for row in rows:
        counts.add_leaderships(row[0], -1)
    balance_replicas(rows, nodes, racks, (counts.topic_replicas, counts.replicas))
    for row in rows:
        counts.add_leaderships(row[0], 1)
    balance_leaders(rows, nodes, (counts.topic_leaders, counts.leaders))
    return [tuple(row) for row in rows]


def completed_replicas(
    state: MetadataState, topic: TopicMetadata, partition: PartitionMetadata
) -> tuple[str, ...] | None:
    """Return the replicas with leaving nodes replaced, missing ones added and surplus ones removed.

    None if nothing is to be done, or nothing can be done yet. Only what must be copied changes. A
    leaving node is not replaced where fewer nodes remain than there are replicas. Where enough
    remain, a node that is only down is waited for.
    """
    replicas = partition.replicas
    nodes, racks, counts = (
        assignable_nodes(state.nodes),
        racks_of(state.nodes),
        ReplicaCounts(state, topic),
    )
    row = [node for node in replicas if not state.nodes[node].leaving]
    surplus = len(row) - partition.replication_factor
    if surplus > 0:
        return _without_surplus(state, partition, row, surplus, counts)
    new_nodes: list[str] = []
    for _ in range(-surplus):
        if not set(nodes) - {*row, *new_nodes}:
            break
        new_node = _best_node([*row, *new_nodes], nodes, racks, counts)
        counts.add([*row, *new_nodes], new_node)
        new_nodes.append(new_node)
    staying = sum(not node.leaving for node in state.nodes.values())
    present = min(len(replicas), partition.replication_factor)
    if len(row) + len(new_nodes) < max(1, min(present, staying)):
        return None
    result = []
    for node in replicas:
        if not state.nodes[node].leaving:
            result.append(node)
        elif new_nodes:
            result.append(new_nodes.pop(0))
    if new_nodes and (not result or counts.leaders[new_nodes[0]] + 1 < counts.leaders[result[0]]):
        result.insert(0, new_nodes.pop(0))  # a new node gets its share of leaderships
    result += new_nodes
    return None if tuple(result) == replicas else tuple(result)


def _without_surplus(
    state: MetadataState,
    partition: PartitionMetadata,
    row: list[str],
    surplus: int,
    counts: ReplicaCounts,
) -> tuple[str, ...] | None:
    """Return a row without some replicas; None while those that stay are not all in sync.

    The leader stays. Replicas that could not lead go first, then those that share a rack, then
    those on the nodes with the most replicas.
    """
    racks = racks_of(state.nodes)
    sound = {
        node
        for node in partition.in_sync
        if node not in partition.restarted and node not in partition.damaged
    }
    for _ in range(surplus):
        used = Counter(racks[node] for node in row)
        removed = max(
            (node for node in row if node != partition.leader),
            key=lambda node: (
                node not in sound,
                not state.nodes[node].can_lead,
                used[racks[node]],
                node != row[0],
                counts.topic_replicas[node],
                counts.replicas[node],
                node,
            ),
        )
        row = [node for node in row if node != removed]
    return tuple(row) if sound.issuperset(row) else None


def _best_node(
    row: Sequence[str], nodes: Sequence[str], racks: Mapping[str, str], counts: ReplicaCounts
) -> str:
    """Return the best node for one more replica of a partition."""
    used = Counter(racks[node] for node in row)
    return min(
        (node for node in nodes if node not in row),
        key=lambda node: (
            used[racks[node]],
            counts.topic_replicas[node],
            counts.replicas[node],
            sum(counts.shared[other, node] for other in row) if row else counts.leaders[node],
            node,
        ),
    )
