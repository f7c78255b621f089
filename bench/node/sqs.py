"""Rows of the SQS-compatible endpoint, beside goq's own JSON: send, receive and delete of one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode, free_port

BODY = "x" * 1000
QUEUE = "orders"
_WARM = 200
Ask = Callable[[str, dict[str, Any]], Any]


def _trips(place: Place) -> tuple[float, float]:
    """Return the node's CPU time of a message, in µs: by the endpoint, and by goq's own JSON."""
    port = free_port()
    with GoqNode(place.folder / "sqs", "--sqs-listen", f"127.0.0.1:{port}") as node:
        sqs = http.client.HTTPConnection("127.0.0.1", port)
        own = http.client.HTTPConnection("127.0.0.1", node.port)

        def ask_sqs(operation: str, body: dict[str, Any]) -> Any:
            target = {"X-Amz-Target": f"AmazonSQS.{operation}"}
            return _ask(sqs, "/", body, target)

        def ask_own(path: str, body: dict[str, Any]) -> Any:
            json_type = {"Content-Type": "application/json"}
            return _ask(own, f"/v1/topics/{QUEUE}/{path}", body, json_type)

        ask_sqs("CreateQueue", {"QueueName": QUEUE})
        count = place.scaled(4000, 400)
        figures = (
            _cpu_us(node, count, lambda: _sqs_trip(ask_sqs)),
            _cpu_us(node, count, lambda: _own_trip(ask_own)),
        )
        sqs.close()
        own.close()
        return figures


def _cpu_us(node: GoqNode, count: int, trip: Callable[[], None]) -> float:
    for _ in range(_WARM):
        trip()
    began_s = node.cpu_s()
    for _ in range(count):
        trip()
    return (node.cpu_s() - began_s) / count * 1e6


def _sqs_trip(ask: Ask) -> None:
    queue = {"QueueUrl": QUEUE}
    ask("SendMessage", {**queue, "MessageBody": BODY})
    (message,) = ask("ReceiveMessage", queue)["Messages"]
    ask("DeleteMessage", {**queue, "ReceiptHandle": message["ReceiptHandle"]})


def _own_trip(ask: Ask) -> None:
    ask("messages", {"messages": [{"value": BODY}]})
    (message,) = ask("groups/sqs/receive", {})["messages"]
    ask("groups/sqs/ack", {"receipts": [message["receipt"]]})


def _ask(
    connection: http.client.HTTPConnection, path: str, body: object, headers: dict[str, str]
) -> Any:
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    if response.status >= 300:
        raise RuntimeError(content)
    return json.loads(content) if content else None


_TEXT = "send, receive and delete of one message, CPU of the node"
WORKS = [
    Work(
        [
            Row("sqs", f"SQS: {_TEXT}", "µs", 1.3, "sqs-own", at_most=True),
            Row("sqs-own", f"goq's JSON: {_TEXT}", "µs", at_most=True),
        ],
        _trips,
    )
]
