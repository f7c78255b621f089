"""On how many nodes messages are when their publisher is told that they are safe."""

from __future__ import annotations

from goq.cluster.metadata.state import State


def nodes_with(state: State, topic: str) -> int:
    """Return how many nodes have what is safe in any partition of a topic, at least."""
    known = state.topics.get(topic)
    if known is None:
        return 1
    replicas = min(len(partition.replicas) for partition in known.partitions)
    return min(state.settings.min_insync, replicas)
