"""The writing half of a connection: whole answers, and streams no faster than they are taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Final

from goq.http.context import ServerContext, logger
from goq.http.message import BytesLike, Item, LiveStream, Request, Response
from goq.http.response_encoder import (
    BODILESS,
    CHUNKED,
    LAST_CHUNK,
    chunk_parts,
    render,
    render_head,
)

JOIN_BYTES_MAX: Final = 16 * 1024


class ResponseWriter:
    """Writes the answers of one connection, one after the other.

    ``paused`` says that the transport holds more than it wants to: a stream then waits for
    ``resume``, and whoever starts requests should start no other.
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
        """Let a waiting stream go on."""
        self.paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def write(self, response: Response, connection: bytes, request: Request | None) -> None:
        """Write a whole answer; one that cannot be sent as given becomes an internal error.

        ``request`` is what it answers, or ``None`` for bytes that never became a request.
        """
        head_only = request is not None and request.method == "HEAD"
        try:
            parts = render(response, connection, head_only=head_only)
        except (TypeError, ValueError) as error:
            parts = self._render_failure(error, connection, request)
        if len(parts) == 2 and len(parts[1]) <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    async def write_stream(
        self, response: Response, items: AsyncIterator[Item], connection: bytes, request: Request
    ) -> bool:
        """Write a streamed answer and close its iterator; return whether it went out whole."""
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
                if chunked:
                    transport.writelines(chunk_parts(item))
                elif isinstance(item, (list, tuple)):
                    transport.writelines(item)
                else:
                    transport.write(item)  # type: ignore[arg-type]  # no sequence is left
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
        """Send heartbeats, and let the system find out when nobody takes them.

        What a client whose machine is gone does not take would stay in the kernel's buffer, which
        gives up after a quarter of an hour.
        """
        self._heartbeat = b"".join(chunk_parts(heartbeat)) if chunked else heartbeat
        self._is_silent = True
        self._shared.pulse.add(self)
        if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            sock = self._transport.get_extra_info("socket")
            timeout_ms = self._shared.limits.write_timeout_ms
            with contextlib.suppress(OSError):  # it is no TCP socket, or closed already
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
