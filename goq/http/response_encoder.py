"""An answer as bytes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from goq.http.message import BytesLike, Item, Response

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
BODILESS: Final = frozenset({204, 304})

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_TOKEN: Final = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")
_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection"})


def render(response: Response, connection: bytes, *, head_only: bool) -> Sequence[BytesLike]:
    """Render an answer whose body is not a stream, as parts to write in order.

    ``connection`` is a whole ``Connection`` header line, or nothing. Raises ``ValueError`` when
    the status, a header or the body could not be sent as given.
    """
    body = response.body
    if isinstance(body, bytes):
        parts: Sequence[BytesLike] = (body,)
        size = len(body)
    elif isinstance(body, (list, tuple)):
        parts = body
        size = sum([len(part) for part in body])
    else:
        raise ValueError(f"a {type(body).__name__} cannot be a whole body")
    head = render_head(response, connection)
    if response.status in BODILESS:
        return (head + b"\r\n",)
    head = b"%bContent-Length: %d\r\n\r\n" % (head, size)
    return (head,) if head_only else (head, *parts)


def render_head(response: Response, *lines: bytes) -> bytes:
    """Render the status line, the headers and ``lines``, without the empty line that ends them.

    Raises ``ValueError`` when the status or a header could not be sent as given.
    """
    start = _start(response.status, response.content_type)
    if response.headers:
        lines += tuple(_line(name, value) for name, value in response.headers.items())
    return b"".join((start, *lines))


def chunk_parts(item: Item) -> Sequence[BytesLike]:
    """Frame one chunk, as parts to write in order; ``item`` must not be empty."""
    if isinstance(item, (list, tuple)):
        return (b"%x\r\n" % sum([len(part) for part in item]), *item, b"\r\n")
    assert isinstance(item, (bytes, bytearray, memoryview))
    return (b"%x\r\n" % len(item), item, b"\r\n")


@lru_cache(maxsize=512)
def _start(status: int, content_type: str | None) -> bytes:
    if not 200 <= status <= 599:
        raise ValueError(f"{status} is not the status of an answer")
    line = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode("ascii")
    return line if content_type is None else line + _line("Content-Type", content_type)


def _line(name: str, value: str) -> bytes:
    if not name or not _TOKEN.issuperset(name):
        raise ValueError(f"{name!r} is not a header name")
    if name.lower() in _FRAMING:
        raise ValueError(f"{name} frames the message: the server sets it")
    if "\r" in value or "\n" in value or "\0" in value:
        raise ValueError(f"the value of header {name} holds a line break or NUL")
    return f"{name}: {value}\r\n".encode("latin-1")
