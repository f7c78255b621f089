"""The OpenTelemetry span of a consumer around the handling of one message.

The span is active meanwhile, so what the handler publishes or calls belongs to it. Its parent is
the span in the message's ``traceparent``; without one, the span that is active already. Names and
attributes follow the semantic conventions for messaging, as those of :mod:`.spans` do.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from goq import __version__
from goq.client.tracing.trace_context import (
    OPENTELEMETRY,
    parse_traceparent,
    traceparent_of,
    tracestate_of,
)
from goq.model import Header, MessageId

if TYPE_CHECKING:
    from opentelemetry.context import Context


class HandledMessage(Protocol):
    """A received message, with what its span tells."""

    @property
    def id(self) -> MessageId:
        """The id of the message."""
        ...

    @property
    def headers(self) -> Sequence[Header]:
        """The headers of the message."""
        ...

    @property
    def group(self) -> str:
        """The group that it is leased to."""
        ...

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        ...


def is_traced() -> bool:
    """Return whether the program uses OpenTelemetry: it imported it."""
    return OPENTELEMETRY in sys.modules


@contextmanager
def process_span(message: HandledMessage) -> Generator[None]:
    """Open the span of a message's handling; an exception makes it failed."""
    from opentelemetry import context, trace

    from goq.client.tracing.spans import message_attributes

    attributes = message_attributes(str(message.id), "process", "process")
    attributes["messaging.consumer.group.name"] = message.group
    attributes["goq.attempt"] = message.attempt
    span = trace.get_tracer("goq", __version__).start_span(
        f"process {message.id.topic}",
        context=_parent(message.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    )
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    except Exception as error:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        raise
    finally:
        if trace.get_current_span() is span:  # a loop may be closed by another thread or task
            context.detach(token)
        span.end()


def _parent(headers: Sequence[Header]) -> Context | None:
    """Return a context with the publisher's span, None without a sound ``traceparent``."""
    from opentelemetry import trace

    parent = parse_traceparent(traceparent_of(headers) or "")
    if parent is None:
        return None
    state = trace.TraceState.from_header([tracestate_of(headers) or ""])
    flags = trace.TraceFlags(parent.flags)
    found = trace.SpanContext(parent.trace_id, parent.span_id, True, flags, state)
    return trace.set_span_in_context(trace.NonRecordingSpan(found))
