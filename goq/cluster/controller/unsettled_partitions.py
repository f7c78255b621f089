"""The partitions that may need a step of the controller, kept from one pass to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from goq.cluster.metadata.state import PartitionMetadata, PartitionRef, TopicMetadata


class _Found(NamedTuple):
    """The partitions that may need a step, sorted, and how many are being reassigned."""

    places: list[PartitionRef]
    reassigning: int


class UnsettledPartitions:
    """The partitions that may need a step, kept by topic until the topic or the nodes change.

    The controller decides ten times a second, and at rest nothing of a thousand partitions changes.
    """

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicMetadata] | None = None
        self._nodes: tuple[set[str], set[str]] = set(), set()
        self._by_topic: dict[str, tuple[TopicMetadata, _Found]] = {}
        self._found = _Found([], 0)

    def find(
        self, topics: Mapping[str, TopicMetadata], leaving: set[str], receivers: set[str]
    ) -> _Found:
        """Return the partitions that may need a step. The mapping of topics must not change."""
        if self._nodes != (leaving, receivers):
            self._topics, self._nodes, self._by_topic = None, (leaving, receivers), {}
        if self._topics is not topics:
            before, self._topics, self._by_topic = self._by_topic, topics, {}
            for name, topic in topics.items():
                known = before.get(name)
                if known is None or known[0] is not topic:
                    known = topic, _find_unsettled(topic, leaving, receivers)
                self._by_topic[name] = known
            found = [of_topic for _, of_topic in self._by_topic.values()]
            places = sorted(place for of_topic in found for place in of_topic.places)
            self._found = _Found(places, sum(of_topic.reassigning for of_topic in found))
        return self._found


def _find_unsettled(topic: TopicMetadata, leaving: set[str], receivers: set[str]) -> _Found:
    places, reassigning = [], 0
    for number, partition in enumerate(topic.partitions):
        reassigning += partition.is_reassigning
        if (
            partition.target
            or partition.leader != partition.replicas[0]
            or leaving
            or partition.has_surplus_replicas
            or can_add_replica(partition, receivers)
        ):
            places.append(PartitionRef(topic.name, number))
    return _Found(places, reassigning)


def can_add_replica(partition: PartitionMetadata, receivers: set[str]) -> bool:
    """Whether a partition with a leader is missing replicas, and a node could take one."""
    return (
        partition.is_missing_replicas
        and partition.leader is not None
        and not receivers.issubset(partition.replicas)
    )
