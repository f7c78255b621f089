"""The TLS handshake of one connection, before it is a connection of a server.

The event loop could do it, but shows a connection only once its handshake is over: thousands of
clients that say nothing would then hold descriptors that nothing counts, and those whose handshake
is under way when the server stops would stay open. Here its owner knows a handshake from its first
byte on, can abort it, and learns of its end.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Protocol, cast

_log = logging.getLogger(__name__)


class HandshakeOwner(Protocol):
    """The server whose connections begin with a handshake."""

    def on_handshake(self, handshake: TlsHandshake) -> None:
        """A client connected; the owner may abort the handshake."""
        ...

    def on_handshake_end(self, handshake: TlsHandshake) -> None:
        """The handshake succeeded, failed or was aborted."""
        ...

    def on_secure(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Return the protocol of a connection whose handshake succeeded."""
        ...


class TlsHandshake(asyncio.Protocol):
    """Gives a socket to a protocol of its owner once it is behind TLS.

    A handshake that is not over after ``timeout_s`` fails.
    """

    def __init__(
        self,
        owner: HandshakeOwner,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        timeout_s: float,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._context = context
        self._timeout_s = timeout_s
        self._early: list[bytes] = []
        self._has_ended = False
        self._plain: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def abort(self, reason: str, level: int = logging.DEBUG) -> None:
        """Close the connection at once, and log the reason."""
        if self._plain is not None:
            peer = self._plain.get_extra_info("peername")
            _log.log(level, "TLS handshake with %s ended: %s", peer, reason)
            self._plain.abort()
        if self._task is not None:
            self._task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the owner aborts it."""
        self._plain = cast(asyncio.Transport, transport)  # uvloop's is not one by class
        self._owner.on_handshake(self)
        if self._plain.is_closing():
            self._owner.on_handshake_end(self)
            return
        self._task = self._loop.create_task(self._shake_hands(self._plain))

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        try:
            secure = await self._start_tls(plain)
        except (OSError, ssl.SSLError):
            return  # the client is gone, too slow, or not allowed
        finally:
            self._owner.on_handshake_end(self)
        if secure is not None and not self._has_ended:
            self._hand_over(secure)

    async def _start_tls(self, plain: asyncio.Transport) -> asyncio.Transport | None:
        """Return the transport behind TLS.

        uvloop has begun to read when this begins, and start_tls would lose what it has read.
        """
        plain.pause_reading()
        data, loop = b"".join(self._early), self._loop
        self._early.clear()
        starting = loop.create_task(
            loop.start_tls(
                plain,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
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

    def _hand_over(self, secure: asyncio.Transport) -> None:
        protocol = self._owner.on_secure(secure)
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)

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
