"""JSON bodies of the trace of a message."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from goq.api.schemas.base import Output
from goq.api.values import DateTime, Index


class TracedMessageOut(Output, kw_only=True):
    """The traced message without its value; unknown fields are left out.

    ``state`` is ``live``, ``archived``, or why it cannot be read: ``deleted`` by retention,
    ``compacted`` away, or ``damaged``. Retention by age does not delete it before
    ``retained_until``. ``nodes`` are the cluster nodes that have it on disk now.
    """

    id: str
    topic: str
    partition: Index
    offset: Index
    timestamp: DateTime | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    size_bytes: Index | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    deliver_at: DateTime | UnsetType = UNSET
    expires_at: DateTime | UnsetType = UNSET
    headers: dict[str, str] | list[dict[str, str]] | UnsetType = UNSET
    producer: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    state: str
    retained_until: DateTime | UnsetType = UNSET
    nodes: list[str] | UnsetType = UNSET


class StepOut(Output, kw_only=True):
    """A step in the life of message ``id``, which may be a copy of the traced one.

    ``to`` is the id of the copy that was made, ``from`` the id of the original.
    """

    time: DateTime
    event: str
    id: str
    group: str | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    producer: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    attempt: Index | UnsetType = UNSET
    until: DateTime | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    due: DateTime | UnsetType = UNSET
    to: str | UnsetType = UNSET
    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)


class TraceGapOut(Output, kw_only=True):
    """A time range in which steps may be missing, as far as it is known, and the reason."""

    from_: DateTime | UnsetType = msgspec.field(name="from", default=UNSET)
    to: DateTime | UnsetType = UNSET
    reason: str


_STEPS_SCHEMA = {"type": "array", "items": {"$ref": "#/components/schemas/StepOut"}}
"""Steps are encoded one by one: there may be 10,000 groups."""


class TraceOut(msgspec.Struct):
    """The life of a message and of its copies in dead-letter topics and back, in order."""

    message: TracedMessageOut
    events: Annotated[msgspec.Raw, Meta(extra_json_schema=_STEPS_SCHEMA)]
    attempts: Index
    publish_to_ack_ms: float | None
    incomplete: list[TraceGapOut]
