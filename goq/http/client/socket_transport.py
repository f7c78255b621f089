"""HTTP/1.1 over blocking sockets, with TLS or without.

Idle connections are kept for the next request; the total is bounded. A connection that is found
closed before any byte was sent is replaced. A connection that breaks later, before the first byte
of an answer, is replaced once if repeating the request is safe: for GET, or if the request was not
sent whole. The caller decides about any other failure.

``close`` also breaks requests that wait in other threads: they fail as on a lost connection.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from goq.http.client.errors import ConnectError, PoolTimeout, ReadError, WriteError
from goq.http.client.http1 import (
    ANSWER_BYTES_MAX,
    AnswerPace,
    ClientRequest,
    Origin,
    RequestTimeouts,
)
from goq.http.client.response_reader import WholeResponse
from goq.http.client.socket_connection import RECEIVE_BYTES, SocketConnection
from goq.http.client.trust import ClientTls

if TYPE_CHECKING:
    import ssl


def open_transport(scheme: str, connections_max: int, tls: ClientTls) -> SocketTransport:
    """Return the transport for URLs of ``scheme``; raise ``InvalidInput`` for TLS files that cannot
    be used."""
    return SocketTransport(connections_max, None if scheme == "http" else tls.context())


@dataclass(slots=True, eq=False)
class _Use:
    """One request that has a permit, and its connection while it has one.

    A signal handler may raise between any two instructions. So a use is told of its connection
    before the transport is, and its end can be repeated.
    """

    connection: SocketConnection | None = None


class SocketTransport:
    """Transport over blocking sockets (see the module). Thread-safe.

    With ``tls`` it speaks HTTPS.
    """

    def __init__(self, connections_max: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._guard = threading.Lock()
        self._returned = threading.Condition(self._guard)
        self._uses_max = connections_max
        self._uses: set[_Use] = set()
        self._waiting_count = 0  # for a permit
        self._idle: list[SocketConnection] = []
        self._busy: set[SocketConnection] = set()
        self._closed = False

    def fetch(
        self, request: ClientRequest, body_bytes_max: int = ANSWER_BYTES_MAX
    ) -> WholeResponse:
        """Send a request; return its response. Raises ``TooLarge`` for a longer body."""
        use = _Use()
        try:
            self._acquire(use, request)
            connection = self._exchange(use, request)
            reader = connection.reader
            if RECEIVE_BYTES < reader.rest_bytes <= body_bytes_max:
                body = connection.receive_rest()
            else:
                body = connection.receive_all(body_bytes_max)
            response = WholeResponse(reader.status, reader.headers, body)
            self._release(use, reuse=reader.keep_alive)
            return response
        except BaseException:
            self._release(use, reuse=False)
            raise

    def stream(self, request: ClientRequest) -> SocketStream:
        """Send a request; return when the headers of its response have arrived."""
        use = _Use()
        try:
            self._acquire(use, request)
            return SocketStream(self, use, self._exchange(use, request), request.timeouts)
        except BaseException:
            self._release(use, reuse=False)
            raise

    def finish(self) -> None:
        """Close idle connections, and end the sending side of those in use.

        The node then ends a request of this client that waits, with an answer or without.
        """
        self._end(socket.SHUT_WR)

    def abort(self) -> None:
        """Close idle connections and break those in use."""
        self._end(socket.SHUT_RDWR)

    close = abort

    def abandon(self) -> None:
        """Close a forked child's copies of its parent's connections.

        The parent goes on using them: nothing is sent, and no lock is taken that it may have held.
        """
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

    def _acquire(self, use: _Use, request: ClientRequest) -> None:
        with self._guard:
            if not self._has_permit():
                self._wait_for_permit(request.timeouts.pool_s)
            self._uses.add(use)

    def _has_permit(self) -> bool:
        return len(self._uses) < self._uses_max

    def _wait_for_permit(self, timeout_s: float | None) -> None:
        self._waiting_count += 1
        try:
            if not self._returned.wait_for(self._has_permit, timeout_s):
                raise PoolTimeout("every connection is in use")
        finally:
            self._waiting_count -= 1

    def _return_permit(self, use: _Use) -> None:
        with self._guard:
            self._uses.discard(use)
            if self._waiting_count:
                self._returned.notify()

    def _exchange(self, use: _Use, request: ClientRequest) -> SocketConnection:
        """Send a request; return its connection when the headers of the response have arrived."""
        origin, timeouts = request.url.origin, request.timeouts
        pieces = request.pieces()
        connection, fresh = self._take(use, origin, timeouts)
        try:
            self._attempt(connection, pieces, timeouts)
        except (WriteError, ReadError) as error:
            safe = request.method == "GET" or isinstance(error, WriteError)
            if fresh or connection.reader.started or not safe:
                raise
            self._drop(connection)
            connection = self._connect(use, origin, timeouts)
            self._attempt(connection, pieces, timeouts)
        return connection

    def _take(
        self, use: _Use, origin: Origin, timeouts: RequestTimeouts
    ) -> tuple[SocketConnection, bool]:
        """Return a connection, and whether it is new."""
        while True:
            with self._guard:
                found = next((c for c in reversed(self._idle) if c.origin == origin), None)
                if found is None:
                    break
                use.connection = found
                self._idle.remove(found)
                self._busy.add(found)
            if found.is_usable():
                return found, False
            self._drop(found)
        return self._connect(use, origin, timeouts), True

    def _connect(self, use: _Use, origin: Origin, timeouts: RequestTimeouts) -> SocketConnection:
        use.connection = None
        use.connection = connection = SocketConnection(origin, self._tls, timeouts.connect_s)
        with self._guard:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise ConnectError("the client is closed")

    @staticmethod
    def _attempt(
        connection: SocketConnection, pieces: tuple[bytes, ...], timeouts: RequestTimeouts
    ) -> None:
        connection.reader.reset()
        connection.send(pieces, timeouts.write_s)
        pace = connection.pace = AnswerPace(timeouts.read_s)
        while not connection.reader.headers_complete:
            connection.receive(pace.left_s(connection.reader.received_bytes))

    def _release(self, use: _Use, *, reuse: bool) -> None:
        """End a use; keep its connection for others if that may be used again."""
        connection = use.connection
        if connection is not None:
            if reuse:
                connection.idle_since_s = time.monotonic()
                with self._guard:
                    if not self._closed:
                        use.connection = None
                        self._idle.append(connection)
                        self._busy.discard(connection)
            if use.connection is not None:
                self._drop(connection)
                use.connection = None
        self._return_permit(use)

    def _drop(self, connection: SocketConnection) -> None:
        with self._guard:
            self._busy.discard(connection)
        connection.close()


class SocketStream:
    """A response whose body is read as it arrives."""

    def __init__(
        self,
        transport: SocketTransport,
        use: _Use,
        connection: SocketConnection,
        timeouts: RequestTimeouts,
    ) -> None:
        self.status = connection.reader.status
        self.headers = connection.reader.headers
        self._transport = transport
        self._use = use
        self._connection: SocketConnection | None = connection
        self._timeouts = timeouts  # the caller may change them between two pieces

    def __iter__(self) -> Iterator[bytes]:
        try:
            while (connection := self._connection) is not None:
                yield from connection.reader.take()
                if connection.reader.complete:
                    self._finish(reuse=connection.reader.keep_alive)
                else:
                    connection.receive(self._timeouts.read_s)
        finally:
            self.close()

    def read(self, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """Return the whole body; raise ``TooLarge`` for a longer one."""
        connection = self._connection
        assert connection is not None
        try:
            body = connection.receive_all(bytes_max)
            self._finish(reuse=connection.reader.keep_alive)
            return body
        finally:
            self.close()

    def close(self) -> None:
        """Break the connection, unless the body was read to its end."""
        self._finish(reuse=False)

    def _finish(self, *, reuse: bool) -> None:
        self._connection = None
        self._transport._release(self._use, reuse=reuse)
