"""The cluster as any of its nodes describes it."""

from __future__ import annotations

from dataclasses import dataclass

from goq.client.results.result import Result, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """One node; ``status`` is ``up``, ``fenced``, ``leaving`` or ``unfit``.

    ``reason`` says why it is unfit, or why the node that answered does not talk with it.
    ``clock_skew_s`` is how far its clock is ahead of the median of all nodes, if that is known.
    ``unreachable`` are the nodes that are up and that this node does not reach.
    """

    id: str
    url: str
    status: str
    incarnation: int = 0
    rack: str | None = None
    reason: str | None = None
    clock_skew_s: float | None = None
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentNode:
    """A node that the cluster began with, or admitted, and that has never come.

    ``reason`` says why the node that answered does not talk with it, if that is known.
    """

    id: str
    address: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLag:
    """How far a replica is behind its leader: in messages, and in seconds.

    The numbers are None where the follower has not reported.
    """

    node: str
    end_offset: int | None = None
    lag_messages: int | None = None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartition:
    """One partition in the cluster. Nodes are named by their ids.

    ``replicas`` begins with the preferred leader; ``wanted`` is how many there should be.
    ``adding`` and ``removing`` are the replicas that a reassignment changes, ``damaged`` those with
    damaged segments. ``unclean`` says that its leader may lack messages that were acknowledged.
    The offsets and ``followers`` are only known where lag was asked for and the leader answered.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    offline: bool
    wanted: int
    adding: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unclean: bool = False
    start_offset: int | None = None
    end_offset: int | None = None
    followers: tuple[FollowerLag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    """A topic's partitions in the cluster.

    A partition with fewer than ``min_insync`` replicas in sync, or than all of its replicas if
    these are fewer, takes no writes.
    """

    name: str
    partitions: tuple[ClusterPartition, ...]
    replication_factor: int = 1
    min_insync: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment(Result):
    """The move of a partition from the nodes ``replicas`` to the nodes ``target``.

    One under way has a ``state``, ``waiting`` or ``copying``, and may have a ``progress`` from 0
    to 1. One that a rebalance planned has neither; ``refusal`` says why it was refused, if it was.
    """

    topic: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    state: str | None = None
    progress: float | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfiguration(Result):
    """The configuration of the whole cluster.

    ``replication_factor`` is that of new topics. ``move_bytes_per_s`` bounds what each node sends
    for reassignments, 0 for no bound; ``moves_at_once`` bounds how many run at a time.
    """

    replication_factor: int
    min_insync: int
    moves_at_once: int
    move_bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription(Result):
    """The metadata that all nodes agree on, as of ``version``, which rises with every change.

    ``node`` is the node that answered; ``cluster`` is False where it is on its own.
    ``under_replicated`` and ``offline`` are partitions, as ``orders:3``. ``controller`` is None
    where the cluster has none. ``diverged`` says that the metadata of this node contradicts the
    cluster's, and is being replaced. ``feature_level`` is what all nodes know, by their versions.
    ``absent`` are nodes that never came. ``unheard_s`` is for how long the node has not heard the
    controller: all is as of then. It is None while the controller is heard, and if it was not heard
    since the node's start.
    """

    version: int
    node: str
    cluster: bool
    controller: str | None
    diverged: bool = False
    feature_level: int = 0
    nodes: tuple[NodeDescription, ...]
    settings: ClusterConfiguration
    topics: tuple[ClusterTopic, ...]
    under_replicated: tuple[str, ...]
    offline: tuple[str, ...]
    moves: tuple[PartitionReassignment, ...]
    absent: tuple[AbsentNode, ...] = ()
    unheard_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnd:
    """The end offset of a replica; None where its node does not answer."""

    node: str
    end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElection(Result):
    """The leader that was elected, or with ``dry_run`` would be.

    For an unclean election, ``replicas`` are where the replicas end, and ``lost_messages`` how many
    messages are lost; None where that is not known.
    """

    topic: str
    partition: int
    leader: str
    dry_run: bool = False
    replicas: tuple[ReplicaEnd, ...] = ()
    lost_messages: int | None = None


def decode_cluster(answer: object) -> ClusterDescription:
    """Return the cluster from an answer."""
    return decode(ClusterDescription, answer)


def decode_cluster_configuration(answer: object) -> ClusterConfiguration:
    """Return the cluster's configuration from an answer."""
    return decode(ClusterConfiguration, answer)


def decode_reassignments(answer: object) -> tuple[PartitionReassignment, ...]:
    """Return the moves of a rebalance from an answer."""
    return tuple(decode(PartitionReassignment, move) for move in items_of(answer, "moves"))


def decode_election(answer: object) -> LeaderElection:
    """Return what an election came to from an answer."""
    return decode(LeaderElection, answer)
