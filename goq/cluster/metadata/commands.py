"""Commands that change the cluster's metadata.

Every command names the state that it was decided on: the topic's id, the version of the partition,
the incarnation of the node. A command decided on an outdated state is rejected and changes nothing.

Each class has the tag of its encoding, a name and a version (``create_topic/1``). Where ``rename``
is given, or the tag differs from the class, the older name is the one on the wire. A command whose
meaning changes gets a new class and tag.

Longer than other modules: it is one list.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from goq import limits
from goq.access.token_record import TokenRecord
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Text = Annotated[str, msgspec.Meta(max_length=limits.METADATA_TEXT_CHARS_MAX)]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all commands."""


class RegisterNode(Command, frozen=True, tag="register_node/1", rename={"durable_topics": "keeps"}):
    """A node has started: it counts as having been fenced since its earlier incarnation.

    In the topics of ``durable_topics``, by id, its disk still holds all that it acknowledged: there
    it stays in sync. ``disk`` is the id that its data folder got when the folder was created:
    another id means other data.
    """

    node: Text
    incarnation: Count
    http_url: Text
    cluster_address: Text
    rack: Text | None = None
    disk: Text = ""
    durable_topics: tuple[Count, ...] = ()


class RegisterNodeWithLevel(RegisterNode, frozen=True, tag="register_node/2"):
    """A node has started that knows all features up to ``feature_level``."""

    feature_level: Count = 0


class RaiseFeatureLevel(Command, frozen=True, tag="raise_feature_level/1"):
    """All nodes know the features of ``level``: from now on they may be used.

    ``nodes`` are all registered nodes, each with its incarnation and the level that it reported.
    """

    level: Count
    nodes: dict[Text, tuple[Count, Count]]


class FenceNode(Command, frozen=True, tag="fence_node/1"):
    """A node's session has expired: it leads nothing, and stays in sync only without a leader."""

    node: Text
    incarnation: Count


class UnfenceNode(Command, frozen=True, tag="unfence_node/1"):
    """A fenced node sends heartbeats again, without a restart."""

    node: Text
    incarnation: Count


class ReportDataLoss(Command, frozen=True, tag="empty_node/1"):
    """A node has lost the messages of all its replicas, but still has its disk id."""

    node: Text
    disk: Text


class ResetReplicas(Command, frozen=True, tag="reset_replicas/1"):
    """Some replicas of a node may have frames of another history: they are copied anew.

    ``partitions`` are topic ids and numbers. A replica leaves the in-sync set, unless it is alone
    there: then its history is the one that counts.
    """

    node: Text
    incarnation: Count
    partitions: Annotated[
        tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=limits.RESET_REPLICAS_MAX)
    ]


class ForceNewCluster(Command, frozen=True, tag="begin_again/1"):
    """All other nodes are lost for good. Never proposed: see ``goq.cluster.unsafe_recovery``."""

    node: Text
    disk: Text


class SetNodeHealth(Command, frozen=True, tag="set_fitness/1"):
    """A node can lead, or cannot for a reason (then not empty), such as a full disk."""

    node: Text
    incarnation: Count
    unfit_reason: Text = ""


class DecommissionNode(Command, frozen=True, tag="leave_node/1"):
    """A node is to hand over all its replicas, then leave.

    ``fewer_replicas`` allows this where the remaining nodes are too few for the present number of
    replicas. A fenced node does not need it.
    """

    node: Text
    fewer_replicas: bool = False


class RemoveNode(Command, frozen=True, tag="remove_node/1"):
    """A leaving node without replicas is removed."""

    node: Text


class CreateTopic(Command, frozen=True, tag="create_topic/1"):
    """Create a topic and place its replicas. ``value`` of the result is the topic's id.

    The topic gets ``replication_factor`` replicas, or the cluster's default without it. With too
    few nodes, missing replicas are added later. The proposer has checked the settings: the state
    does not interpret them.
    """

    name: Text
    partitions: Count
    settings: dict[str, str]
    replication_factor: Count | None = None


