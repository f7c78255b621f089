"""Whatever is wrong with a request: a 4xx that names it, nothing stored, the node goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from goq import limits
from tests.support.api.bad_requests.case import GROUP, PUBLISH, Case, message
from tests.support.api.bad_requests.group_cases import GROUPS, RECEIVING, SETTLING
from tests.support.api.bad_requests.publish_cases import BODIES, PUBLISHING
from tests.support.api.bad_requests.topic_cases import READING, ROUTES, TOPICS
from tests.support.node.running_node import RunningNode


@pytest.fixture(scope="module", autouse=True)
def _topic(node: RunningNode) -> Iterator[None]:
    node.call("POST", "/v1/topics", {"name": "bad", "partitions": 2})
    node.call("POST", PUBLISH, {"messages": [{"value": "first", "partition": 0}]})
    node.call("POST", f"{GROUP}/receive", {"max_messages": 1})
    yield
    node.call("DELETE", "/v1/topics/bad")


def end_offsets(node: RunningNode) -> list[int]:
    return [p["end_offset"] for p in node.call("GET", "/v1/topics/bad")["partitions"]]


CASES = {
    f"{table}: {name}": case
    for table, cases in (
        ("body", BODIES),
        ("publish", PUBLISHING),
        ("topics", TOPICS),
        ("read", READING),
        ("receive", RECEIVING),
        ("settle", SETTLING),
        ("groups", GROUPS),
        ("routes", ROUTES),
    )
    for name, case in cases.items()
}
STATUS = {
    "too_large": 413,
    "unsupported_media_type": 415,
    "method_not_allowed": 405,
    "topic_exists": 409,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_bad_request_is_refused_by_name_and_changes_nothing(
    node: RunningNode, case: Case
) -> None:
    before = end_offsets(node)
    answer = node.request(case.method, case.path, case.body, case.headers)
    expected = STATUS.get(case.code, 404 if case.code.endswith("_not_found") else 400)
    assert (answer.status, answer.json["code"]) == (expected, case.code), answer.json
    problem = answer.json
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == answer.status
    assert problem["type"] == f"urn:goq:problem:{case.code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("field", "")[:200] == (case.field or "")
    assert len(answer.body) < 8192
    assert end_offsets(node) == before
    assert "n" not in {t["name"] for t in node.call("GET", "/v1/topics")["topics"]}


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(node: RunningNode) -> None:
    answer = node.request("DELETE", "/v1/topics")
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_a_compressed_body_is_answered_with_the_coding_that_is_accepted(
    node: RunningNode, topic: str
) -> None:
    path, body = f"/v1/topics/{topic}/messages", message(value="x")
    answer = node.request("POST", path, body, {"Content-Encoding": "br"})
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert node.request("POST", path, body, {"Content-Encoding": "identity"}).status == 200
    assert node.request("GET", "/v1/topics", headers={"Content-Encoding": "gzip"}).status == 200


def test_an_unknown_field_is_answered_with_the_known_ones(node: RunningNode) -> None:
    detail = node.request("POST", PUBLISH, message(delya="1s")).json["detail"]
    assert "`delya`" in detail
    assert "value, value_base64, key, key_base64, headers, partition" in detail
    detail = node.request("POST", f"{GROUP}/nack", {"receipt": []}).json["detail"]
    assert "receipts, delay, reason" in detail
    headers = [{"name": "n", "valeu": ""}]
    detail = node.request("POST", PUBLISH, message(value="x", headers=headers)).json["detail"]
    assert "name, value, value_base64" in detail


def test_a_body_shorter_than_its_length_publishes_nothing(node: RunningNode) -> None:
    before = end_offsets(node)
    body = json.dumps({"messages": [{"value": "x"}]}).encode()
    with socket.create_connection(node.address, timeout=60) as raw:
        head = (
            f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert end_offsets(node) == before


def test_a_body_over_the_limit_of_the_node_is_refused_before_it_is_read(node: RunningNode) -> None:
    with socket.create_connection(node.address, timeout=60) as raw:
        head = (
            f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {limits.BODY_BYTES_MAX + 1}\r\n\r\n"
        )
        raw.sendall(head.encode())
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer
