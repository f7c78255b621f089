"""Parser of HTTP/1.1 responses, for both transports; no I/O.

A response has a length, is chunked, or ends with the connection (RFC 9112, section 6.3). What is
ambiguous is refused: two lengths, a length beside chunks, bytes behind a response.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from goq.http.client.errors import NoAnswer, ProtocolError

HEAD_BYTES_MAX: Final = 64 * 1024
"""Of a head with the interim ones before it, and of a trailer."""
_KEPT_HEAD_BYTES_MAX: Final = 1024
_LINE_BYTES_MAX: Final = 1024
_BEGIN: Final = b"HTTP/1."
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\x00\r\n]*)?")
_HEADER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*)")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?")
_LENGTH: Final = re.compile(rb"\d{1,18}")


class ResponseHeaders:
    """The headers of a response by name, in any case. Values of one name are joined by a comma."""

    __slots__ = ("_by_name",)

    def __init__(self, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._by_name: dict[str, str] = {}
        for name, value in headers:
            key, text = name.decode("ascii").lower(), value.decode("latin-1")
            before = self._by_name.get(key)
            self._by_name[key] = text if before is None else f"{before}, {text}"

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of a header, ``default`` where there is none."""
        return self._by_name.get(name.lower(), default)

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield names, in lower case, and values."""
        yield from self._by_name.items()

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_name


class WholeResponse(NamedTuple):
    """A response with its body."""

    status: int
    headers: ResponseHeaders
    body: bytes


_NO_HEADERS: Final = ResponseHeaders()


class _Head(NamedTuple):
    """A parsed head; ``length`` is None for a body that is chunked or ends with the connection."""

    status: int
    headers: ResponseHeaders
    length: int | None
    is_chunked: bool
    keep_alive: bool


class ResponseReader:
    """Parser of the responses of one connection, one after the other.

    Call ``feed`` with received bytes, ``eof`` at the end of input, and ``reset`` before the next
    request. ``chunks`` holds the body as it arrives; the caller empties it. Bytes that are not a
    response raise ``ProtocolError``; after that the connection is of no use.

    A long body may bypass the parser, into a buffer of its length: ``rest_bytes`` is the part that
    is still to come, and ``skip_rest`` marks it as received.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the last response."""
        self.status = 0
        self.headers = _NO_HEADERS
        self.chunks: list[bytes] = []
        self.buffered_bytes = 0
        self.received_bytes = 0
        self.started = False
        self.headers_complete = False
        self.complete = False
        self.keep_alive = False
        self._left: int | None = None  # of the body or the chunk; None until the connection ends
        self._is_chunked = False
        self._is_behind_chunk = False
        self._is_trailer = False
        self._passed_bytes = 0  # of interim heads, then of trailers
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        self.started = True
        self.received_bytes += len(data)
        if not self.headers_complete:
            if self._pending:
                data = self._pending + data
                self._pending = b""
            rest = self._take_head(data)
            if not rest:
                return
            data = rest
        if self.complete:
            raise self._broken("a response that nobody asked for")
        if self._is_chunked:
            self._take_chunked(data)
        elif self._left is None:
            self._add(data)
        else:
            self._add(data)
            self._left -= len(data)
            if self._left < 0:
                raise self._broken("a response that nobody asked for")
            self.complete = not self._left

    def eof(self) -> None:
        """Mark the end of input."""
        if self.complete:
            return
        if not self.started:
            raise NoAnswer("the server closed the connection without an answer")
        if not self.headers_complete or self._is_chunked or self._left is not None:
            raise ProtocolError("the server closed the connection inside of an answer")
        self.complete = True

    def take(self) -> list[bytes]:
        """Return the part of the body that has arrived, and remove it."""
        chunks, self.chunks, self.buffered_bytes = self.chunks, [], 0
        return chunks

    @property
    def rest_bytes(self) -> int:
        """The bytes still to come of a body with a length; 0 for any other body."""
        return 0 if self._is_chunked or self.complete else self._left or 0

    def skip_rest(self) -> None:
        """Mark the rest of the body as received elsewhere; the response is complete."""
        self._left = 0
        self.complete = True

    def _take_head(self, data: bytes) -> bytes:
        """Parse a head, after any interim responses; return the bytes behind it."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0 or end > HEAD_BYTES_MAX:
                if not data.startswith(_BEGIN[: len(data)]):
                    raise self._broken(f"not an HTTP response: {data[:40]!r}")
                if len(data) > HEAD_BYTES_MAX:
                    raise self._broken(f"over {HEAD_BYTES_MAX} bytes of headers")
                self._pending = data
                return b""
            text = data[:end]
            try:
                head = _kept_head(text) if end <= _KEPT_HEAD_BYTES_MAX else _parse_head(text)
            except ValueError as error:
                raise self._broken(f"not an HTTP response: {error}") from None
            data = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise self._broken("the server changed the protocol unasked")
            self._pass_over(end)
            if not data:
                return b""
        self._passed_bytes = 0
        self.status, self.headers, self._left, self._is_chunked, self.keep_alive = head
        self.headers_complete = True
        self.complete = self._left == 0 and not self._is_chunked
        return data

    def _take_chunked(self, data: bytes) -> None:
        if self._pending:
            data = self._pending + data
        at, size = 0, len(data)
        left = self._left or 0
        while True:
            if left:
                piece = data[at : at + left]
                if not piece:
                    break
                self._add(piece)
                at += len(piece)
                left -= len(piece)
                self._is_behind_chunk = not left
            if self._is_behind_chunk:
                if size - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise self._broken("a chunk that is longer than its size")
                at += 2
                self._is_behind_chunk = False
            elif left:
                break
            end = data.find(b"\r\n", at)
            if end < 0 or end - at > _LINE_BYTES_MAX:
                if size - at > _LINE_BYTES_MAX:
                    raise self._broken("an endless line among the chunks")
                break
            line = data[at:end]
            at = end + 2
            if self._is_trailer:
                if not line:
                    self._end_chunks(at == size)
                    return
                self._pass_over(len(line))
                continue
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise self._broken(f"not the size of a chunk: {line[:40]!r}")
            left = int(found[1], 16)
            self._is_trailer = not left
        self._left = left
        self._pending = data[at:]

    def _end_chunks(self, is_last: bool) -> None:
        if not is_last:
            raise self._broken("a response that nobody asked for")
        self._left, self._pending = 0, b""
        self.complete = True

    def _pass_over(self, size_bytes: int) -> None:
        """Count what says nothing: no timeout ends a server that sends no end of it."""
        self._passed_bytes += size_bytes
        if self._passed_bytes > HEAD_BYTES_MAX:
            raise self._broken(f"over {HEAD_BYTES_MAX} bytes of interim responses or trailers")

    def _add(self, data: bytes) -> None:
        self.chunks.append(data)
        self.buffered_bytes += len(data)

    def _broken(self, detail: str) -> ProtocolError:
        self.complete = self.headers_complete = False
        return ProtocolError(detail)


