"""Calls between nodes: whoever lacks the secret, or says again what was said, gets nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from threading import get_ident
from typing import Any

import pytest

from goq import limits
from goq.cluster.rpc.auth import CallId, CallSigner, ReplayWindow
from goq.cluster.rpc.client import NodeConnections, RpcClient
from goq.cluster.rpc.server import (
    BOOT_HEADER,
    DIGEST_HEADER,
    NUMBER_HEADER,
    PROOF_HEADER,
    RpcResponse,
    RpcServer,
)
from goq.errors import InvalidInput, NotAllowed, NotLeader, TimedOut, Unavailable
from goq.http.message import Request, Response
from goq.http.server import HttpServer
from tests.support.broker.harness import run

SECRET = b"a secret of more than sixteen bytes"
MARK = CallId("n1", "boot", "session", 1)


class _Node:
    """A node that answers calls over HTTP, and what it has heard."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []
        self.rpc_server = RpcServer(secret, {"/cluster/echo": self._echo, "/cluster/no": self._no})
        self.alter: Callable[[RpcResponse], RpcResponse] = lambda answered: answered

    async def _echo(self, node: str, body: bytes) -> list[bytes | memoryview]:
        self.heard.append((node, body))
        return [b"<", memoryview(body), b">"]

    async def _no(self, _node: str, _body: bytes) -> list[bytes | memoryview]:
        raise NotLeader("another does")

    async def handle(self, request: Request) -> Response:
        self.requests.append((request.path, dict(request.headers), request.body))
        answered = await self.rpc_server.handle(request.path, request.headers, request.body)
        answered = self.alter(answered)
        return Response(answered.status, list(answered.body), None, answered.headers)


def _client(secret: bytes = SECRET, disk: str = "") -> RpcClient:
    return RpcClient("n1", secret, NodeConnections(limits.RPC_CONNECTIONS_MAX), disk)


def _with_node(test: Callable[[_Node, str], Awaitable[None]], secret: bytes = SECRET) -> None:
    async def main() -> None:
        node = _Node(secret)
        server = HttpServer(node.handle, lambda error, _headers: Response(error.http_status))
        await server.start("127.0.0.1", 0)
        try:
            await test(node, f"http://127.0.0.1:{server.addresses[0][1]}")
        finally:
            await server.drain(1000)

    run(main())


def test_a_call_is_answered_and_so_is_every_further_one() -> None:
    async def test(node: _Node, url: str) -> None:
        client = _client()
        for number in range(3):
            body = b"%d" % number
            assert await client.call(url, "/cluster/echo", body, 5) == b"<" + body + b">"
        assert node.heard == [("n1", b"0"), ("n1", b"1"), ("n1", b"2")]
        await client.close()

    _with_node(test)


def test_many_calls_at_once_are_each_answered() -> None:
    async def test(_node: _Node, url: str) -> None:
        client = _client()
        calls = [client.call(url, "/cluster/echo", b"%d" % n, 5) for n in range(50)]
        assert await asyncio.gather(*calls) == [b"<%d>" % n for n in range(50)]
        await client.close()

    _with_node(test)


def test_the_digest_of_a_large_answer_is_no_work_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def noted(*data: bytes) -> object:
        threads.append(get_ident())
        return sha256(*data)

    monkeypatch.setattr("goq.cluster.rpc.auth.sha256", noted)

    async def test(_node: _Node, url: str) -> None:
        client, body = _client(), bytes(limits.RPC_DIGEST_INLINE_BYTES_MAX - 2)
        await client.call(url, "/cluster/echo", body, 5)
        assert set(threads) == {get_ident()}
        threads.clear()
        assert await client.call(url, "/cluster/echo", body + b"x", 5) == b"<" + body + b"x>"
        assert len(threads) == 2  # of each side one
        assert get_ident() not in threads
        await client.close()

    _with_node(test)


def test_an_error_keeps_its_kind() -> None:
    async def test(_node: _Node, url: str) -> None:
        client = _client()
        with pytest.raises(NotLeader, match="another does"):
            await client.call(url, "/cluster/no", b"", 5)
        await client.close()

    _with_node(test)


