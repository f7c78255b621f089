"""Formats of Raft messages and log commands: msgpack of fixed shapes, never pickle.

A log command is one byte for its kind, then a body: a :class:`Proposal` for ``REGULAR``, nothing
for ``NO_OP``, ``[operation, member]`` for ``MEMBERSHIP``. A message is a map whose ``type`` names
one of the structs below. The library receives it as a ``dict`` with the same keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from goq import limits
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import InvalidInput, TooLarge

COMMAND_VERSION = 1
REGULAR, NO_OP, MEMBERSHIP = 0, 1, 2
NO_OP_COMMAND = bytes((NO_OP,))
_ENTRY_ROOM_BYTES = 256  # for the encoding around a command

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Command = Annotated[bytes, Meta(max_length=limits.RAFT_COMMAND_BYTES_MAX + _ENTRY_ROOM_BYTES)]
Digest = Annotated[bytes, Meta(min_length=1, max_length=64)]
Spec = Annotated[str, Meta(max_length=limits.RAFT_MEMBER_CHARS_MAX)]
MemberChange = tuple[Literal["add", "rem"], Spec]
_T = TypeVar("_T")


class _Message(Struct, tag_field="type"):
    term: Count


class RequestVote(_Message, tag="request_vote"):
    """A candidate's request for a vote; with ``is_transfer`` the leader has handed over."""

    last_log_index: Count
    last_log_term: Count
    is_transfer: bool | UnsetType = UNSET


class RequestPreVote(_Message, tag="request_pre_vote"):
    """Asks whether the receiver would vote for the sender in ``term``."""

    last_log_index: Count
    last_log_term: Count


class ResponsePreVote(_Message, tag="response_pre_vote"):
    """A promised vote; without ``is_granted`` the term that the receiver is in already."""

    is_granted: bool | UnsetType = UNSET


class ResponseVote(_Message, tag="response_vote"):
    """A granted vote, and for how long its voter had followed nobody, as later versions say."""

    silent_ms: Count | UnsetType = UNSET


class TimeoutNow(_Message, tag="timeout_now"):
    """The leader's order to start an election at once: a leadership transfer."""


class AppendEntries(_Message, tag="append_entries"):
    """The leader's entries after ``prevLogIdx``; without entries, a heartbeat.

    ``digest`` is that of the leader's state after the entry that it names. ``sent_ms`` is the
    leader's monotonic time, which the reply has again; earlier versions know neither.
    """

    commit_index: Count
    round: Count
    prevLogIdx: Count
    prevLogTerm: Count
    entries: list[tuple[Command, Count, Count]]
    digest: tuple[Count, Digest] | UnsetType = UNSET
    sent_ms: Count | UnsetType = UNSET


class NextNodeIdx(_Message, tag="next_node_idx"):
    """A follower's reply: the next index that it needs, and whether its log matches before that.

    With ``snapshot_from`` it has diverged, and needs a snapshot of that index or a later one.
    """

    round: Count
    next_node_idx: Count
    success: bool
    snapshot_from: Count | UnsetType = UNSET
    sent_ms: Count | UnsetType = UNSET


class Snapshot(_Message, tag="snapshot"):
    """A chunk of a snapshot; an empty one is a heartbeat."""

    commit_index: Count
    index: Count
    index_term: Count
    members: Annotated[list[Spec], Meta(max_length=limits.RAFT_MEMBERS_MAX)]
    size_bytes: Annotated[int, Meta(ge=0, le=limits.RAFT_SNAPSHOT_BYTES_MAX)]
    crc32c: Count
    offset: Count
    data: bytes
    sent_ms: Count | UnsetType = UNSET


class SnapshotReply(_Message, tag="snapshot_reply"):
    """The number of snapshot bytes that a follower has."""

    index: Count
    offset: Count
    sent_ms: Count | UnsetType = UNSET


