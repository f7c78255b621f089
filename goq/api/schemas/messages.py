"""JSON bodies of messages: publish, read, one message, and producers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from goq.api.schemas.base import Input, Output
from goq.api.values import Acknowledgement, Base64, DateTime, Duration, Index, Time


class HeaderIn(Input):
    """One header of a list, for names that repeat or values that are not text."""

    name: str
    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET


HeadersIn = dict[str, str] | list[HeaderIn]
"""Headers as an object, or as a list where a name repeats or a value is not text."""

_HEADERS_SCHEMA = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"$ref": "#/components/schemas/HeaderIn"}},
    ]
}


class NewMessage(Input):
    """A message to publish: its value as text or base64; ``"value": null`` is a tombstone.

    ``ttl`` counts from when the message is due: from now, or from ``delay`` or ``deliver_at``.
    """

    value: str | UnsetType | None = UNSET
    value_base64: Base64 | UnsetType = UNSET
    key: str | None = None
    key_base64: Base64 | None = None
    headers: Annotated[msgspec.Raw, Meta(extra_json_schema=_HEADERS_SCHEMA)] | UnsetType = UNSET
    partition: Index | None = None
    priority: str | int | None = None
    delay: Duration | None = None
    deliver_at: Time | None = None
    ttl: Duration | None = None
    tenant: str | None = None
    dedup_id: str | None = None


class Publish(Input):
    """Messages to publish, all or none.

    ``acks`` is ``quorum`` or ``leader``: whether the answer waits for the in-sync replicas.
    """

    messages: list[NewMessage]
    acks: Acknowledgement | None = None


class PublishedOut(Output):
    """The position of a message; ``count``, ``duplicate`` and ``duplicates`` are for frames."""

    partition: Index
    offset: Index
    timestamp: DateTime
    id: str | None = None
    deliver_at: DateTime | None = None
    duplicate_of: str | None = None
    count: Index | None = None
    duplicate: bool | None = None
    duplicates: list[tuple[int, int, int]] = msgspec.field(default_factory=list)


class PublishOut(Output):
    """One result for each message or frame, in order; ``durability`` is the topic's ``fsync``.

    ``partitions`` is the number of partitions of the topic: a client that divides by another one
    learns of it. In a cluster ``acks`` says what the answer waited for, and ``nodes`` is the least
    number of nodes that have the messages.
    """

    results: list[PublishedOut]
    durability: str
    partitions: Index
    acks: str | UnsetType = UNSET
    nodes: int | UnsetType = UNSET


class MessageOut(Output, kw_only=True):
    """A message; value, key and headers are in base64 if they are not UTF-8 text.

    ``origin`` is the message that a dead letter was before a group gave it up. A redriven message
    has it too, and ``redriven_from``, the dead letter. The node sets them, whatever headers say.
    """

    id: str
    partition: Index
    offset: Index
    timestamp: DateTime
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    headers: dict[str, str] | list[dict[str, str]] | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    deliver_at: DateTime | UnsetType = UNSET
    expires_at: DateTime | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    lease_until: DateTime | UnsetType = UNSET
    state: str | UnsetType = UNSET
    due: DateTime | UnsetType = UNSET
    origin: str | UnsetType | None = UNSET
    redriven_from: str | UnsetType = UNSET


class FoundMessagesOut(msgspec.Struct):
    """Found messages, newest first, the position to continue at, and how many were looked at."""

    messages: list[MessageOut]
    next: str | None
    searched: Index


class MessagesOut(msgspec.Struct):
    """Messages, and the position to continue at.

    A read by time or in the background also returns the ``end`` of the partition at that moment;
    the read is complete when ``next`` reaches it.
    """

    messages: list[MessageOut]
    next: int | str | None = None
    damaged: list[dict[str, int]] = msgspec.field(default_factory=list)
    end: int | UnsetType = UNSET


class MessageChange(Input):
    """The change of a waiting message: its priority, or its delivery time."""

    priority: str | int | None = None
    deliver_at: Time | None = None


class GroupStateOut(Output):
    """The state of a message in a group: its lease and deadline, or the time of its retry."""

    group: str
    state: str
    attempt: int | None = None
    consumer: str | None = None
    lease_until: DateTime | None = None
    due: DateTime | None = None


class StatusOut(MessageOut, kw_only=True):
    """A message with its current state, in all and by group.

    ``state`` is ``scheduled``, ``cancelled`` or else ``available``. Priority and delivery time are
    the current ones, changed after publishing or not.
    """

    groups: list[GroupStateOut]


class ScheduledOut(msgspec.Struct):
    """Scheduled messages in order of delivery time, and the position to continue at."""

    messages: list[MessageOut]
    next: str | None = None


class ProducerPartitionOut(Output):
    """The progress of a producer in a partition.

    Its next message has ``next_sequence``; its last message is at ``offset``.
    """

    partition: Index
    epoch: int
    next_sequence: int
    offset: Index | None


class ProducerOut(Output):
    """The progress of a producer in each partition where it is known."""

    partitions: list[ProducerPartitionOut]
