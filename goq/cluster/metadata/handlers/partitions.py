"""Handlers of commands on one partition, and updates of many partitions at once."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from goq.cluster.metadata.commands import (
    AlterInSync,
    ChangePartitions,
    ElectLeader,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    PartitionCommand,
    RenewLeadership,
)
from goq.cluster.metadata.handlers.elections import (
    LeaderCounts,
    can_node_lead,
    eligible_leaders,
    with_elected_leader,
    with_leader,
)
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import (
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
    active_topics,
)


def require_topic(state: MetadataState, name: str, topic_id: int) -> TopicMetadata:
    """Return a topic that is not being deleted; raise ``CommandRejected`` if there is none."""
    topic = state.topics.get(name)
    if topic is None:
        raise CommandRejected("topic_not_found", f"there is no topic {name!r}")
    if topic.topic_id != topic_id:
        raise CommandRejected("topic_not_found", f"topic {name!r} was deleted and created again")
    if topic.deleting:
        raise CommandRejected("topic_deleting", f"topic {name!r} is being deleted")
    return topic


def require_partition(state: MetadataState, command: PartitionCommand) -> PartitionMetadata:
    """Return the command's partition; raise ``CommandRejected`` if its version has changed."""
    partition = _partition(state, command.topic, command.topic_id, command.partition)
    if partition.version != command.version:
        raise CommandRejected(
            "stale_version",
            f"partition {command.topic}:{command.partition} is at version {partition.version},"
            f" no longer at {command.version}",
        )
    return partition


def require_node(state: MetadataState, node: str, incarnation: int) -> NodeMetadata:
    """Return a node; raise ``CommandRejected`` if it is missing or in another incarnation."""
    found = state.nodes.get(node)
    if found is None:
        raise CommandRejected("node_not_found", f"there is no node {node!r} in the cluster")
    if found.incarnation != incarnation:
        raise CommandRejected(
            "stale_incarnation",
            f"node {node!r} is in incarnation {found.incarnation}, not {incarnation}",
        )
    return found


def with_next_version(before: PartitionMetadata, after: PartitionMetadata) -> PartitionMetadata:
    """Return ``after`` with its version raised; ``before`` itself if they are equal."""
    return before if after == before else replace(after, version=before.version + 1)


def with_partition(
    state: MetadataState, topic: TopicMetadata, number: int, partition: PartitionMetadata
) -> MetadataState:
    """Return the state with one partition of a topic replaced."""
    partitions = (*topic.partitions[:number], partition, *topic.partitions[number + 1 :])
    return replace(
        state, topics={**state.topics, topic.name: replace(topic, partitions=partitions)}
    )


def with_each(
    state: MetadataState,
    node: str,
    change: Callable[[PartitionMetadata, TopicMetadata], PartitionMetadata],
) -> MetadataState:
    """Return the state with ``change`` applied to every partition that has a replica on a node.

    Topics are visited by name, because elections count the leaders that earlier ones chose.
    """
    topics = dict(state.topics)
    for topic in active_topics(state):
        after = tuple(
            with_next_version(partition, change(partition, topic))
            if node in partition.holders
            else partition
            for partition in topic.partitions
        )
        if any(new is not old for new, old in zip(after, topic.partitions, strict=True)):
            topics[topic.name] = replace(topic, partitions=after)
    return replace(state, topics=topics)


def accept_partition(
    state: MetadataState,
    command: PartitionCommand | MarkReplicaDamaged | MarkReplicaRepaired,
    after: PartitionMetadata,
    done: str,
) -> Applied:
    """Return the state with the command's partition changed; ``value`` is its new version."""
    topic = state.topics[command.topic]
    after = with_next_version(topic.partitions[command.partition], after)
    text = f"partition {command.topic}:{command.partition} {done}"
    return Applied(
        with_partition(state, topic, command.partition, after),
        Accepted(state.version, text, after.version),
    )


def _check_leader(partition: PartitionMetadata, command: AlterInSync | RenewLeadership) -> None:
    if (partition.leader, partition.leader_epoch) != (command.leader, command.leader_epoch):
        raise CommandRejected(
            "not_leader",
            f"the leader of {command.topic}:{command.partition} is {partition.leader} in epoch"
            f" {partition.leader_epoch}, not {command.leader} in {command.leader_epoch}",
        )


