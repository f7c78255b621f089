"""What the client asks of traces, and what it tells of spans."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.client import Client
from goq.client.messages import LogMessage
from goq.client.tracing.trace_context import (
    TraceParent,
    parse_traceparent,
    traceparent_of,
    tracestate_of,
    with_current_span,
)
from goq.errors import InvalidInput, MessageNotFound
from goq.model import Message
from tests.support.client.trace_server import EXPIRED_ONCE, trace_server

ID = "orders:2:45678"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_trace_is_what_the_node_tells() -> None:
    with trace_server(EXPIRED_ONCE) as server, Client(server.url, retries=0) as client:
        trace = client.get_trace(ID)
        assert trace.raw == EXPIRED_ONCE
        assert [event.event for event in trace.events][:2] == ["PUBLISHED", "DELIVERED"]
        assert (str(trace.message.id), trace.attempts) == (ID, EXPIRED_ONCE["attempts"])
        assert client.get_trace(ID, wait_ms=90_000, seen=2) == trace
        with pytest.raises(MessageNotFound, match="has 40000 to 45677"):
            client.get_trace("orders:2:0")
        asked = [query for _, query in server.requests]
        assert asked == [{}, {"wait": f"{limits.WAIT_MS_MAX}ms", "seen": "2"}, {}]


def test_a_search_names_what_it_looks_for_as_the_node_takes_it() -> None:
    with trace_server(EXPIRED_ONCE) as server, Client(server.url) as client:
        found = client.search_traces("orders", key=b"\xff\x00", from_time="-1h", cursor="c")
        assert [trace.raw for trace in found.traces] == [EXPIRED_ONCE]
        assert found.next is None
        client.search_traces("orders", header=("a", "b=c"), limit=3, to_time=1_700_000_000_000)
        client.search_traces("orders", dedup_id="d")
        assert [query for _, query in server.requests] == [
            {"key_base64": "/wA=", "from_time": "-1h", "limit": "10", "cursor": "c"},
            {"header": "a=b=c", "to_time": "1700000000000", "limit": "3"},
            {"dedup_id": "d", "limit": "10"},
        ]
        for wanted in ({}, {"key": "k", "dedup_id": "d"}):
            with pytest.raises(InvalidInput):
                client.search_traces("orders", **wanted)


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        (PARENT, TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1)),
        (PARENT.replace("00-4", "01-4") + "-what-a-later-version-adds", ...),
        (PARENT[:-2] + "00", ...),
        ("", None),
        ("nonsense", None),
        (PARENT.upper(), None),
        (PARENT + "-more", None),
        (PARENT + "\n", None),
        (f" {PARENT}", None),
        ("ff" + PARENT[2:], None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None),
        (PARENT.replace("4bf", "\uff14bf"), None),
    ],
)
def test_a_traceparent_is_what_w3c_says_or_nothing(text: str, parent: Any) -> None:
    found = parse_traceparent(text)
    assert (found is not None) if parent is ... else (found == parent)


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"))
def test_any_text_at_all_is_a_traceparent_that_can_be_written_again_or_none(text: str) -> None:
    found = parse_traceparent(text)
    if found is not None:
        again = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.flags:02x}"
        assert text[2:].startswith(again[2:])


@pytest.mark.parametrize("value", [b"nonsense", b"\xff\xfe", b"", PARENT.encode()])
def test_a_message_tells_its_traceparent_whatever_that_is(value: bytes) -> None:
    headers = [("Traceparent", value), ("traceparent", b"second"), ("tracestate", b"a=1")]
    headers += [("TraceState", b"b=2")]
    assert traceparent_of(headers) == value.decode(errors="replace")
    assert tracestate_of(headers) == "a=1,b=2"
    found = LogMessage("t", 0, 0, 0, b"", None, headers)
    assert found.traceparent == value.decode(errors="replace")
    assert LogMessage("t", 0, 0, 0, b"", None, ()).traceparent is None
    assert tracestate_of(()) is None


@pytest.fixture
def no_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("no_opentelemetry")
def test_a_program_without_opentelemetry_pays_nothing_and_imports_nothing() -> None:
    message = Message(b"v", headers=(("a", b"b"),))
    assert with_current_span(message) is message
    assert not any(name.startswith("opentelemetry") for name in sys.modules)


@pytest.mark.usefixtures("no_opentelemetry")
def test_opentelemetry_that_is_just_being_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    message = Message(b"v")
    assert with_current_span(message) is message


def test_a_message_carries_the_span_that_is_active() -> None:
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        TraceState,
        use_span,
    )

    plain = Message(b"v", headers=(("a", b"b"), ("tracestate", b"stale=1")))
    assert with_current_span(plain) is plain
    state = TraceState([("vendor", "x")])
    trace_id, span_id = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
    context = SpanContext(trace_id, span_id, True, TraceFlags(1), state)
    with use_span(NonRecordingSpan(context)):
        traced = with_current_span(plain)
        assert list(traced.headers) == [
            ("a", b"b"),
            ("traceparent", PARENT.encode()),
            ("tracestate", b"vendor=x"),
        ]
        own = Message(b"v", headers=(("TraceParent", b"mine"),))
        assert with_current_span(own) is own
        full = Message(
            b"v", headers=[(f"h{n}", b"") for n in range(limits.HEADERS_PER_MESSAGE_MAX)]
        )
        assert with_current_span(full) is full
