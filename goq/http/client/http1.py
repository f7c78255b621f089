"""HTTP/1.1 requests as bytes, shared by both transports; no I/O.

Requests carry their length.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from goq import limits
from goq.http.client.errors import ReadTimeout

CONNECTIONS_MAX: Final = 64
IDLE_S_MAX: Final = 60.0
STREAM_BUFFER_BYTES_MAX: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 4 * limits.FRAME_BYTES_MAX

ANSWER_BYTES_PER_S_MIN: Final = 1024
_JOINED_BYTES_MAX: Final = 64 * 1024
_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~-._"
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

Origin = tuple[str, int]


class Url(NamedTuple):
    """An absolute URL; ``netloc`` is its host and port as the Host header has them."""

    scheme: str
    host: str
    port: int
    netloc: bytes
    path: bytes

    @property
    def origin(self) -> Origin:
        """The host and port to connect to."""
        return self.host, self.port


def parse_url(text: str) -> Url:
    """Return an ``http`` or ``https`` URL in its parts; raise ``ValueError`` for any other text."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError("it begins with neither http:// nor https://")
    if "@" in parts.netloc:
        raise ValueError("it has a user or a password; goq asks for a token")
    if not parts.hostname or any(each <= " " for each in text):
        raise ValueError("it has no valid host")
    try:
        host = parts.hostname.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("it has no valid host") from None
    default = 443 if parts.scheme == "https" else 80
    port = default if parts.port is None else parts.port
    if not port:
        raise ValueError("the port is 0")
    name = f"[{host}]" if ":" in host else host
    netloc = name if port == default else f"{name}:{port}"
    path = quote(parts.path, safe=_PATH_CHARACTERS)
    if parts.query:
        path += "?" + quote(parts.query, safe=_PATH_CHARACTERS + "?")
    return Url(parts.scheme, host, port, netloc.encode("ascii"), path.encode("ascii") or b"/")


@dataclass(slots=True)
class RequestTimeouts:
    """The time limits of a request in seconds, None for none: until a connection is free, until it
    is made, and for each wait to send and to receive."""

    pool_s: float | None = None
    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


class AnswerPace:
    """The time left for a whole answer: that of one wait, and a second for each KiB received.

    A server that sends a byte now and then would keep its client waiting without end.
    """

    __slots__ = ("_timeout_s", "_until_s")

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._until_s = 0.0 if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, received_bytes: int) -> float | None:
        """Return how long to wait for more. Raises ``ReadTimeout``."""
        if self._timeout_s is None or not received_bytes:
            return self._timeout_s
        until_s = self._until_s + received_bytes / ANSWER_BYTES_PER_S_MIN
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise ReadTimeout("the answer took too long")
        return min(left_s, self._timeout_s)


class ClientRequest(NamedTuple):
    """A request; ``head`` is from :func:`encode_head`.

    A caller may change ``timeouts`` while it reads the answer.
    """

    method: str
    url: Url
    head: bytes
    body: bytes
    timeouts: RequestTimeouts

    def pieces(self) -> tuple[bytes, ...]:
        """Return the bytes to send; a long body is not copied."""
        body = self.body
        if not body and self.method not in _WITH_BODY:
            return (self.head + b"\r\n",)
        if len(body) < _JOINED_BYTES_MAX:
            return (b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body),)
        return b"%bContent-Length: %d\r\n\r\n" % (self.head, len(body)), body


def encode_head(
    method: str, url: Url, target: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Return the request line and the headers with the host, but without the body's length."""
    line = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method.encode("ascii"), target, url.netloc)
    return line + encode_headers(headers)


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the lines of headers, as they follow those of :func:`encode_head`."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])
