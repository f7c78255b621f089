from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from goq.http.context import HttpLimits
from goq.http.message import Request, Response
from tests.support.api.http_harness import describe, get, post, serving
from tests.support.eventually import until

HOURS_MS = 3_600_000


def only(**timeouts_ms: int) -> HttpLimits:
    """Limits in which only the named timeouts can pass during a test."""
    names = ("header_timeout_ms", "body_timeout_ms", "idle_timeout_ms", "write_timeout_ms")
    return HttpLimits(**{name: timeouts_ms.get(name, HOURS_MS) for name in names})


def test_headers_sent_byte_by_byte_are_cut_off(run):
    async def scenario():
        async with serving(describe, only(header_timeout_ms=60)) as served:
            peer = await served.connect()

            async def drip() -> None:
                for byte in get("/", "X: " + "y" * 100_000):
                    peer.send(bytes([byte]))
                    await asyncio.sleep(0.005)

            dripping = asyncio.ensure_future(drip())
            answer = await peer.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            dripping.cancel()
            assert await peer.rest() == b""

    run(scenario)


def test_a_body_that_does_not_come_is_cut_off(run):
    async def scenario():
        async with serving(describe, only(body_timeout_ms=50)) as served:
            peer = await served.connect()
            peer.send(post(b"body")[:-1])
            assert (await peer.answer()).status == 408
            assert await peer.rest() == b""

    run(scenario)


def test_an_idle_connection_is_closed_without_a_word(run):
    async def scenario():
        async with serving(describe, only(idle_timeout_ms=50)) as served:
            silent = await served.connect()
            used = await served.connect()
            used.send(get())
            assert (await used.answer()).status == 200
            for peer in (silent, used):
                assert await peer.rest() == b""
            await until(lambda: served.server.connection_count == 0)

    run(scenario)


def test_line_breaks_before_a_request_do_not_count_as_life(run):
    async def scenario():
        async with serving(describe, only(idle_timeout_ms=50)) as served:
            peer = await served.connect()

            async def drip() -> None:
                while True:
                    peer.send(b"\r\n")
                    await asyncio.sleep(0.005)

            dripping = asyncio.ensure_future(drip())
            await peer.lost()
            dripping.cancel()

    run(scenario)


def test_a_handler_may_take_longer_than_every_timeout(run):
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.15)
        return Response(200)

    limits = HttpLimits(
        header_timeout_ms=30, body_timeout_ms=30, idle_timeout_ms=30, write_timeout_ms=30
    )

    async def scenario():
        async with serving(handler, limits) as served:
            peer = await served.connect()
            peer.send(get())
            assert (await peer.answer()).status == 200

    run(scenario)


def test_a_late_request_is_answered_after_the_one_before_it(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(request: Request) -> Response:
            await go.wait()
            return describe(request)

        async with serving(handler, only(header_timeout_ms=40)) as served:
            peer = await served.connect()
            probe = await served.connect()
            peer.send(get("/first") + b"GET /second HT")
            probe.send(b"GET /probe HT")
            assert (await probe.answer()).status == 408
            go.set()
            assert (await peer.answer()).body == b"GET /first 0"
            assert (await peer.answer()).status == 408

    run(scenario)


@pytest.mark.parametrize("kind", ["whole", "parts", "stream"])
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(run, kind):
    ended: list[bool] = []

    async def stream() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(65536)
        finally:
            ended.append(True)

    def handler(request: Request) -> Response:
        big = bytes(32 * 1024 * 1024)
        bodies = {"whole": big, "parts": [big[:9], big], "stream": stream()}
        return Response(200, bodies[kind])

    async def scenario():
        async with serving(handler, only(write_timeout_ms=50)) as served:
            peer = await served.connect(read_limit=1024)
            peer.send(get())
            await until(lambda: served.server.requests_total == 1)
            await until(lambda: served.server.connection_count == 0)
            if kind == "stream":
                await until(lambda: ended == [True])

    run(scenario)


def test_a_client_that_takes_its_answer_slowly_gets_it_whole(run):
    size = 8 * 1024 * 1024

    async def scenario():
        async with serving(
            lambda request: Response(200, bytes(size)), only(write_timeout_ms=1000)
        ) as served:
            peer = await served.connect(read_limit=4096)
            peer.send(get("/", "Connection: close"))
            _, headers = await peer.head()
            assert headers["content-length"] == str(size)
            left = size
            while left:
                left -= len(await peer.reader.readexactly(min(left, 256 * 1024)))
                await asyncio.sleep(0.04)

    run(scenario)
