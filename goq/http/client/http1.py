"""HTTP/1.1 requests and responses as bytes, shared by both transports; no I/O.

Requests carry their length. Responses carry it, are chunked, or end with the connection.
"""

from __future__ import annotations

from typing import Final

import httptools
import httpx

from goq import limits

HEADERS_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 64
IDLE_S_MAX: Final = 60.0
STREAM_BUFFER_BYTES_MAX: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 4 * limits.FRAME_BYTES_MAX

Origin = tuple[str, int]


def origin_of(url: httpx.URL) -> Origin:
    """Return the host and port to connect to."""
    return url.host, url.port or (443 if url.scheme == "https" else 80)


def encode_head(request: httpx.Request, body_bytes: int) -> bytes:
    """Return the request line and the headers; add the length where the caller gave none.

    ``request.extensions["target"]`` replaces the URL's own path and query, as in httpcore.
    """
    target = request.extensions.get("target") or request.url.raw_path
    headers = request.headers.raw
    lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), target)]
    lines.extend([b"%b: %b\r\n" % pair for pair in headers])
    if body_bytes and not any(name.lower() == b"content-length" for name, _ in headers):
        lines.append(b"Content-Length: %d\r\n" % body_bytes)
    lines.append(b"\r\n")
    return b"".join(lines)


class ResponseReader:
    """Parser of the responses of one connection, one after the other.

    Call ``feed`` with received bytes, ``eof`` at the end of input, and ``reset`` before the next
    request. ``chunks`` holds the body as it arrives; the caller empties it. Bytes that are not a
    response raise ``httpx.RemoteProtocolError``.

    A long body may bypass the parser, into a buffer of its length: ``rest_bytes`` is the part that
    is still to come, and ``skip_rest`` marks it as received.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Forget the last response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []
        self.buffered_bytes = 0
        self.started = False
        self.headers_complete = False
        self.complete = False
        self.keep_alive = False
        self._header_bytes = 0
        self._length_known = False
        self._length = 0
        self._body_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        self.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise self._broken("the server changed the protocol unasked") from None
        except httptools.HttpParserError as error:
            raise self._broken(f"not an HTTP response: {error}") from None
        if self._header_bytes > HEADERS_BYTES_MAX:
            raise self._broken(f"over {HEADERS_BYTES_MAX} bytes of headers")

    def eof(self) -> None:
        """Mark the end of input."""
        if self.complete:
            return
        if not self.started:
            raise httpx.RemoteProtocolError("the server closed the connection without an answer")
        if not self.headers_complete or self._length_known:
            raise httpx.RemoteProtocolError("the server closed the connection inside of an answer")
        self.complete = True

    def take(self) -> list[bytes]:
        """Return the part of the body that has arrived, and remove it."""
        chunks, self.chunks, self.buffered_bytes = self.chunks, [], 0
        return chunks

    @property
    def rest_bytes(self) -> int:
        """The bytes still to come of a body with a length; 0 for any other body."""
        if self.complete or not self.headers_complete:
            return 0
        return max(0, self._length - self._body_bytes)

    def skip_rest(self) -> None:
        """Mark the rest of the body as received elsewhere; the response is complete."""
        self._parser = httptools.HttpResponseParser(self)
        self.complete = True

    def _broken(self, detail: str) -> httpx.RemoteProtocolError:
        self.complete = self.headers_complete = False
        return httpx.RemoteProtocolError(detail)

    def on_message_begin(self) -> None:
        """Parser callback."""
        if self.complete:
            raise ValueError("a response that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback."""
        self._header_bytes += len(name) + len(value)
        self.headers.append((name, value))
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._length_known = True
            self._length = int(value) if value.isdigit() else 0

    def on_headers_complete(self) -> None:
        """Parser callback."""
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.headers_complete = True
            self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Parser callback."""
        self.chunks.append(data)
        self.buffered_bytes += len(data)
        self._body_bytes += len(data)

    def on_message_complete(self) -> None:
        """Parser callback."""
        if self.status >= 200:
            self.complete = True
        else:  # an interim response such as 100 Continue
            self.headers.clear()
            self._length_known = False
            self._length = 0
