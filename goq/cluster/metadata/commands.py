"""The commands that change the cluster's metadata, and their codec.

Every command names what it was decided on: the topic's id, the version of the partition, the
incarnation of the node. When that is no longer so the command is refused and changes nothing.

A command travels in msgpack, with a tag of its name and version (``create_topic/1``). Decoding is
strict: an unknown tag, an unknown or missing field, a wrong type or too many bytes make it refused,
by a text that is the same on every node. A command whose meaning changes gets a new class and tag.

Longer than other modules: it is one list.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from goq import limits
from goq.cluster.metadata.results import CommandRejected
from goq.errors import TooLarge

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Text = Annotated[str, msgspec.Meta(max_length=limits.METADATA_TEXT_CHARS_MAX)]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all commands."""


class RegisterNode(Command, frozen=True, tag="register_node/1", rename={"durable_topics": "keeps"}):
    """A node has started. Everything it led or had in sync before counts as lost sight of.

    But not in ``durable_topics``, by id: there it has on its disk whatever it said it has.
    ``disk`` is what its data folder was given when it was made: another one has other data.
    """

    node: Text
    incarnation: Count
    http_url: Text
    cluster_address: Text
    rack: Text | None = None
    disk: Text = ""
    durable_topics: tuple[Count, ...] = ()


class FenceNode(Command, frozen=True, tag="fence_node/1"):
    """A node is not heard of any more: it leads nothing, and is in sync only where nobody leads."""

    node: Text
    incarnation: Count


class UnfenceNode(Command, frozen=True, tag="unfence_node/1"):
    """A fenced node is heard of again, without having been started anew."""

    node: Text
    incarnation: Count


class ReportDataLoss(Command, frozen=True, tag="empty_node/1"):
    """A node has lost the messages of all its replicas, and comes with the disk all the same."""

    node: Text
    disk: Text


class ForceNewCluster(Command, frozen=True, tag="begin_again/1"):
    """All other nodes are lost for good. Never proposed: see ``goq.cluster.unsafe_recovery``."""

    node: Text
    disk: Text


class SetNodeHealth(Command, frozen=True, tag="set_fitness/1"):
    """A node can lead, or cannot for a reason (not empty then), as a full disk."""

    node: Text
    incarnation: Count
    unfit_reason: Text = ""


class DecommissionNode(Command, frozen=True, tag="leave_node/1"):
    """A node is to give away all that it has, then go.

    With ``fewer_replicas`` also where the others are too few for as many replicas as there are: for
    one that is fenced that needs not be said.
    """

    node: Text
    fewer_replicas: bool = False


class RemoveNode(Command, frozen=True, tag="remove_node/1"):
    """A leaving node that has nothing any more is gone."""

    node: Text


class CreateTopic(Command, frozen=True, tag="create_topic/1"):
    """Make a topic; its replicas are placed here. ``value`` of the result is the topic's id.

    So many replicas are wanted as ``replication_factor`` says, or without it the cluster's. Where
    there are fewer nodes they come later. The proposer has checked the settings: their meaning is
    none of the state's.
    """

    name: Text
    partitions: Count
    settings: dict[str, str]
    replication_factor: Count | None = None


class AlterTopic(Command, frozen=True, tag="alter_topic/1"):
    """Put settings in; None takes one away. ``value`` is the topic's version."""

    name: Text
    topic_id: Count
    version: Count
    settings: dict[str, str | None]


class AddPartitions(Command, frozen=True, tag="add_partitions/1"):
    """Give a topic so many partitions in all. ``value`` is the topic's version."""

    name: Text
    topic_id: Count
    version: Count
    partitions: Count


class DeleteTopic(Command, frozen=True, tag="delete_topic/1"):
    """Mark a topic as being deleted: nobody leads it, its nodes delete their files."""

    name: Text
    topic_id: Count


class RemoveTopic(Command, frozen=True, tag="forget_topic/1"):
    """All nodes have deleted their files of a topic: its name is free again."""

    name: Text
    topic_id: Count


class PutGroup(Command, frozen=True, tag="put_group/1"):
    """Make a group (``version`` 0), or give it other settings. ``value`` is its version."""

    topic: Text
    topic_id: Count
    group: Text
    version: Count
    settings: dict[str, str]


class DeleteGroup(Command, frozen=True, tag="delete_group/1"):
    """Forget a group."""

    topic: Text
    topic_id: Count
    group: Text
    version: Count


class PartitionCommand(Command, frozen=True):
    """Base of what is decided on one partition at one version; ``value`` is its new version."""

    topic: Text
    topic_id: Count
    partition: Count
    version: Count


