"""The HTTP/1.1 server: listening, counters and drain."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from goq import limits
from goq.histogram import Histogram
from goq.http.connection import Connection
from goq.http.context import HttpLimits, OnError, OnUnreadBody, ServerContext
from goq.http.failure_log import FailureLog
from goq.http.loop_watch import Holder, LoopWatch
from goq.http.message import CreateProtocol, Handler
from goq.http.request.allowed_hosts import AllowedHosts
from goq.http.tls.handshake import TlsHandshake

BACKLOG: Final = 1024
CANCEL_MS_MAX: Final = 1_000


class HttpServer:
    """An HTTP/1.1 server that gives every request to one handler.

    The handler is called in the event loop. A ``Response`` is sent at once. An awaitable runs as a
    task, which is cancelled when the client disconnects. ``on_error`` makes the response of a
    ``GoqError``, raised by the handler or by the server itself, and gets the headers of the request
    as far as they are known. Any other exception is logged as
    ``goq.http`` and answered as an internal error. ``hosts`` are the names by which requests may
    call the server; by default every name is allowed. ``on_unread_body`` gets a request whose body
    did not arrive with its head, before more of it is read, and raises ``GoqError`` to refuse it. A
    body is large over ``limits.HEAD_CHECK_BYTES``, or if its size is unknown. ``upgrades`` create,
    by name, the protocols that a connection may change to; they authenticate the other side by
    themselves.
    """

    def __init__(
        self,
        handler: Handler,
        on_error: OnError,
        limits: HttpLimits = HttpLimits(),
        hosts: Iterable[str] | None = None,
        failures: FailureLog | None = None,
        on_unread_body: OnUnreadBody | None = None,
        upgrades: Mapping[str, CreateProtocol] | None = None,
    ) -> None:
        self._shared = ServerContext(
            handler, on_error, limits, AllowedHosts(hosts), failures or FailureLog()
        )
        self._shared.on_unread_body = on_unread_body
        self._shared.upgrades.update(upgrades or {})
        self._server: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """Listen on ``host`` and ``port``, or on a free port for 0. Raises ``OSError``.

        With ``tls`` only HTTPS is spoken; it returns the context of a new connection.
        """
        shared = self._shared
        loop = asyncio.get_running_loop()
        shared.loop = loop
        self._server = await loop.create_server(
            lambda: Connection(shared) if tls is None else self._handshake(tls()),
            host,
            port,
            backlog=BACKLOG,
        )
        shared.loop_watch.start(loop)

    def _handshake(self, context: ssl.SSLContext) -> TlsHandshake:
        return TlsHandshake(self, self._shared.loop, context, limits.TLS_HANDSHAKE_TIMEOUT_S)

    # HandshakeOwner

    def on_handshake(self, handshake: TlsHandshake) -> None:
        """Count a handshake as a connection, or refuse it when the server has too many."""
        shared = self._shared
        if shared.draining or shared.connection_count >= shared.limits.connections_max:
            handshake.abort("the server takes no more connections")
        else:
            shared.handshakes.add(handshake)

    def on_handshake_end(self, handshake: TlsHandshake) -> None:
        """Forget a handshake."""
        self._shared.handshakes.discard(handshake)

    def on_secure(self, transport: asyncio.Transport) -> Connection:
        """Return the connection of a client that is behind TLS now."""
        connection = Connection(self._shared)
        connection.certificate = _certificate_names(transport)
        return connection

    # Figures

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses, as host and port."""
        sockets = () if self._server is None else self._server.sockets
        return [each.getsockname()[:2] for each in sockets]

    @property
    def connection_count(self) -> int:
        """The number of open connections and handshakes, without those being refused."""
        return self._shared.connection_count

    @property
    def requests_total(self) -> int:
        """The number of requests given to the handler since the start."""
        return self._shared.requests_total

    @property
    def bodies_in_flight_bytes(self) -> int:
        """The bytes of request bodies in memory, arriving or being handled."""
        return self._shared.bodies_in_flight_bytes

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers in memory whose clients take them slowly or not at all."""
        return self._shared.unsent.size_bytes

    def longest_holds(self) -> dict[Holder, float]:
        """Return for how many seconds work held the event loop at most, in the last minutes."""
        return self._shared.loop_watch.longest()

    def holds(self) -> dict[str, Histogram]:
        """Return the holds of the event loop of a millisecond and more, by cause."""
        return self._shared.loop_watch.holds

    @property
    def loop_watch(self) -> LoopWatch:
        """The watch of the event loop that runs the server."""
        return self._shared.loop_watch

    def allow_hosts(self, hosts: Iterable[str]) -> None:
        """Replace the names by which requests may call the server."""
        self._shared.allowed_hosts = AllowedHosts(hosts)
        self._shared.known_hosts.clear()

    def requests_under_way(self) -> list[str]:
        """Return the requests that are not answered yet, for a log."""
        currents = [connection.current for connection in self._shared.connections]
        return [repr(request) for request in currents if request is not None]

    def begin_drain(self) -> None:
        """Accept nothing more. Connections without a request in progress close at once."""
        shared = self._shared
        if self._server is None or shared.draining:
            return
        shared.draining = True
        shared.loop_watch.stop()
        self._server.close()
        for handshake in list(shared.handshakes):
            handshake.abort("the server is stopping")
        for connection in list(shared.connections):
            connection.drain()

    async def drain(self, timeout_ms: int) -> None:
        """Accept nothing more, finish the requests in progress, then close.

        They are answered with ``Connection: close``. After ``timeout_ms`` the rest is aborted and
        its tasks are cancelled.
        """
        if self._server is None:
            return
        self.begin_drain()
        shared = self._shared
        if not await self._wait_until_empty(timeout_ms):
            left = list(shared.connections)
            tasks = [connection.task for connection in left if connection.task is not None]
            for connection in left:
                connection.abort()
            await self._wait_until_empty(CANCEL_MS_MAX)
            if tasks:
                await asyncio.wait(tasks, timeout=CANCEL_MS_MAX / 1000)
        self._server = None

    async def _wait_until_empty(self, timeout_ms: int) -> bool:
        """Wait until no connection is left; return whether that happened in time."""
        shared = self._shared
        if shared.connections:
            shared.on_empty = shared.loop.create_future()
            await asyncio.wait([shared.on_empty], timeout=timeout_ms / 1000)
        return not shared.connections


def _certificate_names(transport: asyncio.Transport) -> tuple[str, ...]:
    """Return the names in the client's certificate: its common name, and alternative URIs."""
    found: dict[str, Any] = transport.get_extra_info("ssl_object").getpeercert() or {}
    subject = [name for pairs in found.get("subject", ()) for name in pairs]
    names = [value for kind, value in subject if kind == "commonName"]
    return (*names, *(value for kind, value in found.get("subjectAltName", ()) if kind == "URI"))


def check_bindable(host: str, port: int) -> None:
    """Bind the addresses of ``host`` for a moment. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