def alter_in_sync(state: MetadataState, command: AlterInSync) -> Applied:
    """Set the in-sync replicas, as the leader asks."""
    partition = require_partition(state, command)
    _check_leader(partition, command)
    if command.leader not in command.in_sync:
        raise CommandRejected("invalid_in_sync", "the leader is always in sync")
    for node, incarnation in sorted(command.in_sync.items()):
        if node not in partition.holders:
            raise CommandRejected(
                "invalid_in_sync", f"node {node!r} has no replica of the partition"
            )
        if not require_node(state, node, incarnation).is_up:
            raise CommandRejected(
                "node_fenced", f"node {node!r} is fenced, so it cannot be in sync"
            )
    in_sync = tuple(node for node in partition.holders if node in command.in_sync)
    restarted = tuple(n for n in partition.restarted if n in in_sync and n in command.not_seen)
    after = replace(partition, in_sync=in_sync, restarted=restarted)
    after = with_elected_leader(
        state.nodes, after, LeaderCounts(state)
    )  # may replace an unhealthy leader
    return accept_partition(state, command, after, f"has {len(in_sync)} in-sync replicas")


def elect_leader(state: MetadataState, command: ElectLeader) -> Applied:
    """Make the named node the leader."""
    partition = require_partition(state, command)
    leader, nodes = command.leader, state.nodes
    if leader == partition.leader:
        raise CommandRejected("already_leader", f"node {leader!r} already leads the partition")
    if leader not in partition.holders:
        raise CommandRejected("not_a_replica", f"node {leader!r} has no replica of the partition")
    if not can_node_lead(nodes, leader):
        raise CommandRejected("cannot_lead", f"node {leader!r} is fenced, or is not fit to lead")
    counts = LeaderCounts(state)
    if command.unclean:
        if partition.leader is not None:
            raise CommandRejected("has_leader", "the partition has a leader; no loss is needed")
        after = with_leader(partition, leader, counts)
        after = replace(after, in_sync=(leader,), restarted=(), unclean=True)
        return accept_partition(state, command, after, f"is led by {leader}, elected uncleanly")
    if leader not in eligible_leaders(nodes, partition):
        raise CommandRejected(
            "cannot_lead", f"node {leader!r} is not in sync, or is damaged, or is leaving"
        )
    return accept_partition(
        state, command, with_leader(partition, leader, counts), f"is led by {leader}"
    )


def renew_leadership(state: MetadataState, command: RenewLeadership) -> Applied:
    """Begin the next epoch of the same leader."""
    partition = require_partition(state, command)
    _check_leader(partition, command)
    after = with_leader(partition, command.leader, LeaderCounts(state))
    after = replace(after, unclean=partition.unclean)
    return accept_partition(
        state, command, after, f"is led by {command.leader} in epoch {after.leader_epoch}"
    )


def change_partitions(state: MetadataState, command: ChangePartitions) -> Applied:
    """Change many partitions in order; skip the changes that are rejected, unless all are."""
    accepted = 0
    for change in command.changes:
        try:
            if isinstance(change, AlterInSync):
                state = alter_in_sync(state, change).state
            else:
                state = elect_leader(state, change).state
        except CommandRejected:
            continue
        accepted += 1
    if not accepted:
        raise CommandRejected("nothing_changed", "all changes were decided on outdated metadata")
    done = f"{accepted} of {len(command.changes)} changes of partitions are done"
    return Applied(state, Accepted(state.version, done, accepted))


def mark_replica_damaged(state: MetadataState, command: MarkReplicaDamaged) -> Applied:
    """Exclude a damaged replica from leading."""
    partition = _own_replica(state, command)
    if command.node in partition.damaged:
        raise CommandRejected("already_damaged", "the replica is already marked as damaged")
    damaged = tuple(n for n in partition.holders if n in (*partition.damaged, command.node))
    unclean = partition.unclean and partition.leader != command.node
    after = replace(partition, damaged=damaged, unclean=unclean)
    after = with_elected_leader(state.nodes, after, LeaderCounts(state))
    return accept_partition(state, command, after, f"is damaged on {command.node}")


def mark_replica_repaired(state: MetadataState, command: MarkReplicaRepaired) -> Applied:
    """Allow a repaired replica to lead again."""
    partition = _own_replica(state, command)
    if command.node not in partition.damaged:
        raise CommandRejected("not_damaged", "the replica is not marked as damaged")
    after = replace(partition, damaged=tuple(n for n in partition.damaged if n != command.node))
    after = with_elected_leader(state.nodes, after, LeaderCounts(state))
    return accept_partition(state, command, after, f"is repaired on {command.node}")


def _own_replica(
    state: MetadataState, command: MarkReplicaDamaged | MarkReplicaRepaired
) -> PartitionMetadata:
    partition = _partition(state, command.topic, command.topic_id, command.partition)
    require_node(state, command.node, command.incarnation)
    if command.node not in partition.holders:
        raise CommandRejected(
            "not_a_replica", f"node {command.node!r} has no replica of the partition"
        )
    return partition


def _partition(state: MetadataState, name: str, topic_id: int, number: int) -> PartitionMetadata:
    topic = require_topic(state, name, topic_id)
    if number >= len(topic.partitions):
        raise CommandRejected(
            "partition_not_found", f"topic {name!r} has {len(topic.partitions)} partitions"
        )
    return topic.partitions[number]
