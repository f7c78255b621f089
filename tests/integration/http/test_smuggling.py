"""What two readers of the same bytes could understand differently is refused by this one."""

from __future__ import annotations

import pytest

from goq.http.message import Request, Response
from tests.support.api.http_harness import Served, describe, serving

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def head(*lines: bytes, start: bytes = b"POST / HTTP/1.1\r\nHost: a\r\n") -> bytes:
    return start + b"".join(lines) + b"\r\n"


REFUSED = {
    "both framings": head(b"Content-Length: 3\r\n", CHUNKED) + b"0\r\n\r\n",
    "both framings, the other way": head(CHUNKED, b"Content-Length: 3\r\n") + b"0\r\n\r\n",
    "conflicting lengths": head(b"Content-Length: 3\r\nContent-Length: 4\r\n") + b"abcd",
    "a length twice": head(b"Content-Length: 3\r\nContent-Length: 3\r\n") + b"abc",
    "a list of lengths": head(b"Content-Length: 3, 3\r\n") + b"abc",
    "a signed length": head(b"Content-Length: +3\r\n") + b"abc",
    "a negative length": head(b"Content-Length: -3\r\n") + b"abc",
    "a hexadecimal length": head(b"Content-Length: 0x3\r\n") + b"abc",
    "an empty length": head(b"Content-Length: \r\n"),
    "a length beyond 64 bits": head(b"Content-Length: 99999999999999999999999\r\n"),
    "a length in a trailer": head(CHUNKED) + b"0\r\nContent-Length: 5\r\n\r\n",
    "chunks that are not last": head(b"Transfer-Encoding: chunked, gzip\r\n"),
    "a coding before chunks": head(b"Transfer-Encoding: gzip, chunked\r\n") + b"0\r\n\r\n",
    "a coding twice": head(CHUNKED, b"Transfer-Encoding: identity\r\n") + b"0\r\n\r\n",
    "chunked twice": head(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "a coding like chunked": head(b"Transfer-Encoding: xchunked\r\n") + b"0\r\n\r\n",
    "no coding by name": head(b"Transfer-Encoding: identity\r\n"),
    "an empty coding": head(b"Transfer-Encoding: \r\n"),
    "chunks in HTTP/1.0": head(CHUNKED, start=b"POST / HTTP/1.0\r\n") + b"0\r\n\r\n",
    "a folded coding": head(b"Transfer-Encoding:\r\n chunked\r\n") + b"0\r\n\r\n",
    "a folded header": head(b"X: a\r\n b\r\n"),
    "a fold in the first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "NUL in a value": head(b"X: a\0b\r\n"),
    "NUL in a name": head(b"X\0: a\r\n"),
    "a control character in a value": head(b"X: a\x01b\r\n"),
    "a space before the colon": head(b"Content-Length : 3\r\n") + b"abc",
    "a header without name": head(b": a\r\n"),
    "a name that is no token": head(b"X(y): a\r\n"),
    "a header without colon": head(b"X\r\n"),
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare line feed after a header": head(b"X: a\nY: b\r\n"),
    "a bare carriage return": head(b"X: a\rY: b\r\n"),
    "a negative chunk": head(CHUNKED) + b"-1\r\n\r\n",
    "a chunk size with prefix": head(CHUNKED) + b"0x1\r\na\r\n0\r\n\r\n",
    "a chunk size with a space": head(CHUNKED) + b"1 \r\na\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": head(CHUNKED) + b"fffffffffffffffff\r\na",
    "a chunk longer than its size": head(CHUNKED) + b"1\r\naXX0\r\n\r\n",
    "chunks with bare line feeds": head(CHUNKED) + b"1\na\n0\n\n",
    "a line feed in a chunk extension": head(CHUNKED) + b"1;a\nb\r\na\r\n0\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "the same Host twice": b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method nobody knows": b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an upgrade": head(b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    "an upgrade with a body": head(b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n")
    + b"abc",
    "a target that is no path": b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target with a fragment": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target not percent-encoded": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target not in UTF-8": b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tab in the target": b"GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303"),
}

ACCEPTED = {
    "spaces around a length": (head(b"Content-Length:  3 \t\r\n") + b"abc", b"POST / 3"),
    "chunked in any case": (head(b"transfer-encoding: Chunked\r\n") + b"0\r\n\r\n", b"POST / 0"),
    "an extension of a chunk": (head(CHUNKED) + b"1;a=b\r\na\r\n0\r\n\r\n", b"POST / 1"),
    "a chunk size in hexadecimal": (
        head(CHUNKED) + b"00A\r\n0123456789\r\n0\r\n\r\n",
        b"POST / 10",
    ),
    "an offer to upgrade that is not for this hop": (head(b"Upgrade: h2c\r\n"), b"POST / 0"),
    "line breaks before a request": (b"\r\n\r\n" + head(), b"POST / 0"),
    "a whole URL as the target": (
        b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /b 0",
    ),
    "HTTP/1.0 without Host": (b"GET / HTTP/1.0\r\n\r\n", b"GET / 0"),
}

FOLLOWER = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("name", REFUSED)
def test_ambiguous_bytes_are_refused_and_end_the_connection(run, name):
    seen: list[str] = []

    def handler(request: Request) -> Response:
        seen.append(request.path)
        return describe(request)

    async def refuse(served: Served, pieces: list[bytes]) -> None:
        peer = await served.connect()
        for piece in pieces:
            peer.send(piece)
        answer = await peer.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.body.startswith(b"bad_http: ")
        assert await peer.rest() == b""

    async def scenario():
        async with serving(handler) as served:
            data = REFUSED[name] + FOLLOWER
            await refuse(served, [data])
            await refuse(served, [bytes([byte]) for byte in data])
        assert seen == []

    run(scenario)


@pytest.mark.parametrize("name", ACCEPTED)
def test_unusual_bytes_that_mean_one_thing_are_understood(run, name):
    data, body = ACCEPTED[name]

    async def scenario():
        async with serving(describe) as served:
            peer = await served.connect()
            peer.send(data)
            answer = await peer.answer()
            assert (answer.status, answer.body) == (200, body)

    run(scenario)
