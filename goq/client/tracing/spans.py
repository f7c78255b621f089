"""The life of a message as OpenTelemetry spans.

One span lasts from publish to the last step; its parent is the span of the message's traceparent,
if it has one. Each delivery is a child span, from the lease to its end. All other steps are events
of the span that they belong to. Names and attributes follow the semantic conventions for
messaging (https://opentelemetry.io/docs/specs/semconv/messaging/). Every id is derived from
the id of the message: the same steps give the same spans however often they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from goq.client.tracing.trace_context import (
    TRACESTATE,
    TraceParent,
    parse_traceparent,
)
from goq.model import MessageId
from goq.units import parse_time_us

Json = Mapping[str, Any]
Value = str | int | bool

_DELIVERED: Final = "DELIVERED"
_DONE: Final = ("ACKNOWLEDGED", "RETURNED", "RESET", "GROUP_DELETED", "SKIPPED")
_FAILED: Final = ("NACKED", "EXPIRED", "REJECTED", "DROPPED", "DEAD_LETTERED")
_LOST: Final = ("DROPPED", "DEAD_LETTERED", "CORRUPTED")
_NOT_DETAILS: Final = ("time", "event", "id")
_SAMPLED: Final = 1


@dataclass(slots=True)
class SpanEvent:
    """An event in a span; its time is nanoseconds since 1970."""

    name: str
    time_ns: int
    attributes: dict[str, Value]


@dataclass(slots=True)
class Span:
    """A span; times are nanoseconds since 1970, ``error`` says why it failed, else None."""

    name: str
    is_producer: bool
    trace_id: int
    span_id: int
    parent_id: int | None
    flags: int
    trace_state: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: list[SpanEvent] = field(default_factory=list)
    error: str | None = None


def spans_of(trace: Json) -> list[Span]:
    """Return the spans of a trace in its JSON form, the outermost first.

    The list is empty where nothing is known of the message.
    """
    root = _root(trace)
    if root is None:
        return []
    open_ones: dict[tuple[str, str], Span] = {}
    deliveries: list[Span] = []
    for event in trace["events"]:
        time_ns, name = _ns(event["time"]), event["event"]
        place = (event["id"], event.get("group", ""))
        if name == _DELIVERED:
            _close(open_ones.pop(place, None), time_ns)
            open_ones[place] = delivery = _delivery(root, event, time_ns)
            deliveries.append(delivery)
        elif (name in _DONE or name in _FAILED) and place in open_ones:
            delivery = open_ones.pop(place)
            _close(delivery, time_ns)
            delivery.attributes["goq.outcome"] = outcome = name.lower()
            if name in _FAILED:
                delivery.attributes["error.type"] = outcome
                delivery.error = event.get("reason", outcome)
            if "to" in event:
                delivery.attributes["goq.to"] = event["to"]
        elif name != "PUBLISHED" or event["id"] != trace["message"]["id"]:
            owner = open_ones.get(place, root)
            owner.events.append(SpanEvent(name, time_ns, _details(event)))
    for delivery in open_ones.values():
        _close(delivery, root.end_ns)
    return [root, *deliveries]


def _root(trace: Json) -> Span | None:
    message, events = trace["message"], trace["events"]
    times = [_ns(event["time"]) for event in events]
    if "timestamp" in message:
        times.append(_ns(message["timestamp"]))
    if not times:
        return None
    text = str(message.get("traceparent", ""))
    parent = parse_traceparent(text)
    trace_id, parent_id, flags = parent or TraceParent(_id(16, message["id"]), 0, _SAMPLED)
    attributes = message_attributes(message["id"], "publish", "send")
    for name, key in (
        ("messaging.client.id", "producer"),
        ("messaging.message.envelope.size", "size_bytes"),
        ("goq.key", "key"),
        ("goq.lane", "lane"),
        ("goq.tenant", "tenant"),
    ):
        if key in message:
            attributes[name] = message[key]
    if trace.get("incomplete"):
        attributes["goq.incomplete"] = True
    names = {event["event"] for event in events}
    return Span(
        f"publish {message['topic']}",
        True,
        trace_id,
        _id(8, message["id"], "publish"),
        parent_id or None,
        flags,
        _trace_state(message) if parent else "",
        min(times),
        max(times),
        attributes,
        error="it was given up"
        if "ACKNOWLEDGED" not in names and not names.isdisjoint(_LOST)
        else None,
    )


def _delivery(root: Span, event: Json, time_ns: int) -> Span:
    attributes = message_attributes(event["id"], "process", "process")
    attributes["messaging.consumer.group.name"] = group = event.get("group", "")
    if "consumer" in event:
        attributes["messaging.client.id"] = event["consumer"]
    if "attempt" in event:
        attributes["goq.attempt"] = event["attempt"]
    return Span(
        f"process {attributes['messaging.destination.name']}",
        False,
        root.trace_id,
        _id(8, event["id"], group, event["time"]),
        root.span_id,
        root.flags,
        root.trace_state,
        time_ns,
        time_ns,
        attributes,
    )


def _close(span: Span | None, time_ns: int) -> None:
    if span is not None:
        span.end_ns = max(span.start_ns, time_ns)


def message_attributes(message_id: str, name: str, kind: str) -> dict[str, Value]:
    """Return the attributes of a span of one message, for an operation of a name and a kind."""
    parsed = MessageId.parse(message_id)
    return {
        "messaging.system": "goq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": parsed.topic,
        "messaging.destination.partition.id": str(parsed.partition),
        "messaging.message.id": message_id,
        "goq.offset": parsed.offset,
    }


def _details(event: Json) -> dict[str, Value]:
    details = {f"goq.{name}": v for name, v in event.items() if name not in _NOT_DETAILS}
    return {"messaging.message.id": event["id"], **details}


def _trace_state(message: Json) -> str:
    return ",".join(v for n, v in _headers(message) if n.lower() == TRACESTATE)


def _headers(message: Json) -> Iterator[tuple[str, str]]:
    headers = message.get("headers") or {}
    if isinstance(headers, dict):
        yield from headers.items()
        return
    for header in headers:
        if "value" in header:  # else it is no text
            yield header["name"], header["value"]


def _ns(time: str) -> int:
    return parse_time_us(time, now_us=0) * 1000


def _id(size_bytes: int, *parts: str) -> int:
    """Return the hash of texts as a number of so many bytes, never 0."""
    return int.from_bytes(sha256("\n".join(parts).encode()).digest()[:size_bytes], "big") or 1
