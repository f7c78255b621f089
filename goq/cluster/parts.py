"""What the agreed state says of a node's own replicas."""

from __future__ import annotations

from goq.cluster.metadata.state import Partition, State, places
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Part


def part_of(state: State, partition: Partition) -> Part:
    """Return what a replica of a partition goes by."""
    return Part(
        partition.leader,
        partition.leader_epoch,
        partition.in_sync,
        partition.holders,
        min(state.settings.min_insync, len(partition.replicas)),
        partition.version,
        partition.damaged,
        tuple(
            node.incarnation if (node := state.nodes.get(name)) is not None else 0
            for name in partition.holders
        ),
        partition.returned,
    )


def parts_of(state: State, node: str) -> dict[PartitionKey, Part]:
    """Return the parts of a node: of all replicas that it has or is to copy."""
    return {
        PartitionKey(place.topic, topic.topic_id, place.partition): part_of(state, partition)
        for place, topic, partition in places(state)
        if node in partition.holders
    }


def in_the_making(state: State, leader: str) -> dict[PartitionKey, frozenset[str]]:
    """Return who copies partitions that a node leads because a move has begun."""
    return {
        PartitionKey(place.topic, topic.topic_id, place.partition): frozenset(copying)
        for place, topic, partition in places(state)
        if partition.moving
        and partition.leader == leader
        and (copying := set(partition.adding) - set(partition.in_sync))
    }
