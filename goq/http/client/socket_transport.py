"""HTTP/1.1 over blocking sockets, as an httpx transport for plain ``http://``.

Idle connections are kept for the next request; the total is bounded. A connection that is found
closed before any byte was sent is replaced. A connection that breaks later, before the first byte
of an answer, is replaced once if repeating the request is safe: for GET, or if the request was not
sent whole. The caller decides about any other failure.

``close`` also breaks requests that wait in other threads: they fail as on a lost connection.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx

from goq.http.client.http1 import (
    ANSWER_BYTES_MAX,
    IDLE_S_MAX,
    Origin,
    ResponseReader,
    encode_head,
    origin_of,
)
from goq.http.client.trust import ClientTls

_RECEIVE_BYTES = 256 * 1024


def open_transport(scheme: str, connections_max: int, tls: ClientTls) -> httpx.BaseTransport:
    """Return the transport for URLs of ``scheme``; raise ``InvalidInput`` for TLS files that cannot
    be used."""
    if scheme == "http":
        return SocketTransport(connections_max)
    return httpx.HTTPTransport(
        verify=tls.context(),
        trust_env=False,
        limits=httpx.Limits(max_connections=connections_max),
    )


def finish(transport: httpx.BaseTransport) -> None:
    """Stop a transport from beginning requests; see :meth:`SocketTransport.finish`."""
    if isinstance(transport, SocketTransport):
        transport.finish()


def abandon(transport: httpx.BaseTransport) -> None:
    """Close a forked child's copies of its parent's connections.

    The parent goes on using them: nothing is sent, and no lock is taken that it may have held.
    """
    if isinstance(transport, SocketTransport):
        transport.close_copies()


class _Connection:
    """One socket and the parser of its responses."""

    def __init__(self, origin: Origin, timeout_s: float | None) -> None:
        self.origin = origin
        self.reader = ResponseReader()
        self.idle_since_s = 0.0
        self._timeout_s = timeout_s
        try:
            self._socket = socket.create_connection(origin, timeout_s)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("the connection took too long") from error
        except OSError as error:
            raise httpx.ConnectError(error.strerror or str(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, pieces: list[bytes], timeout_s: float | None) -> None:
        """Send the pieces of a request."""
        self._set_timeout(timeout_s)
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except TimeoutError as error:
            raise httpx.WriteTimeout("the request took too long to send") from error
        except OSError as error:
            raise httpx.WriteError(str(error)) from error

    def receive(self, timeout_s: float | None) -> None:
        """Feed the parser with the next bytes."""
        self._set_timeout(timeout_s)
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the answer took too long") from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        if data:
            self.reader.feed(data)
        else:
            self.reader.eof()

    def receive_rest(self, timeout_s: float | None) -> bytes:
        """Return the whole body. What the parser does not have yet is received in place."""
        self._set_timeout(timeout_s)
        begun = self.reader.take()
        position = sum(map(len, begun))
        body = bytearray(position + self.reader.rest_bytes)
        body[:position] = b"".join(begun)
        with memoryview(body) as view:
            while position < len(body):
                try:
                    count = self._socket.recv_into(view[position:])
                except TimeoutError as error:
                    raise httpx.ReadTimeout("the answer took too long") from error
                except OSError as error:
                    raise httpx.ReadError(str(error)) from error
                if not count:
                    self.reader.eof()
                position += count
        self.reader.skip_rest()
        return cast(bytes, body)  # a copy would only make it immutable

    def is_usable(self) -> bool:
        """Whether an idle connection can carry a request; a readable one has ended."""
        return time.monotonic() - self.idle_since_s < IDLE_S_MAX and not _readable(self._socket)

    def shut_down(self, how: int) -> None:
        """End one direction or both; this wakes a thread that waits on the socket."""
        try:
            self._socket.shutdown(how)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        self._socket.close()

    def _set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # each change is a system call
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s


@dataclass(slots=True)
class _Use:
    """One request's permit, and its connection once it has one. The permit is returned once.

    An interrupt may come between any two instructions, also after the permit was returned.
    """

    connection: _Connection | None = None
    ended: bool = False


class SocketTransport(httpx.BaseTransport):
    """Transport over blocking sockets (see the module). Thread-safe."""

    def __init__(self, connections_max: int) -> None:
        self._free = threading.BoundedSemaphore(connections_max)
        self._guard = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return when the headers of its response have arrived."""
        timeouts = request.extensions.get("timeout", {})
        body = b"".join(request.stream)  # type: ignore[arg-type]  # an async one fails here
        head = encode_head(request, len(body))
        pieces = [head + body] if len(body) < 65_536 else [head, body]
        origin = origin_of(request.url)
        if not self._free.acquire(timeout=timeouts.get("pool")):
            raise httpx.PoolTimeout("every connection is in use")
        use = _Use()
        try:
            connection, fresh = self._take(origin, timeouts)
            use.connection = connection
            try:
                self._exchange(connection, pieces, timeouts)
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError) as error:
                safe = request.method == "GET" or isinstance(error, httpx.WriteError)
                if fresh or connection.reader.started or not safe:
                    raise
                self._drop(connection)
                use.connection = None
                use.connection = connection = self._connect(origin, timeouts)
                self._exchange(connection, pieces, timeouts)
            return self._respond(use, connection, timeouts)
        except BaseException:
            self._release(use, reuse=False)
            raise

    def finish(self) -> None:
        """Close idle connections, and end the sending side of those in use.

        The node then ends a request of this client that waits, with an answer or without.
        """
        self._end(socket.SHUT_WR)

    def close(self) -> None:
        """Close idle connections and break those in use."""
        self._end(socket.SHUT_RDWR)

    def close_copies(self) -> None:
        """Close the sockets of this process; see :func:`abandon`."""
        for connection in [*self._idle, *self._busy]:
            connection.close()

    def _end(self, how: int) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.shut_down(how)
        for connection in idle:
            connection.close()

    def _take(self, origin: Origin, timeouts: dict[str, Any]) -> tuple[_Connection, bool]:
        """Return a connection, and whether it is new."""
        while True:
            with self._guard:
                found = next((c for c in reversed(self._idle) if c.origin == origin), None)
                if found is None:
                    break
                self._idle.remove(found)
                self._busy.add(found)
            if found.is_usable():
                return found, False
            self._drop(found)
        return self._connect(origin, timeouts), True

    def _connect(self, origin: Origin, timeouts: dict[str, Any]) -> _Connection:
        connection = _Connection(origin, timeouts.get("connect"))
        with self._guard:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise httpx.ConnectError("the client is closed")

    @staticmethod
    def _exchange(connection: _Connection, pieces: list[bytes], timeouts: dict[str, Any]) -> None:
        connection.reader.reset()
        connection.send(pieces, timeouts.get("write"))
        while not connection.reader.headers_complete:
            connection.receive(timeouts.get("read"))

    def _respond(
        self, use: _Use, connection: _Connection, timeouts: dict[str, Any]
    ) -> httpx.Response:
        reader = connection.reader
        status, headers = reader.status, reader.headers
        if reader.complete:
            stream: httpx.SyncByteStream = httpx.ByteStream(b"".join(reader.take()))
            self._release(use, reuse=reader.keep_alive)
        else:
            stream = _Body(self, use, connection, timeouts)
        return httpx.Response(status, headers=headers, stream=stream)

    def _release(self, use: _Use, *, reuse: bool) -> None:
        if use.ended:
            return
        use.ended = True
        try:
            if (connection := use.connection) is not None:
                if reuse:
                    connection.idle_since_s = time.monotonic()
                    with self._guard:
                        reuse = not self._closed
                        if reuse:
                            self._busy.discard(connection)
                            self._idle.append(connection)
                if not reuse:
                    self._drop(connection)
        finally:
            self._free.release()

    def _drop(self, connection: _Connection) -> None:
        with self._guard:
            self._busy.discard(connection)
        connection.close()


class _Body(httpx.SyncByteStream):
    """The rest of a response, as it arrives."""

    def __init__(
        self,
        transport: SocketTransport,
        use: _Use,
        connection: _Connection,
        timeouts: dict[str, Any],
    ) -> None:
        self._transport = transport
        self._use = use
        self._connection: _Connection | None = connection
        self._timeouts = timeouts  # the caller may change them between two pieces

    def __iter__(self) -> Iterator[bytes]:
        try:
            if (connection := self._connection) is not None and (
                _RECEIVE_BYTES < connection.reader.rest_bytes <= ANSWER_BYTES_MAX
            ):
                yield connection.receive_rest(self._timeouts.get("read"))
            while (connection := self._connection) is not None:
                yield from connection.reader.take()
                if connection.reader.complete:
                    self._finish(reuse=connection.reader.keep_alive)
                else:
                    connection.receive(self._timeouts.get("read"))
        finally:
            self.close()

    def close(self) -> None:
        self._finish(reuse=False)

    def _finish(self, *, reuse: bool) -> None:
        self._connection = None
        self._transport._release(self._use, reuse=reuse)


def _readable(sock: socket.socket) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
