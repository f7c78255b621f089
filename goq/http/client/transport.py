"""HTTP/1.1 over an asyncio protocol, with TLS or without, as an httpx transport.

Idle connections are kept for the next request; the total is bounded. A connection that ended while
idle is never used again. A connection that breaks later, before the first byte of an answer, is
replaced once if repeating the request is safe: for GET, or if the request was not sent whole. The
caller decides about any other failure.

``aclose`` also breaks requests that other tasks wait for: they fail as on a lost connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx

from goq.http.client.http1 import (
    IDLE_S_MAX,
    STREAM_BUFFER_BYTES_MAX,
    Origin,
    ResponseReader,
    encode_head,
    origin_of,
)
from goq.http.client.trust import ClientTls


def open_transport(scheme: str, connections_max: int, tls: ClientTls) -> httpx.AsyncBaseTransport:
    """Return the transport for URLs of ``scheme``; raise ``InvalidInput`` for TLS files that cannot
    be used."""
    return ProtocolTransport(connections_max, None if scheme == "http" else tls.context())


def finish(transport: httpx.AsyncBaseTransport) -> None:
    """Stop a transport from beginning requests; see :meth:`ProtocolTransport.finish`."""
    if isinstance(transport, ProtocolTransport):
        transport.finish()


def abandon(transport: httpx.AsyncBaseTransport) -> None:
    """Keep a forked child's copies of its parent's connections, unused.

    Closing one would take it from the selector of the parent's loop, which the child shares.
    """
    _abandoned.append(transport)


_abandoned: list[httpx.AsyncBaseTransport] = []


class _Connection(asyncio.Protocol):
    """One connection and the parser of its responses; at most one task waits on it."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.reader = ResponseReader()
        self.idle_since_s = 0.0
        self.failure: httpx.TransportError | None = None
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._writable = True
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not one by class

    def data_received(self, data: bytes) -> None:
        try:
            self.reader.feed(data)
        except httpx.RemoteProtocolError as error:
            self.fail(error)
            return
        if self.reader.buffered_bytes > STREAM_BUFFER_BYTES_MAX and self._reading:
            self._transport.pause_reading()
            self._reading = False
        self._wake()

    def eof_received(self) -> None:
        try:
            self.reader.eof()
        except httpx.RemoteProtocolError as error:
            self.fail(error)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(httpx.ReadError(str(exc or "the connection was closed")))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    async def send(self, pieces: list[bytes], timeout_s: float | None) -> None:
        """Send the pieces of a request; wait while the other side does not read."""
        if self.failure is not None:
            raise httpx.WriteError(str(self.failure))
        for piece in pieces:
            self._transport.write(piece)
        while not self._writable and not self.reader.started:
            await self._wait(timeout_s, httpx.WriteTimeout("the request took too long to send"))

    async def receive(self, timeout_s: float | None) -> None:
        """Wait until the parser has more."""
        if not self._reading:
            self._transport.resume_reading()
            self._reading = True
        await self._wait(timeout_s, httpx.ReadTimeout("the answer took too long"))

    def is_usable(self) -> bool:
        """Whether an idle connection can carry a request."""
        young = time.monotonic() - self.idle_since_s < IDLE_S_MAX
        return young and self.failure is None and not self._transport.is_closing()

    def fail(self, error: httpx.TransportError) -> None:
        """Break the connection, and the wait of its task."""
        if self.failure is None:
            self.failure = error
        self._transport.abort()
        self._wake()

    def end_sending(self) -> None:
        """End the sending side: no more requests follow."""
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    async def _wait(self, timeout_s: float | None, late: httpx.TransportError) -> None:
        if self.failure is not None:
            raise self.failure
        self._waiter = waiter = self._loop.create_future()
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self.fail, late)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        if self.failure is not None and not self.reader.complete:
            raise self.failure

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ProtocolTransport(httpx.AsyncBaseTransport):
    """Transport over an asyncio protocol (see the module). Bound to one event loop.

    With ``tls`` it speaks HTTPS.
    """

    def __init__(self, connections_max: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return when the headers of its response have arrived."""
        timeouts = request.extensions.get("timeout", {})
        chunks = [chunk async for chunk in request.stream]  # type: ignore[union-attr]
        body = b"".join(chunks)
        head = encode_head(request, len(body))
        pieces = [head + body] if len(body) < 65_536 else [head, body]
        origin = origin_of(request.url)
        await self._acquire(timeouts.get("pool"))
        connection = None
        try:
            connection, fresh = await self._take(origin, timeouts)
            try:
                await self._exchange(connection, pieces, timeouts)
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError) as error:
                safe = request.method == "GET" or isinstance(error, httpx.WriteError)
                if fresh or connection.reader.started or not safe:
                    raise
                self._drop(connection)
                connection = None
                connection = await self._connect(origin, timeouts)
                await self._exchange(connection, pieces, timeouts)
            return self._respond(connection, timeouts)
        except BaseException:
            self._release(connection, reuse=False)
            raise

    def finish(self) -> None:
        """Close idle connections, and end the sending side of those in use.

        The node then ends a request of this client that waits, with an answer or without.
        """
        self._closed = True
        self._close_idle()
        for connection in self._busy:
            connection.end_sending()

    async def aclose(self) -> None:
        """Close idle connections and break those in use."""
        self._closed = True
        self._close_idle()
        for connection in list(self._busy):
            connection.fail(httpx.ReadError("the client is closed"))
        await asyncio.sleep(0)  # lets the event loop close the sockets

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def _acquire(self, timeout_s: float | None) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("every connection is in use") from None

    async def _take(self, origin: Origin, timeouts: dict[str, Any]) -> tuple[_Connection, bool]:
        """Return a connection, and whether it is new."""
        for found in reversed(self._idle):
            if found.origin == origin and found.is_usable():
                self._idle.remove(found)
                self._busy.add(found)
                return found, False
        for stale in [c for c in self._idle if not c.is_usable()]:
            self._idle.remove(stale)
            stale.close()
        return await self._connect(origin, timeouts), True

    async def _connect(self, origin: Origin, timeouts: dict[str, Any]) -> _Connection:
        if self._closed:
            raise httpx.ConnectError("the client is closed")
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(lambda: _Connection(origin), *origin, ssl=self._tls)
        try:
            async with asyncio.timeout(timeouts.get("connect")):
                _, connection = await connecting
        except TimeoutError as error:
            raise httpx.ConnectTimeout("the connection took too long") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        self._busy.add(connection)
        return connection

    @staticmethod
    async def _exchange(
        connection: _Connection, pieces: list[bytes], timeouts: dict[str, Any]
    ) -> None:
        connection.reader.reset()
        await connection.send(pieces, timeouts.get("write"))
        while not connection.reader.headers_complete:
            await connection.receive(timeouts.get("read"))

    def _respond(self, connection: _Connection, timeouts: dict[str, Any]) -> httpx.Response:
        reader = connection.reader
        status, headers = reader.status, reader.headers
        if reader.complete:
            stream: httpx.AsyncByteStream = httpx.ByteStream(b"".join(reader.take()))
            self._release(connection, reuse=reader.keep_alive)
        else:
            stream = _Body(self, connection, timeouts)
        return httpx.Response(status, headers=headers, stream=stream)

    def _release(self, connection: _Connection | None, *, reuse: bool) -> None:
        if connection is not None:
            if reuse and not self._closed and connection.failure is None:
                self._busy.discard(connection)
                connection.idle_since_s = time.monotonic()
                self._idle.append(connection)
            else:
                self._drop(connection)
        self._free.release()

    def _drop(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.close()


class _Body(httpx.AsyncByteStream):
    """The rest of a response, as it arrives."""

    def __init__(
        self, transport: ProtocolTransport, connection: _Connection, timeouts: dict[str, Any]
    ) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._timeouts = timeouts  # the caller may change them between two pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (connection := self._connection) is not None:
                for chunk in connection.reader.take():
                    yield chunk
                if connection.reader.complete:
                    self._finish(reuse=connection.reader.keep_alive)
                elif not connection.reader.chunks:  # none arrived while the last were processed
                    await connection.receive(self._timeouts.get("read"))
        finally:
            self._finish(reuse=False)

    async def aclose(self) -> None:
        self._finish(reuse=False)

    def _finish(self, *, reuse: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport._release(connection, reuse=reuse)
