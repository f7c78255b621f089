"""One connection between two members, from its first byte to its last."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from goq import limits
from goq.cluster.raft.transport import handshake
from goq.cluster.raft.transport.handshake import FrameReader, FrameSealer, SessionKeys
from goq.errors import GoqError, NotAllowed
from goq.log_throttle import LogThrottle

STRANGERS_LOG_S = 10.0
_REASON_CHARS_MAX = 300
_log = logging.getLogger(__name__)


class Credentials(msgspec.Struct, frozen=True):
    """A member's credentials: the cluster's secret, and with TLS a certificate.

    With TLS both sides need certificates. A member's certificate names its id as a DNS name.
    """

    secret: bytes
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None


class LinkHandler(Protocol):
    """Receives the events of a link.

    ``strangers`` bounds what is logged of peers that have not proved who they are: anyone who
    reaches the port may connect any number of times.
    """

    strangers: LogThrottle

    def is_dialer_allowed(self, peer: str) -> bool:
        """Return whether this member may dial this node."""
        ...

    def rejection_reason(self, peer: str, disk: str) -> str:
        """Return why a member with this disk is rejected, empty if it is accepted."""
        ...

    def on_rejected(self, peer: str, reason: str) -> None:
        """An authenticated member rejected this node."""
        ...

    def on_secret_mismatch(self, peer: str) -> None:
        """The two members have different secrets."""
        ...

    def on_open(self, link: Link) -> None:
        """Both sides are authenticated, and have accepted each other."""
        ...

    def on_frame(self, link: Link, frame: bytes) -> None:
        """A sealed frame was received."""
        ...

    def on_close(self, link: Link) -> None:
        """The link is closed."""
        ...


class Link(asyncio.Protocol):
    """A connection; ``peer`` is the member that it dials, or empty until a dialer is known.

    ``disk`` is the disk that the peer claims; it is authenticated once the link is open.
    """

    def __init__(
        self,
        handler: LinkHandler,
        self_id: str,
        self_disk: str,
        credentials: Credentials,
        clock: Callable[[], float],
        peer: str = "",
    ) -> None:
        self.peer = peer
        self.disk = ""
        self.is_open = self.was_open = False
        self.received_s = self.sent_s = clock()
        self._silent_checks = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handler = handler
        self._self_id = self_id
        self._self_disk = self_disk
        self._credentials = credentials
        self._clock = clock
        self._is_dialer = bool(peer)
        self._frames = FrameReader()
        self._hello = b""
        self._keys: SessionKeys | None = None
        self._sealer: FrameSealer | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def silent_checks(self) -> int:
        """Return how many checks in a row, this one too, have found nothing received.

        Time would not do: after a pause of this process, what the peer has sent is not read yet.
        """
        self._silent_checks += 1
        return self._silent_checks

    def send(self, *parts: bytes | memoryview) -> bool:
        """Send a message, which consists of ``parts``. They must not change any more.

        Return False if the link is not open or its send buffer is full.
        """
        transport = self._transport
        if not self.is_open or transport is None or transport.is_closing():
            return False
        if self.waiting_bytes > limits.RAFT_SEND_BUFFER_BYTES_MAX:
            return False
        assert self._sealer is not None
        transport.writelines(self._sealer.frame(parts))
        self.sent_s = self._clock()
        return True

    def abort(self, reason: str, level: int = logging.WARNING) -> None:
        """Close the connection at once, and log the reason."""
        if self._transport is not None and not self._transport.is_closing():
            self._log_end(reason, level)
            self._transport.abort()

    def _log_end(self, reason: str, level: int) -> None:
        left_out: int | None = 0
        if not self.was_open and level >= logging.WARNING:
            left_out = self._handler.strangers.admit("stranger", self._clock())
        if left_out is not None:
            more = f" ({left_out} more before)" if left_out else ""
            peer = self.peer or self._address()
            _log.log(level, "connection with %s ended: %s%s", peer, reason, more)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first frame, if this side dialed."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is not one by class
        self._transport = transport
        self._handshake_timer = self.ended.get_loop().call_later(
            limits.RAFT_HANDSHAKE_TIMEOUT_S, self.abort, "the handshake took too long"
        )
        if self._is_dialer:
            nonce = os.urandom(handshake.NONCE_BYTES)
            self._hello = handshake.pack_hello(nonce, self._self_id, self.peer, self._self_disk)
            transport.write(handshake.plain_frame(self._hello))

    def data_received(self, data: bytes) -> None:
        """Process received bytes; an invalid frame ends the connection."""
        self._frames.feed(data)
        try:
            while self._transport is not None and not self._transport.is_closing():
                frame = self._frames.next()
                if frame is None:
                    return
                self._on_frame(frame)
        except GoqError as error:
            self.abort(error.detail)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the handler."""
        self._transport = None
        self._cancel_handshake_timer()
        self.is_open = False
        self._handler.on_close(self)
        if not self.ended.done():
            self.ended.set_result(None)

    # The handshake

    def _on_frame(self, frame: bytes) -> None:
        if self.is_open:
            self.received_s = self._clock()
            self._silent_checks = 0
            if frame:  # an empty frame is a keepalive
                self._handler.on_frame(self, frame)
        elif self._sealer is not None:
            self._on_verdict(frame)
        elif self._is_dialer:
            self._answer_challenge(frame)
        elif self._keys is None:
            self._send_challenge(frame)
        elif self._is_proven(frame, self._keys.dialer_proof()):
            self._enable_seals(self._keys.from_dialer(), self._keys.from_acceptor())

    def _send_challenge(self, hello: bytes) -> None:
        dialer, acceptor, self.disk = handshake.unpack_hello(hello)
        if acceptor != self._self_id:
            raise NotAllowed(f"{dialer} dialed {acceptor}, but this is {self._self_id}")
        if not self._handler.is_dialer_allowed(dialer):
            raise NotAllowed(f"{dialer} is not a member, or not one that dials this node")
        self._check_certificate(dialer)
        self.peer = dialer
        nonce = os.urandom(handshake.NONCE_BYTES)
        self._keys = SessionKeys(self._credentials.secret, hello, nonce, self._self_disk.encode())
        proof = self._keys.acceptor_proof()
        self._write(handshake.pack_challenge(nonce, proof, self._self_disk))

    def _answer_challenge(self, frame: bytes) -> None:
        nonce, proof, disk = handshake.unpack_challenge(frame)
        keys = SessionKeys(self._credentials.secret, self._hello, nonce, disk)
        if not self._is_proven(proof, keys.acceptor_proof()):
            return
        self._check_certificate(self.peer)
        self.disk = disk.decode(errors="replace")
        self._write(keys.dialer_proof())
        self._enable_seals(keys.from_acceptor(), keys.from_dialer())
        self._send_verdict()

    def _is_proven(self, proof: bytes, expected: bytes) -> bool:
        """Return whether the peer has the secret; if not, the connection ends.

        A dialer sends an empty proof first, so that the acceptor learns of it too.
        """
        try:
            handshake.check_proof(proof, expected)
        except NotAllowed as error:
            self._handler.on_secret_mismatch(self.peer)  # which logs it, once
            if self._is_dialer and self._transport is not None:
                self._write(b"")
                self._transport.close()
            else:
                self.abort(error.detail, logging.DEBUG)
            return False
        return True

    def _enable_seals(self, incoming: bytes, outgoing: bytes) -> None:
        self._frames.use_key(incoming)
        self._sealer = FrameSealer(outgoing)

    def _send_verdict(self) -> bool:
        """Accept or reject the peer, and return which. No received frame is unread at this moment.

        The verdict therefore arrives, even if the connection ends with it.
        """
        assert self._sealer is not None
        assert self._transport is not None
        reason = self._handler.rejection_reason(self.peer, self.disk)
        self._transport.writelines(self._sealer.frame([reason.encode()]))
        if reason:
            self._transport.close()
        return not reason

    def _on_verdict(self, verdict: bytes) -> None:
        if verdict:
            reason = verdict.decode(errors="replace")[:_REASON_CHARS_MAX]
            self._handler.on_rejected(self.peer, reason)
            self.abort(f"the peer rejected this node: {reason}", logging.DEBUG)
        elif self._is_dialer or self._send_verdict():
            self._open()

    def _open(self) -> None:
        self._cancel_handshake_timer()
        self.is_open = self.was_open = True
        self.received_s = self._clock()
        self._handler.on_open(self)

    def _cancel_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _check_certificate(self, peer: str) -> None:
        assert self._transport is not None
        if self._credentials.server_tls is None:
            return
        certificate = self._transport.get_extra_info("peercert") or {}
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if peer not in names:
            raise NotAllowed(f"{peer} has a certificate for {', '.join(names) or 'no name'}")

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(handshake.plain_frame(frame))

    def _address(self) -> str:
        assert self._transport is not None
        return str(self._transport.get_extra_info("peername"))
