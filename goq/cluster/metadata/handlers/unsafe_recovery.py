"""The command by which one node goes on alone, when most nodes of a cluster are lost for good."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from goq.cluster.metadata.commands import BeginAgain
from goq.cluster.metadata.results import Accepted, Applied, Refusal
from goq.cluster.metadata.state import NodeStatus, Partition, State, Topic, places


class Survival(NamedTuple):
    """What one node has of all partitions, as ``topic:number``.

    ``in_sync`` were in sync here, so all that was acknowledged is there; ``behind`` have a replica
    that was not; of ``lost`` there is none.
    """

    in_sync: tuple[str, ...]
    behind: tuple[str, ...]
    lost: tuple[str, ...]


def survival(state: State, node: str) -> Survival:
    """Return what a node has, as far as it knows itself."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for place, _, partition in places(state):
        kind = 0 if node in partition.in_sync else 1 if node in partition.holders else 2
        found[kind].append(f"{place.topic}:{place.partition}")
    return Survival(*map(tuple, found))


def begin_again(state: State, command: BeginAgain) -> Applied:
    """Make a node the only one, with one replica of every partition: what it has, or an empty one.

    Nobody leads until the node registers, as after any start.
    """
    node = state.nodes.get(command.node)
    if node is None:
        raise Refusal("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.disk != command.disk:
        raise Refusal("another_disk", f"node {node.id!r} comes with another disk")
    alone = replace(node, status=NodeStatus.FENCED, leaving=False)
    topics = {name: _alone(topic, node.id) for name, topic in state.topics.items()}
    text = f"node {node.id} goes on alone"
    return Applied(
        replace(state, nodes={node.id: alone}, topics=topics), Accepted(state.version, text)
    )


def _alone(topic: Topic, node: str) -> Topic:
    if topic.deleting:
        return topic
    return replace(topic, partitions=tuple(_held(p, node) for p in topic.partitions))


def _held(partition: Partition, node: str) -> Partition:
    had_leader = partition.leader is not None
    return Partition(
        (node,),
        None,
        (node,),
        partition.leader_epoch + had_leader,
        damaged=(node,) if node in partition.damaged else (),
        wanted=partition.wanted,
        version=partition.version + 1,
    )
