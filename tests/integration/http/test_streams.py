"""Live streams: framing in parts, heartbeats, back-pressure, and how they end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator

import pytest

from goq.http.context import HttpLimits
from goq.http.message import Item, LiveStream, OwnedStream, Request, Response
from tests.support.api.http_harness import Served, get, serving
from tests.support.eventually import until

FAST = HttpLimits(heartbeat_ms=32)
SLOW = HttpLimits(heartbeat_ms=3_600_000)


class Source:
    """What a stream yields, under a test's control."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Item | None] = asyncio.Queue()
        self.taken = 0
        self.closed = asyncio.Event()

    async def stream(self) -> AsyncGenerator[Item, None]:
        try:
            while (item := await self.items.get()) is not None:
                self.taken += 1
                yield item
        finally:
            self.closed.set()

    def answer(self, request: Request) -> Response:
        if request.path == "/next":
            return Response(200, b"next")
        return Response(200, LiveStream(self.stream(), b"\n"), "application/x-ndjson")


def beating(served: Served) -> int:
    return len(served.server._shared.pulse)


def test_a_stream_begins_with_a_heartbeat_before_its_first_item(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, SLOW) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            chunks = peer.chunks()
            assert await anext(chunks) == b"\n"
            assert source.taken == 0
            source.items.put_nowait(None)
            assert [chunk async for chunk in chunks] == []

    run(scenario)


def test_an_item_in_parts_is_one_chunk(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, SLOW) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            source.items.put_nowait([b"one ", memoryview(b"two"), bytearray(b" three")])
            chunks = peer.chunks()
            assert await anext(chunks) == b"\n"
            assert await anext(chunks) == b"one two three"
            source.items.put_nowait(b"four")
            assert await anext(chunks) == b"four"
            source.items.put_nowait(None)
            assert [chunk async for chunk in chunks] == []

    run(scenario)


def test_a_silent_stream_sends_heartbeats_and_one_that_is_not_sends_none(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, FAST) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            chunks = peer.chunks()
            assert [await anext(chunks) for _ in range(3)] == [b"\n"] * 3
            source.items.put_nowait(b"x")
            source.items.put_nowait(None)
            assert b"x" in [chunk async for chunk in chunks]
            assert not beating(served)

    run(scenario)


def test_heartbeats_to_an_http_10_client_are_not_framed(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, FAST) as served:
            peer = await served.connect()
            peer.send(b"GET / HTTP/1.0\r\n\r\n")
            await peer.head()
            assert await peer.reader.readexactly(2) == b"\n\n"
            source.items.put_nowait([b"a", b"b"])
            source.items.put_nowait(None)
            assert (await peer.rest()).strip(b"\n") == b"ab"

    run(scenario)


def test_an_idle_stream_meets_no_timeout(run):
    async def scenario() -> None:
        source = Source()
        limits = HttpLimits(
            heartbeat_ms=3_600_000,
            header_timeout_ms=500,  # the request itself must not meet them on a busy machine
            body_timeout_ms=500,
            idle_timeout_ms=500,
            write_timeout_ms=500,
        )
        async with serving(source.answer, limits) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            (connection,) = served.server._shared.connections
            await until(lambda: connection._timeouts._is_resting)
            source.items.put_nowait(b"late")
            chunks = peer.chunks()
            assert [await anext(chunks) for _ in range(2)] == [b"\n", b"late"]

    run(scenario)


def test_a_timer_that_rested_watches_again_after_the_stream(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, HttpLimits(idle_timeout_ms=20)) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            (connection,) = served.server._shared.connections
            await until(lambda: connection._timeouts._is_resting)
            source.items.put_nowait(None)
            assert await peer.rest() == b"1\r\n\n\r\n0\r\n\r\n"

    run(scenario)


def test_a_stream_is_asked_for_no_more_than_its_reader_takes_and_sends_it_no_heartbeats(run):
    async def scenario() -> None:
        source = Source()
        for _ in range(100):
            source.items.put_nowait([bytes(2**19), bytes(2**19)])
        source.items.put_nowait(None)
        async with serving(source.answer, FAST) as served:
            peer = await served.connect(read_limit=2**12)
            peer.send(get())
            await until(lambda: source.taken > 0)
            (connection,) = served.server._shared.connections
            await until(lambda: connection._writer.paused)
            for _ in range(200):
                await asyncio.sleep(0)
            assert source.taken < 50
            await peer.head()
            connection._writer.beat()
            connection._writer.beat()
            chunks = [len(chunk) async for chunk in peer.chunks()]
            assert [size for size in chunks if size > 1] == [2**20] * 100

    run(scenario)


def test_a_request_behind_a_stream_waits_for_its_end(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, SLOW) as served:
            peer = await served.connect()
            peer.send(get() + get("/next"))
            await peer.head()
            source.items.put_nowait(b"x")
            source.items.put_nowait(None)
            assert [chunk async for chunk in peer.chunks()] == [b"\n", b"x"]
            assert (await peer.answer()).body == b"next"

    run(scenario)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("how", ["leave", "reset", "end_input"])
def test_a_stream_is_closed_at_once_when_its_client_is_gone(run, how, paused):
    async def scenario() -> None:
        source = Source()

        def answer(request: Request) -> Response:
            request.outlives_eof = False
            return source.answer(request)

        async with serving(answer, SLOW) as served:
            peer = await served.connect(read_limit=2**12)
            peer.send(get())
            await peer.head()
            if paused:
                for _ in range(100):
                    source.items.put_nowait(bytes(2**20))
                (connection,) = served.server._shared.connections
                await until(lambda: connection._writer.paused)
            getattr(peer, how)()
            async with asyncio.timeout(60):
                await source.closed.wait()
            assert not beating(served)
            if paused and how == "end_input":
                peer.reset()  # what it was sent is still on its way

    run(scenario)


def test_a_stream_that_ends_lets_its_connection_drain(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, SLOW) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            draining = asyncio.ensure_future(served.server.drain(5_000))
            source.items.put_nowait(b"last")
            source.items.put_nowait(None)
            assert [chunk async for chunk in peer.chunks()] == [b"\n", b"last"]
            assert await peer.rest() == b""
            await draining

    run(scenario)


@pytest.mark.parametrize("kind", [LiveStream, OwnedStream])
def test_a_stream_whose_client_left_before_it_began_is_closed(run, kind):
    async def scenario() -> None:
        source = Source()
        may_answer, cancelled, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def close() -> None:
            closed.set()

        async def answer(request: Request) -> Response:
            try:
                await may_answer.wait()
            except asyncio.CancelledError:
                cancelled.set()
            heartbeat = (b"\n",) if kind is LiveStream else ()
            return Response(200, kind(source.stream(), *heartbeat, close))

        async with serving(answer, SLOW) as served:
            peer = await served.connect()
            peer.send(get())
            await until(lambda: served.server.requests_total == 1)
            peer.reset()
            await cancelled.wait()
            async with asyncio.timeout(60):
                await closed.wait()

    run(scenario)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
def test_a_client_that_takes_no_heartbeat_is_given_up_by_the_system(run):
    async def scenario() -> None:
        source = Source()
        async with serving(source.answer, HttpLimits(write_timeout_ms=4321)) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            (connection,) = served.server._shared.connections
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4321
            source.items.put_nowait(None)

    run(scenario)
