"""Both transports against a server that plays a script: each test runs sync and async."""

from __future__ import annotations

import asyncio
import gc
import itertools
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import FrameType
from typing import Any

import pytest

from goq.http.client.errors import (
    ConnectError,
    PoolTimeout,
    ReadError,
    ReadTimeout,
    TransportError,
)
from goq.http.client.http1 import ClientRequest, RequestTimeouts, encode_head, parse_url
from goq.http.client.response_reader import ResponseHeaders
from goq.http.client.socket_transport import SocketTransport
from goq.http.client.transport import ProtocolTransport
from tests.support.client.interrupts import interrupted_at
from tests.support.client.scripted_server import HELD, ScriptedServer, ok
from tests.support.eventually import eventually, until


def get(url: str, method: str = "GET", body: bytes = b"", **timeouts: float) -> ClientRequest:
    """Return a request with time limits of 5 s, or those that are given."""
    parsed = parse_url(url)
    limits = RequestTimeouts(5.0, 5.0, 5.0, 5.0)
    for name, seconds in timeouts.items():
        setattr(limits, f"{name}_s", seconds)
    return ClientRequest(method, parsed, encode_head(method, parsed, parsed.path, ()), body, limits)


class Session:
    """Sends requests one after the other through either transport."""

    def __init__(self, asynchronous: bool, connections_max: int) -> None:
        self._runner = asyncio.Runner() if asynchronous else None
        if self._runner is not None:
            self._async = self._runner.run(self._make(connections_max))
        else:
            self._sync = SocketTransport(connections_max)

    async def _make(self, connections_max: int) -> ProtocolTransport:
        return ProtocolTransport(connections_max)

    def ask(
        self, url: str, method: str = "GET", body: bytes = b"", **timeouts: float
    ) -> tuple[int, ResponseHeaders, bytes]:
        request = get(url, method, body, **timeouts)
        if self._runner is not None:
            return self._runner.run(self._async.fetch(request))
        return self._sync.fetch(request)

    def close(self) -> None:
        """Close the transport; the event loop lives on, to see what is asked after."""
        if self._runner is None:
            self._sync.close()
        else:
            self._runner.run(self._async.aclose())

    def end(self) -> None:
        self.close()
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=["sync", "async"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    made = Session(request.param == "async", 4)
    yield made
    made.end()


def test_a_connection_is_used_again(session: Session) -> None:
    with ScriptedServer([[ok(b"one")], [ok(b"two")], [ok(b"three")]]) as server:
        assert session.ask(server.url + "/a?b=c")[2] == b"one"
        assert session.ask(server.url, "POST", b"body")[2] == b"two"
        assert session.ask(server.url)[2] == b"three"
        assert server.connections == 1
        assert server.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
        assert server.requests[1].endswith(b"Content-Length: 4\r\n\r\nbody")
        session.close()


@pytest.mark.parametrize(
    ("steps", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234", b"56789"], b"0123456789"),
        ([b"HTTP/1.1 200 OK\r\nContent-", b"Length: 2\r\n\r\n", b"ok"], b"ok"),
        (
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                b"2\r\nde\r\n0\r\n\r\n",
            ],
            b"abcde",
        ),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil the end", None], b"until the end"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", b"until ", b"the end", None], b"until the end"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", ok(b"then this")], b"then this"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
def test_every_framing_of_a_body_is_read(
    session: Session, steps: list[bytes | None], body: bytes
) -> None:
    with ScriptedServer([steps, [ok(b"again")]], [[ok(b"again")]]) as server:
        assert session.ask(server.url)[2] == body
        assert session.ask(server.url)[2] == b"again"
        session.close()


@pytest.mark.parametrize(
    "end",
    [
        b"2\r\nde\r\n0\r\n\r\n",
        b"1\r\nd\r\n1\r\ne\r\n0\r\n\r\n",
        b"2\r\nde\r\n",
    ],
    ids=["last", "last two", "cut"],
)
def test_what_comes_while_a_piece_is_looked_at_is_read_too(end: bytes) -> None:
    begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    is_whole = end.endswith(b"0\r\n\r\n")
    found = bytearray()

    async def scenario(server: ScriptedServer) -> None:
        transport = ProtocolTransport(1)
        response = await transport.stream(get(server.url))
        [connection] = transport._busy
        try:
            async for chunk in response:
                found.extend(chunk)
                server.hold.set()
                await until(lambda: connection.reader.complete or connection.failure)
        finally:
            await transport.aclose()

    with ScriptedServer([[begin, HELD, end, None]]) as server:
        if is_whole:
            asyncio.run(scenario(server))
        else:
            with pytest.raises(ReadError):
                asyncio.run(scenario(server))
    assert found == b"abcde"


def test_a_large_body_passes_both_ways(session: Session) -> None:
    large = bytes(range(256)) * 40_000
    with ScriptedServer([[ok(large)]]) as server:
        assert session.ask(server.url, "POST", large)[2] == large
        assert server.requests[0].endswith(large)
        session.close()


def test_a_long_body_may_come_in_any_pieces_and_the_connection_goes_on(session: Session) -> None:
    large = bytes(range(256)) * 4_000
    whole = ok(large)
    cuts = [0, 10, len(whole) - len(large), len(whole) - len(large) + 7, 500_000, len(whole)]
    steps = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    with ScriptedServer([steps, [ok(b"again")], [ok(large)]]) as server:
        assert session.ask(server.url)[2] == large
        assert session.ask(server.url)[2] == b"again"
        assert session.ask(server.url)[2] == large
        assert server.connections == 1
        session.close()


def test_what_comes_unasked_behind_a_long_body_is_never_taken_for_an_answer() -> None:
    large = b"a" * 800_000
    session = Session(asynchronous=False, connections_max=1)
    with ScriptedServer([[ok(large) + ok(b"unasked")]], [[ok(b"fine")]]) as server:
        assert session.ask(server.url)[2] == large
        [idle] = session._sync._idle
        eventually(lambda: not idle.is_usable())
        assert session.ask(server.url)[2] == b"fine"
        session.end()


def test_a_length_that_no_answer_has_takes_no_memory(session: Session) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n"
    with ScriptedServer([[head + b"x" * 600_000, None]]) as server:
        with pytest.raises(ReadError):
            session.ask(server.url)
        session.close()


def test_a_connection_that_ended_while_idle_is_replaced(session: Session) -> None:
    with ScriptedServer([[ok(b"one"), None]], [[ok(b"two")]]) as server:
        assert session.ask(server.url)[2] == b"one"
        assert session.ask(server.url)[2] == b"two"
        session.close()


def test_a_get_on_a_connection_that_breaks_is_asked_again_once(session: Session) -> None:
    with ScriptedServer([[ok(b"one")], [None]], [[ok(b"two")]]) as server:
        assert session.ask(server.url)[2] == b"one"
        assert session.ask(server.url)[2] == b"two"
        session.close()


def test_a_post_on_a_connection_that_breaks_is_left_to_the_caller(session: Session) -> None:
    with ScriptedServer([[ok(b"one")], [None]], [[ok(b"two")]]) as server:
        session.ask(server.url)
        with pytest.raises(ReadError):
            session.ask(server.url, "POST", b"once")
        assert session.ask(server.url)[2] == b"two"
        session.close()


@pytest.mark.parametrize(
    "steps",
    [
        [None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", None],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + b"y" * 800_000, None],
        [b"HTTP/1.1 200", None],
        [b"this is not HTTP\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"],
        [ok(b"two answers") + ok(b"to one request")],
    ],
)
def test_a_broken_answer_is_an_error_and_its_connection_is_not_used_again(
    session: Session, steps: list[bytes | None]
) -> None:
    with ScriptedServer([steps], [[ok(b"fine")]]) as server:
        with pytest.raises(ReadError):
            session.ask(server.url)
        assert session.ask(server.url)[2] == b"fine"
        session.close()


def test_timeouts_are_kept(session: Session) -> None:
    slow = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123"
    with ScriptedServer([[]], [[slow]], [[ok(b"fine")]]) as server:
        with pytest.raises(ReadTimeout):
            session.ask(server.url, read=0.02)
        with pytest.raises(ReadTimeout):
            session.ask(server.url, read=0.02)
        assert session.ask(server.url)[2] == b"fine"
        session.close()


@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nA: ", b"a", b"\r\nContent-Length: 0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", b"a", b"a" * 100),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100300\r\n\r\n", b"a", b"a" * 100_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", b"0\r\n\r\n"),
    ],
)
def test_a_server_that_sends_a_byte_now_and_then_holds_no_request(
    session: Session, begin: bytes, piece: bytes, end: bytes
) -> None:
    def drips() -> Iterator[bytes]:
        yield begin
        for _ in range(300):
            server.hold.wait(0.01)
            yield piece
        yield end

    steps: Any = drips()
    with ScriptedServer([steps], [[ok(b"fine")]]) as server, closing(session):
        with pytest.raises(ReadTimeout):
            session.ask(server.url, read=0.2)
        assert session.ask(server.url)[2] == b"fine"


