"""The streams between nodes: one connection between each two, authenticated, kept open.

Of each two nodes the one with the smaller id dials the other's HTTP port and asks to upgrade to
``PROTOCOL``. After ``limits.PUSH_STREAM_PATIENCE_S`` without a stream the other one dials too: it
may be the only one that can. From then on the connection carries the frames of a :class:`Link`: a
handshake that proves the cluster's secret and names the disks, then sealed frames. With
``security.tls`` all of it is inside TLS. Streams exist from the feature level on at which all nodes
know them.

A stream only saves work: without one followers fetch. A new stream replaces the one before. An
empty frame is a sign of life, and a stream without one for ``limits.PUSH_STREAM_IDLE_S`` ends.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.clock import next_beat
from goq.cluster.metadata.features import has_push_streams, has_stream_calls
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.transport.link import STRANGERS_LOG_S, Credentials, Link
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.replication.push.protocol import PeerStream
from goq.cluster.rpc.client import PeerTls, parsed_url
from goq.cluster.rpc.server import CALL_PREFIX
from goq.cluster.rpc.stream_calls import StreamCalls
from goq.errors import GoqError
from goq.http.client.errors import ConnectError
from goq.http.client.http1 import Url, encode_head
from goq.log_throttle import LogThrottle

_log = logging.getLogger("goq.cluster")
STREAM_PATH: Final = CALL_PREFIX + "stream"
PROTOCOL: Final = "goq-stream"
_ANSWER_BYTES_MAX: Final = 16 * 1024

Dial = Callable[[str, Callable[[], Link]], Awaitable[Link | None]]
"""Connects to the node at a URL and begins a link; None if the node does not upgrade.