def _parse_head(text: bytes) -> _Head:
    """Return a head in its parts; raise ``ValueError`` for bytes that are none."""
    first, *lines = text.split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        raise ValueError(repr(first[:40]))
    status, is_new = int(found[2]), found[1] == b"1"
    headers: list[tuple[bytes, bytes]] = []
    lengths: set[bytes] = set()
    codings = options = b""
    for line in lines:
        pair = _HEADER.fullmatch(line)
        if pair is None:
            raise ValueError(f"the header {line[:40]!r}")
        name, value = pair[1], pair[2].rstrip(b" \t")
        headers.append((name, value))
        match name.lower():
            case b"content-length":
                lengths.add(value)
            case b"transfer-encoding":
                codings += b"," + value.lower()
            case b"connection":
                options += b"," + value.lower()
    has_body = status >= 200 and status not in (204, 304)
    length = 0 if not has_body else _length_of(lengths, codings)
    said = {option.strip() for option in options.split(b",")}
    ends = has_body and length is None and not codings
    stays = b"close" not in said if is_new else b"keep-alive" in said
    return _Head(
        status, ResponseHeaders(headers), length, has_body and bool(codings), stays and not ends
    )


def _length_of(lengths: set[bytes], codings: bytes) -> int | None:
    if codings:
        if lengths or codings.strip(b" \t,") != b"chunked":
            raise ValueError(f"the transfer encoding {codings.strip(b',')[:40]!r}")
        return None
    if not lengths:
        return None
    if len(lengths) > 1 or _LENGTH.fullmatch(length := lengths.pop()) is None:
        raise ValueError("its length is not a number")
    return int(length)


_kept_head = lru_cache(maxsize=256)(_parse_head)