class CreateTopicWithMinInsync(CreateTopic, frozen=True, tag="create_topic/2"):
    """Create a topic with a ``min_insync`` of its own."""

    min_insync: Count = 1


class CreateTopicWithId(CreateTopic, frozen=True, tag="create_topic/3"):
    """Create a topic with an id that was drawn for it."""

    min_insync: Count | None = None
    topic_id: Count = 0


class AdoptTopic(CreateTopicWithId, frozen=True, tag="create_topic/4"):
    """Create a topic whose messages are on the disk of ``node`` already, such as restored ones.

    That node has the only replica at first; the controller adds the others. ``leader_epoch`` is
    above all epochs in the logs.
    """

    node: Text = ""
    leader_epoch: Count = 1
    groups: dict[Text, dict[str, str]] = {}


class AlterTopic(Command, frozen=True, tag="alter_topic/1"):
    """Set settings; None resets one to its default. ``value`` is the topic's version."""

    name: Text
    topic_id: Count
    version: Count
    settings: dict[str, str | None]


class AlterTopicReplication(Command, frozen=True, tag="alter_topic_replication/1"):
    """Change the replication of all partitions of a topic; None leaves a value unchanged.

    The controller then adds missing replicas and removes surplus ones. ``value`` is the topic's
    version.
    """

    name: Text
    topic_id: Count
    version: Count
    replication_factor: Count | None = None
    min_insync: Count | None = None


class AddPartitions(Command, frozen=True, tag="add_partitions/1"):
    """Raise a topic's number of partitions to this total. ``value`` is the topic's version."""

    name: Text
    topic_id: Count
    version: Count
    partitions: Count


class DeleteTopic(Command, frozen=True, tag="delete_topic/1"):
    """Mark a topic as being deleted: it has no leaders, and its nodes delete their files."""

    name: Text
    topic_id: Count


class DeleteTopicAtOnce(DeleteTopic, frozen=True, tag="delete_topic/2"):
    """Delete a topic: its name is free, and its nodes delete their files by its id."""


class RemoveTopic(Command, frozen=True, tag="forget_topic/1"):
    """All nodes have deleted their files of a deleted topic: it is forgotten."""

    name: Text
    topic_id: Count


class PutGroup(Command, frozen=True, tag="put_group/1"):
    """Create a group (``version`` 0), or replace its settings. ``value`` is its version."""

    topic: Text
    topic_id: Count
    group: Text
    version: Count
    settings: dict[str, str]


class DeleteGroup(Command, frozen=True, tag="delete_group/1"):
    """Delete a group."""

    topic: Text
    topic_id: Count
    group: Text
    version: Count


class PartitionCommand(Command, frozen=True):
    """Base of commands on one partition at one version; ``value`` is its new version."""

    topic: Text
    topic_id: Count
    partition: Count
    version: Count


class AlterInSync(PartitionCommand, frozen=True, tag="alter_in_sync/1"):
    """The leader sets the in-sync nodes, each with the incarnation that the leader knows.

    Nodes in ``not_seen`` have not contacted the leader since their restart: if they were in sync,
    they stay so.
    """

    leader: Text
    leader_epoch: Count
    in_sync: dict[Text, Count]
    not_seen: tuple[Text, ...] = ()


class ElectLeader(PartitionCommand, frozen=True, tag="elect_leader/1"):
    """Make ``leader`` the leader. It must be in sync and able to lead.

    With ``unclean`` the partition must have no leader, and any healthy node with a replica may be
    named. It alone is in sync then; messages that only others have are lost.
    """

    leader: Text
    unclean: bool = False


class RenewLeadership(PartitionCommand, frozen=True, tag="renew_leadership/1"):
    """The leader leads on in the next epoch, because its disk may have lost some of this one."""

    leader: Text
    leader_epoch: Count


