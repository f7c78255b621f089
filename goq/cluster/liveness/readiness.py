"""What a node that starts has yet to come to before it is of use to the cluster.

Whoever takes down one node after another waits for each to be ready again. So a node is ready when
the others count on it as much as before: the cluster knows that it is up, and it is in sync
wherever somebody leads whom it can follow. What nobody leads is not waited for: that would keep
the other partitions from their clients.
"""

from __future__ import annotations

from goq.cluster.metadata.state import MetadataState, PartitionMetadata

_NAMED_MAX = 10


def pending_conditions(state: MetadataState, name: str, incarnation: int) -> list[str]:
    """Return what the node ``name`` waits for, as a reader is told it; nothing when it is ready."""
    node = state.nodes.get(name)
    if node is None or node.incarnation != incarnation or not node.is_up:
        return ["the cluster to know that this node is up"]
    behind = [
        f"{topic.name}:{number}"
        for topic in state.topics.values()
        if not topic.deleting
        for number, partition in enumerate(topic.partitions)
        if _is_behind(state, partition, name)
    ]
    found = [f"being in sync in {partition}" for partition in behind[:_NAMED_MAX]]
    if len(behind) > _NAMED_MAX:
        found.append(f"being in sync in {len(behind) - _NAMED_MAX} more")
    return found


def _is_behind(state: MetadataState, partition: PartitionMetadata, name: str) -> bool:
    leader = state.nodes.get(partition.leader) if partition.leader is not None else None
    is_led = leader is not None and leader.is_up
    return is_led and name in partition.replicas and name not in partition.in_sync
