"""The TLS handshake of one connection, before it is a connection of the server.

The event loop could do it, but shows a connection only once its handshake is over: thousands of
clients that say nothing would then hold descriptors that nothing counts. Here a handshake counts as
a connection from its first byte on, and ends after ``limits.TLS_HANDSHAKE_TIMEOUT_S``.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, cast

from goq import limits
from goq.http.connection import Connection

if TYPE_CHECKING:
    from goq.http.context import ServerContext


class TlsHandshake(asyncio.Protocol):
    """Makes a :class:`Connection` of a socket, behind TLS."""

    def __init__(self, shared: ServerContext, context: ssl.SSLContext) -> None:
        self._shared = shared
        self._context = context
        self._early: list[bytes] = []
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or close the connection if the server has too many."""
        shared = self._shared
        plain = cast(asyncio.Transport, transport)  # uvloop's is not one by class
        if shared.draining or shared.connection_count >= shared.limits.connections_max:
            plain.abort()
            return
        shared.connection_count += 1
        task = shared.loop.create_task(self._shake_hands(plain))
        shared.handshakes.add(task)
        task.add_done_callback(shared.handshakes.discard)

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        shared = self._shared
        try:
            secure = await self._start_tls(plain)
        except (OSError, ssl.SSLError):
            return  # the client is gone, too slow, or not allowed
        finally:
            shared.connection_count -= 1
        if secure is None or self._has_ended:
            return
        self._become(secure)

    async def _start_tls(self, plain: asyncio.Transport) -> asyncio.Transport | None:
        """Return the transport behind TLS.

        uvloop has begun to read when this begins, and start_tls would lose what it has read.
        """
        plain.pause_reading()
        data, loop = b"".join(self._early), self._shared.loop
        self._early.clear()
        starting = loop.create_task(
            loop.start_tls(
                plain,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=limits.TLS_HANDSHAKE_TIMEOUT_S,
            )
        )
        try:
            await asyncio.sleep(0)  # start_tls has now scheduled the start of its protocol
            if data:
                loop.call_soon(_feed, plain, data)
            return await starting
        except asyncio.CancelledError:
            starting.cancel()
            plain.abort()
            raise

    def _become(self, secure: asyncio.Transport) -> None:
        connection = Connection(self._shared)
        connection.certificate = _names_of(secure)
        secure.set_protocol(connection)
        connection.connection_made(secure)
        for data in self._early:
            connection.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Keep what arrives before the handshake, or between it and the connection."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Begin no connection."""
        self._has_ended = True


def _feed(plain: asyncio.Transport, data: bytes) -> None:
    """Give the protocol of a transport what was received before it was there."""
    protocol = cast(asyncio.BufferedProtocol, plain.get_protocol())
    while data and not plain.is_closing():
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


def _names_of(transport: asyncio.Transport) -> tuple[str, ...]:
    """Return the names in the client's certificate: its common name, and alternative URIs."""
    found: dict[str, Any] = transport.get_extra_info("ssl_object").getpeercert() or {}
    subject = [name for pairs in found.get("subject", ()) for name in pairs]
    names = [value for kind, value in subject if kind == "commonName"]
    return (*names, *(value for kind, value in found.get("subjectAltName", ()) if kind == "URI"))
