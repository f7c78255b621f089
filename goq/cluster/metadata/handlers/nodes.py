"""Commands on nodes: they come, fall silent, are heard of again, and leave."""

from __future__ import annotations

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    DecommissionNode,
    FenceNode,
    RegisterNode,
    RemoveNode,
    ReportDataLoss,
    SetNodeHealth,
    UnfenceNode,
)
from goq.cluster.metadata.handlers.elections import (
    LeaderCounts,
    with_elected_leader,
    with_restarted_node,
)
from goq.cluster.metadata.handlers.partitions import require_node, with_each
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    NodeStatus,
    PartitionMetadata,
    TopicMetadata,
    active_partitions,
)
from goq.errors import InvalidInput
from goq.model import check_name

_NAMED_MAX = 10


def register_node(state: MetadataState, command: RegisterNode) -> Applied:
    """Take a node in, or take note of its new start."""
    try:
        check_name(command.node, "node")
        if command.rack is not None:
            check_name(command.rack, "rack")
    except InvalidInput as error:
        raise CommandRejected("invalid_name", error.detail) from None
    known = state.nodes.get(command.node)
    if known is None:
        return _taken_in(state, command)
    if command.disk != known.disk:
        raise CommandRejected(
            "another_disk",
            f"node {known.id!r} comes with another data folder than it was let in with: what it had"
            f" is not there, and it must not count as having it. Bring the old folder back, or take"
            f" the node out (goq cluster leave {known.id}) and let it join with an empty folder",
        )
    if command.incarnation <= known.incarnation:
        raise CommandRejected(
            "stale_incarnation",
            f"node {known.id!r} is in incarnation {known.incarnation} already; a start must have"
            " a higher one",
        )
    node = _node(command, leaving=known.leaving)
    keeps = set(command.durable_topics)
    before = {**state.nodes, node.id: replace(node, status=NodeStatus.FENCED)}
    after = {**state.nodes, node.id: node}
    loads = LeaderCounts(state)

    def change(partition: PartitionMetadata, topic: TopicMetadata) -> PartitionMetadata:
        keeper = node.id if topic.topic_id in keeps else None
        return with_restarted_node(before, after, partition, loads, keeper)

    state = with_each(state, node.id, change)
    return _accepted(
        replace(state, nodes=after), f"node {node.id} started anew", command.incarnation
    )


def _taken_in(state: MetadataState, command: RegisterNode) -> Applied:
    if len(state.nodes) >= limits.CLUSTER_NODES_MAX:
        raise CommandRejected(
            "too_many_nodes", f"a cluster has at most {limits.CLUSTER_NODES_MAX} nodes"
        )
    nodes = {**state.nodes, command.node: _node(command, leaving=False)}
    text = f"node {command.node} joined"
    return _accepted(replace(state, nodes=nodes), text, command.incarnation)


def _node(command: RegisterNode, *, leaving: bool) -> NodeMetadata:
    return NodeMetadata(
        command.node,
        command.incarnation,
        command.http_url,
        command.cluster_address,
        command.rack,
        leaving=leaving,
        disk=command.disk,
    )


def fence_node(state: MetadataState, command: FenceNode) -> Applied:
    """Count a node as away."""
    node = require_node(state, command.node, command.incarnation)
    if not node.is_up:
        raise CommandRejected("already_fenced", f"node {node.id!r} is fenced already")
    return _changed(state, replace(node, status=NodeStatus.FENCED), f"node {node.id} fenced")


def unfence_node(state: MetadataState, command: UnfenceNode) -> Applied:
    """Count a node as there again."""
    node = require_node(state, command.node, command.incarnation)
    if node.is_up:
        raise CommandRejected("not_fenced", f"node {node.id!r} is not fenced")
    return _changed(state, replace(node, status=NodeStatus.UP), f"node {node.id} is back")


