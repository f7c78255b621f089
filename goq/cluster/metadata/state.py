"""Immutable state that all nodes of a cluster agree on.

A command builds a new :class:`MetadataState`, which shares unchanged parts with the old one. Any
thread may therefore read a state through a reference, for as long as it keeps it.

The order of a mapping says nothing: a state in memory has the order of its commands, a state from
the tables or a snapshot the order of its keys. A handler therefore iterates in a stated order, by
:func:`active_topics` or ``sorted``; otherwise two nodes with the same log would differ.

Where ``rename`` maps a field to an older name, the older name is the one in the tables and in
:func:`encode_state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from goq.access.token_record import TokenRecord
from goq.schedules.schedule_record import ScheduleRecord


class NodeStatus(StrEnum):
    """Whether a node has a valid session: a fenced node sent no heartbeat for too long."""

    UP = "up"
    FENCED = "fenced"


class NodeMetadata(msgspec.Struct, frozen=True):
    """A node of the cluster. ``incarnation`` rises with each of its starts.

    ``leaving`` is no status: a leaving node may also fall silent, and must still leave afterwards.
    ``unfit_reason`` says why the node can lead nothing now, such as a full disk; empty if it can.
    ``disk`` is the id that its data folder got when the folder was created. ``feature_level`` is
    the highest level that its version of goq knows, as far as it was recorded.
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
    feature_level: int = 0

    @property
    def can_lead(self) -> bool:
        """Whether the node's health allows it to lead, when it is up."""
        return not self.unfit_reason

    @property
    def is_up(self) -> bool:
        """Whether the node's session is valid."""
        return self.status is NodeStatus.UP

    @property
    def takes_replicas(self) -> bool:
        """Whether new replicas and new leaderships may be assigned to the node."""
        return self.is_up and self.can_lead and not self.leaving


class PartitionMetadata(
    msgspec.Struct,
    frozen=True,
    rename={
        "is_reassigning": "moving",
        "restarted": "returned",
        "replication_factor": "wanted",
        "is_manual": "by_name",
    },
):
    """Replicas, in-sync set, leader and reassignment of a partition. Tuples hold node ids.

    ``replicas`` are in preferred order: the first leads if it can. ``in_sync`` replicas have every
    acknowledged message; the set is never empty, and its last member stays in it when it dies.
    ``leader_epoch`` rises by one when the leader changes, also to None, and when a node leads again
    after a restart. ``target`` is the replica list after a planned reassignment, empty without one;
    ``is_reassigning`` says that the reassignment has started. ``damaged`` replicas have frames that
    fail their check. ``restarted`` replicas are in sync, but restarted since the leader last heard
    from them: they may lead only where no other in-sync replica can. ``unclean`` says that the
    leader was elected by name from outside the eligible replicas. ``replication_factor`` is the
    number of replicas to have: the controller adds missing ones and removes surplus ones.
    ``is_manual`` says that an operator chose the target: its length becomes the replication factor
    once the reassignment finishes. ``version`` rises with every change of any field.
    """

    replicas: tuple[str, ...]
    leader: str | None
    in_sync: tuple[str, ...]
    leader_epoch: int = 1
    target: tuple[str, ...] = ()
    is_reassigning: bool = False
    damaged: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    unclean: bool = False
    replication_factor: int = 0
    is_manual: bool = False
    version: int = 1

    @property
    def adding_replicas(self) -> tuple[str, ...]:
        """The nodes that a started reassignment copies to."""
        return self.new_replicas if self.is_reassigning else ()

    @property
    def removing_replicas(self) -> tuple[str, ...]:
        """The nodes that lose their replica when the started reassignment finishes."""
        if not self.is_reassigning:
            return ()
        return tuple(node for node in self.replicas if node not in self.target)

    @property
    def new_replicas(self) -> tuple[str, ...]:
        """The nodes that get a replica by a planned or started reassignment."""
        return tuple(node for node in self.target if node not in self.replicas)

    @property
    def holders(self) -> tuple[str, ...]:
        """The nodes that have a replica, complete or still copying."""
        return self.replicas + self.adding_replicas

    @property
    def is_missing_replicas(self) -> bool:
        """Whether there are fewer replicas than the replication factor, without those being added.

        Replicas of a planned or started reassignment do not count.
        """
        return len(self.replicas) < self.replication_factor

    @property
    def has_surplus_replicas(self) -> bool:
        """Whether there are more replicas than the replication factor, as after it was lowered."""
        return len(self.replicas) > self.replication_factor

    @property
    def planned_replicas(self) -> tuple[str, ...]:
        """The replicas after the planned reassignment, if there is one."""
        return self.target or self.replicas


