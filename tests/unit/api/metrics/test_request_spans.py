"""Spans of requests, as an exporter in memory gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goq.api.metrics.request_spans import RequestSpans, open_spans
from goq.http.message import Request, Response

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT = f"00-{TRACE:032x}-00f067aa0ba902b7-01"


class Node:
    """A handler that answers with ``status``, at once or later, and what its spans say."""

    def __init__(self, status: int = 200) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.handle = RequestSpans(provider, "n1").traced(self._answer)
        self.status = status
        self.is_later = False
        self.seen: list[Request] = []

    def _answer(self, request: Request) -> Response | Awaitable[Response]:
        self.seen.append(request)
        request.route = "/v1/topics/{topic}/groups/{group}/ack"
        return self._later() if self.is_later else Response(self.status, b"")

    async def _later(self) -> Response:
        await asyncio.sleep(0)
        if not self.status:
            raise asyncio.CancelledError
        return Response(self.status, b"")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


def ack(traceparent: str | None) -> Request:
    headers = {} if traceparent is None else {"traceparent": traceparent, "tracestate": "a=1"}
    return Request("POST", "/v1/topics/orders/groups/billing/ack", headers=headers)


def test_a_request_that_carries_a_parent_has_a_span_that_says_what_it_was() -> None:
    node = Node()
    assert isinstance(node.handle(ack(PARENT)), Response)
    (span,) = node.spans
    assert span.name == "POST /v1/topics/{topic}/groups/{group}/ack"
    assert span.parent is not None
    assert span.parent.span_id == 0x00F067AA0BA902B7
    assert span.context.trace_id == TRACE
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/topics/orders/groups/billing/ack",
        "http.route": "/v1/topics/{topic}/groups/{group}/ack",
        "http.response.status_code": 200,
        "goq.node": "n1",
        "messaging.system": "goq",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
    }


def test_the_node_that_it_is_sent_on_to_gets_the_span_as_its_parent() -> None:
    node, shared = Node(), ack(PARENT)
    headers = shared.headers
    node.handle(shared)
    (span,) = node.spans
    sent = node.seen[0].headers
    assert sent["traceparent"] == f"00-{TRACE:032x}-{span.context.span_id:016x}-01"
    assert sent["tracestate"] == "a=1"
    assert headers["traceparent"] == PARENT


@pytest.mark.parametrize("parent", [None, "nonsense", PARENT[:-2] + "00"])
def test_a_request_without_a_sampled_parent_has_none_and_is_passed_on_as_it_is(
    parent: str | None,
) -> None:
    node, request = Node(), ack(parent)
    headers = request.headers
    node.handle(request)
    assert node.spans == []
    assert node.seen[0].headers is headers


@pytest.mark.parametrize(("status", "error"), [(503, "503"), (0, "CancelledError"), (404, None)])
def test_a_failure_of_the_node_or_a_client_that_went_makes_the_span_failed(
    status: int, error: str | None
) -> None:
    node = Node(status)
    node.is_later = True
    answer = node.handle(ack(PARENT))
    assert not isinstance(answer, Response)

    async def ask() -> None:
        with suppress(asyncio.CancelledError):
            await answer

    asyncio.run(ask())
    (span,) = node.spans
    assert (span.attributes or {}).get("error.type") == error
    assert span.status.is_ok is False if error else span.status.is_unset


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_a_node_without_a_receiver_makes_no_spans(environment: dict[str, str]) -> None:
    assert open_spans(environment, "n1") is None
