from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from goq.http.context import HttpLimits, ServerContext
from goq.http.failure_log import FailureLog
from goq.http.message import Request, Response
from goq.http.request import request_parser
from goq.http.request.allowed_hosts import AllowedHosts
from goq.http.request.request_parser import RequestParser
from tests.support.api.http_harness import chunked, describe, echo, get, post, serving
from tests.support.eventually import until
from tests.support.storage.memory import tracing

EXPECT = "Expect: 100-continue"


def test_chunks_sent_are_one_body(run):
    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            peer.send(chunked(b"one", b"two" * 5000, b"3") + chunked() + post(b"end"))
            for body in (b"one" + b"two" * 5000 + b"3", b"", b"end"):
                assert (await peer.answer()).body == body

    run(scenario)


def test_a_large_body_arrives_whole(run):
    body = bytes(range(256)) * 40_000

    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            peer.send(post(body))
            assert (await peer.answer()).body == body

    run(scenario)


async def three() -> AsyncIterator[bytes]:
    for item in (b"one", b"", b"two", b"three"):
        await asyncio.sleep(0)
        yield item


@pytest.mark.parametrize("late", [False, True])
def test_a_stream_is_sent_in_chunks_and_the_connection_goes_on(run, late):
    async def handler(request: Request) -> Response:
        return Response(200, three())

    async def scenario():
        async with serving(handler if late else lambda request: Response(200, three())) as served:
            peer = await served.connect()
            peer.send(get() + get())
            for _ in range(2):
                _, headers = await peer.head()
                assert headers == {"transfer-encoding": "chunked"}
                assert [chunk async for chunk in peer.chunks()] == [b"one", b"two", b"three"]

    run(scenario)


def test_a_stream_to_an_http_10_client_ends_with_the_connection(run):
    async def scenario():
        async with serving(lambda request: Response(200, three())) as served:
            peer = await served.connect()
            peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            answer = await peer.answer()
            assert answer.headers == {"connection": "close"}
            assert answer.body == b"onetwothree"

    run(scenario)


def test_items_reach_the_client_as_they_are_made(run):
    async def scenario():
        go = asyncio.Event()

        async def stream() -> AsyncIterator[bytes]:
            yield b"first"
            await go.wait()
            yield b"second"

        async with serving(lambda request: Response(200, stream())) as served:
            peer = await served.connect()
            peer.send(get())
            await peer.head()
            chunks = peer.chunks()
            assert await anext(chunks) == b"first"
            go.set()
            assert [chunk async for chunk in chunks] == [b"second"]

    run(scenario)


def test_a_stream_is_made_no_faster_than_it_is_taken(run):
    total, size = 1000, 64 * 1024
    made = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(total):
            made += 1
            yield bytes(size)

    async def scenario():
        async with serving(lambda request: Response(200, stream())) as served:
            peer = await served.connect(read_limit=1024)
            peer.send(get())
            await peer.head()
            other = await served.connect()
            other.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
            await other.answer(head_only=True)
            assert 0 < made < total // 2  # unhindered it would have been made in one go
            assert sum([len(chunk) async for chunk in peer.chunks()]) == total * size

    run(scenario)


def test_a_stream_that_fails_ends_the_connection_before_the_last_chunk(run, caplog):
    async def stream() -> AsyncIterator[bytes]:
        yield b"first"
        raise RuntimeError("broken")

    async def scenario():
        async with serving(lambda request: Response(200, stream())) as served:
            peer = await served.connect()
            peer.send(get() + get())
            await until(lambda: served.server.connection_count == 0)
            assert served.server.requests_total == 1
            assert not peer.reader._buffer.endswith(b"0\r\n\r\n")

    run(scenario)
    assert [
        record.getMessage().partition(":")[0] for record in caplog.records if record.exc_info
    ] == ["stream failed"]


def test_a_stream_whose_head_cannot_be_sent_becomes_an_internal_error(run, caplog):
    async def scenario():
        async with serving(lambda request: Response(200, three(), "a\nb")) as served:
            peer = await served.connect()
            for _ in range(2):
                peer.send(get())
                assert (await peer.answer()).status == 500

    run(scenario)
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"] * 2


def test_a_client_that_asks_whether_to_send_is_told_to(run):
    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            for _ in range(2):
                whole = post(b"body", EXPECT)
                peer.send(whole[:-4])
                assert await peer.head() == (100, {})
                peer.send(b"body")
                assert (await peer.answer()).body == b"body"

    run(scenario)


def test_a_client_that_does_not_wait_to_be_told_is_not_told(run):
    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            peer.send(post(b"body", EXPECT) + post(b"", EXPECT))
            assert (await peer.answer()).body == b"body"
            assert (await peer.answer()).body == b""

    run(scenario)


def test_a_client_is_told_to_send_only_when_the_answers_before_are_out(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(request: Request) -> Response:
            await go.wait()
            return echo(request)

        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"first") + post(b"second", EXPECT)[:-6])
            await until(lambda: served.server.requests_total == 1)
            go.set()
            assert (await peer.answer()).body == b"first"
            assert await peer.head() == (100, {})
            peer.send(b"second")
            assert (await peer.answer()).body == b"second"

    run(scenario)


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (HttpLimits(body_bytes_max=3), 413),
        (HttpLimits(bodies_in_flight_bytes_max=3), 429),
    ],
)
def test_a_client_that_asks_whether_to_send_too_much_is_refused(run, limits, status):
    async def scenario():
        async with serving(describe, limits) as served:
            peer = await served.connect()
            peer.send(post(b"body", EXPECT)[:-4])
            assert (await peer.answer()).status == status
            assert await peer.rest() == b""

    run(scenario)


def test_an_http_10_client_is_never_told_to_send(run):
    async def scenario():
        async with serving(echo) as served:
            peer = await served.connect()
            peer.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            await until(lambda: served.server.connection_count == 1)
            peer.send(b"body")
            assert (await peer.answer()).body == b"body"

    run(scenario)


def test_the_end_of_a_large_body_copies_none_of_what_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_parser, "GATHERED_BYTES", 64 * 1024)
    piece, count = bytes(range(256)) * 256, 64
    shared = ServerContext(
        echo, lambda _error, _headers: Response(500), HttpLimits(), AllowedHosts(None), FailureLog()
    )
    parser = RequestParser(shared, "peer")
    parser.feed(
        b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % (count * len(piece))
    )
    with tracing():
        for _ in range(count - 1):
            parser.feed(piece)
        before_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        parser.feed(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    assert parser.requests[0].body == piece * count
    assert peak_bytes - before_bytes < count * len(piece) // 2