class AlterInSync(PartitionCommand, frozen=True, tag="alter_in_sync/1"):
    """The leader says who is in sync: nodes with the incarnations that it saw them in.

    Those ``not_seen`` have not been heard of since their start: they stay if they were in sync.
    """

    leader: Text
    leader_epoch: Count
    in_sync: dict[Text, Count]
    not_seen: tuple[Text, ...] = ()


class ElectLeader(PartitionCommand, frozen=True, tag="elect_leader/1"):
    """Make ``leader`` lead. It must be in sync and able to lead.

    With ``unclean`` the partition must be without a leader, and any up and fit node that has a
    replica may be named: it alone is in sync then, and what only others have is lost.
    """

    leader: Text
    unclean: bool = False


class ReassignPartition(
    PartitionCommand, frozen=True, tag="move_replicas/1", rename={"is_manual": "by_name"}
):
    """Plan other replicas, in preferred order. Where only the order differs it is done at once.

    With ``by_name`` people ask for just these: as many are wanted from then on.
    """

    target: tuple[Text, ...]
    is_manual: bool = False


class StartReassignment(PartitionCommand, frozen=True, tag="start_move/1"):
    """Let a planned move begin: the new nodes copy from now on."""


class CancelReassignment(
    PartitionCommand, frozen=True, tag="cancel_move/1", rename={"is_manual": "by_name"}
):
    """Give a planned or begun move up: the replicas stay what they were.

    With ``by_name`` people want that: no more replicas than these are wanted then.
    """

    is_manual: bool = False


class FinishReassignment(PartitionCommand, frozen=True, tag="finish_move/1"):
    """The replicas become the target; all of it must be in sync."""


class MarkReplicaDamaged(Command, frozen=True, tag="mark_damaged/1"):
    """A node's replica has frames that fail their check. ``value`` is the partition's version."""

    topic: Text
    topic_id: Count
    partition: Count
    node: Text
    incarnation: Count


class MarkReplicaRepaired(Command, frozen=True, tag="mark_repaired/1"):
    """A node's replica is whole again. ``value`` is the partition's version."""

    topic: Text
    topic_id: Count
    partition: Count
    node: Text
    incarnation: Count


class AlterClusterSettings(Command, frozen=True, tag="change_settings/1"):
    """Change the cluster's settings; None leaves one as it is. ``value`` is their version."""

    version: Count
    replication_factor: Count | None = None
    min_insync: Count | None = None
    moves_at_once: Count | None = None
    move_bytes_per_s: Count | None = None


AnyCommand = (
    RegisterNode
    | FenceNode
    | UnfenceNode
    | ReportDataLoss
    | ForceNewCluster
    | SetNodeHealth
    | DecommissionNode
    | RemoveNode
    | CreateTopic
    | AlterTopic
    | AddPartitions
    | DeleteTopic
    | RemoveTopic
    | PutGroup
    | DeleteGroup
    | AlterInSync
    | ElectLeader
    | ReassignPartition
    | StartReassignment
    | CancelReassignment
    | FinishReassignment
    | MarkReplicaDamaged
    | MarkReplicaRepaired
    | AlterClusterSettings
)


_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


def encode_command(command: AnyCommand) -> bytes:
    """Return a command as bytes; raise ``TooLarge`` if it has too many for the log."""
    data = msgspec.msgpack.encode(command, order="deterministic")
    if len(data) > limits.METADATA_COMMAND_BYTES_MAX:
        raise TooLarge(
            f"a change of the cluster's metadata has at most {limits.METADATA_COMMAND_BYTES_MAX}"
            f" bytes, this one {len(data)}; make it smaller, as by fewer settings at once"
        )
    return data


def decode_command(data: bytes) -> AnyCommand:
    """Return the command in some bytes; raise ``CommandRejected`` if there is none."""
    if len(data) > limits.METADATA_COMMAND_BYTES_MAX:
        raise CommandRejected("too_large", f"a command of {len(data)} bytes is over the limit")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        tag = _tag(data)
        if tag is not None and tag not in TAGS:
            raise CommandRejected(
                "unknown_command", f"this version of goq does not know the command {tag[:80]!r}"
            ) from None
        raise CommandRejected("malformed_command", "the command cannot be read") from None


def _tag(data: bytes) -> str | None:
    """Return which command the bytes claim to be, None if they are no command at all."""
    try:
        raw: Any = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    tag = raw.get("type") if isinstance(raw, dict) else None
    return tag if isinstance(tag, str) else None


TAGS = frozenset(str(kind.__struct_config__.tag) for kind in AnyCommand.__args__)
"""The names and versions of all commands."""