class ChangePartitions(Command, frozen=True, tag="change_partitions/1"):
    """Change many partitions in order. A rejected change is skipped, unless all are.

    ``value`` is the number of accepted changes.
    """

    changes: Annotated[
        tuple[AlterInSync | ElectLeader, ...],
        msgspec.Meta(min_length=1, max_length=limits.PARTITION_CHANGES_MAX),
    ]


class ReassignPartition(
    PartitionCommand, frozen=True, tag="move_replicas/1", rename={"is_manual": "by_name"}
):
    """Plan other replicas, in preferred order. A different order alone takes effect at once.

    ``is_manual`` says that an operator asked for these replicas: their number becomes the
    replication factor.
    """

    target: tuple[Text, ...]
    is_manual: bool = False


class StartReassignment(PartitionCommand, frozen=True, tag="start_move/1"):
    """Start a planned reassignment: the new nodes copy from now on."""


class CancelReassignment(
    PartitionCommand, frozen=True, tag="cancel_move/1", rename={"is_manual": "by_name"}
):
    """Cancel a planned or started reassignment: the replicas stay as they were.

    ``is_manual`` says that an operator asked for it: the present number of replicas becomes the
    replication factor.
    """

    is_manual: bool = False


class FinishReassignment(PartitionCommand, frozen=True, tag="finish_move/1"):
    """Replace the replicas by the target; all of it must be in sync."""


class MarkReplicaDamaged(Command, frozen=True, tag="mark_damaged/1"):
    """A node's replica has frames that fail their check. ``value`` is the partition's version."""

    topic: Text
    topic_id: Count
    partition: Count
    node: Text
    incarnation: Count


class MarkReplicaRepaired(Command, frozen=True, tag="mark_repaired/1"):
    """A node's replica is intact again. ``value`` is the partition's version."""

    topic: Text
    topic_id: Count
    partition: Count
    node: Text
    incarnation: Count


class AlterClusterSettings(Command, frozen=True, tag="change_settings/1"):
    """Change the cluster's settings; None leaves one unchanged. ``value`` is their version."""

    version: Count
    replication_factor: Count | None = None
    min_insync: Count | None = None
    moves_at_once: Count | None = None
    move_bytes_per_s: Count | None = None


class PutToken(Command, frozen=True, tag="put_token/1"):
    """Create an access token (``version`` 1), or replace its record by that of the next version."""

    token: TokenRecord


class PutSchedule(Command, frozen=True, tag="put_schedule/1"):
    """Create a schedule (``version`` 1), or replace its record by that of the next version."""

    schedule: ScheduleRecord


class DeleteSchedule(Command, frozen=True, tag="delete_schedule/1"):
    """Delete a schedule."""

    name: Text


class RecordScheduleRuns(Command, frozen=True, tag="record_schedule_runs/1"):
    """Schedules, by name, have published for their due times. It is never rejected: what is
    outdated in it changes nothing."""

    runs: Annotated[
        dict[Text, ScheduleRun], msgspec.Meta(min_length=1, max_length=limits.SCHEDULE_RUNS_MAX)
    ]


AnyCommand = (
    RegisterNode
    | RegisterNodeWithLevel
    | RaiseFeatureLevel
    | FenceNode
    | UnfenceNode
    | ReportDataLoss
    | ResetReplicas
    | ForceNewCluster
    | SetNodeHealth
    | DecommissionNode
    | RemoveNode
    | CreateTopic
    | CreateTopicWithMinInsync
    | CreateTopicWithId
    | AdoptTopic
    | AlterTopic
    | AlterTopicReplication
    | AddPartitions
    | DeleteTopic
    | DeleteTopicAtOnce
    | RemoveTopic
    | PutGroup
    | DeleteGroup
    | AlterInSync
    | ElectLeader
    | RenewLeadership
    | ChangePartitions
    | ReassignPartition
    | StartReassignment
    | CancelReassignment
    | FinishReassignment
    | MarkReplicaDamaged
    | MarkReplicaRepaired
    | AlterClusterSettings
    | PutToken
    | PutSchedule
    | DeleteSchedule
    | RecordScheduleRuns
)