def test_a_refused_connection_is_a_connect_error(session: Session) -> None:
    with ScriptedServer() as server:
        url = server.url
    with pytest.raises(ConnectError):
        session.ask(url)


def test_a_closed_transport_connects_no_more(session: Session) -> None:
    with ScriptedServer([[ok()]]) as server:
        session.close()
        with pytest.raises(ConnectError, match="closed"):
            session.ask(server.url)


@pytest.mark.parametrize("ends", [ProtocolTransport.finish, ProtocolTransport.abort])
def test_a_transport_that_is_closed_while_it_connects_sends_nothing(
    ends: Callable[[ProtocolTransport], None],
) -> None:
    with ScriptedServer([[ok()]]) as server:

        async def scenario() -> None:
            transport = ProtocolTransport(1)
            asking = asyncio.create_task(transport.fetch(get(server.url)))
            await asyncio.sleep(0)
            ends(transport)
            with pytest.raises(ConnectError, match="closed"):
                await asking
            await asyncio.to_thread(eventually, lambda: server.connections == 1)

        asyncio.run(scenario())
        assert not server.requests


def test_connections_are_bounded_in_number() -> None:
    with ScriptedServer([[]]) as server:

        async def scenario() -> None:
            transport = ProtocolTransport(1)
            request = get(server.url, pool=0.01)
            first = asyncio.create_task(transport.fetch(request))
            await asyncio.to_thread(eventually, lambda: len(server.requests) == 1)
            with pytest.raises(PoolTimeout):
                await transport.fetch(request)
            await transport.aclose()
            with pytest.raises(TransportError):
                await first

        asyncio.run(scenario())
    with ScriptedServer([[]]) as server:
        transport = SocketTransport(1)
        request = get(server.url, pool=0.01)
        failures: list[Exception] = []

        def ask() -> None:
            try:
                transport.fetch(request)
            except TransportError as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: len(server.requests) == 1)
        with pytest.raises(PoolTimeout):
            transport.fetch(request)
        transport.close()
        thread.join()
        assert failures, "closing did not break the request under way"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # unclosed sockets
