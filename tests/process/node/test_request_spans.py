"""A node that sends spans of its requests to a receiver of OTLP, each in a process of its own."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from goq.client import Client
from tests.support.node.node_process import NodeProcess
from tests.support.paths import REPOSITORY

RECEIVER = REPOSITORY / "tests" / "support" / "client" / "otlp_receiver.py"
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def test_what_is_done_below_a_span_has_a_span_of_the_node(tmp_path: Path) -> None:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    context = SpanContext(TRACE, 0x00F067AA0BA902B7, True, TraceFlags(1))
    with subprocess.Popen(
        [sys.executable, str(RECEIVER)], stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout is not None
        url = f"http://127.0.0.1:{receiver.stdout.readline().strip()}"
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with NodeProcess(tmp_path / "data", environment=environment) as node:
            with Client(node.url) as client:
                client.create_topic("orders", partitions=1)
                client.publish("orders", b"without a span")
                with use_span(NonRecordingSpan(context)):
                    client.publish("orders", b"with one")
                    first, _ = client.receive("orders", group="billing", max_messages=2)
                    first.ack()
            assert node.stop() == 0  # sends what is left
        receiver.kill()
        spans = {one["name"]: one for one in map(json.loads, receiver.stdout)}
    base = "POST /v1/topics/{topic}"
    group = f"{base}/groups/{{group}}"
    assert set(spans) == {f"{base}/messages", f"{group}/receive", f"{group}/ack"}
    for span in spans.values():
        assert span["kind"] == "SPAN_KIND_SERVER"
        assert _texts(span)["messaging.destination.name"] == "orders"
        assert span["parentSpanId"] != ""
    resource = _texts(spans[f"{group}/ack"]["resource"])
    assert resource["service.name"] == "goq"


def test_a_receiver_that_is_away_delays_neither_answers_nor_the_stop(tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    parent = f"00-{TRACE:032x}-00f067aa0ba902b7-01"
    with NodeProcess(tmp_path / "data", environment=environment) as node:
        connection = http.client.HTTPConnection(*node.address)
        for _ in range(3):
            connection.request("GET", "/v1/topics", headers={"traceparent": parent})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        connection.close()
        assert node.stop() == 0


def _texts(span: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: one["value"].get("stringValue", "") for one in span["attributes"]}