class TopicMetadata(msgspec.Struct, frozen=True):
    """A topic. ``topic_id`` was drawn for it, or is the log index of the command that created it.

    A topic created again under an old name has another id. ``settings`` hold only the values that
    were set for this topic, in their written form. ``min_insync`` is None where the cluster's
    counts. ``version`` rises when the settings, ``deleting``, ``min_insync``, the replication
    factor or the number of partitions change.
    """

    name: str
    topic_id: int
    settings: Mapping[str, str]
    partitions: tuple[PartitionMetadata, ...]
    deleting: bool = False
    version: int = 1
    min_insync: int | None = None

    @property
    def replication_factor(self) -> int:
        """The number of replicas that its partitions should have, the largest if they differ."""
        return max(partition.replication_factor for partition in self.partitions)


class DeletedTopic(msgspec.Struct, frozen=True):
    """A deleted topic, until ``nodes``, sorted, have deleted their files of it."""

    name: str
    topic_id: int
    nodes: tuple[str, ...]


class GroupMetadata(msgspec.Struct, frozen=True):
    """The settings of a consumer group."""

    settings: Mapping[str, str]
    version: int = 1


class ClusterSettings(msgspec.Struct, frozen=True):
    """Settings of the whole cluster.

    ``move_bytes_per_s`` limits the copying of reassignments, per node; 0 means no limit.
    """

    replication_factor: int = 3
    min_insync: int = 2
    moves_at_once: int = 4
    move_bytes_per_s: int = 0
    version: int = 1


class Features(msgspec.Struct, frozen=True):
    """The features that the cluster may use: commands and behaviours of goq up to ``level``.

    All nodes know this level. It never falls; see ``goq.cluster.metadata.features``.
    """

    level: int = 0


class MetadataState(msgspec.Struct, frozen=True):
    """The metadata of the whole cluster. ``version`` is the index of the last applied command.

    ``groups`` are by topic, then by group name. ``deleted_topics`` are by the text of their ids;
    their names are free. ``tokens`` are by their ids, ``schedules`` by their names.
    """

    version: int = 0
    nodes: Mapping[str, NodeMetadata] = {}
    topics: Mapping[str, TopicMetadata] = {}
    groups: Mapping[str, Mapping[str, GroupMetadata]] = {}
    settings: ClusterSettings = ClusterSettings()
    features: Features = Features()
    deleted_topics: Mapping[str, DeletedTopic] = {}
    tokens: Mapping[str, TokenRecord] = {}
    schedules: Mapping[str, ScheduleRecord] = {}


class PartitionRef(NamedTuple):
    """Identifies a partition by its topic's name and its number."""

    topic: str
    partition: int


def active_topics(state: MetadataState) -> Iterator[TopicMetadata]:
    """Yield the topics that are not being deleted, sorted by name."""
    for _, topic in sorted(state.topics.items()):
        if not topic.deleting:
            yield topic


def active_partitions(
    state: MetadataState,
) -> Iterator[tuple[PartitionRef, TopicMetadata, PartitionMetadata]]:
    """Yield the partitions of all topics that are not being deleted, sorted by topic name."""
    for topic in active_topics(state):
        for number, partition in enumerate(topic.partitions):
            yield PartitionRef(topic.name, number), topic, partition


def required_in_sync(
    state: MetadataState, topic: TopicMetadata, partition: PartitionMetadata
) -> int:
    """Return how many replicas must have a write before it is acknowledged; never more than all."""
    wanted = state.settings.min_insync if topic.min_insync is None else topic.min_insync
    return min(wanted, len(partition.replicas))


def partition_count(state: MetadataState) -> int:
    """Return the number of partitions, including those of topics that are being deleted."""
    return sum(len(topic.partitions) for topic in state.topics.values())


def encode_state(state: MetadataState) -> bytes:
    """Return the state as bytes: equal states give equal bytes."""
    return msgspec.msgpack.encode(state, order="deterministic")
