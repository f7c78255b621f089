"""JSON bodies of the cluster: nodes, partitions, reassignments, elections, settings."""

from __future__ import annotations

import msgspec

from goq.api.schemas.base import Input, Output
from goq.api.values import Index, Replicas, TopicName


class NodeOut(Output):
    """A node; ``status`` is up, fenced, leaving or unfit.

    ``reason`` says why the node is unfit, or why the node that answers does not talk with it:
    another disk than the registered one, or another secret.
    ``clock_skew_s`` is how far its clock is ahead of the median of all nodes, if that is known.
    ``unreachable`` are the nodes that are up and that this node does not reach.
    """

    id: str
    url: str
    status: str
    incarnation: int
    rack: str | None = None
    reason: str | None = None
    clock_skew_s: float | None = None
    unreachable: list[str] = msgspec.field(default_factory=list)


class AbsentNodeOut(Output):
    """A node that the cluster began with, or admitted, and that has never come.

    ``reason`` says why the node that answers does not talk with it, if that is known.
    """

    id: str
    address: str
    reason: str | None = None


class FollowerOut(Output):
    """The lag of a replica behind its leader, in messages and in time."""

    node: str
    end_offset: int | None = None
    lag_messages: int | None = None
    lag_s: float | None = None


class ClusterPartitionOut(Output):
    """The placement of a partition; lists hold node ids, ``replicas`` in preferred order.

    ``wanted`` is the replication factor to reach. With ``lag=true`` bounds and followers are
    included as far as the leader reported them.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: list[str]
    in_sync: list[str]
    offline: bool
    wanted: int
    adding: list[str] = msgspec.field(default_factory=list)
    removing: list[str] = msgspec.field(default_factory=list)
    damaged: list[str] = msgspec.field(default_factory=list)
    unclean: bool = False
    start_offset: int | None = None
    end_offset: int | None = None
    followers: list[FollowerOut] = msgspec.field(default_factory=list)


class ClusterTopicOut(Output):
    """A topic's partitions.

    A partition with fewer than ``min_insync`` replicas in sync, or than all of its replicas if
    these are fewer, takes no writes.
    """

    name: str
    partitions: list[ClusterPartitionOut]
    replication_factor: int
    min_insync: int


class ReassignmentOut(Output):
    """A partition reassignment; ``state`` is waiting or copying, ``progress`` from 0 to 1."""

    topic: str
    partition: int
    replicas: list[str]
    target: list[str]
    state: str
    progress: float | None = None


class ClusterSettingsOut(Output):
    """Settings of the whole cluster."""

    replication_factor: int
    min_insync: int
    moves_at_once: int
    move_bytes_per_s: int


class ClusterOut(Output):
    """The cluster metadata. ``version`` rises with every change.

    ``under_replicated`` and ``offline`` list partitions, as ``orders:3``. ``diverged`` says that
    the metadata of the node that answers contradicts the cluster's, and is being replaced.
    ``feature_level`` is what all nodes know, by their versions of goq. ``absent`` are nodes that
    never came. ``unheard_s`` is for how long the node that answers has not heard the controller:
    the rest is as of then. It is absent while the controller is heard, and if it was not heard
    since that node's start.
    """

    version: int
    node: str
    cluster: bool
    controller: str | None
    diverged: bool
    feature_level: int
    nodes: list[NodeOut]
    settings: ClusterSettingsOut
    topics: list[ClusterTopicOut]
    under_replicated: list[str]
    offline: list[str]
    moves: list[ReassignmentOut]
    absent: list[AbsentNodeOut] = msgspec.field(default_factory=list)
    unheard_s: float | None = None


class NewNode(Input):
    """A running node to add; it knows the others already."""

    node: str
    address: str


class RebalanceRequest(Input):
    """Options of a rebalance; ``dry_run`` returns the plan only."""

    dry_run: bool = False


class PlannedReassignmentOut(Output):
    """A reassignment of a rebalance plan, and why it was refused, if it was."""

    topic: str
    partition: int
    replicas: list[str]
    target: list[str]
    refusal: str | None = None


class RebalancePlanOut(Output):
    """The rebalance plan; it has begun unless it was a dry run."""

    dry_run: bool
    moves: list[PlannedReassignmentOut]


class NewReassignment(Input):
    """The new replicas of a partition, the preferred leader first."""

    topic: TopicName
    partition: Index
    replicas: list[str]


class Election(Input):
    """The replica to elect as leader; without ``leader`` the preferred one.

    With ``unclean`` a partition without a leader gets one that may lack messages. With
    ``dry_run`` the answer only names it.
    """

    topic: TopicName
    partition: Index
    leader: str | None = None
    unclean: bool = False
    dry_run: bool = False


class ReplicaEndOut(Output):
    """The end offset of a replica; without ``end_offset`` its node does not answer."""

    node: str
    end_offset: int | None = None


class ElectionOut(Output):
    """The elected leader; for an unclean election also the replicas and the lost messages."""

    topic: str
    partition: int
    leader: str
    dry_run: bool = False
    replicas: list[ReplicaEndOut] = msgspec.field(default_factory=list)
    lost_messages: int | None = None


class ClusterSettingsChange(Input):
    """Settings to change; absent ones keep their value."""

    replication_factor: Replicas | None = None
    min_insync: Replicas | None = None
    moves_at_once: int | None = None
    move_bytes_per_s: int | None = None