def test_a_node_with_another_secret_is_refused_and_does_nothing() -> None:
    async def test(node: _Node, url: str) -> None:
        client = _client(b"some other secret of the same kind")
        with pytest.raises(NotAllowed):
            await client.call(url, "/cluster/echo", b"x", 5)
        assert not node.heard
        await client.close()

    _with_node(test)


def test_nobody_there_is_unavailable() -> None:
    async def main() -> None:
        client = _client()
        with pytest.raises(Unavailable):
            await client.call("http://127.0.0.1:1", "/cluster/echo", b"x", 5)
        await client.close()

    run(main())


def test_a_node_that_is_stopping_is_unavailable_and_not_taken_for_a_stranger() -> None:
    async def test(node: _Node, url: str) -> None:
        node.alter = lambda _answered: RpcResponse(503, [b"draining"], {})
        client = _client()
        with pytest.raises(Unavailable, match="503"):
            await client.call(url, "/cluster/echo", b"x", 5)
        await client.close()

    _with_node(test)


def test_a_node_that_starts_anew_between_two_attempts_is_unavailable() -> None:
    async def test(node: _Node, url: str) -> None:
        def started_anew(answered: RpcResponse) -> RpcResponse:
            node.rpc_server = RpcServer(SECRET, {})
            return answered

        node.alter = started_anew
        client = _client()
        with pytest.raises(Unavailable, match="ask again"):
            await client.call(url, "/cluster/echo", b"x", 5)
        assert not node.heard
        await client.close()

    _with_node(test)


@pytest.mark.parametrize("alter", ["body", "status", "proof"])
def test_an_answer_that_was_changed_on_the_way_is_not_believed(alter: str) -> None:
    def changed(answered: RpcResponse) -> RpcResponse:
        if PROOF_HEADER not in answered.headers:
            return answered
        if alter == "body":
            return answered._replace(body=[b"<y>"])
        if alter == "status":
            return answered._replace(status=503)
        return answered._replace(headers={PROOF_HEADER: "0" * 64})

    async def test(node: _Node, url: str) -> None:
        node.alter = changed
        client = _client()
        with pytest.raises(NotAllowed):
            await client.call(url, "/cluster/echo", b"x", 5)
        await client.close()

    _with_node(test)


def test_a_call_heard_on_the_way_cannot_be_made_again() -> None:
    async def test(node: _Node, url: str) -> None:
        client = _client()
        await client.call(url, "/cluster/echo", b"x", 5)
        await client.close()
        for path, headers, body in list(node.requests):
            again = await node.rpc_server.handle(path, headers, body)
            assert again.status == NotAllowed.http_status
        other = _Node()  # as after a new start
        for path, headers, body in node.requests:
            again = await other.rpc_server.handle(path, headers, body)
            assert again.status == NotAllowed.http_status
        assert len(node.heard) == 1
        assert not other.heard

    _with_node(test)


@pytest.mark.parametrize("part", ["path", "body_digest", *CallId._fields])
def test_every_part_of_a_call_is_proven(part: str) -> None:
    signer = CallSigner(SECRET)
    parts: dict[str, Any] = {"call": MARK, "path": "/p", "body_digest": b"b"}
    proof = signer.sign_head(**parts)
    if part in CallId._fields:
        value: Any = 2 if part == "number" else "other"
        parts["call"] = MARK._replace(**{part: value})
    else:
        parts[part] = type(parts[part])() + parts[part] * 2
    with pytest.raises(NotAllowed):
        signer.verify(signer.sign_head(**parts), proof)


def test_a_proof_of_a_call_is_none_of_an_answer() -> None:
    signer = CallSigner(SECRET)
    assert signer.sign_head(MARK, "200", b"") != signer.sign_response(MARK, 200, b"")


def test_parts_cannot_be_shifted_into_each_other() -> None:
    signer = CallSigner(SECRET)
    one = signer.sign_head(MARK._replace(node="ab", boot="c"), "/p", b"")
    assert one != signer.sign_head(MARK._replace(node="a", boot="bc"), "/p", b"")


