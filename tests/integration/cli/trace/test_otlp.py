"""The life of a message as spans, sent to a receiver of its own process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from goq.client.tracing.otlp import endpoint_of
from goq.client.tracing.spans import spans_of
from goq.errors import InvalidInput
from tests.support.cli.command import Run
from tests.support.client.trace_server import (
    BACK,
    DEAD,
    EXPIRED_ONCE,
    GONE,
    THERE_AND_BACK,
    message,
    step,
    trace,
    trace_server,
)
from tests.support.paths import REPOSITORY

ID = "orders:2:45678"
RECEIVER = REPOSITORY / "tests" / "support" / "client" / "otlp_receiver.py"
PARENT_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
BASE_NS = 1_736_937_000_000_000_000  # 2025-01-15T10:30:00Z


class Receiver:
    """A running receiver, and what it got."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self.url = f"http://127.0.0.1:{self._lines.readline().strip()}"

    def spans(self, count: int) -> list[dict[str, Any]]:
        return [json.loads(self._lines.readline()) for _ in range(count)]


@contextmanager
def receiver(status: int = 200) -> Iterator[Receiver]:
    command = [sys.executable, str(RECEIVER), str(status)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Receiver(process)
        finally:
            process.kill()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    found = {}
    for attribute in span.get("attributes", ()):
        [(kind, value)] = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


def test_a_life_arrives_as_spans(goq: Run) -> None:
    with trace_server(EXPIRED_ONCE) as server, receiver() as collector:
        done = goq("trace", ID, "--otlp", collector.url, GOQ_SERVER=server.url)
        assert done.stderr == b""
        header, row = done.stdout.decode().splitlines()
        root, first, second = collector.spans(3)
        assert header.split("\t") == ["id", "trace_id", "spans"]
        assert row.split("\t")[::2] == [ID, "3"]
    assert {span["path"] for span in (root, first, second)} == {"/v1/traces"}
    assert len({span["traceId"] for span in (root, first, second)}) == 1
    assert (root["name"], root["kind"]) == ("publish orders", "SPAN_KIND_PRODUCER")
    assert "parentSpanId" not in root
    assert int(root["startTimeUnixNano"]) == BASE_NS
    assert int(root["endTimeUnixNano"]) == BASE_NS + 36_012_003_000
    assert root["status"] == {}
    assert attributes(root) == {
        "messaging.system": "goq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "2",
        "messaging.message.id": ID,
        "messaging.message.envelope.size": 1234,
        "goq.offset": 45678,
        "goq.key": "order-123",
        "goq.lane": "normal",
    }
    for span in (first, second):
        assert (span["name"], span["kind"]) == ("process orders", "SPAN_KIND_CONSUMER")
        assert span["parentSpanId"] == root["spanId"]
        assert attributes(span)["messaging.consumer.group.name"] == "processors"
    assert int(first["startTimeUnixNano"]) == BASE_NS + 123_870_000
    assert int(first["endTimeUnixNano"]) == BASE_NS + 30_456_021_000
    assert first["status"] == {"message": "visibility_timeout", "code": "STATUS_CODE_ERROR"}
    assert attributes(first)["error.type"] == attributes(first)["goq.outcome"] == "expired"
    assert attributes(first)["messaging.client.id"] == "processor-1"
    assert second["status"] == {}
    assert attributes(second)["goq.outcome"] == "acknowledged"
    assert attributes(second)["goq.attempt"] == 2


def test_a_life_belongs_to_the_span_that_published_the_message(goq: Run) -> None:
    with trace_server(THERE_AND_BACK) as server, receiver() as collector:
        search = ("trace", "orders", "--key", "k", "--otlp", f"{collector.url}/v1/traces")
        told = json.loads(goq(*search, "--json", GOQ_SERVER=server.url).stdout)
        spans = collector.spans(4)
    root, nacked, acked, redriven = spans
    assert told == {"exported": [{"id": ID, "trace_id": PARENT_TRACE, "spans": 4}]}
    assert {hexed(span["traceId"]) for span in spans} == {PARENT_TRACE}
    assert hexed(root["parentSpanId"]) == "00f067aa0ba902b7"
    assert {span["parentSpanId"] for span in spans[1:]} == {root["spanId"]}
    assert root["status"] == {}  # in the end it was acknowledged
    assert [event["name"] for event in root["events"]] == [
        "SCHEDULED",
        "RESCHEDULED",
        "MATURED",
        "DEAD_LETTERED",
        "PUBLISHED",
        "REDRIVEN",
        "PUBLISHED",
    ]
    [dead] = [event for event in root["events"] if event["name"] == "DEAD_LETTERED"]
    assert int(dead["timeUnixNano"]) == BASE_NS + 72_000_000_000
    assert attributes(dead)["goq.to"] == DEAD
    assert nacked["status"]["message"] == 'no "stock"'
    assert attributes(acked)["messaging.consumer.group.name"] == "audit-log"
    assert attributes(redriven)["messaging.message.id"] == BACK


def hexed(base64_text: str) -> str:
    return base64.b64decode(base64_text).hex()


def test_the_same_life_gives_the_same_spans() -> None:
    for told in (EXPIRED_ONCE, THERE_AND_BACK, GONE):
        assert spans_of(told) == spans_of(json.loads(json.dumps(told)))
    ids = [span.span_id for told in (EXPIRED_ONCE, THERE_AND_BACK) for span in spans_of(told)]
    assert len(set(ids)) == len(ids) - 1  # the root of both is of the same message


def test_a_malformed_traceparent_makes_a_trace_of_its_own() -> None:
    told = trace(EXPIRED_ONCE["events"], message(traceparent="00-nonsense", headers=[]))
    [root, *_] = spans_of(told)
    assert (root.parent_id, root.trace_id) == (None, spans_of(EXPIRED_ONCE)[0].trace_id)


def test_a_message_that_was_given_up_has_failed() -> None:
    events = THERE_AND_BACK["events"][:7] + THERE_AND_BACK["events"][8:10]
    root, billing, audit = spans_of(trace(events))
    assert root.error == "it was given up"
    assert (billing.error, audit.error) == ('no "stock"', None)
    assert audit.end_ns == root.end_ns  # still with its consumer


def test_a_delivery_whose_end_is_not_known_ends_with_the_next_one() -> None:
    events = [event for event in EXPIRED_ONCE["events"] if event["event"] != "EXPIRED"]
    told = trace(events, incomplete=[{"reason": "events are damaged"}])
    root, first, second = spans_of(told)
    assert root.attributes["goq.incomplete"] is True
    assert (first.end_ns, first.error) == (second.start_ns, None)


def test_an_extension_is_an_event_of_its_delivery() -> None:
    extended = step("10:30:10.000000", "EXTENDED", group="processors", until="…")
    events = EXPIRED_ONCE["events"]
    _, first, _ = spans_of(trace([*events[:2], extended, *events[2:]]))
    assert [event.name for event in first.events] == ["EXTENDED"]


def test_of_a_message_that_nothing_is_known_of_there_are_no_spans() -> None:
    told = trace([], {name: v for name, v in message().items() if name != "timestamp"})
    assert spans_of(told) == []


def test_the_state_of_the_trace_is_kept() -> None:
    parent = f"00-{PARENT_TRACE}-00f067aa0ba902b7-00"
    for headers in (
        {"traceparent": parent, "tracestate": "a=1"},
        [{"name": "x", "value_base64": "/w=="}, {"name": "tracestate", "value": "a=1"}],
    ):
        told = trace(EXPIRED_ONCE["events"], message(traceparent=parent, headers=headers))
        assert {(s.trace_state, s.flags) for s in spans_of(told)} == {("a=1", 0)}


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector/custom/path", "http://collector/custom/path"),
    ],
)
def test_a_url_without_a_path_has_the_usual_one(url: str, endpoint: str) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize("url", ["", "collector:4318", "file:///etc/passwd", "http://"])
def test_what_is_no_url_of_a_receiver_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="URL of a receiver"):
        endpoint_of(url)


def test_a_receiver_that_takes_nothing_is_one_clear_line(goq: Run) -> None:
    with trace_server(EXPIRED_ONCE) as server, receiver(400) as collector:
        done = goq("trace", ID, "--otlp", collector.url, code=5, GOQ_SERVER=server.url)
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(f"goq: {collector.url}/v1/traces did not take the spans (")
    assert done.stdout == b""


def test_without_the_extra_it_says_what_to_install(goq: Run, tmp_path: Path) -> None:
    missing = tmp_path / "opentelemetry"
    missing.mkdir()
    (missing / "__init__.py").write_text("raise ImportError('not installed')\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with trace_server(EXPIRED_ONCE) as server:
        command = ("trace", ID, "--otlp", "http://127.0.0.1:1")
        done = goq(*command, code=2, GOQ_SERVER=server.url, PYTHONPATH=path)
    assert done.stderr.decode().splitlines() == [
        "goq: sending spans needs OpenTelemetry; install it with: pip install 'goq[otel]'"
    ]
