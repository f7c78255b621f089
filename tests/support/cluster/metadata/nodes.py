"""Metadata of nodes without topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from goq.cluster.metadata.state import ClusterSettings, MetadataState, NodeMetadata, NodeStatus


def state_of(names: Iterable[str], fenced: Collection[str] = ()) -> MetadataState:
    """Return the metadata of nodes that are up, but for those that are fenced."""
    nodes = {
        name: NodeMetadata(
            name,
            1,
            f"http://{name}",
            "",
            None,
            NodeStatus.FENCED if name in fenced else NodeStatus.UP,
        )
        for name in names
    }
    return MetadataState(1, nodes, {}, {}, ClusterSettings(3, 2))