Raises ``OSError``.
"""


class StreamHost(Protocol):
    """The user of the streams."""

    def on_stream_open(self, node: str, stream: PeerStream) -> None:
        """A stream with a node is open; one before it is over."""

    def on_stream_close(self, node: str) -> None:
        """The stream with a node is over."""

    def on_stream_message(self, node: str, data: bytes) -> None:
        """A node sent a message. An error that this raises ends the stream."""

    def renewal(self, node: str) -> bytes:
        """Return a message that is due to a node at intervals, empty for none."""


class PeerStreams:
    """The streams of the node ``name``, which has the disk ``disk``, for ``host`` and ``calls``.

    ``identity`` knows the registered disk of each node.
    """

    def __init__(
        self,
        name: str,
        disk: str,
        secret: bytes,
        identity: PeerIdentity,
        state: Callable[[], MetadataState],
        host: StreamHost,
        calls: StreamCalls,
        dial: Dial,
    ) -> None:
        self.strangers = LogThrottle(STRANGERS_LOG_S)
        self._name = name
        self._disk = disk
        # Another key than the one of Raft's links: their frames mean something else.
        self._credentials = Credentials(hmac.digest(secret, PROTOCOL.encode(), "sha256"))
        self._identity = identity
        self._state = state
        self._host = host
        self._calls = calls
        self._dial = dial
        self._streams: dict[str, Link] = {}
        self._handshaking: dict[Link, None] = {}  # oldest first
        self._dialing: set[str] = set()
        self._missing_since_s: dict[str, float] = {}
        self._pauses_s: dict[str, float] = {}
        self._next_dial_s: dict[str, float] = {}
        self._tasks = Tasks()
        self._is_closed = False

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes with which a stream is open."""
        return frozenset(self._streams)

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a connection that another node has dialed and upgraded."""
        link = self._new_link("")
        if len(self._handshaking) > limits.RAFT_HANDSHAKES_MAX:
            oldest = next(iter(self._handshaking))
            del self._handshaking[oldest]
            oldest.abort("too many streams in their handshake", logging.DEBUG)
        return link

    async def run(self) -> None:
        """Dial, give signs of life, and end silent streams until cancelled; then close all."""
        try:
            while True:
                self._check()
                await next_beat(limits.PUSH_STREAM_CHECK_S)
        finally:
            self._is_closed = True
            for link in [*self._streams.values(), *self._handshaking]:
                link.abort("this node stops", logging.DEBUG)
            self._tasks.cancel()

    def _check(self) -> None:
        state, now_s = self._state(), asyncio.get_running_loop().time()
        for node, link in list(self._streams.items()):
            if link.silent_checks() * limits.PUSH_STREAM_CHECK_S > limits.PUSH_STREAM_IDLE_S:
                link.abort("nothing was received for too long")
            elif node not in state.nodes or self.rejection_reason(node, link.disk):
                link.abort("the node is unknown, or has another disk than it is registered with")
            elif has_stream_calls(state) and (renewal := self._host.renewal(node)):
                link.send(renewal)
            elif now_s - link.sent_s >= limits.PUSH_STREAM_CHECK_S / 2:
                link.send(b"")
        if not has_push_streams(state):
            return
        for node, known in state.nodes.items():
            if node == self._name or node in self._streams:
                self._missing_since_s.pop(node, None)
                continue
            missing_s = now_s - self._missing_since_s.setdefault(node, now_s)
            if (
                (node > self._name or missing_s > limits.PUSH_STREAM_PATIENCE_S)
                and known.http_url
                and node not in self._dialing
                and now_s >= self._next_dial_s.get(node, 0.0)
            ):
                self._dialing.add(node)
                self._tasks.start(self._connect(node, known.http_url))

    async def _connect(self, node: str, url: str) -> None:
        """Dial a node and return when the stream has ended, or has failed."""
        link: Link | None = None
        try:
            async with asyncio.timeout(limits.RAFT_HANDSHAKE_TIMEOUT_S):
                link = await self._dial(url, lambda: self._new_link(node))
            if link is not None:
                await link.ended
        except (OSError, TimeoutError, ConnectError) as error:
            _log.debug("no stream to %s at %s: %s", node, url, error)
        finally:
            self._dialing.discard(node)
        was_open = link is not None and link.was_open
        pause_s = 0.0 if was_open else 2 * self._pauses_s.get(node, 0.0) or 0.2
        self._pauses_s[node] = min(pause_s, limits.PUSH_STREAM_REDIAL_S_MAX)
        self._next_dial_s[node] = asyncio.get_running_loop().time() + self._pauses_s[node]

    def _new_link(self, peer: str) -> Link:
        clock = asyncio.get_running_loop().time
        link = Link(self, self._name, self._disk, self._credentials, clock, peer)
        self._handshaking[link] = None
        return link

    # The events of a link

    def is_dialer_allowed(self, peer: str) -> bool:
        """Return whether a node may open a stream to this one."""
        state = self._state()
        return not self._is_closed and peer in state.nodes and has_push_streams(state)

    def rejection_reason(self, peer: str, disk: str) -> str:
        """Return why a node with this disk is rejected, empty if it is accepted."""
        return self._identity.rejection_reason(peer, "", disk, asyncio.get_running_loop().time())

    def on_rejected(self, peer: str, reason: str) -> None:
        """Log that a node rejects this one."""
        _log.debug("%s accepts no stream of this node: %s", peer, reason)

    def on_secret_mismatch(self, peer: str) -> None:
        """Note that a node has another secret; not of one whose stream is open."""
        if peer not in self._streams:
            self._identity.on_secret_mismatch(peer, asyncio.get_running_loop().time())

    def on_open(self, link: Link) -> None:
        """Use a new stream instead of the one before."""
        self._handshaking.pop(link, None)
        before = self._streams.pop(link.peer, None)
        if before is not None:
            before.abort("another stream replaces this one", logging.DEBUG)
        self._streams[link.peer] = link
        self._calls.on_stream_open(link.peer, link)
        self._host.on_stream_open(link.peer, link)

    def on_frame(self, link: Link, frame: bytes) -> None:
        """Pass on a message."""
        if self._streams.get(link.peer) is not link:
            return
        try:
            if not self._calls.receive(link.peer, frame):
                self._host.on_stream_message(link.peer, frame)
        except GoqError as error:
            link.abort(error.detail)

    def on_close(self, link: Link) -> None:
        """Forget a stream."""
        self._handshaking.pop(link, None)
        if self._streams.get(link.peer) is link:
            del self._streams[link.peer]
            self._calls.on_stream_close(link.peer)
            self._host.on_stream_close(link.peer)


class StreamDialer:
    """Dials the HTTP ports of other nodes, with TLS where their URLs say so."""

    def __init__(self, tls: PeerTls) -> None:
        self._tls = tls

    async def dial(self, url: str, create_link: Callable[[], Link]) -> Link | None:
        """See ``Dial``."""
        self._tls.check(url)
        parsed = parsed_url(url)
        context: ssl.SSLContext | None = None
        if url.startswith("https:"):
            context = self._tls.context
        loop = asyncio.get_running_loop()
        transport, upgrade = await loop.create_connection(
            lambda: _Upgrade(parsed, create_link), parsed.host, parsed.port, ssl=context
        )
        try:
            return await upgrade.link
        except asyncio.CancelledError:
            transport.abort()
            raise


class _Upgrade(asyncio.Protocol):
    """Asks a node to upgrade a connection; ``link`` is its next protocol, None if refused."""

    def __init__(self, url: Url, create_link: Callable[[], Link]) -> None:
        self.link: asyncio.Future[Link | None] = asyncio.get_running_loop().create_future()
        self._url = url
        self._create_link = create_link
        self._answer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)
        headers = [(b"connection", b"Upgrade"), (b"upgrade", PROTOCOL.encode())]
        self._transport.write(
            encode_head("GET", self._url, STREAM_PATH.encode(), headers) + b"\r\n"
        )

    def data_received(self, data: bytes) -> None:
        """Read the answer, and begin the link if it is yes."""
        transport = self._transport
        assert transport is not None
        self._answer += data
        head, end, rest = self._answer.partition(b"\r\n\r\n")
        if not end and len(head) < _ANSWER_BYTES_MAX:
            return
        if not end or not head.startswith(b"HTTP/1.1 101 "):
            transport.abort()
            return
        link = self._create_link()
        transport.set_protocol(link)
        link.connection_made(transport)
        if rest:
            link.data_received(rest)
        if not self.link.done():
            self.link.set_result(link)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the node did not upgrade."""
        if not self.link.done():
            self.link.set_result(None)