def report_data_loss(state: MetadataState, command: ReportDataLoss) -> Applied:
    """Count a node's replicas as having nothing: in sync nowhere, or damaged where it was alone."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.disk != command.disk:
        raise CommandRejected("another_disk", f"node {node.id!r} comes with another disk")
    loads = LeaderCounts(state)
    nodes = state.nodes
    state = with_each(
        state, node.id, lambda p, _topic: with_elected_leader(nodes, _emptied(p, node.id), loads)
    )
    return _accepted(state, f"node {node.id} has lost its messages")


def _emptied(partition: PartitionMetadata, node: str) -> PartitionMetadata:
    others = tuple(other for other in partition.in_sync if other != node)
    returned = tuple(other for other in partition.restarted if other != node)
    partition = replace(partition, restarted=returned)
    if others or node not in partition.in_sync:
        return replace(partition, in_sync=others or partition.in_sync)
    damaged = tuple(n for n in partition.holders if n in (*partition.damaged, node))
    return replace(partition, damaged=damaged, unclean=False)


def set_node_health(state: MetadataState, command: SetNodeHealth) -> Applied:
    """Take note of whether a node can lead."""
    node = require_node(state, command.node, command.incarnation)
    reason = command.unfit_reason
    if node.unfit_reason == reason:
        raise CommandRejected("unchanged", f"this is known of node {node.id!r}")
    text = f"node {node.id} cannot lead: {reason}" if reason else f"node {node.id} can lead"
    return _changed(state, replace(node, unfit_reason=reason), text)


def decommission_node(state: MetadataState, command: DecommissionNode) -> Applied:
    """Mark a node as leaving, if the others can hold what it has."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.leaving:
        raise CommandRejected("already_leaving", f"node {node.id!r} is leaving already")
    _check_enough_stay(state, node, command)
    if not node.is_up:
        _check_others_have_all(state, node)
    nodes = {**state.nodes, node.id: replace(node, leaving=True)}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} is leaving")


def _check_enough_stay(state: MetadataState, node: NodeMetadata, command: DecommissionNode) -> None:
    """Refuse what would leave too few nodes for the replicas there are, or for anything.

    One that is fenced is perhaps lost: then there are fewer replicas already, and only one more
    node, which nobody has to have yet, would make that better.
    """
    remaining = sum(not other.leaving for other in state.nodes.values()) - 1
    replicas = max(
        (len(partition.planned_replicas) for _, _, partition in active_partitions(state)), default=1
    )
    if remaining < replicas and node.is_up and not command.fewer_replicas:
        raise CommandRejected(
            "too_few_nodes",
            f"without {node.id!r} there are {remaining} nodes for {replicas} replicas; let another"
            " node join first, or say that there may be fewer replicas"
            f" (goq cluster leave {node.id} --fewer-replicas)",
        )
    needed = max(1, min(replicas, state.settings.min_insync))
    if remaining < needed:
        raise CommandRejected(
            "too_few_nodes",
            f"without {node.id!r} there are {remaining} nodes, and what is acknowledged has to be"
            f" on {needed}; ask for less (goq cluster set min_insync={max(remaining, 1)})"
            f"{', or let another node join first' if node.is_up else ''}",
        )


def _check_others_have_all(state: MetadataState, node: NodeMetadata) -> None:
    """Refuse to take out a node that is away if it alone has what was acknowledged."""
    only_there = [
        f"{place.topic}:{place.partition}"
        for place, _, partition in active_partitions(state)
        if all(name == node.id for name in partition.in_sync)
    ]
    if only_there:
        named = ", ".join(only_there[:_NAMED_MAX])
        more = len(only_there) - _NAMED_MAX
        raise CommandRejected(
            "only_copy",
            f"node {node.id!r} is away, and nobody else has all that was acknowledged in {named}"
            f"{f' and {more} more' if more > 0 else ''}: it would be lost. Bring the node back, or"
            " let another replica lead with what it has (goq cluster elect TOPIC PARTITION --leader"
            " NODE --unclean, which says what is lost), or delete the topic",
        )


def remove_node(state: MetadataState, command: RemoveNode) -> Applied:
    """Forget a leaving node that has nothing any more."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if not node.leaving:
        raise CommandRejected("not_leaving", f"node {node.id!r} must leave before it is removed")
    if any(node.id in p.replicas or node.id in p.target for _, _, p in active_partitions(state)):
        raise CommandRejected("has_replicas", f"node {node.id!r} still has replicas")
    nodes = {name: other for name, other in state.nodes.items() if name != node.id}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} is gone")


def _changed(state: MetadataState, node: NodeMetadata, text: str) -> Applied:
    nodes = {**state.nodes, node.id: node}
    loads = LeaderCounts(state)
    state = with_each(state, node.id, lambda p, _topic: with_elected_leader(nodes, p, loads))
    return _accepted(replace(state, nodes=nodes), text, node.incarnation)


def _accepted(state: MetadataState, text: str, value: int = 0) -> Applied:
    return Applied(state, Accepted(state.version, text, value))
