"""Where replicas go: on distinct nodes, over as many racks as can be, and evenly.

A topic's own replicas and leaders are rack_count first, so that no topic is all on the node that
joined last; between equals the node with the least in the whole cluster is taken, then the one that
shares the fewest of the topic's partitions with those chosen already: so when a node dies, what it
led goes to many. A node without a rack is a rack of its own. The answer follows from the state
alone: no chance, and no order of a dictionary.
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
    """Return the rack of a node; one that has none is alone in its own, as no rack is named."""
    return f".{node.id}" if node.rack is None else node.rack


def racks_of(nodes: Mapping[str, NodeMetadata]) -> dict[str, str]:
    """Return the rack of each node."""
    return {node.id: rack_of(node) for node in nodes.values()}


def rack_count(racks: Mapping[str, str], replicas: Iterable[str]) -> int:
    """Return over how many racks the replicas are."""
    return len({racks[node] for node in replicas})


def assignable_nodes(nodes: Mapping[str, NodeMetadata]) -> list[str]:
    """Return the nodes that new replicas may be put on, by id."""
    return sorted(node.id for node in nodes.values() if node.takes_replicas)


class ReplicaCounts:
    """How many replicas and preferred leaderships nodes have, in all and of one topic.

    Planned moves count as done.
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
                self._share(partition.planned_replicas[:number], node)

    def add(self, row: Sequence[str], node: str) -> None:
        """Count a replica more on a node, of a partition that is on those of ``row`` already."""
        self.replicas[node] += 1
        self.topic_replicas[node] += 1
        self._share(row, node)

    def lead(self, node: str, more: int) -> None:
        """Count more preferred leaderships on a node, or fewer."""
        self.leaders[node] += more
        self.topic_leaders[node] += more

    def _share(self, row: Sequence[str], node: str) -> None:
        for other in row:
            self.shared[other, node] += 1
            self.shared[node, other] += 1


def place_replicas(
    state: MetadataState, topic: TopicMetadata | None, count: int, factor: int
) -> list[tuple[str, ...]]:
    """Return the replicas of ``count`` new partitions of a topic, in preferred order.

    ``topic`` is None for a new one. There must be at least ``factor`` assignable_nodes nodes.
    """
    loads, racks, nodes = (
        ReplicaCounts(state, topic),
        racks_of(state.nodes),
        assignable_nodes(state.nodes),
    )
    rows = []
    for _ in range(count):
        row: list[str] = []
        for _ in range(factor):
            node = _next(row, nodes, racks, loads)
            loads.add(row, node)
            row.append(node)
        loads.lead(row[0], 1)
        rows.append(row)
    for row in rows:
        loads.lead(row[0], -1)
    balance_replicas(rows, nodes, racks, (loads.topic_replicas, loads.replicas))
    for row in rows:
        loads.lead(row[0], 1)
    balance_leaders(rows, nodes, (loads.topic_leaders, loads.leaders))
    return [tuple(row) for row in rows]


def completed_replicas(
    state: MetadataState, topic: TopicMetadata, partition: PartitionMetadata
) -> tuple[str, ...] | None:
    """Return the replicas with others in the places of leaving nodes, and with those that lack.

    None if nothing is to be done, or nothing can be yet. Only what must be copied is. The place of
    a leaving node stays empty where fewer nodes stay than there are replicas; where there are
    enough, one that is only away is waited for.
    """
    replicas = partition.replicas
    nodes, racks, loads = (
        assignable_nodes(state.nodes),
        racks_of(state.nodes),
        ReplicaCounts(state, topic),
    )
    row = [node for node in replicas if not state.nodes[node].leaving]
    heirs: list[str] = []
    for _ in range(max(len(replicas), partition.replication_factor) - len(row)):
        if not set(nodes) - {*row, *heirs}:
            break
        heir = _next([*row, *heirs], nodes, racks, loads)
        loads.add([*row, *heirs], heir)
        heirs.append(heir)
    staying = sum(not node.leaving for node in state.nodes.values())
    if len(row) + len(heirs) < max(1, min(len(replicas), staying)):
        return None
    found = []
    for node in replicas:
        if not state.nodes[node].leaving:
            found.append(node)
        elif heirs:
            found.append(heirs.pop(0))
    if heirs and (not found or loads.leaders[heirs[0]] + 1 < loads.leaders[found[0]]):
        found.insert(0, heirs.pop(0))  # so that a node that comes has its share of leaderships
    found += heirs
    return None if tuple(found) == replicas else tuple(found)


def _next(
    row: Sequence[str], nodes: Sequence[str], racks: Mapping[str, str], loads: ReplicaCounts
) -> str:
    """Return the node for one more replica of a partition."""
    used = Counter(racks[node] for node in row)
    return min(
        (node for node in nodes if node not in row),
        key=lambda node: (
            used[racks[node]],
            loads.topic_replicas[node],
            loads.replicas[node],
            sum(loads.shared[other, node] for other in row) if row else loads.leaders[node],
            node,
        ),
    )
