from __future__ import annotations

import asyncio

import pytest

from goq.http.message import Request, Response
from goq.http.server import HttpServer
from tests.support.api.http_harness import Served, describe, get, problem, serving
from tests.support.eventually import until


def test_draining_closes_idle_connections_and_finishes_what_is_being_handled(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(request: Request) -> Response:
            if request.path == "/slow":
                await go.wait()
            return describe(request)

        async with serving(handler) as served:
            idle, half, busy = [await served.connect() for _ in range(3)]
            idle.send(get())
            await idle.answer()
            half.send(get()[:-2])
            busy.send(get("/slow") + get("/not/begun"))
            await until(lambda: served.server.requests_total == 2)
            draining = asyncio.ensure_future(served.server.drain(5000))
            for peer in (idle, half):
                assert await peer.rest() == b""
            assert served.server.connection_count == 1
            assert not draining.done()
            go.set()
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"GET /slow 0", "close")
            assert await busy.rest() == b""
            await draining
            assert served.server.connection_count == 0
            assert served.server.requests_total == 2

    run(scenario)


def test_nothing_connects_to_a_server_that_drains(run):
    async def scenario():
        async with serving(describe) as served:
            host, port = served.server.addresses[0]
            await served.server.drain(1000)
            assert served.server.addresses == []
            with pytest.raises(OSError, match=r"[Cc]onnect"):
                await asyncio.open_connection(host, port)

    run(scenario)


def test_what_is_left_after_the_drain_is_aborted_and_its_task_cancelled(run):
    async def scenario():
        ended: list[str] = []

        async def handler(request: Request) -> Response:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0)
                ended.append(request.path)
            return Response(200)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(get("/stuck"))
            await until(lambda: served.server.requests_total == 1)
            await served.server.drain(20)
            assert ended == ["/stuck"]
            assert served.server.connection_count == 0
            await peer.lost()

    run(scenario)


def test_a_stream_is_finished_before_its_connection_drains(run):
    async def scenario():
        go = asyncio.Event()

        async def stream():
            yield b"first"
            await go.wait()
            yield b"second"

        async with serving(lambda request: Response(200, stream())) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            draining = asyncio.ensure_future(served.server.drain(5000))
            go.set()
            assert [chunk async for chunk in peer.chunks()] == [b"first", b"second"]
            assert await peer.rest() == b""
            await draining

    run(scenario)


@pytest.mark.parametrize("streams", [False, True])
def test_a_task_cancelled_by_others_takes_its_connection_along(run, streams):
    started: list[bool] = []

    async def scenario():
        server = HttpServer(stream if streams else forever, problem)
        await server.start("127.0.0.1", 0)
        peer = await Served(server, []).connect()
        peer.send(get())
        await until(lambda: started)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        await peer.lost()
        peer.leave()
        await until(lambda: server.connection_count == 0)
        await server.drain(0)

    async def items():
        started.append(True)
        yield b"first"
        await asyncio.get_running_loop().create_future()

    def stream(request: Request) -> Response:
        return Response(200, items())

    async def forever(request: Request) -> Response:
        started.append(True)
        await asyncio.get_running_loop().create_future()
        return Response(200)

    run(scenario)


def test_a_server_that_never_started_drains_at_once(run):
    async def scenario():
        server = HttpServer(describe, problem)
        assert server.addresses == []
        await server.drain(1000)

    run(scenario)
