"""OpenTelemetry spans of a node: one for each request that carries a ``traceparent``.

A node sends spans if the extra ``goq[otel]`` is installed and OpenTelemetry's own variables name a
receiver of OTLP over HTTP; another node imports nothing of it and looks at no request. A span lasts
from the request to its answer, with the wait of a long poll. Its parent is the span of the
``traceparent``, and it is the parent itself where the node has another one answer. Names and
attributes follow the semantic conventions for HTTP servers and for messaging.

Spans leave in a thread. They are dropped, 2,048 at a time, when the receiver takes none: no request
ever waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from goq import __version__
from goq.http.message import Handler, Request, Response

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

TRACEPARENT: Final = "traceparent"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CLOSED_S_MAX: Final = 2.0
_OPERATIONS: Final = {
    "messages": ("publish", "send"),
    "receive": ("receive", "receive"),
    "stream": ("receive", "receive"),
    **{verb: (verb, "settle") for verb in ("ack", "nack", "reject", "extend")},
}
"""By the last part of the path of a POST, the name and the type of a messaging operation."""
_log: Final = logging.getLogger("goq.node")


class RequestSpans:
    """Makes spans of requests, and sends them until it is closed."""

    def __init__(self, provider: TracerProvider, node_id: str) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._node_id = node_id
        self._tracer = provider.get_tracer("goq", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def traced(self, handler: Handler) -> Handler:
        """Return a handler that makes a span of each request with a ``traceparent``."""

        def handle(request: Request) -> Response | Awaitable[Response]:
            if TRACEPARENT not in request.headers:
                return handler(request)
            span = self._begin(request)
            if span is None:
                return handler(request)
            try:
                answer = handler(request)
            except BaseException as error:
                self._end(span, request, error)
                raise
            if isinstance(answer, Response):
                self._end(span, request, answer)
                return answer
            return self._answered(span, request, answer)

        return handle

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSED_S_MAX)

    def _begin(self, request: Request) -> Span | None:
        """Return the span of a request; None below a malformed parent or one that is not sampled.

        The request then carries the span, for the node that it may be sent on to.
        """
        context = self._propagator.extract(request.headers)
        if not self._trace.get_current_span(context).get_span_context().is_valid:
            return None
        span = self._tracer.start_span(
            request.method,
            context,
            self._trace.SpanKind.SERVER,
            {"http.request.method": request.method, "url.path": request.path},
        )
        if not span.is_recording():
            return None
        request.headers = dict(request.headers)  # others may share them
        self._propagator.inject(request.headers, self._trace.set_span_in_context(span))
        return span

    async def _answered(
        self, span: Span, request: Request, answer: Awaitable[Response]
    ) -> Response:
        try:
            response = await answer
        except BaseException as error:
            self._end(span, request, error)
            raise
        self._end(span, request, response)
        return response

    def _end(self, span: Span, request: Request, outcome: Response | BaseException) -> None:
        if request.route:
            span.update_name(f"{request.method} {request.route}")
            span.set_attribute("http.route", request.route)
        span.set_attributes({"goq.node": self._node_id, **_messaging(request)})
        if isinstance(outcome, Response):
            span.set_attribute("http.response.status_code", outcome.status)
            if outcome.status >= 500:
                span.set_attribute("error.type", str(outcome.status))
                span.set_status(self._trace.StatusCode.ERROR)
        else:
            span.set_attribute("error.type", type(outcome).__name__)
            span.set_status(self._trace.StatusCode.ERROR, "the client went away")
        span.end()


def open_spans(environment: Mapping[str, str], node_id: str) -> RequestSpans | None:
    """Return the spans of a node if its environment names a receiver for them, else None.

    ``OTEL_SDK_DISABLED=true`` and ``OTEL_TRACES_EXPORTER=none`` count, too. Without the extra a
    line in the log says what is missing.
    """
    if (
        not any(environment.get(name) for name in _ENDPOINTS)
        or environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("this node sends no spans; install OpenTelemetry: pip install 'goq[otel]'")
        return None
    named = Resource({"service.name": "goq", "service.version": __version__})
    named = named.merge(Resource({"service.instance.id": node_id})).merge(
        OTELResourceDetector().detect()
    )
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return RequestSpans(provider, node_id)


def _messaging(request: Request) -> dict[str, str]:
    """Return the attributes of a request for a topic."""
    parts = request.path.split("/")
    if parts[1:3] != ["v1", "topics"] or len(parts) < 4:
        return {}
    found = {"messaging.system": "goq", "messaging.destination.name": parts[3]}
    if parts[4:5] == ["groups"] and len(parts) > 5:
        found["messaging.consumer.group.name"] = parts[5]
    if request.method == "POST" and (operation := _OPERATIONS.get(parts[-1])):
        found["messaging.operation.name"], found["messaging.operation.type"] = operation
    return found
