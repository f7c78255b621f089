"""The JSON shapes of requests and answers.

Unknown fields are refused: a misspelt ``delay`` must not publish at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from goq import limits
from goq.errors import TooLarge


class Input(msgspec.Struct, forbid_unknown_fields=True):
    """Base of what clients send."""


class Output(msgspec.Struct, omit_defaults=True):
    """Base of what the node answers; absent fields are left out."""


class NewTopic(Input):
    """A topic to create."""

    name: str
    partitions: int | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class TopicChange(Input):
    """Settings to change, or more partitions."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    partitions: int | None = None


class HeaderIn(Input):
    """One header of a list, where names repeat or values are not text."""

    name: str
    value: str | UnsetType = UNSET
    value_base64: str | UnsetType = UNSET


HeadersIn = dict[str, str] | list[HeaderIn]
"""Headers as an object, or as a list where names repeat or values are not text."""

_HEADERS_SCHEMA = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"$ref": "#/components/schemas/HeaderIn"}},
    ]
}
_messages_left = [0]


class NewMessage(Input):
    """A message to publish: its value as text or base64; ``"value": null`` is a tombstone.

    ``ttl`` counts from when the message is ready: from now, or from ``delay`` or ``deliver_at``.
    """

    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: Annotated[msgspec.Raw, Meta(extra_json_schema=_HEADERS_SCHEMA)] | UnsetType = UNSET
    partition: int | None = None
    priority: str | int | None = None
    delay: str | float | None = None
    deliver_at: str | float | None = None
    ttl: str | float | None = None
    tenant: str | None = None
    dedup_id: str | None = None

    def __post_init__(self) -> None:
        """Stop at one too many: millions of empty messages are a small body."""
        _messages_left[0] -= 1
        if _messages_left[0] < 0:
            raise TooLarge(
                f"there are more than {limits.JSON_MESSAGES_PER_REQUEST_MAX} messages, the limit"
                " of a request",
                field="messages",
            )


def expect_messages() -> None:
    """Begin to count messages: the body decoded next may hold as many as a request may bring."""
    _messages_left[0] = limits.JSON_MESSAGES_PER_REQUEST_MAX


class Publish(Input):
    """Messages to publish, all or none.

    ``acks`` is ``quorum`` or ``leader``: whether the answer waits for other nodes of a cluster.
    """

    messages: list[NewMessage]
    acks: str | None = None


class Receive(Input):
    """What a consumer asks for; durations as ``30s`` or in seconds.

    With ``stream`` the answer does not end: ``max`` messages may be in flight at a time, ``limit``
    come in all, and ``wait`` says nothing.
    """

    max: int = 1
    stream: bool = False
    limit: int | None = None
    wait: str | float = 0
    visibility: str | float | None = None
    consumer: str = ""


class StreamGrant(Input):
    """How many messages a stream may hand over beyond those in flight now."""

    more: int


class StreamOut(Output):
    """An open stream: ``in_flight`` of ``max`` messages are handed over and not settled."""

    stream: str
    max: int
    in_flight: int


class Settle(Input):
    """Receipts to acknowledge."""

    receipts: list[str]


class Nack(Input):
    """Receipts to give back, to be tried again after ``delay``, or the group's backoff."""

    receipts: list[str]
    delay: str | float | None = None
    reason: str = ""


class Reject(Input):
    """Receipts whose messages are given up at once."""

    receipts: list[str]
    reason: str = ""


class GroupSettings(Input):
    """Settings of a group's own, over those of its topic under ``delivery``."""

    settings: dict[str, Any]


class Extend(Input):
    """Receipts whose messages stay invisible for ``visibility`` from now."""

    receipts: list[str]
    visibility: str | float | None = None


class GroupReset(Input):
    """Where a group goes on: ``earliest``, ``latest``, an offset or a time.

    And where it ends, in the same ways: it gets nothing from there on until it is reset again.
    """

    to: str | int
    end: str | int | None = None
    partition: int | None = None
    dry_run: bool = False


class PartitionOut(Output):
    """One partition of a topic.

    While it has no leader, or none that has taken it up, nothing else is known of it, and 0 shown.
    """

    partition: int
    leader: str | None
    start_offset: int
    end_offset: int
    high_watermark: int
    bytes: int
    online: bool = True
    damaged: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ArchivedOut(Output):
    """What retention deleted of a topic and the archive has; ``bytes`` as it lies on the disk."""

    segments: int
    messages: int
    bytes: int
    first_time: str | None


