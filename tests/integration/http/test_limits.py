from __future__ import annotations

import asyncio

import pytest

from goq.http.context import HttpLimits
from goq.http.message import Request, Response
from tests.support.api.http_harness import Served, chunked, describe, echo, get, post, serving
from tests.support.eventually import until


async def status_of(served: Served, data: bytes) -> int:
    peer = await served.connect()
    peer.send(data)
    answer = await peer.answer()
    if answer.status >= 400:
        assert answer.headers["connection"] == "close"
        assert await peer.rest() == b""
    peer.leave()
    return answer.status


def test_the_request_target_is_bounded(run):
    async def scenario():
        async with serving(describe, HttpLimits(target_bytes_max=20)) as served:
            assert await status_of(served, get("/" + "a" * 19)) == 200
            assert await status_of(served, get("/" + "a" * 20)) == 414

    run(scenario)


def test_the_number_of_headers_is_bounded(run):
    async def scenario():
        async with serving(describe, HttpLimits(headers_max=5)) as served:
            assert await status_of(served, get("/", *["X: y"] * 4)) == 200
            assert await status_of(served, get("/", *["X: y"] * 5)) == 431

    run(scenario)


def test_the_bytes_of_headers_are_bounded(run):
    limits = HttpLimits(headers_bytes_max=12 + 100)  # "Host: test" and the other

    async def scenario():
        async with serving(describe, limits) as served:
            assert await status_of(served, get("/", "X: " + "y" * 95)) == 200
            assert await status_of(served, get("/", "X: " + "y" * 96)) == 431

    run(scenario)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\nX",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
    ],
)
def test_a_line_that_never_ends_is_refused_before_it_is_whole(run, start):
    async def scenario():
        async with serving(describe, HttpLimits(headers_bytes_max=1000)) as served:
            assert await status_of(served, start + b"y" * 50_000) == 431

    run(scenario)


def test_trailers_count_as_headers_and_are_dropped(run):
    body = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    seen: list[Request] = []

    def handler(request: Request) -> Response:
        seen.append(request)
        return Response(200)

    async def scenario():
        async with serving(handler, HttpLimits(headers_max=4)) as served:
            assert await status_of(served, body + b"X: y\r\n" * 2 + b"\r\n") == 200
            assert await status_of(served, body + b"X: y\r\n" * 3 + b"\r\n") == 431
        assert [request.headers.get("x") for request in seen] == [None]

    run(scenario)


def test_an_announced_body_over_the_limit_is_refused_before_it_comes(run):
    async def scenario():
        async with serving(describe, HttpLimits(body_bytes_max=1000)) as served:
            assert await status_of(served, post(b"x" * 1000)) == 200
            assert await status_of(served, post(b"x" * 1001)) == 413
            head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n"
            assert await status_of(served, head) == 413

    run(scenario)


def test_a_client_that_sends_a_refused_body_to_its_end_still_reads_the_answer(run):
    async def scenario():
        async with serving(describe, HttpLimits(body_bytes_max=1000)) as served:
            peer = await served.connect()
            peer.send(post(bytes(3_000_000)))
            await peer.writer.drain()
            assert (await peer.answer()).status == 413

    run(scenario)


def test_a_chunked_body_is_refused_as_it_grows_over_the_limit(run):
    async def scenario():
        async with serving(describe, HttpLimits(body_bytes_max=1000)) as served:
            assert await status_of(served, chunked(b"x" * 500, b"x" * 500)) == 200
            unfinished = chunked(b"x" * 500, b"x" * 501)[: -len("0\r\n\r\n")]
            assert await status_of(served, unfinished) == 413

    run(scenario)


def test_a_body_of_many_tiny_chunks_arrives_whole(run):
    body = bytes(range(256)) * 20

    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            peer.send(chunked(b"z" * 2000, *[bytes([byte]) for byte in body], b"y" * 2000))
            assert (await peer.answer()).body == b"z" * 2000 + body + b"y" * 2000

    run(scenario)


def test_the_connection_over_the_limit_is_told_to_come_again(run):
    async def scenario():
        async with serving(describe, HttpLimits(connections_max=2)) as served:
            admitted = [await served.connect() for _ in range(2)]
            for peer in admitted:
                peer.send(get())
                assert (await peer.answer()).status == 200
            assert served.server.connection_count == 2
            refused = await served.connect()
            answer = await refused.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.headers["connection"] == "close"
            assert await refused.rest() == b""
            assert served.server.connection_count == 2
            admitted[0].leave()
            await until(lambda: served.server.connection_count == 1)
            assert await status_of(served, get()) == 200

    run(scenario)


def test_bodies_held_by_all_connections_share_one_bound(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(request: Request) -> Response:
            await go.wait()
            return Response(200)

        async with serving(handler, HttpLimits(bodies_in_flight_bytes_max=1000)) as served:
            first = await served.connect()
            first.send(post(b"x" * 600))
            await until(lambda: served.server.bodies_in_flight_bytes == 600)
            refused = await served.connect()
            refused.send(post(b"x" * 401))
            answer = await refused.answer()
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            growing = await served.connect()
            growing.send(chunked(b"x" * 300, b"x" * 101))
            assert (await growing.answer()).status == 429
            assert served.server.bodies_in_flight_bytes == 600
            fits = await served.connect()
            fits.send(post(b"x" * 400))
            await until(lambda: served.server.bodies_in_flight_bytes == 1000)
            go.set()
            for peer in (first, fits):
                assert (await peer.answer()).status == 200
            assert served.server.bodies_in_flight_bytes == 0

    run(scenario)


def test_a_body_left_unfinished_by_its_client_is_let_go(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(post(b"x" * 600)[:-1])
            await until(lambda: served.server.bodies_in_flight_bytes == 599)
            peer.leave()
            await until(lambda: served.server.bodies_in_flight_bytes == 0)

    run(scenario)
