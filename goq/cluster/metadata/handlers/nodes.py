"""Handlers of commands on nodes: registration, fencing, health, decommission, removal."""

from __future__ import annotations

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    DecommissionNode,
    FenceNode,
    RaiseFeatureLevel,
    RegisterNode,
    RegisterNodeWithLevel,
    RemoveNode,
    ReportDataLoss,
    ResetReplicas,
    SetNodeHealth,
    UnfenceNode,
)
from goq.cluster.metadata.handlers.elections import (
    LeaderCounts,
    with_elected_leader,
    with_restarted_node,
)
from goq.cluster.metadata.handlers.partitions import require_node, with_each, with_next_version
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import (
    Features,
    MetadataState,
    NodeMetadata,
    NodeStatus,
    PartitionMetadata,
    TopicMetadata,
    active_partitions,
    active_topics,
)
from goq.errors import InvalidInput
from goq.model import check_name

_LISTED_MAX = 10


def register_node(state: MetadataState, command: RegisterNode) -> Applied:
    """Add a node, or record its restart."""
    try:
        check_name(command.node, "node")
        if command.rack is not None:
            check_name(command.rack, "rack")
    except InvalidInput as error:
        raise CommandRejected("invalid_name", error.detail) from None
    _check_feature_level(state, command)
    known = state.nodes.get(command.node)
    if known is None:
        return _add_node(state, command)
    if command.disk != known.disk:
        raise CommandRejected(
            "another_disk",
            f"node {known.id!r} comes with another data folder than it joined with, without its"
            f" replicas. Restore the old folder, or remove the node (goq cluster leave {known.id})"
            " and join it again with an empty folder",
        )
    if command.incarnation <= known.incarnation:
        raise CommandRejected(
            "stale_incarnation",
            f"node {known.id!r} is already in incarnation {known.incarnation}; a start needs"
            " a higher one",
        )
    node = _node(command, leaving=known.leaving)
    durable_topics = set(command.durable_topics)
    before = {**state.nodes, node.id: replace(node, status=NodeStatus.FENCED)}
    after = {**state.nodes, node.id: node}
    counts = LeaderCounts(state)

    def change(partition: PartitionMetadata, topic: TopicMetadata) -> PartitionMetadata:
        durable_node = node.id if topic.topic_id in durable_topics else None
        return with_restarted_node(before, after, partition, counts, durable_node)

    state = with_each(state, node.id, change)
    return _accepted(replace(state, nodes=after), f"node {node.id} restarted", command.incarnation)


def _add_node(state: MetadataState, command: RegisterNode) -> Applied:
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
        feature_level=_feature_level(command),
    )


def _feature_level(command: RegisterNode) -> int:
    return command.feature_level if isinstance(command, RegisterNodeWithLevel) else 0


def _check_feature_level(state: MetadataState, command: RegisterNode) -> None:
    known, needed = _feature_level(command), state.features.level
    if known < needed:
        raise CommandRejected(
            "feature_level",
            f"node {command.node!r} knows the features up to level {known}, and the cluster uses"
            f" those of level {needed}: start it with the version of goq that the others have",
        )


def raise_feature_level(state: MetadataState, command: RaiseFeatureLevel) -> Applied:
    """Raise the feature level of the cluster."""
    if command.level <= state.features.level:
        raise CommandRejected("unchanged", f"the feature level is {state.features.level} already")
    nodes = dict(state.nodes)
    for name, node in sorted(state.nodes.items()):
        incarnation, level = command.nodes.get(name, (0, 0))
        if incarnation != node.incarnation or level < command.level:
            raise CommandRejected(
                "feature_level", f"node {name!r} is not known to have the features of that level"
            )
        nodes[name] = replace(node, feature_level=level)
    text = f"the feature level is {command.level}"
    state = replace(state, nodes=nodes, features=Features(command.level))
    return _accepted(state, text, command.level)


def fence_node(state: MetadataState, command: FenceNode) -> Applied:
    """Mark a node as fenced."""
    node = require_node(state, command.node, command.incarnation)
    if not node.is_up:
        raise CommandRejected("already_fenced", f"node {node.id!r} is already fenced")
    return _with_node(state, replace(node, status=NodeStatus.FENCED), f"node {node.id} fenced")


def unfence_node(state: MetadataState, command: UnfenceNode) -> Applied:
    """Mark a fenced node as up."""
    node = require_node(state, command.node, command.incarnation)
    if node.is_up:
        raise CommandRejected("not_fenced", f"node {node.id!r} is not fenced")
    return _with_node(state, replace(node, status=NodeStatus.UP), f"node {node.id} is up again")


