"""States of the cluster's metadata that tests begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import AnyCommand, CreateTopic, RegisterNode
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState, PartitionMetadata


def after(state: MetadataState, *commands: AnyCommand) -> MetadataState:
    """Return the state after commands that must all be accepted."""
    for command in commands:
        state, result = apply(state, command, state.version + 1)
        assert isinstance(result, Accepted), result
    return state


def refused(state: MetadataState, command: AnyCommand) -> str:
    """Return the code of the refusal that a command gets."""
    result = apply(state, command, state.version + 1).result
    assert isinstance(result, Rejected), result
    return result.code


def nodes(racks: Sequence[str | None] | int) -> MetadataState:
    """Return a cluster of so many nodes, n1 and up, or of one node in each of the racks."""
    given = [None] * racks if isinstance(racks, int) else racks
    return after(
        MetadataState(),
        *(
            RegisterNode(f"n{number}", 1, f"http://n{number}", f"n{number}:9", rack)
            for number, rack in enumerate(given, 1)
        ),
    )


def with_topic(
    state: MetadataState, name: str = "orders", partitions: int = 1, factor: int | None = None
) -> MetadataState:
    """Return the state with another topic."""
    return after(state, CreateTopic(name, partitions, {}, factor))


def partition(state: MetadataState, topic: str = "orders", number: int = 0) -> PartitionMetadata:
    """Return a partition."""
    return state.topics[topic].partitions[number]


def at(state: MetadataState, topic: str = "orders", number: int = 0) -> tuple[str, int, int, int]:
    """Return what a command on a partition begins with."""
    found = state.topics[topic]
    return topic, found.topic_id, number, found.partitions[number].version


def counts(
    state: MetadataState, topic: str | None = None
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return how many replicas and preferred leaderships each node has."""
    replicas, leaders = dict.fromkeys(state.nodes, 0), dict.fromkeys(state.nodes, 0)
    for name, found in state.topics.items():
        for one in found.partitions if topic in (None, name) and not found.deleting else ():
            leaders[one.replicas[0]] += 1
            for node in one.replicas:
                replicas[node] += 1
    return replicas, leaders


def uneven(numbers: Mapping[str, int]) -> int:
    """Return by how much the most differs from the least."""
    return max(numbers.values()) - min(numbers.values())
