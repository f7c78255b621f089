"""The parser of responses: compared with llhttp, at any cuts, and what it refuses."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.http.client.errors import ProtocolError
from goq.http.client.response_reader import HEAD_BYTES_MAX, ResponseReader

STATUSES = st.sampled_from([b"200 OK", b"204 No Content", b"404 Not Found", b"503", b"304 "])
NAMES = st.sampled_from([b"Date", b"X-Empty", b"x-twice", b"X-Twice", b"Goq-Session"])
VALUES = st.sampled_from([b"", b"a", b"a, b", b"caf\xe9", b"  spaced \t"])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
BODIES = st.binary(max_size=60)


def fed(pieces: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    body = b""
    for piece in pieces:
        reader.feed(piece)
        body += b"".join(reader.take())
    return reader, body


class Llhttp:
    """What httptools makes of the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode().lower(), value.decode("latin-1").rstrip(" \t")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Draw a response with a length or with chunks."""
    status, body = draw(STATUSES), draw(BODIES)
    head = b"HTTP/1.%d %b\r\n" % (draw(st.integers(0, 1)), status)
    head += b"".join(b"%b: %b\r\n" % pair for pair in draw(HEADERS))
    head += draw(st.sampled_from([b"", b"Connection: close\r\n", b"connection: Keep-Alive\r\n"]))
    if status.startswith((b"204", b"304")):
        return head + b"\r\n"
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if b > a]
    end = draw(st.sampled_from([b"0\r\n\r\n", b"0;last\r\nX-Trailer: 1\r\n\r\n"]))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + end


@given(responses(), st.data())
def test_a_response_in_any_pieces_is_read_as_llhttp_reads_it(data: bytes, draw: st.DataObject):
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
    reader, body = fed(pieces)
    twin = Llhttp(data)
    twin.headers.pop("x-trailer", None)
    assert reader.complete
    assert twin.is_complete
    assert (reader.status, body, dict(reader.headers.items())) == (
        twin.status,
        twin.body,
        twin.headers,
    )
    assert reader.keep_alive == twin.keep_alive


@given(responses(), st.data())
def test_a_response_that_is_cut_off_is_never_taken_for_a_whole_one(
    data: bytes, draw: st.DataObject
):
    length = draw.draw(st.integers(0, len(data) - 1))
    reader, _ = fed([data[:length]] if length else [])
    assert not reader.complete
    with pytest.raises(ProtocolError, match="closed"):
        reader.eof()


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_response_or_a_protocol_error(data: bytes, begins: bool):
    reader = ResponseReader()
    try:
        reader.feed((b"HTTP/1.1 200 OK\r\n" if begins else b"") + data)
        reader.eof()
    except ProtocolError:
        assert not reader.complete
    else:
        assert reader.complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 204 No Content\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_BYTES_MAX,
    ],
)
def test_what_is_ambiguous_or_no_response_is_refused(data: bytes):
    with pytest.raises(ProtocolError):
        ResponseReader().feed(data)


def test_interim_responses_are_passed_over():
    interim = b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n"
    reader, body = fed([interim, interim[:9], interim[9:] + b"HTTP/1.1 200 OK\r\n", b"\r\nab"])
    reader.eof()
    assert (reader.status, body, reader.keep_alive) == (200, b"ab", False)
    assert "x" not in reader.headers


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["interim", "trailer"],
)
def test_interim_responses_and_trailers_without_an_end_are_refused(start: bytes, more: bytes):
    reader = ResponseReader()
    reader.feed(start + more)
    with pytest.raises(ProtocolError):
        reader.feed(more * HEAD_BYTES_MAX)


def test_headers_are_found_in_any_case():
    reader, _ = fed([b"HTTP/1.1 204 No\r\nGoq-Leader:  http://b \r\n\r\n"])
    assert reader.headers.get("goq-LEADER") == "http://b"
    assert "GOQ-leader" in reader.headers
    assert reader.headers.get("other") is None
