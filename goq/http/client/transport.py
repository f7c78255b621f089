"""HTTP/1.1 over an asyncio protocol, with TLS or without.

Idle connections are kept for the next request; the total is bounded. A connection that ended while
idle is never used again. A connection that breaks later, before the first byte of an answer, is
replaced once if repeating the request is safe: for GET, or if the request was not sent whole. The
caller decides about any other failure.

``aclose`` also breaks requests that other tasks wait for: they fail as on a lost connection.

A transport may outlive its event loop, as a client that is made once and used by one
``asyncio.run`` after the other. Connections of an earlier loop are dropped before anything is sent.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import cast

from goq.errors import InvalidInput, TooLarge
from goq.http.client.errors import (
    ConnectError,
    ConnectTimeout,
    PoolTimeout,
    ReadError,
    ReadTimeout,
    TransportError,
    WriteError,
    WriteTimeout,
    connect_error,
)
from goq.http.client.http1 import (
    ANSWER_BYTES_MAX,
    IDLE_S_MAX,
    STREAM_BUFFER_BYTES_MAX,
    AnswerPace,
    ClientRequest,
    Origin,
    RequestTimeouts,
)
from goq.http.client.response_reader import ResponseReader, WholeResponse
from goq.http.client.trust import ClientTls


def open_transport(scheme: str, connections_max: int, tls: ClientTls) -> ProtocolTransport:
    """Return the transport for URLs of ``scheme``; raise ``InvalidInput`` for TLS files that cannot
    be used."""
    return ProtocolTransport(connections_max, None if scheme == "http" else tls.context())


_abandoned: list[ProtocolTransport] = []


class _Connection(asyncio.Protocol):
    """One connection and the parser of its responses; at most one task waits on it."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.reader = ResponseReader()
        self.pace = AnswerPace(None)
        self.idle_since_s = 0.0
        self.failure: TransportError | None = None
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
        except ReadError as error:
            self.fail(error)
            return
        if self.reader.buffered_bytes > STREAM_BUFFER_BYTES_MAX and self._reading:
            self._transport.pause_reading()
            self._reading = False
        self._wake()

    def eof_received(self) -> None:
        try:
            self.reader.eof()
        except ReadError as error:
            self.fail(error)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ReadError(str(exc or "the connection was closed")))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    async def send(self, pieces: tuple[bytes, ...], timeout_s: float | None) -> None:
        """Send the pieces of a request; wait while the other side does not read."""
        if self.failure is not None:
            raise WriteError(str(self.failure))
        for piece in pieces:
            self._transport.write(piece)
        while not self._writable and not self.reader.started:
            await self._wait(timeout_s, WriteTimeout("the request took too long to send"))

    async def receive(self, timeout_s: float | None) -> None:
        """Wait until the parser has more."""
        if not self._reading:
            self._transport.resume_reading()
            self._reading = True
        await self._wait(timeout_s, ReadTimeout("the answer took too long"))

    def is_usable(self) -> bool:
        """Whether an idle connection can carry a request."""
        young = time.monotonic() - self.idle_since_s < IDLE_S_MAX
        return young and self.failure is None and not self._transport.is_closing()

    def fail(self, error: TransportError) -> None:
        """Break the connection, and the wait of its task."""
        if self.failure is None:
            self.failure = error
        self.close()
        self._wake()

    def end_sending(self) -> None:
        """End the sending side: no more requests follow."""
        if self._loop.is_closed():
            return
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close the connection; the sockets of a loop that is closed go with their objects."""
        if not self._loop.is_closed():
            self._transport.abort()

    async def _wait(self, timeout_s: float | None, late: TransportError) -> None:
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


class ProtocolTransport:
    """Transport over an asyncio protocol (see the module), for one event loop at a time.

    With ``tls`` new connections speak HTTPS.
    """

    def __init__(self, connections_max: int, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections_max = connections_max
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    async def fetch(
        self, request: ClientRequest, body_bytes_max: int = ANSWER_BYTES_MAX
    ) -> WholeResponse:
        """Send a request; return its response. Raises ``TooLarge`` for a longer body."""
        stream = await self.stream(request)
        return WholeResponse(stream.status, stream.headers, await stream.read(body_bytes_max))

    async def stream(self, request: ClientRequest) -> ProtocolStream:
        """Send a request; return when the headers of its response have arrived."""
        origin, timeouts = request.url.origin, request.timeouts
        pieces = request.pieces()
        if self._loop is not asyncio.get_running_loop():
            self._enter_loop()
        await self._acquire(timeouts.pool_s)
        connection = None
        try:
            connection, fresh = await self._take(origin, timeouts)
            try:
                await self._exchange(connection, pieces, timeouts)
            except (WriteError, ReadError) as error:
                safe = request.method == "GET" or isinstance(error, WriteError)
                if fresh or connection.reader.started or not safe:
                    raise
                self._drop(connection)
                connection = None
                connection = await self._connect(origin, timeouts)
                await self._exchange(connection, pieces, timeouts)
            return ProtocolStream(self, connection, timeouts)
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

    def abort(self) -> None:
        """Close idle connections and break those in use; the event loop closes the sockets."""
        self._closed = True
        self._close_idle()
        for connection in list(self._busy):
            connection.fail(ReadError("the client is closed"))

    async def aclose(self) -> None:
        """Close idle connections and break those in use."""
        self.abort()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    def abandon(self) -> None:
        """Keep a forked child's copies of its parent's connections, unused.

        Closing one would take it from the selector of the parent's loop, which the child shares.
        """
        _abandoned.append(self)

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _enter_loop(self) -> None:
        """Begin anew under this event loop."""
        if self._loop is not None:
            if self._loop.is_running():
                raise InvalidInput(
                    "an asynchronous client serves one event loop: make another client here"
                )
            self._close_idle()
            self._busy = set()
            self._free = asyncio.Semaphore(self._connections_max)
        self._loop = asyncio.get_running_loop()

    async def _acquire(self, timeout_s: float | None) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise PoolTimeout("every connection is in use") from None

    async def _take(self, origin: Origin, timeouts: RequestTimeouts) -> tuple[_Connection, bool]:
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

    async def _connect(self, origin: Origin, timeouts: RequestTimeouts) -> _Connection:
        if self._closed:
            raise ConnectError("the client is closed")
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(lambda: _Connection(origin), *origin, ssl=self.tls)
        try:
            async with asyncio.timeout(timeouts.connect_s):
                _, connection = await connecting
        except TimeoutError as error:
            raise ConnectTimeout("the connection took too long") from error
        except OSError as error:
            raise connect_error(error) from error
        if self._closed:  # meanwhile: an answer to a request sent now would not be read
            connection.close()
            raise ConnectError("the client is closed")
        self._busy.add(connection)
        return connection

    @staticmethod
    async def _exchange(
        connection: _Connection, pieces: tuple[bytes, ...], timeouts: RequestTimeouts
    ) -> None:
        connection.reader.reset()
        await connection.send(pieces, timeouts.write_s)
        pace = connection.pace = AnswerPace(timeouts.read_s)
        while not connection.reader.headers_complete:
            await connection.receive(pace.left_s(connection.reader.received_bytes))

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


class ProtocolStream:
    """A response whose body is read as it arrives."""

    def __init__(
        self, transport: ProtocolTransport, connection: _Connection, timeouts: RequestTimeouts
    ) -> None:
        self.status = connection.reader.status
        self.headers = connection.reader.headers
        self._transport = transport
        self._connection: _Connection | None = connection
        self._timeouts = timeouts  # the caller may change them between two pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (connection := self._connection) is not None:
                for chunk in connection.reader.take():
                    yield chunk
                if connection.reader.chunks:
                    continue  # they arrived, perhaps with the end, while the last were processed
                if connection.reader.complete:
                    self._finish(reuse=connection.reader.keep_alive)
                else:
                    await connection.receive(self._timeouts.read_s)
        finally:
            self._finish(reuse=False)

    async def read(self, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """Return the whole body; raise ``TooLarge`` for a longer one."""
        connection = self._connection
        assert connection is not None
        reader = connection.reader
        chunks = reader.take()
        try:
            size_bytes = sum(map(len, chunks))
            while size_bytes <= bytes_max and not reader.complete:
                await connection.receive(connection.pace.left_s(reader.received_bytes))
                size_bytes += reader.buffered_bytes
                chunks += reader.take()
            if size_bytes > bytes_max:
                raise TooLarge(f"an answer of over {bytes_max} bytes; ask for less at a time")
        except BaseException:
            self._finish(reuse=False)
            raise
        self._finish(reuse=reader.keep_alive)
        return b"".join(chunks)

    async def aclose(self) -> None:
        """Break the connection, unless the body was read to its end."""
        self._finish(reuse=False)

    def _finish(self, *, reuse: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport._release(connection, reuse=reuse)
