"""Encoder and writer of responses: whole answers, and streams at the speed of the client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import string
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from goq.errors import GoqError, TooManyRequests
from goq.http.context import ServerContext, logger
from goq.http.message import BytesLike, Item, LiveStream, Request, Response
from goq.http.unsent_answers import LARGE_BYTES

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SWITCHING_PROTOCOLS: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"
)
LAST_CHUNK: Final = b"0\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
BODILESS: Final = frozenset({204, 304})

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_TOKEN: Final = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")
_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection"})


JOIN_BYTES_MAX: Final = 16 * 1024


class ResponseWriter:
    """Writes the answers of one connection, one after the other.

    While ``paused`` the transport's buffer is full: a stream waits for ``resume``, and the
    connection starts no request.
    """

    __slots__ = ("_heartbeat", "_is_silent", "_resumed", "_shared", "_transport", "paused")

    def __init__(self, shared: ServerContext, transport: asyncio.Transport) -> None:
        self._shared = shared
        self._transport = transport
        self._resumed: asyncio.Future[None] | None = None
        self._heartbeat = b""
        self._is_silent = False
        self.paused = False

    def resume(self) -> None:
        """Wake a stream that waits."""
        self.paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def write(self, response: Response, connection: bytes, request: Request | None) -> None:
        """Write a whole answer; an answer that cannot be encoded becomes an internal error.

        ``request`` is ``None`` for bytes that never became a request.
        """
        head_only = request is not None and request.method == "HEAD"
        body = response.body
        try:
            if (
                isinstance(body, bytes)
                and len(body) <= JOIN_BYTES_MAX
                and not (response.headers or head_only or response.status in BODILESS)
            ):  # as most are
                start = _start(response.status, response.content_type)
                self._transport.write(
                    b"%b%bContent-Length: %d\r\n\r\n%b" % (start, connection, len(body), body)
                )
                return
            parts = render(response, connection, head_only=head_only)
            self._check_room(parts)
        except TooManyRequests as error:
            if response.on_refused is not None:
                response.on_refused()
            parts = self._render_failure(error, connection, request)
        except (TypeError, ValueError) as error:
            parts = self._render_failure(error, connection, request)
        if len(parts) == 2 and len(parts[1]) <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def _check_room(self, item: Item) -> None:
        """Raise ``TooManyRequests`` for a large item while too much waits to be taken."""
        size_bytes = _size(item)
        if size_bytes > LARGE_BYTES:
            self._shared.unsent.check_room(size_bytes)

    async def write_stream(
        self, response: Response, items: AsyncIterator[Item], connection: bytes, request: Request
    ) -> bool:
        """Write a streamed answer and close its iterator; return whether it was sent whole."""
        try:
            chunked = b"" if request.is_http_10 or response.status in BODILESS else CHUNKED
            try:
                head = render_head(response, connection, chunked)
            except (TypeError, ValueError) as error:
                self.write(self._shared.failure(error, request), connection, request)
                return True
            self._transport.write(head + b"\r\n")
            if request.method != "HEAD" and response.status not in BODILESS:
                await self._pump(items, chunked=bool(chunked))
            return True
        except TooManyRequests as error:
            self._shared.failure(error, request)  # logs it
            return False
        except GoqError as error:
            logger.warning("stream ended: %r: %s", request, error)
            return False
        except Exception:
            logger.exception("stream failed: %r", request)
            return False
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def beat(self) -> None:
        """Send the stream's heartbeat if it has sent nothing since the last call."""
        if self._is_silent and not self.paused:
            self._transport.write(self._heartbeat)
        self._is_silent = True

    async def _pump(self, items: AsyncIterator[Item], *, chunked: bool) -> None:
        transport = self._transport
        if isinstance(items, LiveStream):
            self._start_beating(items.heartbeat, chunked=chunked)
        try:
            async for item in items:
                if not item:
                    continue  # an empty chunk would end the answer
                self._check_room(item)
                if chunked:
                    transport.writelines(chunk_parts(item))
                elif isinstance(item, (list, tuple)):
                    transport.writelines(item)
                else:
                    transport.write(item)  # type: ignore[arg-type]  # sequences are handled above
                self._is_silent = False
                if self.paused:
                    self._resumed = asyncio.get_running_loop().create_future()
                    await self._resumed
                    self._resumed = None
        finally:
            self._shared.pulse.remove(self)
        if chunked:
            transport.write(LAST_CHUNK)

    def _start_beating(self, heartbeat: bytes, *, chunked: bool) -> None:
        """Send the first heartbeat, and start the next ones.

        The kernel is told to report a client that does not acknowledge them.
        Without ``TCP_USER_TIMEOUT`` unacknowledged bytes stay in the kernel's buffer for a quarter
        of an hour when the client's machine is gone.
        """
        self._heartbeat = b"".join(chunk_parts(heartbeat)) if chunked else heartbeat
        self._transport.write(self._heartbeat)  # shows that no proxy holds the stream back
        self._is_silent = True
        self._shared.pulse.add(self)
        if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            sock = self._transport.get_extra_info("socket")
            timeout_ms = self._shared.limits.write_timeout_ms
            with contextlib.suppress(OSError):  # not a TCP socket, or already closed
                sock.setsockopt(socket.IPPROTO_TCP, option, timeout_ms)

    def _render_failure(
        self, error: Exception, connection: bytes, request: Request | None
    ) -> Sequence[BytesLike]:
        head_only = request is not None and request.method == "HEAD"
        try:
            return render(self._shared.failure(error, request), connection, head_only=head_only)
        except (TypeError, ValueError):
            logger.exception("on_error gave an answer that cannot be sent")
            return render(Response(500), connection, head_only=head_only)


def render(response: Response, connection: bytes, *, head_only: bool) -> Sequence[BytesLike]:
    """Encode an answer whose body is not a stream, as parts to write in order.

    ``connection`` is a whole ``Connection`` header line, or empty. Raises ``ValueError`` when the
    status, a header or the body is not valid.
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
    """Encode the status line, the headers and ``lines``, without the empty line after them.

    Raises ``ValueError`` when the status or a header is not valid.
    """
    start = _start(response.status, response.content_type)
    if response.headers:
        lines += tuple(_line(name, value) for name, value in response.headers.items())
    return b"".join((start, *lines))


def chunk_parts(item: Item) -> Sequence[BytesLike]:
    """Encode one chunk, as parts to write in order; ``item`` must not be empty."""
    parts = item if isinstance(item, (list, tuple)) else (item,)
    return (b"%x\r\n" % _size(item), *parts, b"\r\n")


def _size(item: Item) -> int:
    return sum([len(part) for part in item]) if isinstance(item, (list, tuple)) else len(item)


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
