"""Commands on one partition: its in-sync set, its leader, damage; and changes of many at once."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from goq.cluster.metadata.commands import (
    AlterInSync,
    ElectLeader,
    MarkDamaged,
    MarkRepaired,
    PartitionCommand,
)
from goq.cluster.metadata.handlers.elections import (
    Leaderships,
    candidates,
    is_able,
    led_by,
    settled,
)
from goq.cluster.metadata.results import Accepted, Applied, Refusal
from goq.cluster.metadata.state import Node, Partition, State, Topic


def topic_of(state: State, name: str, topic_id: int) -> Topic:
    """Return a topic that is not being deleted; raise ``Refusal`` if there is none of this id."""
    topic = state.topics.get(name)
    if topic is None:
        raise Refusal("topic_not_found", f"there is no topic {name!r}")
    if topic.topic_id != topic_id:
        raise Refusal("topic_not_found", f"topic {name!r} is another one: it was made anew")
    if topic.deleting:
        raise Refusal("topic_deleting", f"topic {name!r} is being deleted")
    return topic


def partition_of(state: State, command: PartitionCommand) -> Partition:
    """Return the partition that was decided on; raise ``Refusal`` if it has changed since."""
    partition = _partition(state, command.topic, command.topic_id, command.partition)
    if partition.version != command.version:
        raise Refusal(
            "stale_version",
            f"partition {command.topic}:{command.partition} is at version {partition.version},"
            f" no longer at {command.version}",
        )
    return partition


def incarnation_of(state: State, node: str, incarnation: int) -> Node:
    """Return a node; raise ``Refusal`` if it is not there or not in this incarnation."""
    found = state.nodes.get(node)
    if found is None:
        raise Refusal("node_not_found", f"there is no node {node!r} in the cluster")
    if found.incarnation != incarnation:
        raise Refusal(
            "stale_incarnation",
            f"node {node!r} is in incarnation {found.incarnation}, not {incarnation}",
        )
    return found


def changed(before: Partition, after: Partition) -> Partition:
    """Return ``after`` with its version raised; ``before`` itself if they are equal."""
    return before if after == before else replace(after, version=before.version + 1)


def with_partition(state: State, topic: Topic, number: int, partition: Partition) -> State:
    """Return the state with one partition of a topic replaced."""
    partitions = (*topic.partitions[:number], partition, *topic.partitions[number + 1 :])
    return replace(
        state, topics={**state.topics, topic.name: replace(topic, partitions=partitions)}
    )


def with_each(state: State, node: str, change: Callable[[Partition, Topic], Partition]) -> State:
    """Return the state with ``change`` made to every partition that has a replica on a node."""
    topics = dict(state.topics)
    for name, topic in state.topics.items():
        if topic.deleting:
            continue
        after = tuple(
            changed(partition, change(partition, topic)) if node in partition.holders else partition
            for partition in topic.partitions
        )
        if any(new is not old for new, old in zip(after, topic.partitions, strict=True)):
            topics[name] = replace(topic, partitions=after)
    return replace(state, topics=topics)


def put(
    state: State,
    command: PartitionCommand | MarkDamaged | MarkRepaired,
    after: Partition,
    done: str,
) -> Applied:
    """Return the state with the command's partition changed; ``value`` is its new version."""
    topic = state.topics[command.topic]
    after = changed(topic.partitions[command.partition], after)
    text = f"partition {command.topic}:{command.partition} {done}"
    return Applied(
        with_partition(state, topic, command.partition, after),
        Accepted(state.version, text, after.version),
    )


def alter_in_sync(state: State, command: AlterInSync) -> Applied:
    """Let the leader say who is in sync."""
    partition = partition_of(state, command)
    if (partition.leader, partition.leader_epoch) != (command.leader, command.leader_epoch):
        raise Refusal(
            "not_leader",
            f"{command.topic}:{command.partition} is led by {partition.leader} in epoch"
            f" {partition.leader_epoch}, not by {command.leader} in {command.leader_epoch}",
        )
    if command.leader not in command.in_sync:
        raise Refusal("invalid_in_sync", "the leader is always in sync")
    for node, incarnation in sorted(command.in_sync.items()):
        if node not in partition.holders:
            raise Refusal("invalid_in_sync", f"node {node!r} has no replica of the partition")
        if not incarnation_of(state, node, incarnation).is_up:
            raise Refusal("node_fenced", f"node {node!r} is fenced, so it is not in sync")
    in_sync = tuple(node for node in partition.holders if node in command.in_sync)
    returned = tuple(n for n in partition.returned if n in in_sync and n in command.not_seen)
    after = replace(partition, in_sync=in_sync, returned=returned)
    after = settled(state.nodes, after, Leaderships(state))  # an unfit leader may be relieved now
    return put(state, command, after, f"has {len(in_sync)} in sync")


def elect_leader(state: State, command: ElectLeader) -> Applied:
    """Make a named node lead."""
    partition = partition_of(state, command)
    leader, nodes = command.leader, state.nodes
    if leader == partition.leader:
        raise Refusal("already_leader", f"node {leader!r} leads the partition already")
    if leader not in partition.holders:
        raise Refusal("not_a_replica", f"node {leader!r} has no replica of the partition")
    if not is_able(nodes, leader):
        raise Refusal("cannot_lead", f"node {leader!r} is fenced, or is not fit to lead")
    loads = Leaderships(state)
    if command.unclean:
        if partition.leader is not None:
            raise Refusal("has_leader", "the partition has a leader; nothing needs to be lost")
        after = led_by(partition, leader, loads)
        after = replace(after, in_sync=(leader,), returned=(), unclean=True)
        return put(state, command, after, f"is led by {leader}, elected uncleanly")
    if leader not in candidates(nodes, partition):
        raise Refusal(
            "cannot_lead", f"node {leader!r} is not in sync, or is damaged, or is leaving"
        )
    return put(state, command, led_by(partition, leader, loads), f"is led by {leader}")


def mark_damaged(state: State, command: MarkDamaged) -> Applied:
    """Keep a damaged replica from leading."""
    partition = _own_replica(state, command)
    if command.node in partition.damaged:
        raise Refusal("already_damaged", "the replica is known to be damaged")
    damaged = tuple(n for n in partition.holders if n in (*partition.damaged, command.node))
    unclean = partition.unclean and partition.leader != command.node
    after = replace(partition, damaged=damaged, unclean=unclean)
    after = settled(state.nodes, after, Leaderships(state))
    return put(state, command, after, f"is damaged on {command.node}")


def mark_repaired(state: State, command: MarkRepaired) -> Applied:
    """Let a replica lead again that was damaged."""
    partition = _own_replica(state, command)
    if command.node not in partition.damaged:
        raise Refusal("not_damaged", "the replica is not known to be damaged")
    after = replace(partition, damaged=tuple(n for n in partition.damaged if n != command.node))
    after = settled(state.nodes, after, Leaderships(state))
    return put(state, command, after, f"is whole again on {command.node}")


def _own_replica(state: State, command: MarkDamaged | MarkRepaired) -> Partition:
    partition = _partition(state, command.topic, command.topic_id, command.partition)
    incarnation_of(state, command.node, command.incarnation)
    if command.node not in partition.holders:
        raise Refusal("not_a_replica", f"node {command.node!r} has no replica of the partition")
    return partition


def _partition(state: State, name: str, topic_id: int, number: int) -> Partition:
    topic = topic_of(state, name, topic_id)
    if number >= len(topic.partitions):
        raise Refusal(
            "partition_not_found", f"topic {name!r} has {len(topic.partitions)} partitions"
        )
    return topic.partitions[number]