class TopicOut(Output):
    """A topic."""

    name: str
    partitions: list[PartitionOut]
    settings: dict[str, str]
    time: str | UnsetType = UNSET
    archived: ArchivedOut | UnsetType = UNSET


class TopicsOut(Output):
    """All topics."""

    topics: list[TopicOut]


class PublishedOut(Output):
    """Where a message lies; ``count``, ``duplicate`` and ``duplicates`` only for frames."""

    partition: int
    offset: int
    timestamp: str
    id: str | None = None
    deliver_at: str | None = None
    duplicate_of: str | None = None
    count: int | None = None
    duplicate: bool | None = None
    duplicates: list[tuple[int, int, int]] = []


class PublishOut(Output):
    """One result a message or frame, in order; ``durability`` is the topic's ``fsync``.

    In a cluster ``acks`` says for what the answer waited, and ``nodes`` how many have the messages
    at least.
    """

    results: list[PublishedOut]
    durability: str
    acks: str | UnsetType = UNSET
    nodes: int | UnsetType = UNSET


class MessageOut(Output, kw_only=True):
    """A message; its value, key and headers in base64 where they are not UTF-8 text."""

    id: str
    partition: int
    offset: int
    timestamp: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    headers: dict[str, str] | list[dict[str, str]] | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    lease_until: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    due: str | UnsetType = UNSET


class MessagesOut(msgspec.Struct):
    """Messages, and where to read on.

    Of a reading by time, or in the background, also the ``end`` of the partition as it was: when
    ``next`` is there, all is read.
    """

    messages: list[MessageOut]
    next: int | str | None = None
    damaged: list[dict[str, int]] = msgspec.field(default_factory=list)
    end: int | UnsetType = UNSET


class ReceivedOut(msgspec.Struct):
    """Leased messages."""

    messages: list[MessageOut]


class ReadyOut(msgspec.Struct):
    """How often something became ready for a group on a node."""

    count: int


class FailedOut(msgspec.Struct):
    """A receipt that settled nothing, and why."""

    receipt: str
    code: str


class SettledOut(msgspec.Struct):
    """How many messages were settled, and which receipts were not."""

    done: int
    failed: list[FailedOut]


class GroupPartitionOut(Output):
    """A group's progress in a partition; with an ``end`` it gets nothing from there on."""

    partition: int
    cursor: int
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    end: int | UnsetType = UNSET


class MemberOut(Output):
    """A consumer that holds leases."""

    consumer: str
    leased: int


class IncompleteOut(Output):
    """Why what is told of a partition's past may lack something, and between which times."""

    partition: int
    reason: str
    from_time: str | None = msgspec.field(default=None, name="from")
    to_time: str | None = msgspec.field(default=None, name="to")


class GroupOut(Output):
    """A group: ``lag`` is what it has not done, of which so much is ready, leased, in retry.

    ``blocked`` is what of the ready is known to be held back behind its key, ``scheduled`` what
    is not due yet and not counted in the lag, ``dead`` how many left it as dead letters so far.

    Of the past (``at``) it is not known what was blocked, nor what the settings were;
    ``incomplete`` is empty where all the rest is.
    """

    group: str
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    oldest_ready_age_ms: int | None
    members: list[MemberOut]
    partitions: list[GroupPartitionOut]
    settings: dict[str, str] | UnsetType = UNSET
    at: str | UnsetType = UNSET
    incomplete: list[IncompleteOut] | UnsetType = UNSET
    known: bool | UnsetType = UNSET
    """Of a part, for another node: whether the group was there by then."""


class GroupsOut(msgspec.Struct):
    """The groups of a topic."""

    groups: list[GroupOut]


class ProducerPartitionOut(Output):
    """How far a producer got in a partition.

    It goes on with ``next_sequence``; its last message lies at ``offset``.
    """

    partition: int
    epoch: int
    next_sequence: int
    offset: int | None


class ProducerOut(Output):
    """How far a producer got, where it is known."""

    partitions: list[ProducerPartitionOut]


class ResetPartitionOut(Output):
    """What a reset does, or would do, in a partition.

    ``withholds`` is how many messages there are from the ``end`` on.
    """

    partition: int
    cursor: int
    to: int
    redelivers: int
    skips: int
    voids: int
    end: int | UnsetType = UNSET
    withholds: int | UnsetType = UNSET


class ResetOut(Output):
    """What a reset did, or would do."""

    group: str
    dry_run: bool
    partitions: list[ResetPartitionOut]
