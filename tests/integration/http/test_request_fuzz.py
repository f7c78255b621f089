"""However bytes are cut into reads, they mean the same; whatever they are, nothing breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq.http.connection import Connection
from goq.http.context import HttpLimits, ServerContext
from goq.http.failure_log import FailureLog
from goq.http.message import Handler, Request, Response
from goq.http.request.allowed_hosts import AllowedHosts
from tests.support.api.http_harness import chunked, describe, get, post, problem
from tests.support.eventually import until

LIMITS = HttpLimits(
    target_bytes_max=64,
    headers_bytes_max=256,
    headers_max=6,
    body_bytes_max=512,
    pipeline_requests_max=2,
)


class MemoryTransport(asyncio.Transport):
    """A transport to nobody, that keeps what it is given to send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.reading = True
        self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent += data

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


@pytest.fixture(scope="module")
def event_loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def converse(runner: asyncio.Runner, handler: Handler, reads: list[bytes]) -> tuple[bytes, bool]:
    """Return all that a connection answers to these reads, and whether it ended."""

    async def conversation() -> tuple[bytes, bool]:
        shared = ServerContext(handler, problem, LIMITS, AllowedHosts(None), FailureLog())
        shared.loop = asyncio.get_running_loop()
        connection = Connection(shared)
        transport = MemoryTransport()
        connection.connection_made(transport)
        for read in reads:
            await until(lambda: transport.reading or transport.ended)
            connection.data_received(read)
        await until(lambda: transport.ended or (transport.reading and connection.task is None))
        connection.connection_lost(None)
        assert (shared.connection_count, shared.bodies_in_flight_bytes) == (0, 0)
        return bytes(transport.sent), transport.ended

    return runner.run(conversation())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


async def describe_later(request: Request) -> Response:
    await asyncio.sleep(0)
    return describe(request)


def describe_either(request: Request) -> Any:
    return describe_later(request) if len(request.body) % 2 else describe(request)


bodies = st.binary(max_size=600)
requests = st.one_of(
    bodies.map(post),
    st.lists(st.binary(min_size=1, max_size=40), max_size=5).map(lambda parts: chunked(*parts)),
    st.sampled_from(["/", "/a%20b?c=d", "/" + "x" * 63, "/" + "x" * 64, "/%ff", "*"]).map(get),
    st.sampled_from([1, 200, 230, 400]).map(lambda size: get("/", "X: " + "y" * size)),
    st.just(get("/", "Connection: close")),
    st.just(b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    st.just(b"\r\n"),
)
places = st.lists(st.integers(0, 10_000), max_size=30)


@settings(deadline=None)
@given(parts=st.lists(requests, max_size=8), places=places)
def test_requests_are_answered_alike_however_they_are_cut(event_loop_runner, parts, places):
    data = b"".join(parts)
    whole = converse(event_loop_runner, describe_either, [data] if data else [])
    assert converse(event_loop_runner, describe_either, cut(data, places)) == whole
    single = [data[at : at + 1] for at in range(len(data))]
    assert converse(event_loop_runner, describe_either, single) == whole


tokens = st.sampled_from(
    [
        *(
            b"GET ",
            b"POST ",
            b"/ ",
            b"HTTP/1.1",
            b"\r\n",
            b"\n",
            b"\r\n\r\n",
            b": ",
            b"Host: a\r\n",
        ),
        *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"0"),
        *(b"Expect: 100-continue\r\n", b"Connection: upgrade\r\n", b"Upgrade: x\r\n", b"\0", b"%"),
        *(b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST /a?b HTTP/1.1\r\nHost: a\r\n", b"a" * 300),
    ]
)
garbage = st.lists(st.one_of(tokens, st.binary(max_size=20)), max_size=20).map(b"".join)


@settings(deadline=None)
@given(before=st.sampled_from([b"", get(), post(b"abc")]), data=garbage, places=places)
def test_garbage_is_refused_or_understood_and_never_breaks_anything(
    event_loop_runner, before, data, places
):
    sent, ended = converse(event_loop_runner, describe_either, cut(before + data, places))
    statuses = [int(line[:3]) for line in sent.split(b"HTTP/1.1 ")[1:]]
    assert set(statuses) <= {100, 200, 400, 413, 414, 431}
    if before:
        assert statuses[0] == 200
    refusals = [status for status in statuses if status >= 400]
    assert len(refusals) <= 1
    if refusals:
        assert ended
        assert statuses[-1] == refusals[0]