def test_numbers_may_come_in_any_order_but_each_once_and_none_too_late() -> None:
    window = ReplayWindow()
    for number in (5, 3, 4, 9000):
        window.accept(number)
    for number in (5, 3, 9000, 9000 - 4096):
        with pytest.raises(NotAllowed):
            window.accept(number)
    window.accept(9000 - 4095)
    for number in range(10_000, 40_000):
        window.accept(number)
    assert len(window._recent) <= 2 * 4096 + 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {NUMBER_HEADER: "x"},
        {NUMBER_HEADER: "-1"},
        {NUMBER_HEADER: "1" * 30},
        {NUMBER_HEADER: "1", PROOF_HEADER: "\udcff"},
        {NUMBER_HEADER: "1"},
    ],
)
def test_garbage_learns_the_boot_alone(headers: dict[str, str]) -> None:
    async def main() -> None:
        node = _Node()
        answered = await node.rpc_server.handle("/cluster/echo", headers, b"\0" * 100)
        assert answered.status in (400, 403)
        assert answered.headers == {BOOT_HEADER: node.rpc_server.boot}
        assert not node.heard

    run(main())


def test_a_node_with_another_disk_is_not_listened_to_but_where_anybody_is() -> None:
    async def test(node: _Node, url: str) -> None:
        node.rpc_server = RpcServer(
            SECRET,
            {"/cluster/echo": node._echo, "/cluster/members": node._echo},
            open_calls=frozenset({"/cluster/members"}),
            is_known_disk=lambda name, disk: (name, disk) == ("n1", "d1"),
        )
        wiped, known = _client(disk="d2"), _client(disk="d1")
        with pytest.raises(NotAllowed, match="another disk"):
            await wiped.call(url, "/cluster/echo", b"x", 5.0)
        assert node.heard == []
        assert await wiped.call(url, "/cluster/members", b"x", 5.0) == b"<x>"
        assert await known.call(url, "/cluster/echo", b"x", 5.0) == b"<x>"
        await wiped.close()
        await known.close()

    _with_node(test)


def test_the_disk_of_a_caller_is_proven() -> None:
    signer = CallSigner(SECRET)
    mark = CallId("n1", "boot", "session", 1, "d1")
    assert signer.sign_head(mark, "/x", b"") != signer.sign_head(
        mark._replace(disk="d2"), "/x", b""
    )


def test_a_call_is_in_doubt_once_the_other_node_may_have_read_it() -> None:
    async def take_and_break(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(take_and_break, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = _client()
        with pytest.raises(TimedOut):
            await client.call(url, "/cluster/echo", b"", 5)
        server.close()
        await server.wait_closed()
        with pytest.raises(Unavailable) as refused:
            await client.call(url, "/cluster/echo", b"", 5)
        assert refused.value.code == "unavailable"
        await client.close()

    run(main())


@pytest.mark.parametrize(("status", "code"), [(404, "unavailable"), (503, "timed_out")])
def test_a_call_that_a_stopping_node_answers_without_a_proof_is_in_doubt(
    status: int, code: str
) -> None:
    async def test(node: _Node, url: str) -> None:
        node.alter = lambda _answered: RpcResponse(status, [b""], {})
        client = _client()
        with pytest.raises(Unavailable) as raised:
            await client.call(url, "/cluster/echo", b"", 5)
        assert raised.value.code == code
        await client.close()

    _with_node(test)


def test_the_head_of_a_call_proves_its_sender() -> None:
    client, server = _client(), RpcServer(SECRET, {})
    headers = client.signed_headers("http://n2", "/internal/x", b"body")
    server.check_head("/internal/x", headers)
    server.check_head("/internal/x", headers)  # which counts as no call
    stranger = _client(b"another secret of sixteen bytes").signed_headers("", "/internal/x", b"")
    for what, wrong in (
        ("/internal/y", headers),
        ("/internal/x", {**headers, DIGEST_HEADER: "0" * 64}),
        ("/internal/x", {**headers, DIGEST_HEADER: "no"}),
        ("/internal/x", {n: v for n, v in headers.items() if n != DIGEST_HEADER}),
        ("/internal/x", stranger),
        ("/internal/x", {}),
    ):
        with pytest.raises((NotAllowed, InvalidInput)):
            server.check_head(what, wrong)
    del headers[DIGEST_HEADER]  # as nodes of an earlier version send it
    RpcServer(SECRET, {}, has_head_proofs=lambda: False).check_head("/internal/x", headers)
