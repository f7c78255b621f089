from __future__ import annotations

import asyncio

from goq.http.context import HttpLimits
from goq.http.message import Request, Response
from tests.support.api.http_harness import describe, get, post, serving
from tests.support.eventually import until


def test_pipelined_requests_are_answered_in_order_one_at_a_time(run):
    running = 0

    async def slow_first(request: Request) -> Response:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.01 if request.path == "/0" else 0)
        running -= 1
        return describe(request)

    def mixed(request: Request):
        return slow_first(request) if request.path[1:].isdigit() else describe(request)

    async def scenario():
        async with serving(mixed) as served:
            peer = await served.connect()
            paths = ["/0", "/a", "/1", "/b", "/c", "/2"]
            peer.send(b"".join(post(b"x" * len(path), path=path) for path in paths))
            for path in paths:
                answer = await peer.answer()
                assert answer.body == f"POST {path} {len(path)}".encode()

    run(scenario)


def test_more_requests_than_may_wait_are_left_with_the_client(run):
    count, size = 2000, 10_000

    async def scenario():
        go = asyncio.Event()
        seen = 0

        async def handler(request: Request) -> Response:
            nonlocal seen
            seen += 1
            await go.wait()
            return describe(request)

        limits = HttpLimits(pipeline_requests_max=4, bodies_in_flight_bytes_max=100_000)
        async with serving(handler, limits) as served:
            peer = await served.connect()
            peer.send(post(bytes(size)) * count)
            await until(lambda: seen == 1)
            other = await served.connect()
            other.send(get())
            await until(lambda: seen == 2)
            # One is being answered, four wait, and one may have been begun.
            assert served.server.bodies_in_flight_bytes <= 6 * size
            assert peer.writer.transport.get_write_buffer_size() > 0
            go.set()
            for _ in range(count):
                assert (await peer.answer()).body == b"POST / 10000"

    run(scenario)


def test_requests_answered_at_once_are_all_answered_whatever_their_number(run):
    count = 5_000

    async def scenario():
        async with serving(describe, HttpLimits(pipeline_requests_max=2)) as served:
            peer = await served.connect()
            peer.send(get() * (count - 1) + get("/last", "Connection: close"))
            for _ in range(count - 1):
                assert (await peer.answer()).body == b"GET / 0"
            assert (await peer.answer()).body == b"GET /last 0"
            assert await peer.rest() == b""

    run(scenario)


def test_no_request_is_started_while_the_answers_before_it_are_not_taken(run):
    def handler(request: Request) -> Response:
        return Response(200, bytes(8 * 1024 * 1024))

    async def scenario():
        async with serving(handler) as served:
            peer = await served.connect(read_limit=1024)
            peer.send(get() * 4)
            other = await served.connect()
            other.send(get())
            assert (await other.answer()).status == 200
            assert served.server.requests_total == 2
            for _ in range(4):
                assert len((await peer.answer()).body) == 8 * 1024 * 1024

    run(scenario)


def test_a_bad_request_is_refused_after_the_good_ones_before_it(run):
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0)
        return describe(request)

    async def scenario():
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get("/a") + get("/b") + b"garbage\r\n\r\n" + get("/never"))
            assert (await peer.answer()).body == b"GET /a 0"
            assert (await peer.answer()).body == b"GET /b 0"
            assert (await peer.answer()).status == 400
            assert await peer.rest() == b""
            assert served.server.requests_total == 2

    run(scenario)


def test_nothing_after_the_last_request_of_a_connection_is_read(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(get("/a", "Connection: close") + get("/b"))
            assert (await peer.answer()).body == b"GET /a 0"
            assert await peer.rest() == b""
            assert served.server.requests_total == 1

    run(scenario)
