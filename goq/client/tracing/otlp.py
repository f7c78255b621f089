"""The export of spans to a receiver of OTLP over HTTP. Needs the extra ``goq[otel]``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from goq import __version__
from goq.client.results.trace import MessageTrace
from goq.client.tracing.spans import Span, spans_of
from goq.errors import InvalidInput, Unavailable, UsageError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

_TRACES_PATH: Final = "/v1/traces"
_TIMEOUT_S: Final = 5.0


class ExportedTrace(NamedTuple):
    """The spans that were sent for one message."""

    id: str
    trace_id: str
    spans: int


def export(traces: Sequence[MessageTrace], url: str) -> list[ExportedTrace]:
    """Send the spans of traces to a receiver; return what was sent.

    ``url`` without a path is taken to have the usual one, ``/v1/traces``. Raises ``Unavailable``
    if the receiver refuses them or does not answer, ``UsageError`` if the extra is not installed.
    """
    endpoint = endpoint_of(url)
    found = [(trace, spans_of(trace.raw)) for trace in traces]
    if everything := [span for _, spans in found for span in spans]:
        _send(everything, endpoint)
    return [
        ExportedTrace(
            str(trace.message.id), f"{spans[0].trace_id:032x}" if spans else "", len(spans)
        )
        for trace, spans in found
    ]


def endpoint_of(url: str) -> str:
    """Return the URL to send spans to. Raises ``InvalidInput`` for one that is not of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidInput(
            f"{url[:200]!r} is not the URL of a receiver; one reads http://127.0.0.1:4318",
            field="--otlp",
        )
    return url.rstrip("/") + _TRACES_PATH if parts.path in ("", "/") else url


def _send(spans: Sequence[Span], endpoint: str) -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        raise UsageError(
            "sending spans needs OpenTelemetry; install it with: pip install 'goq[otel]'"
        ) from None
    said = _Said()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(said)
    logger.propagate, before = False, logger.propagate
    try:
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        result = exporter.export([_readable(span) for span in spans])
        exporter.shutdown()  # type: ignore[no-untyped-call]
    finally:
        logger.propagate = before
        logger.removeHandler(said)
    if result is not SpanExportResult.SUCCESS:
        raise Unavailable(
            f"{endpoint} did not take the spans ({said.last or 'no reason given'}); does a receiver"
            " of OTLP over HTTP run there?"
        )


class _Said(logging.Handler):
    """Keeps the last log record of the exporter: it reports why it failed only there."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's text."""
        self.last = record.getMessage()


def _readable(span: Span) -> ReadableSpan:
    """Return a span as the exporter takes it."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
    from opentelemetry.trace.status import Status, StatusCode

    def context(span_id: int) -> SpanContext:
        state = TraceState.from_header([span.trace_state]) if span.trace_state else None
        return SpanContext(span.trace_id, span_id, True, TraceFlags(span.flags), state)

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id),
        parent=None if span.parent_id is None else context(span.parent_id),
        resource=_resource(),
        attributes=span.attributes,
        events=[Event(e.name, e.attributes, e.time_ns) for e in span.events],
        kind=SpanKind.PRODUCER if span.is_producer else SpanKind.CONSUMER,
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("goq", __version__),
    )


def _resource() -> Resource:
    """Return what the spans are of: goq, or the service that OTEL_SERVICE_NAME names."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    named = Resource({"service.name": "goq", "service.version": __version__})
    return named.merge(OTELResourceDetector().detect())
