"""Handler of unsafe recovery: one node continues when most nodes of a cluster are lost for good."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from goq.cluster.metadata.commands import ForceNewCluster
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import (
    MetadataState,
    NodeStatus,
    PartitionMetadata,
    TopicMetadata,
    active_partitions,
)


class SurvivingReplicas(NamedTuple):
    """One node's replicas of all partitions, each written as ``topic:number``.

    ``in_sync`` replicas have every acknowledged message; ``behind`` replicas may lack some; of
    ``lost`` partitions the node has no replica.
    """

    in_sync: tuple[str, ...]
    behind: tuple[str, ...]
    lost: tuple[str, ...]


def surviving_replicas(state: MetadataState, node: str) -> SurvivingReplicas:
    """Return the replicas of a node, as far as its own state knows."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for place, _, partition in active_partitions(state):
        kind = 0 if node in partition.in_sync else 1 if node in partition.holders else 2
        found[kind].append(f"{place.topic}:{place.partition}")
    return SurvivingReplicas(*map(tuple, found))


def force_new_cluster(state: MetadataState, command: ForceNewCluster) -> Applied:
    """Make a node the only one, with one replica of every partition: its own, or an empty one.

    Partitions have no leader until the node registers, as after any start.
    """
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.disk != command.disk:
        raise CommandRejected("another_disk", f"node {node.id!r} has another disk")
    alone = replace(node, status=NodeStatus.FENCED, leaving=False)
    topics = {name: _topic_on_one_node(topic, node.id) for name, topic in state.topics.items()}
    text = f"node {node.id} continues as a new cluster"
    return Applied(
        replace(state, nodes={node.id: alone}, topics=topics), Accepted(state.version, text)
    )


def _topic_on_one_node(topic: TopicMetadata, node: str) -> TopicMetadata:
    if topic.deleting:
        return topic
    return replace(
        topic, partitions=tuple(_partition_on_one_node(p, node) for p in topic.partitions)
    )


def _partition_on_one_node(partition: PartitionMetadata, node: str) -> PartitionMetadata:
    had_leader = partition.leader is not None
    return PartitionMetadata(
        (node,),
        None,
        (node,),
        partition.leader_epoch + had_leader,
        damaged=(node,) if node in partition.damaged else (),
        replication_factor=partition.replication_factor,
        version=partition.version + 1,
    )
