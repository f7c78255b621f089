"""Requests of the JSON protocol that are wrong, and clients that leave."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from goq.http.server import HttpServer
from tests.support.client.sqs_client import json_request, raw_request
from tests.support.eventually import eventually
from tests.support.node.ports import free_port
from tests.support.node.running_node import RunningNode, running_node


def test_an_answer_without_messages_has_no_list_of_them(url: str, queue: str) -> None:
    answer = json_request(url, "ReceiveMessage", {"QueueUrl": queue})
    assert answer.json == {}
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-requestid"]


def test_an_error_has_the_type_of_today_and_the_code_of_earlier_sdks(url: str) -> None:
    answer = json_request(url, "GetQueueUrl", {"QueueName": "none"})
    assert answer.status == 400
    assert answer.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    header = answer.headers["x-amzn-query-error"]
    assert header == "AWS.SimpleQueueService.NonExistentQueue;Sender"


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        ("Nothing", b"{}", "InvalidAction"),
        ("", b"{}", "InvalidAction"),
        ("SendMessage", b"{", "SerializationException"),
        ("SendMessage", b"[]", "InvalidParameterValue"),
        ("SendMessage", b'"x"', "InvalidParameterValue"),
        ("SendMessage", b"\xff", "SerializationException"),
        ("SendMessage", b"[" * 100_000, "InvalidParameterValue"),
        ("SendMessage", b'{"QueueUrl": 5}', "InvalidParameterValue"),
        ("SendMessage", b"{}", "MissingParameter"),
        ("SendMessage", b'{"QueueUrl": "/"}', "AWS.SimpleQueueService.NonExistentQueue"),
        ("SendMessage", b'{"QueueUrl": "a/../b?c"}', "AWS.SimpleQueueService.NonExistentQueue"),
        ("ListQueues", b'{"MaxResults": 0}', "InvalidParameterValue"),
        ("ListQueues", b'{"MaxResults": 1001}', "InvalidParameterValue"),
    ],
)
def test_a_wrong_request_gets_an_error_of_the_protocol(
    url: str, operation: str, body: bytes, code: str
) -> None:
    answer = json_request(url, operation, body)
    assert (answer.status, answer.code) == (400, code)


def test_a_request_that_is_no_post_gets_an_error_of_the_protocol(url: str) -> None:
    answer = raw_request(url, b"", {}, method="GET")
    assert (answer.status, answer.code) == (400, "InvalidAction")


def test_a_page_of_another_site_and_another_host_are_refused(url: str) -> None:
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert raw_request(url, b"{}", {**target, **header}).status == 421
    assert raw_request(url, b"{}", target).status == 200


def test_a_long_poll_ends_when_its_client_leaves_and_takes_nothing(
    node: RunningNode, sqs: Any, queue: str
) -> None:
    url = urlsplit(node.node.sqs_url or "")
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    def waits() -> int:
        under_way = node.on_loop(node.node.requests_under_way)
        return sum("POST /" in each for each in under_way)

    with socket.create_connection((url.hostname, url.port), 30) as client:
        client.sendall(head.encode() + body)
        eventually(lambda: waits() == 1)
    eventually(lambda: waits() == 0)
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    message = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"])["Messages"][0]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_long_poll_gets_a_message_as_soon_as_it_is_sent(
    node: RunningNode, sqs: Any, queue: str
) -> None:
    url = urlsplit(node.node.sqs_url or "")
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.hostname, url.port), 30) as client:
        client.sendall(head.encode() + body)
        eventually(lambda: bool(node.on_loop(node.node.requests_under_way)))
        started_s = time.monotonic()
        sqs.send_message(QueueUrl=queue, MessageBody="early")
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert b"early" in answer
    assert time.monotonic() - started_s < 15


def test_a_node_that_is_ready_answers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, start = [], HttpServer.start

    async def note(server: HttpServer, host: str, port: int, *args: Any) -> None:
        begun.append(port)
        await start(server, host, port, *args)

    monkeypatch.setattr(HttpServer, "start", note)
    port = free_port()
    with running_node(sqs={"listen": f"127.0.0.1:{port}"}):
        assert begun[0] == port, "/readyz is on the other listener, which comes last"