def report_data_loss(state: MetadataState, command: ReportDataLoss) -> Applied:
    """Treat a node's replicas as empty: out of sync, or damaged where no other is in sync."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.disk != command.disk:
        raise CommandRejected("another_disk", f"node {node.id!r} has another disk")
    counts = LeaderCounts(state)
    nodes = state.nodes
    state = with_each(
        state,
        node.id,
        lambda p, _topic: with_elected_leader(nodes, _without_data(p, node.id), counts),
    )
    return _accepted(state, f"node {node.id} has lost its messages")


def reset_replicas(state: MetadataState, command: ResetReplicas) -> Applied:
    """Take replicas of a node out of sync, where another replica is in sync."""
    node = require_node(state, command.node, command.incarnation)
    numbers: dict[int, set[int]] = {}
    for topic_id, number in command.partitions:
        numbers.setdefault(topic_id, set()).add(number)
    counts, nodes = LeaderCounts(state), state.nodes
    topics = dict(state.topics)
    for topic in active_topics(state):
        partitions = list(topic.partitions)
        for number in sorted(numbers.get(topic.topic_id, ())):
            if number >= len(partitions) or set(partitions[number].in_sync) <= {node.id}:
                continue
            before = partitions[number]
            after = with_elected_leader(nodes, _without_data(before, node.id), counts)
            partitions[number] = with_next_version(before, after)
        topics[topic.name] = replace(topic, partitions=tuple(partitions))
    return _accepted(replace(state, topics=topics), f"replicas of node {node.id} are copied anew")


def _without_data(partition: PartitionMetadata, node: str) -> PartitionMetadata:
    others = tuple(other for other in partition.in_sync if other != node)
    restarted = tuple(other for other in partition.restarted if other != node)
    partition = replace(partition, restarted=restarted)
    if others or node not in partition.in_sync:
        return replace(partition, in_sync=others or partition.in_sync)
    damaged = tuple(n for n in partition.holders if n in (*partition.damaged, node))
    return replace(partition, damaged=damaged, unclean=False)


def set_node_health(state: MetadataState, command: SetNodeHealth) -> Applied:
    """Record whether a node can lead."""
    node = require_node(state, command.node, command.incarnation)
    reason = command.unfit_reason
    if node.unfit_reason == reason:
        raise CommandRejected("unchanged", f"node {node.id!r} already has this health")
    text = f"node {node.id} cannot lead: {reason}" if reason else f"node {node.id} can lead"
    return _with_node(state, replace(node, unfit_reason=reason), text)


def decommission_node(state: MetadataState, command: DecommissionNode) -> Applied:
    """Mark a node as leaving, if the others can hold its replicas."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if node.leaving:
        raise CommandRejected("already_leaving", f"node {node.id!r} is already leaving")
    _check_enough_nodes(state, node, command)
    if not node.is_up:
        _check_no_sole_copy(state, node)
    nodes = {**state.nodes, node.id: replace(node, leaving=True)}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} is leaving")


def _check_enough_nodes(
    state: MetadataState, node: NodeMetadata, command: DecommissionNode
) -> None:
    """Reject a command that leaves too few nodes for the present replicas, or for any at all.

    A fenced node may be lost. Then there are fewer replicas already, and only a new node, which may
    never be added, could improve that.
    """
    remaining = sum(not other.leaving for other in state.nodes.values()) - 1
    replicas = max(
        (len(partition.planned_replicas) for _, _, partition in active_partitions(state)), default=1
    )
    if remaining < replicas and node.is_up and not command.fewer_replicas:
        raise CommandRejected(
            "too_few_nodes",
            f"without {node.id!r}, {remaining} nodes remain for {replicas} replicas; add another"
            " node first, or allow fewer replicas"
            f" (goq cluster leave {node.id} --fewer-replicas)",
        )
    needed, lower = _most_required(state)
    if remaining < needed:
        raise CommandRejected(
            "too_few_nodes",
            f"without {node.id!r}, {remaining} nodes remain, but an acknowledged message must be"
            f" on {needed}; lower that ({lower}{max(remaining, 1)})"
            f"{', or add another node first' if node.is_up else ''}",
        )


def _most_required(state: MetadataState) -> tuple[int, str]:
    """Return the most nodes that a write needs, and the beginning of a command that lowers it."""
    needed, lower = 1, "goq cluster set min_insync="
    for topic in active_topics(state):
        replicas = max(len(partition.planned_replicas) for partition in topic.partitions)
        own = topic.min_insync
        required = min(state.settings.min_insync if own is None else own, replicas)
        if required > needed:
            needed = required
            if own is not None:
                lower = f"goq topic alter {topic.name} --min-insync "
    return needed, lower


def _check_no_sole_copy(state: MetadataState, node: NodeMetadata) -> None:
    """Reject the removal of a node that is down and has the only copy of acknowledged messages."""
    sole_copies = [
        f"{place.topic}:{place.partition}"
        for place, _, partition in active_partitions(state)
        if all(name == node.id for name in partition.in_sync)
    ]
    if sole_copies:
        named = ", ".join(sole_copies[:_LISTED_MAX])
        more = len(sole_copies) - _LISTED_MAX
        raise CommandRejected(
            "only_copy",
            f"node {node.id!r} is down, and has the only copy of acknowledged messages in {named}"
            f"{f' and {more} more' if more > 0 else ''}. Bring the node back; or elect another"
            " replica, which loses them: goq cluster elect TOPIC PARTITION --leader NODE --unclean;"
            " or delete the topic",
        )


def remove_node(state: MetadataState, command: RemoveNode) -> Applied:
    """Remove a leaving node that has no replicas any more."""
    node = state.nodes.get(command.node)
    if node is None:
        raise CommandRejected("node_not_found", f"there is no node {command.node!r} in the cluster")
    if not node.leaving:
        raise CommandRejected("not_leaving", f"node {node.id!r} must leave before it is removed")
    if any(node.id in p.replicas or node.id in p.target for _, _, p in active_partitions(state)):
        raise CommandRejected("has_replicas", f"node {node.id!r} still has replicas")
    nodes = {name: other for name, other in state.nodes.items() if name != node.id}
    return _accepted(replace(state, nodes=nodes), f"node {node.id} removed")


def _with_node(state: MetadataState, node: NodeMetadata, text: str) -> Applied:
    nodes = {**state.nodes, node.id: node}
    counts = LeaderCounts(state)
    state = with_each(state, node.id, lambda p, _topic: with_elected_leader(nodes, p, counts))
    return _accepted(replace(state, nodes=nodes), text, node.incarnation)


def _accepted(state: MetadataState, text: str, value: int = 0) -> Applied:
    return Applied(state, Accepted(state.version, text, value))
