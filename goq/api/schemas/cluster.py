"""The JSON shapes of the cluster: nodes, partitions, moves, elections, settings."""

from __future__ import annotations

import msgspec

from goq.api.schemas.base import Input, Output


class NodeOut(Output):
    """A node; ``status`` is up, fenced, leaving or unfit.

    ``reason`` says why it is unfit, or that somebody with another disk comes under its id.
    """

    id: str
    url: str
    status: str
    incarnation: int
    rack: str | None = None
    reason: str | None = None


class FollowerOut(Output):
    """How far a replica is behind its leader: messages that it lacks, and for how long."""

    node: str
    end_offset: int | None = None
    lag_messages: int | None = None
    lag_s: float | None = None


class ClusterPartitionOut(Output):
    """Where a partition is; lists hold ids of nodes, ``replicas`` in preferred order.

    ``wanted`` is how many replicas it is to have. With ``lag=true`` its bounds and followers are
    here as far as its leader said.
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
    """A topic's partitions."""

    name: str
    partitions: list[ClusterPartitionOut]


class ReassignmentOut(Output):
    """A move of a partition; ``state`` is waiting or copying, ``progress`` from 0 to 1."""

    topic: str
    partition: int
    replicas: list[str]
    target: list[str]
    state: str
    progress: float | None = None


class ClusterSettingsOut(Output):
    """What holds for the whole cluster."""

    replication_factor: int
    min_insync: int
    moves_at_once: int
    move_bytes_per_s: int


class ClusterOut(Output):
    """What all nodes agree on. ``version`` rises with every change.

    ``under_replicated`` and ``offline`` are partitions, as ``orders:3``.
    """

    version: int
    node: str
    cluster: bool
    controller: str | None
    nodes: list[NodeOut]
    settings: ClusterSettingsOut
    topics: list[ClusterTopicOut]
    under_replicated: list[str]
    offline: list[str]
    moves: list[ReassignmentOut]


class NewNode(Input):
    """A node that runs already and knows the others, to be let in."""

    node: str
    address: str


class RebalanceRequest(Input):
    """Whether to say only what would be moved."""

    dry_run: bool = False


class PlannedReassignmentOut(Output):
    """A move of a rebalance, and why it was refused, if it was."""

    topic: str
    partition: int
    replicas: list[str]
    target: list[str]
    refusal: str | None = None


class RebalancePlanOut(Output):
    """The plan; begun unless it was a dry run."""

    dry_run: bool
    moves: list[PlannedReassignmentOut]


class NewReassignment(Input):
    """The nodes that are to have a partition, the preferred leader first."""

    topic: str
    partition: int
    replicas: list[str]


class Election(Input):
    """Who is to lead a partition; without ``leader`` the preferred replica.

    With ``unclean`` a partition without a leader is led by a replica that may lack messages; with
    ``dry_run`` it is only said which.
    """

    topic: str
    partition: int
    leader: str | None = None
    unclean: bool = False
    dry_run: bool = False


class ReplicaEndOut(Output):
    """Where a replica ends; without ``end_offset`` its node does not answer."""

    node: str
    end_offset: int | None = None


class ElectionOut(Output):
    """Who leads, or would; for an unclean election the replicas, and how many messages are lost."""

    topic: str
    partition: int
    leader: str
    dry_run: bool = False
    replicas: list[ReplicaEndOut] = msgspec.field(default_factory=list)
    lost_messages: int | None = None


class ClusterSettingsChange(Input):
    """Settings to change; absent ones stay."""

    replication_factor: int | None = None
    min_insync: int | None = None
    moves_at_once: int | None = None
    move_bytes_per_s: int | None = None
