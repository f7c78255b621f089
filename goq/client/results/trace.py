"""The trace of a message: its life from publish to ack, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goq.client.results.message import message_fields
from goq.client.results.result import Json, Result, as_object, decode, items_of
from goq.model import Header, MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """The message of a trace, without its value. What is not known of it is None.

    ``state`` is ``live`` or ``archived``; or why the message cannot be read: ``deleted`` by
    retention, ``compacted`` or ``damaged``. Retention by age keeps it until ``retained_until``.
    ``nodes`` have it on their disks now, ``producer`` is the client id that published it.
    """

    id: MessageId
    topic: str
    partition: int
    offset: int
    state: str
    timestamp: datetime | None = None
    key: bytes | None = None
    lane: str | None = None
    size_bytes: int | None = None
    tenant: str | None = None
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    headers: tuple[Header, ...] = ()
    producer: str | None = None
    traceparent: str | None = None
    retained_until: datetime | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One step in the life of the message ``id``: the traced one, or a copy of it.

    ``event`` is a name such as ``PUBLISHED``, ``DELIVERED`` or ``ACKNOWLEDGED`` (docs/trace.md).
    ``copied_to`` is the id of the copy that the step made, ``copied_from`` what ``id`` is a copy
    of. ``until`` is the end of a lease, ``due`` when the message comes again.
    """

    time: datetime
    event: str
    id: str
    group: str | None = None
    consumer: str | None = None
    producer: str | None = None
    node: str | None = None
    durability: str | None = None
    attempt: int | None = None
    until: datetime | None = None
    reason: str | None = None
    lane: str | None = None
    due: datetime | None = None
    copied_to: str | None = None
    copied_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSteps:
    """Between which times steps may be missing, as far as that is known, and why."""

    reason: str
    from_time: datetime | None = None
    to_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace(Result):
    """The life of a message and of its copies, in order, a copy after the step that made it.

    ``attempts`` counts its deliveries. ``publish_to_ack_ms`` is in milliseconds, None while there
    is no ack, and where a clock was set back before it. ``incomplete`` is empty where every step is
    known.
    """

    message: TracedMessage
    events: tuple[TraceEvent, ...]
    attempts: int
    publish_to_ack_ms: float | None
    incomplete: tuple[MissingSteps, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePage(Result):
    """A page of traces. ``next`` goes into ``cursor`` of the next call; None on the last page."""

    traces: tuple[MessageTrace, ...]
    next: str | None = None


def decode_trace(answer: object) -> MessageTrace:
    """Return the trace of a message from an answer."""
    trace = as_object(answer)
    message = as_object(trace.get("message"))
    fields = {
        "message": {**message, **message_fields(message)},
        "events": [_event(event) for event in items_of(answer, "events")],
        "incomplete": [
            {**gap, "from_time": gap.get("from"), "to_time": gap.get("to")}
            for gap in items_of(answer, "incomplete")
        ],
    }
    return decode(MessageTrace, answer, fields)


def decode_trace_page(answer: object) -> TracePage:
    """Return a page of traces from an answer."""
    fields = {"traces": tuple(map(decode_trace, items_of(answer, "traces")))}
    return decode(TracePage, answer, fields)


def _event(event: Json) -> Json:
    return {**event, "copied_to": event.get("to"), "copied_from": event.get("from")}
