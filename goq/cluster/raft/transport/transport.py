"""Transport of the library's messages between members, over TCP, each member on its own disk.

Of each two members the one with the smaller id dials. The other dials, too, while they are not
connected for ``ConnectionTiming.fallback_s``: it may have moved, and the first does not know where.
A new connection to a member replaces the one before. An idle connection carries an empty frame as a
keepalive. A connection without received bytes for ``ConnectionTiming.idle_timeout_s``, in which the
checks went on, is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec
from pysyncobj.transport import Transport

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.transport.link import STRANGERS_LOG_S, Credentials, Link
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.errors import InvalidInput
from goq.http.tls.handshake import TlsHandshake
from goq.log_throttle import LogThrottle

_log = logging.getLogger(__name__)


class ConnectionTiming(msgspec.Struct, frozen=True):
    """Seconds between checks of the connections, until one is closed, and between two dials.

    A member that comes back waits for the next dial, and perhaps a majority for that member.
    """

    check_interval_s: float = 0.5
    idle_timeout_s: float = 2.0
    redial_s: float = 0.2
    redial_max_s: float = 0.5
    fallback_s: float = 3.0


class SecureTransport(Transport):  # type: ignore[misc]
    """All connections of a node. Created and used on the thread of one running event loop.

    ``on_message`` is called after each processed message. ``random`` spreads the dials.
    ``identity`` knows the registered disk of each member; without it disks are not checked.
    ``addresses_of`` returns where a member may be besides its address in the log.
    """

    def __init__(
        self,
        sync_obj: object,
        self_node: RaftMember,
        other_nodes: Iterable[RaftMember],
        *,
        listen: tuple[str, int],
        credentials: Credentials,
        on_message: Callable[[], None],
        random: Random,
        pace: ConnectionTiming,
        identity: PeerIdentity | None = None,
        addresses_of: Callable[[str], Iterable[str]] = lambda _id: (),
    ) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        if len(credentials.secret) < limits.RAFT_SECRET_BYTES_MIN:
            raise InvalidInput(
                f"the cluster's secret is too short: use at least {limits.RAFT_SECRET_BYTES_MIN}"
                " random bytes, such as those of: openssl rand -hex 32"
            )
        self.strangers = LogThrottle(STRANGERS_LOG_S)
        self._self_id = str(self_node.id)
        self._listen = listen
        self._credentials = credentials
        self._on_message = on_message
        self._random = random
        self._pace = pace
        self._identity = identity or PeerIdentity()
        self._addresses_of = addresses_of
        self._loop = asyncio.get_running_loop()
        self._peers = {str(node.id): node for node in other_nodes}
        self._links: dict[str, Link] = {}
        self._handshaking: dict[Link | TlsHandshake, None] = {}  # oldest first
        self._dial_tasks: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen, and start to dial; raise ``OSError`` if the address is not available."""
        host, port = self._listen
        self._server = await self._loop.create_server(self._on_connection, host, port)
        for node in self._peers.values():
            self._start_dialing(node)
        self._check_links()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    # pysyncobj.transport.Transport

    def addNode(self, node: RaftMember) -> None:
        """Accept a member, and dial it."""
        self._peers[str(node.id)] = node
        if self._server is not None:
            self._start_dialing(node)

    def dropNode(self, node: RaftMember) -> None:
        """Disconnect a member for good."""
        id_ = str(node.id)
        self._peers.pop(id_, None)
        if (dial := self._dial_tasks.pop(id_, None)) is not None:
            dial.cancel()
        if (link := self._links.pop(id_, None)) is not None:
            link.abort("the peer is not a member any more", logging.INFO)
            self._onNodeDisconnected(node)

    def send(self, node: RaftMember, message: dict[str, Any]) -> bool:
        """Send a message to a member; return False if it was not even started."""
        link = self._links.get(str(node.id))
        if link is None:
            return False
        data = codec.encode_message(message)
        if len(data) > limits.RAFT_MESSAGE_BYTES_MAX:
            _log.error("a message of %d bytes to %s is over the limit", len(data), node.id)
            return False
        return link.send(data)

    def destroy(self) -> None:
        """Close everything."""
        for dial in self._dial_tasks.values():
            dial.cancel()
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._server is not None:
            self._server.close()
        for link in [*self._links.values(), *self._handshaking]:
            link.abort("this node is stopping", logging.INFO)
        self._links.clear()
        self._dial_tasks.clear()

    # LinkHandler

    def is_dialer_allowed(self, peer: str) -> bool:
        """Return whether this member may dial this node."""
        return peer in self._peers and (peer < self._self_id or peer not in self._links)

    def rejection_reason(self, peer: str, disk: str) -> str:
        """Return why a member with this disk is rejected, empty if it is accepted."""
        node = self._peers.get(peer)
        return self._identity.rejection_reason(
            peer, "" if node is None else node.disk, disk, self._loop.time()
        )

    def on_rejected(self, peer: str, reason: str) -> None:
        """Note that a member rejects this node."""
        self._identity.on_rejected(peer, reason, self._loop.time())
        self._on_message()

    def on_secret_mismatch(self, peer: str) -> None:
        """Note that a member has another secret.

        Of a member with an open link it is not true: a stranger has dialed in its name.
        """
        if peer not in self._links and self._server is not None and self._server.is_serving():
            self._identity.on_secret_mismatch(peer, self._loop.time())
            self._on_message()

    def on_open(self, link: Link) -> None:
        """Use a link from now on, instead of the one before."""
        self._handshaking.pop(link, None)
        self._identity.on_accepted(link.peer)
        node = self._peers.get(link.peer)
        if node is None:
            link.abort("the peer is not a member any more")
            return
        if self._identity.is_quarantined(self._loop.time()):
            link.abort("this node is new, and a member rejects it")
            return
        before = self._links.get(link.peer)
        self._links[link.peer] = link
        if before is not None:
            before.abort("a newer connection replaces it", logging.INFO)
            self._onNodeDisconnected(node)
        _log.info("connected with %s", link.peer)
        self._onNodeConnected(node)
        self._on_message()

    def on_frame(self, link: Link, frame: bytes) -> None:
        """Pass a message to the library; an invalid one ends the connection."""
        if self._links.get(link.peer) is not link:
            return
        message = codec.decode_message(frame)
        try:
            self._onMessageReceived(self._peers[link.peer], message)
        finally:
            self._on_message()

    def on_close(self, link: Link) -> None:
        """Forget a link."""
        self._handshaking.pop(link, None)
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._onNodeDisconnected(self._peers[link.peer])
            self._on_message()

    # HandshakeOwner

    def on_handshake(self, handshake: TlsHandshake) -> None:
        """Count a handshake; the oldest makes room for it."""
        self._begin_handshake(handshake)

    def on_handshake_end(self, handshake: TlsHandshake) -> None:
        """Forget a handshake."""
        self._handshaking.pop(handshake, None)

    def on_secure(self, transport: asyncio.Transport) -> Link:
        """Return the link of a peer that is behind TLS now."""
        return self._accept()

    # Connections

    def _on_connection(self) -> Link | TlsHandshake:
        tls = self._credentials.server_tls
        if tls is None:
            return self._accept()
        return TlsHandshake(self, self._loop, tls, limits.RAFT_HANDSHAKE_TIMEOUT_S)

    def _accept(self) -> Link:
        link = self._new_link("")
        self._begin_handshake(link)
        return link

    def _begin_handshake(self, connection: Link | TlsHandshake) -> None:
        self._handshaking[connection] = None
        if len(self._handshaking) > limits.RAFT_HANDSHAKES_MAX:
            oldest = next(iter(self._handshaking))
            del self._handshaking[oldest]
            oldest.abort("too many connections in their handshake", logging.WARNING)

    def _new_link(self, peer: str) -> Link:
        return Link(
            self, self._self_id, self._identity.own, self._credentials, self._loop.time, peer
        )

    def _start_dialing(self, node: RaftMember) -> None:
        id_ = str(node.id)
        if not self._addresses(node):
            _log.error("%s has no address and cannot be reached", id_)
        elif id_ not in self._dial_tasks:
            self._dial_tasks[id_] = self._loop.create_task(self._dial(node))

    def _addresses(self, node: RaftMember) -> list[str]:
        """Return where a member may be: as registered, as in the log, as configured."""
        found = (*self._addresses_of(str(node.id)), node.address)
        return [address for address in dict.fromkeys(found) if address]

    async def _dial(self, node: RaftMember) -> None:
        id_, wait_s, attempts = str(node.id), self._pace.redial_s, 0
        while True:
            if self._self_id > id_:
                await asyncio.sleep(self._pace.fallback_s)
            if id_ not in self._links:
                addresses = self._addresses(node)
                if await self._dial_at(id_, addresses[attempts % len(addresses)]):
                    wait_s = self._pace.redial_s
                else:
                    attempts += 1
            await asyncio.sleep(wait_s * self._random.uniform(0.7, 1.3))
            wait_s = min(2 * wait_s, self._pace.redial_max_s)

    async def _dial_at(self, id_: str, address: str) -> bool:
        """Return whether a connection was open; when it has ended, or has failed."""
        host, _, port = address.rpartition(":")
        tls = self._credentials.client_tls
        try:
            async with asyncio.timeout(limits.RAFT_HANDSHAKE_TIMEOUT_S):
                _, link = await self._loop.create_connection(
                    lambda: self._new_link(id_),
                    host.strip("[]"),
                    int(port),
                    ssl=tls,
                    server_hostname=id_ if tls else None,
                )
        except (OSError, TimeoutError) as error:
            _log.debug("%s cannot be reached at %s: %s", id_, address, error)
            return False
        try:
            await link.ended
        except asyncio.CancelledError:  # also during the handshake
            link.abort("the peer is not dialed any more", logging.DEBUG)
            raise
        return link.was_open

    def _check_links(self) -> None:
        """Send keepalives, and close connections that are idle or no longer allowed."""
        now_s = self._loop.time()
        for link in list(self._links.values()):
            if link.silent_checks() * self._pace.check_interval_s > self._pace.idle_timeout_s:
                link.abort("nothing was received for too long")
            elif self.rejection_reason(link.peer, link.disk):  # its registration has changed
                link.abort("the peer has another disk than it is registered with")
            elif self._identity.is_quarantined(now_s):
                link.abort("this node is new, and a member rejects it")
            elif now_s - link.sent_s >= self._pace.check_interval_s:
                link.send(b"")
        self._check_timer = self._loop.call_later(self._pace.check_interval_s, self._check_links)
