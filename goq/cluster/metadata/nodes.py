"""Commands on nodes: they come, fall silent, are heard of again, and leave."""

from __future__ import annotations

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    EmptyNode,
    FenceNode,
    LeaveNode,
    RegisterNode,
    RemoveNode,
    SetFitness,
    UnfenceNode,
)
from goq.cluster.metadata.elections import Leaderships, restarted, settled
from goq.cluster.metadata.partitions import incarnation_of, with_each
from goq.cluster.metadata.results import Accepted, Applied, Refusal
from goq.cluster.metadata.state import Node, NodeStatus, Partition, State, places
from goq.errors import InvalidInput
from goq.model import check_name


def register_node(state: State, command: RegisterNode) -> Applied:
    """Take a node in, or take note of its new start."""
    try:
        check_name(command.node, "node")
        if command.rack is not None:
            check_name(command.rack, "rack")
    except InvalidInput as error:
        raise Refusal("invalid_name", error.detail) from None
    known = state.nodes.get(command.node)
    if known is None:
        return _taken_in(state, command)
    if command.disk != known.disk:
        raise Refusal(
            "another_disk",
            f"node {known.id!r} comes with another data folder than it was let in with: what it had"
            f" is not there, and it must not count as having it. Bring the old folder back, or take"
            f" the node out (goq cluster leave {known.id}) and let it join with an empty folder",
        )
    if command.incarnation <= known.incarnation:
        raise Refusal(
            "stale_incarnation",
            f"node {known.id!r} is in incarnation {known.incarnation} already; a start must have"
            " a higher one",
        )
    node = _node(command, leaving=known.leaving)
    before = {**state.nodes, node.id: replace(node, status=NodeStatus.FENCED)}
    after = {**state.nodes, node.id: node}
    loads = Leaderships(state)
    state = with_each(state, node.id, lambda p: restarted(before, after, p, loads))
    return _accepted(
        replace(state, nodes=after), f"node {node.id} started anew", command.incarnation
    )


def _taken_in(state: State, command: RegisterNode) -> Applied:
    if len(state.nodes) >= limits.CLUSTER_NODES_MAX:
        raise Refusal("too_many_nodes", f"a cluster has at most {limits.CLUSTER_NODES_MAX} nodes")
    nodes = {**state.nodes, command.node: _node(command, leaving=False)}
    text = f"node {command.node} joined"
    return _accepted(replace(state, nodes=nodes), text, command.incarnation)


def _node(command: RegisterNode, *, leaving: bool) -> Node:
    return Node(
        command.node,
        command.incarnation,
        command.http_url,
        command.cluster_address,
        command.rack,
        leaving=leaving,
        disk=command.disk,
    )


def fence_node(state: State, command: FenceNode) -> Applied:
    """Count a node as away."""
    node = incarnation_of(state, command.node, command.incarnation)
    if not node.is_up:
        raise Refusal("already_fenced", f"node {node.id!r} is fenced already")
    return _changed(state, replace(node, status=NodeStatus.FENCED), f"node {node.id} fenced")


def unfence_node(state: State, command: UnfenceNode) -> Applied:
    """Count a node as there again."""
    node = incarnation_of(state, command.node, command.incarnation)
    if node.is_up:
        raise Refusal("not_fenced", f"node {node.id!r} is not fenced")
    return _changed(state, replace(node, status=NodeStatus.UP), f"node {node.id} is back")


def empty_node(state: State, command: EmptyNode) -> Applied:
    """Count a node's replicas as having nothing: in sync nowhere, or damaged where it was alone."""
    node = state.nodes.get(command.node)
    if node is None:
        raise Refusal("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.disk != command.disk:
        raise Refusal("another_disk", f"node {node.id!r} comes with another disk")
    loads = Leaderships(state)
    state = with_each(state, node.id, lambda p: settled(state.nodes, _emptied(p, node.id), loads))
    return _accepted(state, f"node {node.id} has lost its messages")


def _emptied(partition: Partition, node: str) -> Partition:
    others = tuple(other for other in partition.in_sync if other != node)
    if others or node not in partition.in_sync:
        return replace(partition, in_sync=others or partition.in_sync)
    damaged = tuple(n for n in partition.holders if n in (*partition.damaged, node))
    return replace(partition, damaged=damaged, unclean=False)


def set_fitness(state: State, command: SetFitness) -> Applied:
    """Take note of whether a node can lead."""
    node = incarnation_of(state, command.node, command.incarnation)
    reason = command.unfit_reason
    if node.unfit_reason == reason:
        raise Refusal("unchanged", f"this is known of node {node.id!r}")
    text = f"node {node.id} cannot lead: {reason}" if reason else f"node {node.id} can lead"
    return _changed(state, replace(node, unfit_reason=reason), text)


def leave_node(state: State, command: LeaveNode) -> Applied:
    """Mark a node as leaving, if the others can hold what it has."""
    node = state.nodes.get(command.node)
    if node is None:
        raise Refusal("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.leaving:
        raise Refusal("already_leaving", f"node {node.id!r} is leaving already")
    remaining = sum(not other.leaving for other in state.nodes.values()) - 1
    needed = max((len(partition.future) for _, _, partition in places(state)), default=1)
    if remaining < max(needed, 1):
        raise Refusal(
            "too_few_nodes",
            f"without {node.id!r} there are {remaining} nodes for {needed} replicas; let another"
            " node join first, or move partitions to fewer replicas",
        )
    nodes = {**state.nodes, node.id: replace(node, leaving=True)}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} is leaving")


def remove_node(state: State, command: RemoveNode) -> Applied:
    """Forget a leaving node that has nothing any more."""
    node = state.nodes.get(command.node)
    if node is None:
        raise Refusal("node_not_found", f"there is no node {command.node!r} in the cluster")
    if not node.leaving:
        raise Refusal("not_leaving", f"node {node.id!r} must leave before it is removed")
    if any(node.id in p.replicas or node.id in p.target for _, _, p in places(state)):
        raise Refusal("has_replicas", f"node {node.id!r} still has replicas")
    nodes = {name: other for name, other in state.nodes.items() if name != node.id}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} is gone")


def _changed(state: State, node: Node, text: str) -> Applied:
    nodes = {**state.nodes, node.id: node}
    loads = Leaderships(state)
    state = with_each(state, node.id, lambda p: settled(nodes, p, loads))
    return _accepted(replace(state, nodes=nodes), text, node.incarnation)


def _accepted(state: State, text: str, value: int = 0) -> Applied:
    return Applied(state, Accepted(state.version, text, value))
