"""Spans of a program that publishes and consumes, as its own OpenTelemetry SDK exports them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node.running_node import RunningNode, running_node

_COMMON = """
import asyncio, json, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import goq

URL = sys.argv[1]
EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
trace.set_tracer_provider(PROVIDER)
TRACER = trace.get_tracer("program")

def publish(client):
    with TRACER.start_as_current_span("order"):
        client.publish_many("t", [b"many", goq.Message(b"message", None, ())])
        with client.producer("t") as producer:
            producer.send(b"sent")
            producer.send_many([b"send_many"])
            producer.send_values([b"send_values"])
    client.publish_many("t", [b"untraced"])

def work(value):
    with TRACER.start_as_current_span("work " + value):
        pass

def report():
    assert not trace.get_current_span().get_span_context().is_valid
    found = []
    for span in EXPORTER.get_finished_spans():
        found.append({
            "name": span.name, "trace": span.context.trace_id, "id": span.context.span_id,
            "parent": span.parent and span.parent.span_id, "kind": span.kind.name,
            "status": span.status.status_code.name, "attributes": dict(span.attributes),
        })
    print(json.dumps(found))
"""
_LOOP = """
with goq.Client(URL) as client:
    publish(client)
    for message in client.consume("t", group="g", max_messages=6):
        work(message.value.decode())
        message.ack()
report()
"""
_ASYNC_LOOP = """
async def main():
    async with goq.AsyncClient(URL) as client:
        async for message in client.consume("t", group="g", max_messages=6):
            work(message.value.decode())
            await message.ack()

with goq.Client(URL) as client:
    publish(client)
asyncio.run(main())
report()
"""
_WORKER = """
app, left = goq.WorkerApp(URL), [6]

def handle(value):
    work(value)
    left[0] -= 1
    if not left[0]:
        app.stop()

@app.worker("t", group="g")
{function}

with goq.Client(URL) as client:
    publish(client)
app.run()
report()
"""
PROGRAMS = {
    "loop": _LOOP,
    "asynchronous loop": _ASYNC_LOOP,
    "worker": _WORKER.format(function="def work_on(value: str):\n    handle(value)"),
    "asynchronous worker": _WORKER.format(
        function="async def work_on(value: str):\n    await asyncio.sleep(0)\n    handle(value)"
    ),
}
TRACED = ("many", "message", "sent", "send_many", "send_values")


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        yield running


def spans_of(node: RunningNode, program: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "error", "-c", _COMMON + program, node.url]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Failed to detach" not in done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("kind", PROGRAMS)
def test_one_trace_goes_from_the_publisher_through_the_message_to_the_handler(
    node: RunningNode, kind: str
) -> None:
    spans = spans_of(node, PROGRAMS[kind])
    by_name = {span["name"]: span for span in spans}
    order = by_name["order"]
    processed = {span["id"]: span for span in spans if span["name"] == "process t"}
    assert len(processed) == 6
    for value in TRACED:
        work = by_name[f"work {value}"]
        process = processed[work["parent"]]
        assert process["parent"] == order["id"]
        assert process["trace"] == work["trace"] == order["trace"]
        assert process["kind"] == "CONSUMER"
        assert process["attributes"]["messaging.consumer.group.name"] == "g"
        assert process["attributes"]["messaging.message.id"].startswith("t:0:")
        assert process["attributes"]["goq.attempt"] == 1
    untraced = processed[by_name["work untraced"]["parent"]]
    assert untraced["parent"] is None
    assert untraced["trace"] != order["trace"]


def test_a_loop_without_spans_opens_none_and_a_loop_that_is_left_closes_its_own(
    node: RunningNode,
) -> None:
    program = """
with goq.Client(URL) as client:
    publish(client)
    for message in client.consume("t", group="g", open_spans=False):
        assert not trace.get_current_span().get_span_context().is_valid
        break
    for message in client.consume("t", group="h"):
        assert trace.get_current_span().get_span_context().is_valid
        break
report()
"""
    names = [span["name"] for span in spans_of(node, program)]
    assert names == ["order", "process t"]


def test_an_asynchronous_loop_that_is_left_closes_its_span_at_once(node: RunningNode) -> None:
    program = """
async def main():
    async with goq.AsyncClient(URL) as client:
        async for message in client.consume("t", group="g"):
            break
        assert not trace.get_current_span().get_span_context().is_valid
        await client.publish("t", b"later")
        await asyncio.sleep(0)
        [*_, later] = [message async for message in client.read_log("t")]
        assert not later.headers, later.headers

with goq.Client(URL) as client:
    publish(client)
asyncio.run(main())
report()
"""
    assert [span["name"] for span in spans_of(node, program)] == ["order", "process t"]


def test_loops_that_take_turns_leave_no_span_behind(node: RunningNode) -> None:
    program = """
with goq.Client(URL) as client:
    publish(client)
    with TRACER.start_as_current_span("around") as around:
        one, other = (client.consume("t", group=group) for group in "gh")
        for loop in (one, other, one, other, other, one):
            next(loop)
        one.close()
        assert trace.get_current_span().is_recording()
        other.close()
        assert trace.get_current_span() is around
report()
"""
    names = [span["name"] for span in spans_of(node, program)]
    assert names == ["order", *["process t"] * 6, "around"]


def test_a_handler_that_fails_makes_its_span_failed(node: RunningNode) -> None:
    program = """
app = goq.WorkerApp(URL)

@app.worker("t", group="g", reject_on=ValueError)
def work_on(value: str):
    app.stop()
    raise ValueError("no such order")

with goq.Client(URL) as client:
    client.publish("t", b"x")
app.run()
report()
"""
    (span,) = spans_of(node, program)
    assert (span["name"], span["status"]) == ("process t", "ERROR")
