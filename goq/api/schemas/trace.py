"""The JSON shapes of the trace of a message."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from goq.api.schemas.base import Output


class TracedMessageOut(Output, kw_only=True):
    """The message that was asked for, without its value; what is not known of it is left out.

    ``state`` is ``live``, ``archived``, or why it cannot be read: ``deleted`` by retention,
    ``compacted`` away, or ``damaged``.
    ``retained_until`` is the time before which retention by age does not delete it. ``nodes`` are
    those of a cluster that have it on their disks now.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    headers: dict[str, str] | list[dict[str, str]] | UnsetType = UNSET
    producer: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    state: str
    retained_until: str | UnsetType = UNSET
    nodes: list[str] | UnsetType = UNSET


class StepOut(Output, kw_only=True):
    """A step in the life of the message ``id``, which may be a copy of the one asked for.

    ``to`` is the id of the copy that was made of it, ``from`` what it is a copy of.
    """

    time: str
    event: str
    id: str
    group: str | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    producer: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    until: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    due: str | UnsetType = UNSET
    to: str | UnsetType = UNSET
    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)


class TraceGapOut(Output, kw_only=True):
    """Between which times steps may be missing, as far as that is known, and why."""

    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)
    to: str | UnsetType = UNSET
    reason: str


class TraceOut(msgspec.Struct):
    """The life of a message, and of its copies in dead letters and back, in the order of time."""

    message: TracedMessageOut
    events: list[StepOut]
    attempts: int
    publish_to_ack_ms: float | None
    incomplete: list[TraceGapOut]
