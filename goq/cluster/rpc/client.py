"""Client side of calls between nodes: signed requests over connections that are kept open.

A client has one session, drawn at its start. It learns the boot id of each node from the first
response, which refuses the call, and repeats the call with it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256

from goq import limits
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.auth import CallId, CallSigner, new_nonce, response_digest
from goq.cluster.rpc.server import (
    BOOT_HEADER,
    DIGEST_HEADER,
    DISK_HEADER,
    NODE_HEADER,
    NUMBER_HEADER,
    PROOF_HEADER,
    SESSION_HEADER,
    error_of,
)
from goq.cluster.rpc.stream_calls import StreamCalls
from goq.errors import NotAllowed, TimedOut, Unavailable
from goq.http.client.errors import ConnectError, PoolTimeout, TransportError
from goq.http.client.http1 import ClientRequest, RequestTimeouts, Url, encode_head, parse_url
from goq.http.client.response_reader import WholeResponse
from goq.http.client.transport import ProtocolTransport

UNSENT = (ConnectError, PoolTimeout)
"""The errors of requests of which the other side got nothing."""


class PeerTls:
    """TLS to other nodes: nodes at ``https`` URLs are verified by ``context``, None for none; nodes
    at ``http`` URLs are called if ``takes_plain``.

    Another ``context`` counts for new connections.
    """

    def __init__(self, context: ssl.SSLContext | None = None, *, takes_plain: bool = True) -> None:
        self.context = context
        self._takes_plain = takes_plain

    def check(self, url: str) -> None:
        """Raise ``ConnectError`` for a node that this one may not call."""
        if url.startswith("https:"):
            if self.context is None:
                raise ConnectError(f"{url} speaks TLS, and this node has no security.tls")
        elif not self._takes_plain:
            raise ConnectError(f"{url} has no TLS, and this node has security.tls")


@lru_cache(maxsize=1024)
def parsed_url(url: str) -> Url:
    """Return a URL, parsed: a node calls the same few all the time."""
    return parse_url(url)


def header_pairs(headers: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers as a request has them."""
    for name, value in headers.items():
        yield name.encode("latin-1"), value.encode("latin-1")


class NodeConnections:
    """HTTP transports to other nodes, one for each URL, each with at most ``connections_max``."""

    def __init__(self, connections_max: int, tls: PeerTls | None = None) -> None:
        self.connections_max = connections_max
        self._tls = tls or PeerTls()
        self._by_url: dict[str, ProtocolTransport] = {}

    def transport(self, url: str) -> ProtocolTransport:
        """Return the transport to a node; raise ``ConnectError`` if TLS forbids it."""
        transport = self._by_url.get(url)
        if transport is None:
            self._tls.check(url)
            transport = ProtocolTransport(self.connections_max)
            self._by_url[url] = transport
        if url.startswith("https:"):
            transport.tls = self._tls.context
        return transport

    async def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        for transport in self._by_url.values():
            await transport.aclose()


class RpcClient:
    """Calls other nodes by URL, as the node ``name`` with the disk id ``disk``."""

    def __init__(
        self, name: str, secret: bytes, connections: NodeConnections, disk: str = ""
    ) -> None:
        self._name = name
        self._disk = disk
        self._signer = CallSigner(secret)
        self._session = new_nonce()
        self._number = 0
        self._boots: dict[str, str] = {}
        self._connections = connections

    async def call(self, url: str, path: str, body: bytes, timeout_s: float) -> bytes:
        """Call the node at ``url``; return the body of its response.

        Raises ``Unavailable`` if the node cannot be reached and so did nothing; ``TimedOut`` if no
        response came and it may have done what was asked; ``NotAllowed`` if one of the two does not
        have the secret; and any ``GoqError`` that the node responds with.
        """
        for _ in range(2):
            call, response = await self._send(url, path, body, timeout_s)
            proof = response.headers.get(PROOF_HEADER)
            if proof is not None:
                return await self._verified(call, response, proof)
            boot = response.headers.get(BOOT_HEADER)
            if boot is None:  # the node starts or stops, or the URL is of something else
                status = response.status
                detail = f"no node of a cluster responds at {url} now: status {status}"
                raise Unavailable(detail) if status == 404 else TimedOut(detail)
            if boot == call.boot:
                raise NotAllowed(
                    f"this node and the one at {url} have different secrets: compare"
                    " cluster.secret_file on both"
                )
            self._boots[url] = boot
        raise Unavailable(f"the node at {url} was restarted; ask again")

    def signed_headers(self, url: str, what: str, body: bytes) -> dict[str, str]:
        """Return headers that prove to the node at ``url`` that this node sends a request.

        ``what`` is the rest of the request that is signed. The node refuses them if it was
        restarted since this client last called it.
        """
        return self._sign(url, what, body)[1]

    def _sign(self, url: str, path: str, body: bytes) -> tuple[CallId, dict[str, str]]:
        self._number += 1
        boot = self._boots.get(url, "")
        call = CallId(self._name, boot, self._session, self._number, self._disk)
        digest = sha256(body).digest()
        return call, {
            NODE_HEADER: call.node,
            BOOT_HEADER: call.boot,
            SESSION_HEADER: call.session,
            NUMBER_HEADER: str(call.number),
            DISK_HEADER: call.disk,
            DIGEST_HEADER: digest.hex(),
            PROOF_HEADER: self._signer.sign_head(call, path, digest),
        }

    async def _send(
        self, url: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[CallId, WholeResponse]:
        call, headers = self._sign(url, path, body)
        parsed = parsed_url(url)
        head = encode_head("POST", parsed, path.encode("ascii"), header_pairs(headers))
        timeouts = RequestTimeouts(timeout_s, timeout_s, timeout_s, timeout_s)
        request = ClientRequest("POST", parsed, head, body, timeouts)
        try:
            response = await self._connections.transport(url).fetch(request)
        except UNSENT as error:
            raise Unavailable(f"the node at {url} cannot be reached: {error}") from None
        except TransportError as error:
            raise TimedOut(f"the node at {url} does not answer: {error}") from None
        return call, response

    async def _verified(self, call: CallId, response: WholeResponse, proof: str) -> bytes:
        body = response.body
        digest = await response_digest([body])
        expected = self._signer.sign_response(call, response.status, digest)
        self._signer.verify(expected, proof)
        if response.status == 200:
            return body
        raise error_of(body)

    async def close(self) -> None:
        """Close all connections; calls that wait for a response fail."""
        await self._connections.close()


class NodeClient:
    """Calls other nodes by id; their URLs are in the cluster metadata.

    Calls of the paths ``streamed``, small ones, go over the streams as far as there are any.
    """

    def __init__(
        self,
        state: Callable[[], MetadataState],
        rpc: RpcClient,
        streams: StreamCalls,
        streamed: frozenset[str],
    ) -> None:
        self._state = state
        self._rpc = rpc
        self._streams = streams
        self._streamed = streamed

    async def call(self, node: str, path: str, body: bytes, wait_ms: int = 0) -> bytes:
        """Call a node that may wait ``wait_ms`` before it responds; raise ``GoqError``."""
        known = self._state().nodes.get(node)
        if known is None:
            raise Unavailable(f"node {node} is not known here yet")
        if path in self._streamed:
            answer = await self._streams.call(node, path, body, wait_ms)
            if answer is not None:
                return answer
        timeout_s = (limits.RPC_TIMEOUT_MS + wait_ms) / 1000
        return await self._rpc.call(known.http_url, path, body, timeout_s)
