"""Requests that a web page of another site could make through its reader's browser."""

from __future__ import annotations

import re

import pytest

from tests.support.node.running_node import RunningNode, running_node

EVIL = "evil.example"


def routes(node: RunningNode) -> list[tuple[str, str]]:
    """Return every route, with values for what its path names, and paths without a route."""
    assert node.node.app is not None
    named = [
        (route.method, re.sub(r"\{\w+\}", "1", route.path.replace("{topic}", "orders")))
        for route in node.node.app.router.routes
    ]
    return [*named, ("GET", "/"), ("GET", "/nowhere"), ("OPTIONS", "/v1/topics")]


def state(node: RunningNode) -> object:
    return node.call("GET", "/v1/topics"), node.call(
        "GET", "/v1/topics/orders/messages?partition=0"
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": EVIL},
        {"Host": f"{EVIL}:8080", "Origin": f"http://{EVIL}:8080"},
        {"Host": f"{EVIL}:8080", "X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"},
        {"Origin": f"http://{EVIL}"},
        {"Origin": "null"},
    ],
)
def test_no_route_answers_a_page_of_another_site(
    node: RunningNode, headers: dict[str, str]
) -> None:
    node.request("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    node.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": "card 4111"}]})
    before = state(node)
    for method, path in routes(node):
        answer = node.request(method, path, {"name": "forged", "messages": []}, headers)
        assert answer.status == 421, (method, path)
        if method != "HEAD":
            assert answer.json["code"] == "host_not_allowed"
            assert b"4111" not in answer.body
    assert state(node) == before


def test_a_page_of_the_node_itself_is_answered(node: RunningNode) -> None:
    host, port = node.address
    for name in (host, "localhost"):
        headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
        assert node.request("GET", "/v1/topics", None, headers).status == 200


def test_a_connection_that_was_allowed_once_is_checked_again(node: RunningNode) -> None:
    for _ in range(3):
        assert node.request("GET", "/v1/topics", None, {"Host": "localhost"}).status == 200
        assert node.request("GET", "/v1/topics", None, {"Host": EVIL}).status == 421


def test_further_names_are_allowed_by_a_setting() -> None:
    with running_node(security={"hosts": ["goq.example.com", "*.b.example"]}) as node:
        for name, status in {
            "goq.example.com": 200,
            "GOQ.example.com:443": 200,
            "a.b.example": 200,
            "b.example": 421,
            EVIL: 421,
        }.items():
            assert node.request("GET", "/v1/topics", None, {"Host": name}).status == status
