from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from goq.errors import NotFound, Unavailable
from goq.http.message import Request, Response
from goq.http.server import HttpServer
from tests.support.api.http_harness import describe, echo, get, post, serving


def test_a_request_reaches_the_handler_whole_and_its_answer_the_client(run):
    seen: list[Request] = []

    def handler(request: Request) -> Response:
        seen.append(request)
        return Response(201, b"made", "text/plain", {"Location": "/x"})

    async def scenario():
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"body", "X-One: a", "x-one: b", "Name: \xe9", path="/a%20b?x=1&y="))
            answer = await peer.answer()
            assert (answer.status, answer.body) == (201, b"made")
            assert answer.headers == {
                "content-type": "text/plain",
                "location": "/x",
                "content-length": "4",
            }
            port = peer.writer.get_extra_info("sockname")[1]
        (request,) = seen
        assert (request.method, request.path, request.body) == ("POST", "/a b", b"body")
        assert request.query == {"x": "1", "y": ""}
        assert request.headers["x-one"] == "a, b"
        assert request.headers["host"] == "test"
        assert request.headers["name"] == "\xc3\xa9"
        assert request.peer == f"127.0.0.1:{port}"

    run(scenario)


def test_an_awaitable_is_awaited(run):
    async def coroutine(request: Request) -> Response:
        await asyncio.sleep(0)
        return echo(request)

    def future(request: Request) -> asyncio.Future[Response]:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        answer.get_loop().call_soon(answer.set_result, echo(request))
        return answer

    async def scenario():
        for handler in (coroutine, future):
            async with serving(handler) as served:
                peer = await served.connect()
                for body in (b"one", b"two"):
                    peer.send(post(body))
                    assert (await peer.answer()).body == body
                assert served.server.requests_total == 2

    run(scenario)


def test_http_11_keeps_the_connection_unless_told_to_close(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            for _ in range(3):
                peer.send(get())
                assert "connection" not in (await peer.answer()).headers
            peer.send(get("/", "Connection: close"))
            assert (await peer.answer()).headers["connection"] == "close"
            assert await peer.rest() == b""

    run(scenario)


def test_http_10_closes_the_connection_unless_told_to_keep_it(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await peer.answer()).headers["connection"] == "keep-alive"
            peer.send(b"GET / HTTP/1.0\r\n\r\n")
            assert (await peer.answer()).headers["connection"] == "close"
            assert await peer.rest() == b""

    run(scenario)


def test_head_is_answered_with_the_length_and_without_the_body(run):
    async def stream() -> AsyncIterator[bytes]:
        yield b"never sent"

    def handler(request: Request) -> Response:
        return Response(200, stream()) if request.path == "/stream" else Response(200, b"12345")

    async def scenario():
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await peer.answer(head_only=True)).headers["content-length"] == "5"
            peer.send(b"HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await peer.answer(head_only=True)).headers["transfer-encoding"] == "chunked"
            peer.send(get())
            assert (await peer.answer()).body == b"12345"

    run(scenario)


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_body_has_neither_length_nor_body(run, status):
    async def scenario():
        async with serving(lambda request: Response(status)) as served:
            peer = await served.connect()
            peer.send(get() + get())
            for _ in range(2):
                answer = await peer.answer()
                assert (answer.status, answer.headers) == (status, {})

    run(scenario)


def test_a_body_of_parts_is_sent_in_order(run):
    big = bytes(300_000)
    parts = [b"one", memoryview(b"two"), bytearray(b""), big, b"end"]

    async def scenario():
        async with serving(lambda request: Response(200, parts)) as served:
            peer = await served.connect()
            peer.send(get())
            assert (await peer.answer()).body == b"onetwo" + big + b"end"

    run(scenario)


def test_an_error_of_goq_becomes_its_answer_and_the_connection_goes_on(run):
    def handler(request: Request) -> Response:
        if request.path == "/busy":
            raise Unavailable("later", retry_after_ms=1500)
        raise NotFound("no such thing")

    async def late(request: Request) -> Response:
        return handler(request)

    async def scenario():
        for either in (handler, late):
            async with serving(either) as served:
                peer = await served.connect()
                peer.send(get())
                answer = await peer.answer()
                assert (answer.status, answer.body) == (404, b"not_found: no such thing")
                peer.send(get("/busy"))
                answer = await peer.answer()
                assert (answer.status, answer.headers["retry-after"]) == (503, "2")

    run(scenario)


def test_any_other_error_is_logged_and_answered_as_internal(run, caplog):
    def handler(request: Request) -> Response:
        raise RuntimeError("secret")

    async def late(request: Request) -> Response:
        return handler(request)

    async def cancelled(request: Request) -> Response:
        raise asyncio.CancelledError

    def nothing(request: Request) -> Response:
        return None

    async def later_nothing(request: Request) -> Response:
        return None

    async def scenario():
        for wrong in (handler, late, cancelled, nothing, later_nothing):
            caplog.clear()
            async with serving(wrong) as served:
                peer = await served.connect()
                for _ in range(2):
                    peer.send(get("/p"))
                    answer = await peer.answer()
                    assert answer.status == 500
                    assert b"secret" not in answer.body
                (record, _) = [each for each in caplog.records if each.exc_info]
                assert record.name == "goq.http"
                assert "GET /p" in record.getMessage()
                assert record.exc_info

    run(scenario)


@pytest.mark.parametrize(
    "response",
    [
        Response(200, headers={"X": "a\r\nSet-Cookie: b"}),
        Response(200, headers={"X": "a\nb"}),
        Response(200, headers={"X": "a\0b"}),
        Response(200, headers={"X\r\nY": "b"}),
        Response(200, headers={"X Y": "b"}),
        Response(200, headers={"": "b"}),
        Response(200, headers={"X": "\u20ac"}),
        Response(200, headers={"Content-Length": "7"}),
        Response(200, headers={"transfer-encoding": "chunked"}),
        Response(200, headers={"Connection": "close"}),
        Response(200, content_type="text/plain\r\nX: y"),
        Response(101),
        Response(600),
        Response(200, "text"),
        Response(200, None),
    ],
)
def test_an_answer_that_cannot_be_sent_as_given_becomes_an_internal_error(run, caplog, response):
    async def scenario():
        async with serving(lambda request: response) as served:
            peer = await served.connect()
            for _ in range(2):
                peer.send(get())
                answer = await peer.answer()
                assert (answer.status, answer.body[:8]) == (500, b"internal")
                assert set(answer.headers) == {"content-type", "content-length", "goq-request-id"}

    run(scenario)
    assert {record.name for record in caplog.records} == {"goq.http"}


def test_an_error_in_the_making_of_errors_still_gives_an_answer(run, caplog):
    def broken(error, headers):
        raise RuntimeError("also broken")

    def unsendable(error, headers):
        return Response(500, headers={"X": "\n"})

    def handler(request):
        raise NotFound("x")

    async def scenario():
        for on_error in (broken, unsendable):
            server = HttpServer(handler, on_error)
            await server.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.addresses[0])
            writer.write(get("/", "Connection: close"))
            assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
            writer.close()
            await writer.wait_closed()
            await server.drain(1000)

    run(scenario)
    assert caplog.records


def test_a_port_that_is_taken_is_an_os_error(run):
    async def scenario():
        async with serving(describe) as served:
            with pytest.raises(OSError, match="address"):
                await HttpServer(describe, describe).start(*served.server.addresses[0])

    run(scenario)
