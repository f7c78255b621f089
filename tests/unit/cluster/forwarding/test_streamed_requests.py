"""Clients' small requests over the streams between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

import msgspec
import pytest

from goq.access.rule import Principal
from goq.cluster.forwarding.streamed_requests import (
    REQUEST,
    StreamedRequests,
    StreamedRequestServer,
)
from goq.cluster.rpc.server import RefusableBody, ResponseBody
from goq.errors import (
    GoqError,
    InvalidFrame,
    InvalidInput,
    NotLeader,
    RouteNotFound,
    TimedOut,
)
from goq.http.message import LOCAL, PRINCIPAL, Item, Request, Response

TEAM = Principal("aaaaaaaa", "team", [])


def find(principal_id: str) -> Principal:
    if principal_id != TEAM.id:
        raise NotLeader("not known here yet")
    return TEAM


class Node:
    """The node that answers, with ``response``; it keeps the requests."""

    def __init__(self, response: Response | None = None, *, asks_for_tokens: bool = True) -> None:
        self.server = StreamedRequestServer()
        self.server.attach(self._handle, find if asks_for_tokens else None)
        self.requests: list[Request] = []
        self.response = response or Response(200, b"{}")

    async def _handle(self, request: Request) -> Response:
        self.requests.append(request)
        return self.response

    async def call(
        self, node: str, path: str, body: bytes, wait_ms: int, *, is_held: bool = False
    ) -> bytes | None:
        assert (node, path) == ("b", REQUEST)
        assert wait_ms > 10_000
        assert not is_held
        return b"".join(await self.server.handlers()[path]("a", body))

    def answer(self) -> ResponseBody:
        asked = msgspec.msgpack.encode(("POST", "/", "", {}, None, "", b""))
        return asyncio.run(self.server.handle_request("a", asked))

    def ask(self, request: Request) -> Response | None:
        return asyncio.run(StreamedRequests(self.call).ask("b", request))


def test_a_request_arrives_as_it_was_sent_but_for_what_concerns_its_connection_alone() -> None:
    headers = {
        "authorization": "Bearer secret",
        "connection": "close",
        "content-type": "application/json",
        "goq-client-id": "me",
    }
    node = Node(Response(201, [b"an", memoryview(b"swer")], "text/plain", {"goq-ready": "1"}))
    path, query = "/v1/topics/t/groups/g/ack", "a=1&b=%20"
    sent = Request("POST", path, query, headers, b"\x00body", "10.0.0.1:5", principal=TEAM)
    answer = node.ask(sent)
    assert answer is not None
    assert (answer.status, answer.body, answer.content_type) == (201, b"answer", "text/plain")
    assert answer.headers == {"goq-ready": "1"}
    (got,) = node.requests
    assert (got.method, got.path, got.query_string) == ("POST", path, query)
    assert (got.body, got.peer, got.principal) == (b"\x00body", "10.0.0.1:5", TEAM)
    assert got.headers == {
        "content-type": "application/json",
        "goq-client-id": "me",
        LOCAL: "true",
        PRINCIPAL: TEAM.id,
    }
    assert got.outlives_eof


def test_a_sender_without_a_token_has_none_there_and_one_of_another_node_must_be_known() -> None:
    node = Node()
    node.ask(Request("POST", "/"))
    assert node.requests[0].principal is None
    assert PRINCIPAL not in node.requests[0].headers
    with pytest.raises(NotLeader, match="not known here yet"):
        node.ask(Request("POST", "/", principal=Principal("bbbbbbbb", "new", [])))
    assert len(node.requests) == 1


def test_a_node_that_asks_for_no_tokens_looks_for_no_principal() -> None:
    node = Node(asks_for_tokens=False)
    node.ask(Request("POST", "/", principal=Principal("bbbbbbbb", "new", [])))
    assert node.requests[0].principal is None


def test_a_refusal_is_an_answer_as_any_other() -> None:
    answer = Node(Response(409, b'{"code":"conflict"}')).ask(Request("POST", "/"))
    assert answer is not None
    assert (answer.status, answer.body) == (409, b'{"code":"conflict"}')


@pytest.mark.parametrize("outcome", [None, RouteNotFound("no such call")])
def test_what_no_stream_carries_or_an_earlier_version_does_not_know_goes_over_http(
    outcome: GoqError | None,
) -> None:
    async def call(*_: Any, **__: Any) -> None:
        if outcome is not None:
            raise outcome

    assert asyncio.run(StreamedRequests(call).ask("b", Request("POST", "/"))) is None


def test_only_an_answer_that_holds_something_can_be_refused() -> None:
    given_back: list[bool] = []
    response = Response(200, bytes(900))
    node = Node(response)
    assert not isinstance(node.answer(), RefusableBody)  # what was done stays done
    response.on_refused = lambda: given_back.append(True)
    answer = node.answer()
    assert isinstance(answer, RefusableBody)
    assert given_back == []
    answer.on_refused()
    assert given_back == [True]


def test_a_refused_answer_is_asked_for_over_http() -> None:
    async def call(*_asked: object, **_options: object) -> bytes | None:
        raise RouteNotFound("the stream does not take this answer")

    assert asyncio.run(StreamedRequests(call).ask("b", Request("POST", "/"))) is None


def test_a_bug_of_the_other_node_leaves_the_outcome_unknown() -> None:
    server = StreamedRequestServer()

    def handle(_request: Request) -> Awaitable[Response]:
        raise ZeroDivisionError

    server.attach(handle, None)
    node = Node()
    node.server = server
    with pytest.raises(TimedOut, match="not known whether"):
        node.ask(Request("POST", "/"))


def test_a_stream_of_a_handler_is_closed_and_refused() -> None:
    closed = []

    async def items() -> AsyncGenerator[Item, None]:
        try:
            yield b"one"
        finally:
            closed.append(True)

    async def main() -> None:
        stream = items()
        await anext(stream)
        node = Node(Response(200, stream))
        with pytest.raises(InvalidInput, match="over HTTP"):
            await StreamedRequests(node.call).ask("b", Request("POST", "/"))

    asyncio.run(main())
    assert closed


def test_a_node_that_starts_did_nothing_and_garbage_is_refused() -> None:
    node = Node()
    node.server = StreamedRequestServer()
    with pytest.raises(NotLeader):
        node.ask(Request("POST", "/"))
    for body in (b"", b"\xc1", msgspec.msgpack.encode(["POST"]), msgspec.msgpack.encode([1] * 7)):
        with pytest.raises(InvalidFrame):
            asyncio.run(node.server.handle_request("a", body))
