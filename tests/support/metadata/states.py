"""States of the cluster's metadata that tests begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import AnyCommand, CreateTopic, RegisterNode
from goq.cluster.metadata.results import Accepted, Refused
from goq.cluster.metadata.state import Partition, State


def after(state: State, *commands: AnyCommand) -> State:
    """Return the state after commands that must all be accepted."""
    for command in commands:
        state, result = apply(state, command, state.version + 1)
        assert isinstance(result, Accepted), result
    return state


def refused(state: State, command: AnyCommand) -> str:
    """Return the code of the refusal that a command gets."""
    result = apply(state, command, state.version + 1).result
    assert isinstance(result, Refused), result
    return result.code


def nodes(racks: Sequence[str | None] | int) -> State:
    """Return a cluster of so many nodes, n1 and up, or of one node in each of the racks."""
    given = [None] * racks if isinstance(racks, int) else racks
    return after(
        State(),
        *(
            RegisterNode(f"n{number}", 1, f"http://n{number}", f"n{number}:9", rack)
            for number, rack in enumerate(given, 1)
        ),
    )


def with_topic(
    state: State, name: str = "orders", partitions: int = 1, factor: int | None = None
) -> State:
    """Return the state with another topic."""
    return after(state, CreateTopic(name, partitions, {}, factor))


def partition(state: State, topic: str = "orders", number: int = 0) -> Partition:
    """Return a partition."""
    return state.topics[topic].partitions[number]


def at(state: State, topic: str = "orders", number: int = 0) -> tuple[str, int, int, int]:
    """Return what a command on a partition begins with."""
    found = state.topics[topic]
    return topic, found.topic_id, number, found.partitions[number].version


def counts(state: State, topic: str | None = None) -> tuple[Mapping[str, int], Mapping[str, int]]:
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
