"""The state that all nodes of a cluster agree on: values only, never changed in place.

A :class:`MetadataState` may be read on any thread: a
command makes a new state, which shares with the old one whatever it did not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec


class NodeStatus(StrEnum):
    """Whether a node takes part: a fenced one has not been heard of for too long."""

    UP = "up"
    FENCED = "fenced"


class NodeMetadata(msgspec.Struct, frozen=True):
    """A node of the cluster. ``incarnation`` rises with each of its starts.

    ``leaving`` is no status: a leaving node may also go silent, and must still leave afterwards.
    ``unfit_reason`` says why it can lead nothing now, as a full disk; empty when it can. ``disk``
    is what its data folder was given when it was made.
    """

    id: str
    incarnation: int
    http_url: str
    cluster_address: str
    rack: str | None
    status: NodeStatus = NodeStatus.UP
    leaving: bool = False
    unfit_reason: str = ""
    disk: str = ""

    @property
    def can_lead(self) -> bool:
        """Whether the node is fit to lead, were it up."""
        return not self.unfit_reason

    @property
    def is_up(self) -> bool:
        """Whether the node is heard of."""
        return self.status is NodeStatus.UP

    @property
    def takes_replicas(self) -> bool:
        """Whether new replicas and new leaderships may be put here."""
        return self.is_up and self.can_lead and not self.leaving


class PartitionMetadata(msgspec.Struct, frozen=True):
    """Where a partition is and who leads it. Tuples hold ids of nodes.

    ``replicas`` are in preferred order: the first leads if it can. ``in_sync`` have everything
    that is acknowledged; it is never empty, and its last member stays in it when it dies.
    ``leader_epoch`` rises by one whenever the leader changes, also to None, and when a node leads
    again after a new start. ``target`` is what ``replicas`` are to become, empty when no move is
    planned; ``moving`` says that the move has begun. ``damaged`` replicas have frames that fail
    their check. ``returned`` are in sync, but were started anew since the leader heard of them:
    they may lead only where no other one in sync can. ``unclean`` says that the leader was elected
    by name from outside of what could lead. ``wanted`` is how many replicas there are to be: the
    controller adds those that lack, and takes none away. ``by_name`` says that people chose the
    target: so many are wanted once they are the replicas. ``version`` rises with every change of
    any of this.
    """

    replicas: tuple[str, ...]
    leader: str | None
    in_sync: tuple[str, ...]
    leader_epoch: int = 1
    target: tuple[str, ...] = ()
    moving: bool = False
    damaged: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    unclean: bool = False
    wanted: int = 0
    by_name: bool = False
    version: int = 1

    @property
    def adding(self) -> tuple[str, ...]:
        """The nodes that a move under way is copying to."""
        return self.incoming if self.moving else ()

    @property
    def removing(self) -> tuple[str, ...]:
        """The nodes that lose their replica when the move under way is finished."""
        if not self.moving:
            return ()
        return tuple(node for node in self.replicas if node not in self.target)

    @property
    def incoming(self) -> tuple[str, ...]:
        """The nodes that get a replica by the move that is planned or under way."""
        return tuple(node for node in self.target if node not in self.replicas)

    @property
    def holders(self) -> tuple[str, ...]:
        """The nodes that have a replica, whole or in the making."""
        return self.replicas + self.adding

    @property
    def lacks_replicas(self) -> bool:
        """Whether it has fewer replicas than it is to have, and those on their way not counted."""
        return len(self.replicas) < self.wanted

    @property
    def future(self) -> tuple[str, ...]:
        """The replicas when what is planned is done."""
        return self.target or self.replicas


class TopicMetadata(msgspec.Struct, frozen=True):
    """A topic. ``topic_id`` is the index of the command that made it.

    A topic made anew under an old name has another id. ``settings`` are those that were written
    for it, as people write them; ``version`` rises when they, ``deleting`` or the number of
    partitions change.
    """

    name: str
    topic_id: int
    settings: Mapping[str, str]
    partitions: tuple[PartitionMetadata, ...]
    deleting: bool = False
    version: int = 1


class GroupMetadata(msgspec.Struct, frozen=True):
    """A group's own settings."""

    settings: Mapping[str, str]
    version: int = 1


class ClusterSettings(msgspec.Struct, frozen=True):
    """What holds for the whole cluster. The rate is in bytes a second and node, 0 for no bound."""

    replication_factor: int = 3
    min_insync: int = 2
    moves_at_once: int = 4
    move_bytes_per_s: int = 0
    version: int = 1


class MetadataState(msgspec.Struct, frozen=True):
    """Everything. ``version`` is the index of the last command that was applied.

    ``groups`` are by topic, then by name.
    """

    version: int = 0
    nodes: Mapping[str, NodeMetadata] = {}
    topics: Mapping[str, TopicMetadata] = {}
    groups: Mapping[str, Mapping[str, GroupMetadata]] = {}
    settings: ClusterSettings = ClusterSettings()


class TopicPartition(NamedTuple):
    """Which partition."""

    topic: str
    partition: int


def active_partitions(
    state: MetadataState,
) -> Iterator[tuple[TopicPartition, TopicMetadata, PartitionMetadata]]:
    """Yield the partitions of all topics that are not being deleted, in the order of names."""
    for name in sorted(state.topics):
        topic = state.topics[name]
        if not topic.deleting:
            for number, partition in enumerate(topic.partitions):
                yield TopicPartition(name, number), topic, partition


def partition_count(state: MetadataState) -> int:
    """Return how many partitions there are, those of topics being deleted included."""
    return sum(len(topic.partitions) for topic in state.topics.values())


def encode_state(state: MetadataState) -> bytes:
    """Return the state as bytes: equal states give equal bytes."""
    return msgspec.msgpack.encode(state, order="deterministic")
