from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from goq.http.message import Request, Response
from tests.support.api.http_harness import Peer, describe, get, post, serving
from tests.support.eventually import until


class Waiting:
    """A handler that never answers, and knows how its tasks ended."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0

    async def __call__(self, request: Request) -> Response:
        self.started += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(200)


@pytest.mark.parametrize("end", [Peer.leave, Peer.reset, Peer.end_input])
def test_the_end_of_input_cancels_the_handler(run, end):
    async def scenario():
        handler = Waiting()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"body") + post(b"never begun"))
            await until(lambda: handler.started == 1)
            end(peer)
            await until(lambda: handler.cancelled == 1)
            await until(lambda: served.server.connection_count == 0)
            assert handler.started == 1
            assert served.server.bodies_in_flight_bytes == 0

    run(scenario)


def test_a_handler_that_outlives_the_end_of_input_answers_all_the_same(run):
    async def scenario():
        go = asyncio.Event()
        started = 0

        def handler(request: Request):
            request.outlives_eof = True
            return answer(request)

        async def answer(request: Request) -> Response:
            nonlocal started
            started += 1
            await go.wait()
            return describe(request)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get("/a") + get("/b"))
            peer.end_input()
            await until(lambda: started == 1)
            other = await served.connect()
            other.send(get())
            await until(lambda: started == 2)
            go.set()
            for path in ("/a", "/b"):
                assert (await peer.answer()).body == f"GET {path} 0".encode()
            assert await peer.rest() == b""

    run(scenario)


def test_a_handler_that_answers_at_once_answers_a_client_that_half_closed(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(get("/a") + get("/b"))
            peer.end_input()
            for path in ("/a", "/b"):
                assert (await peer.answer()).body == f"GET {path} 0".encode()
            assert await peer.rest() == b""

    run(scenario)


def test_a_request_begun_after_the_end_of_input_is_not_waited_for(run):
    async def scenario():
        waiting = Waiting()
        go = asyncio.Event()

        async def first(request: Request) -> Response:
            await go.wait()
            return describe(request)

        def handler(request: Request):
            request.outlives_eof = request.path == "/first"
            return first(request) if request.outlives_eof else waiting(request)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get("/first") + get("/second"))
            peer.end_input()
            other = await served.connect()
            other.send(get())
            await until(lambda: waiting.started == 1)
            go.set()
            assert (await peer.answer()).body == b"GET /first 0"
            assert await peer.rest() == b""
            assert (waiting.started, waiting.cancelled) == (1, 0)

    run(scenario)


def test_half_a_request_is_not_answered_when_its_client_leaves(run):
    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(get()[:-2])
            peer.end_input()
            assert await peer.rest() == b""
            assert served.server.requests_total == 0

    run(scenario)


def test_a_handler_that_answers_after_its_cancellation_is_ignored(run):
    async def scenario():
        ended = asyncio.Event()

        async def handler(request: Request) -> Response:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                ended.set()
            return Response(200)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get() + get())
            await until(lambda: served.server.requests_total == 1)
            peer.reset()
            await ended.wait()
            await until(lambda: served.server.connection_count == 0)
            assert served.server.requests_total == 1

    run(scenario)


def test_a_handler_is_cancelled_once_so_that_it_can_clean_up(run):
    async def scenario():
        cleaned = asyncio.Event()

        async def handler(request: Request) -> Response:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0.02)
                cleaned.set()
            return Response(200)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get())
            await until(lambda: served.server.requests_total == 1)
            peer.leave()
            await cleaned.wait()

    run(scenario)


def test_a_stream_is_closed_when_its_client_leaves(run):
    async def scenario():
        closed = asyncio.Event()

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.get_running_loop().create_future()
            finally:
                closed.set()

        async with serving(lambda request: Response(200, stream())) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            peer.leave()
            await closed.wait()

    run(scenario)