class ApplyCommand(Struct, tag_field="type", tag="apply_command"):
    """A command that a follower forwards to the leader."""

    command: Command
    request_id: Count | UnsetType = UNSET


class ApplyCommandResponse(Struct, tag_field="type", tag="apply_command_response"):
    """The log position that the leader gave to a command, or the reason for none."""

    request_id: Count
    log_idx: Count | UnsetType = UNSET
    log_term: Count | UnsetType = UNSET
    error: Count | UnsetType = UNSET

    @property
    def is_complete(self) -> bool:
        """Whether the message has either a position or an error."""
        return self.error is not UNSET or UNSET not in (self.log_idx, self.log_term)


_messages = msgspec.msgpack.Decoder(
    RequestVote
    | RequestPreVote
    | ResponsePreVote
    | ResponseVote
    | TimeoutNow
    | AppendEntries
    | NextNodeIdx
    | Snapshot
    | SnapshotReply
    | ApplyCommand
    | ApplyCommandResponse,
    strict=True,
)
_proposals: msgspec.msgpack.Decoder[Proposal] = msgspec.msgpack.Decoder(Proposal, strict=True)
_member_changes: msgspec.msgpack.Decoder[MemberChange] = msgspec.msgpack.Decoder(
    MemberChange, strict=True
)
_encoder = msgspec.msgpack.Encoder()


def encode_message(message: dict[str, Any]) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_message(data: bytes | memoryview) -> dict[str, Any]:
    """Decode a message to the library's form; raise ``InvalidInput`` if it is none."""
    try:
        message = _messages.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a message of the Raft protocol: {error}") from None
    if isinstance(message, ApplyCommandResponse) and not message.is_complete:
        raise InvalidInput("not a message of the Raft protocol: a response without a position")
    fields = {"type": type(message).__struct_config__.tag}
    for name in message.__struct_fields__:
        if (value := getattr(message, name)) is not UNSET:
            fields[name] = value
    return fields


def encode_proposal(request: Proposal) -> bytes:
    """Encode the body of a ``REGULAR`` command.

    Raises ``TooLarge``, and ``InvalidInput`` for a command that is not plain data.
    """
    try:
        data = _encoder.encode(request)
    except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"the command is not plain data: {error}") from None
    if len(data) > limits.RAFT_COMMAND_BYTES_MAX:
        raise TooLarge(
            f"the command has {len(data)} bytes, at most {limits.RAFT_COMMAND_BYTES_MAX} fit"
        )
    return data


def decode_proposal(command: bytes) -> Proposal:
    """Decode the proposal in a ``REGULAR`` command; raise ``InvalidInput`` if there is none."""
    return _decode(_proposals, command)


def encode_change(operation: str, spec: str) -> bytes:
    """Encode the body of a ``MEMBERSHIP`` command."""
    return _encoder.encode((operation, spec))


def decode_change(command: bytes) -> MemberChange:
    """Decode the change in a ``MEMBERSHIP`` command; raise ``InvalidInput`` if there is none."""
    return _decode(_member_changes, command)


def check_entries(previous: int, entries: list[tuple[bytes, int, int]]) -> None:
    """Raise ``InvalidInput`` unless the entries are valid and follow ``previous`` without a gap."""
    for expected, (command, index, _) in enumerate(entries, previous + 1):
        if index != expected:
            raise InvalidInput(f"entry {index} comes where {expected} belongs")
        check_command(command)


def check_command(command: bytes) -> None:
    """Raise ``InvalidInput`` for bytes that are no log command."""
    if command[:1] == bytes((MEMBERSHIP,)):
        decode_change(command)
    elif command[:1] == bytes((REGULAR,)):
        decode_proposal(command)
    elif command != NO_OP_COMMAND:
        raise InvalidInput("not a command of the Raft log")


def _decode(decoder: msgspec.msgpack.Decoder[_T], command: bytes) -> _T:
    try:
        return decoder.decode(memoryview(command)[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a command of the Raft log: {error}") from None
