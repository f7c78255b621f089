"""The OpenTelemetry span of a consumer around the handling of one message.

The span is active meanwhile, so what the handler publishes or calls belongs to it. Its parent is
the span in the message's ``traceparent``; without one, the span that is active already. Names and
attributes follow the semantic conventions for messaging, as those of :mod:`.spans` do.

Spans of loops that take turns do not end in the reverse of their order, and a loop may be closed by
another thread or task. So no token is given back, which would restore a span that has ended, or
fail: what is active after the end of a span is the innermost of those around it that still last.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, cast

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
    from opentelemetry.trace import Span

_SCOPE: Final = "goq-process-span"


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


class SpanScope:
    """An active span, until its end."""

    def __init__(self, span: Span) -> None:
        from opentelemetry import context, trace

        self.has_ended = False
        self.outer = _lasting(context.get_current())
        self._span = span
        active = trace.set_span_in_context(span, self.outer)
        context.attach(context.set_value(_SCOPE, self, active))

    def end(self) -> None:
        """End the span. It is no longer active, if it is here."""
        from opentelemetry import context, trace

        if self.has_ended:
            return
        self.has_ended = True
        self.outer = _lasting(self.outer)
        if trace.get_current_span() is self._span:
            context.attach(self.outer)
        self._span.end()


def _lasting(active: Context) -> Context:
    """Return this context, or the innermost around it whose span has not ended."""
    from opentelemetry import context

    scope = cast("SpanScope | None", context.get_value(_SCOPE, active))
    while scope is not None and scope.has_ended:
        active = scope.outer
        scope = cast("SpanScope | None", context.get_value(_SCOPE, active))
    return active


@contextmanager
def process_span(message: HandledMessage) -> Generator[None]:
    """Open the span of a message's handling; an exception makes it failed."""
    with process_scope(message):
        yield


@contextmanager
def process_scope(message: HandledMessage) -> Generator[SpanScope]:
    """Open the same span, which may also be ended from outside."""
    from opentelemetry import trace

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
    scope = SpanScope(span)
    try:
        yield scope
    except Exception as error:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        raise
    finally:
        scope.end()


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