def test_an_interrupt_at_any_line_of_a_request_is_raised_and_leaves_the_transport_usable() -> None:
    files = ("socket_transport.py", "socket_connection.py")

    def interrupt_at(line: int) -> Callable[..., Any]:
        """Return a trace function that raises at the ``line``-th line of these files."""
        left = itertools.count(line, -1)

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            file = frame.f_code.co_filename
            if not file.endswith(files):
                return None
            # CPython runs no signal handler between a block and the exit of its ``with``.
            source = linecache.getline(file, frame.f_lineno).strip()
            if event == "line" and not source.startswith("with ") and next(left) == 0:
                raise KeyboardInterrupt
            return trace

        return trace

    interrupted = 0
    for body in (ok(b"short"), ok(b"x" * 600_000)):
        for line in itertools.count():
            scripts = [[body], [body]], [[body]], [[body]]
            with ScriptedServer(*scripts) as server, ExitStack() as ended:
                transport = SocketTransport(2)
                ended.callback(transport.close)
                request = get(server.url)

                def ask(
                    transport: SocketTransport = transport, request: ClientRequest = request
                ) -> int:
                    return len(transport.fetch(request).body)

                sys.settrace(interrupt_at(line))
                try:
                    size = ask()
                except KeyboardInterrupt:
                    interrupted += 1
                    size = 0
                finally:
                    sys.settrace(None)
                assert ask(), f"the transport is unusable after an interrupt at line {line}"
                if size:
                    break
    assert interrupted > 100


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # it has no owner yet
def test_an_interrupt_at_any_moment_costs_no_connection() -> None:
    for number in itertools.count(1):
        answers = [[ok(b"fine")], [ok(b"fine")]]
        with (
            ScriptedServer(answers, answers) as server,
            closing(SocketTransport(1)) as transport,
        ):
            is_interrupted = interrupted_at(
                number,
                lambda transport=transport, url=server.url: transport.fetch(get(url)),
                ("socket_transport.py", "socket_connection.py"),
            )
            gc.collect()  # the tracer keeps frames, and these a socket that was just made
            later = transport.fetch(get(server.url, pool=0.1))
            assert (later.body, transport._busy) == (b"fine", set()), f"at moment {number}"
        if not is_interrupted:
            break
    assert number > 30


def test_a_cancelled_request_does_not_leave_its_connection_to_the_next() -> None:
    with ScriptedServer([[]], [[ok(b"fine")]]) as server:

        async def scenario() -> bytes:
            transport = ProtocolTransport(1)
            request = get(server.url)
            first = asyncio.create_task(transport.fetch(request))
            await asyncio.to_thread(eventually, lambda: len(server.requests) == 1)
            first.cancel()
            await asyncio.wait([first])
            body = (await transport.fetch(request)).body
            await transport.aclose()
            return body

        assert asyncio.run(scenario()) == b"fine"


def test_a_stream_that_is_not_read_to_its_end_gives_its_place_back(session: Session) -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    with ScriptedServer(*[[[endless]]] * 6) as server:
        for _ in range(6):
            if session._runner is not None:
                session._runner.run(_first_chunk(session._async, server.url))
            else:
                response = session._sync.stream(get(server.url))
                assert next(iter(response)) == b"abc"
                response.close()
        session.close()


def test_a_fast_sender_is_held_back_by_a_slow_reader() -> None:
    large = bytes(16 * 1024 * 1024)
    with ScriptedServer([[ok(large)]]) as server:

        async def scenario() -> None:
            transport = ProtocolTransport(1)
            response = await transport.stream(get(server.url))
            [connection] = transport._busy
            await asyncio.to_thread(eventually, lambda: not connection._reading)
            assert connection.reader.buffered_bytes < 2 * 1024 * 1024
            chunks = [chunk async for chunk in response]
            assert b"".join(chunks) == large
            await transport.aclose()

        asyncio.run(scenario())


async def _first_chunk(transport: ProtocolTransport, url: str) -> None:
    response = await transport.stream(get(url))
    async for chunk in response:
        assert chunk == b"abc"
        break
    await response.aclose()
