"""Requests relayed over a third node, where a node does not reach the node that can answer.

The relay authenticates the sender as in any call between nodes, sends the request to the target
itself, and never relays further. It passes on two kinds, and both are signed:

- A client's HTTP request keeps its form and gets the header ``goq-internal-relay`` with the target.
  The sender signs method, target, path, query and body.
- A request whose sender has a token names the sender's principal in a header, under a signature of
  the node that sends it. This holds for requests that are not relayed, too. Clients' tokens are not
  passed on.
- A call between nodes travels in a call to the relay, which signs it anew for the target. Only
  calls that mean the same from any node are relayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial

import msgspec

from goq import limits
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.cluster.forwarding.streamed_requests import StreamedRequests
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.peer_links import PeerLinks
from goq.cluster.rpc.server import AUTHENTICATION_HEADERS, CALL_PREFIX, RpcHandler
from goq.errors import InvalidFrame, NotAllowed, NotLeader, TimedOut, Unavailable
from goq.http.message import PRINCIPAL, Item, OwnedStream, Request, Response

RELAY = "goq-internal-relay"
RELAY_CALL = CALL_PREFIX + "relay"

Call = Callable[[str, str, bytes, int], Awaitable[bytes]]
"""Calls a node by id, with a path, a body, and how long it may wait; raises ``GoqError``."""
Sign = Callable[[str, str, bytes], dict[str, str]]
"""Returns headers that sign a text and a body for the node at a URL."""
Authenticate = Callable[[str, Mapping[str, str], bytes], str]
"""Returns the node that signed a text and a body by headers; raises ``GoqError``."""


class _RelayCall(msgspec.Struct, frozen=True, array_like=True):
    target: str
    path: str
    wait_ms: int
    body: bytes


class RoutedCalls:
    """Calls to other nodes, direct or over a relay. ``call`` calls a node directly."""

    def __init__(self, links: PeerLinks, call: Call) -> None:
        self._links = links
        self._call = call

    async def call(self, node: str, path: str, body: bytes, wait_ms: int = 0) -> bytes:
        """Call a node; raise ``GoqError``.

        Raises ``TimedOut`` when the node is lost meanwhile. Raises ``NotLeader`` or
        ``PartitionOffline`` if the node cannot be reached and so did nothing.
        """
        relay = self._links.relay_to(node)
        if relay is None:
            return await self._links.unless_lost(node, self._call(node, path, body, wait_ms))
        relayed = msgspec.msgpack.encode(_RelayCall(node, path, wait_ms, body))
        wait_ms += limits.RPC_TIMEOUT_MS
        return await self._links.unless_lost(relay, self._call(relay, RELAY_CALL, relayed, wait_ms))


class RoutedProxy:
    """Forwards clients' requests to other nodes, directly or over a relay.

    ``streamed`` sends small ones over the streams between nodes.
    """

    def __init__(
        self,
        proxy: HttpProxy,
        streamed: StreamedRequests,
        links: PeerLinks,
        state: Callable[[], MetadataState],
        sign: Sign,
    ) -> None:
        self._proxy = proxy
        self._streamed = streamed
        self._links = links
        self._state = state
        self._sign = sign

    async def forward(
        self, url: str, request: Request, *, is_small: bool = False, held_ms: int = 0
    ) -> Response:
        """Return the response of the node at ``url``, which does not forward the request again.

        ``is_small`` says that the answer is small, and comes at once or after ``held_ms`` at most.

        Raises ``NotLeader`` or ``PartitionOffline`` if it cannot be reached and did nothing. If no
        response came, the node may have done what was asked: ``TimedOut``, or ``Unavailable`` for a
        request that only reads.
        """
        node = _node_at(self._state(), url)
        relay = self._links.relay_to(node)
        if is_small and relay is None:
            answer = await self._links.unless_lost(node, self._streamed.ask(node, request, held_ms))
            if answer is not None:
                return answer
        if request.principal is not None:
            request = _with_headers(request, {PRINCIPAL: request.principal.id})
        if relay is None:
            signed_request = _signed(request, url, self._sign)
            return await _forward(self._proxy, self._links, node, url, signed_request)
        relay_url = self._state().nodes[relay].http_url
        signed = self._sign(relay_url, _relayed_text(node, request), request.body)
        relayed = _with_headers(request, {**signed, RELAY: node})
        return await _forward(self._proxy, self._links, relay, relay_url, relayed)

    async def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        await self._proxy.close()


class RelayServer:
    """Relays requests of other nodes to nodes that this node reaches.

    ``call`` calls a node directly. ``relayed`` are the paths of the calls that are relayed.
    """

    def __init__(
        self,
        proxy: HttpProxy,
        links: PeerLinks,
        state: Callable[[], MetadataState],
        call: Call,
        relayed: frozenset[str],
        sign: Sign,
    ) -> None:
        self._sign = sign
        self._proxy = proxy
        self._links = links
        self._state = state
        self._call = call
        self._relayed = relayed

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {RELAY_CALL: self.handle_call}

    async def handle_call(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Make a call for another node; its error is the answer's."""
        try:
            asked = msgspec.msgpack.decode(body, type=_RelayCall)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this call cannot be read: {error}") from None
        if asked.path not in self._relayed:
            raise NotAllowed(f"{asked.path[:100]} is not relayed")
        wait_ms = min(max(asked.wait_ms, 0), limits.REMOTE_STORE_WAIT_MS)
        calling = self._call(asked.target, asked.path, asked.body, wait_ms)
        return [await self._links.unless_lost(asked.target, calling)]

    async def handle_request(self, request: Request, authenticate: Authenticate) -> Response:
        """Return the target's response to a request that another node relays.

        Raises ``InvalidInput`` or ``NotAllowed`` for a request that no node has signed, and what
        :meth:`RoutedProxy.forward` raises.
        """
        target = request.headers[RELAY]
        authenticate(_relayed_text(target, request), request.headers, request.body)
        known = self._state().nodes.get(target)
        if known is None:
            raise NotLeader(f"node {target[:100]} is not known here yet", retry_after_ms=500)
        plain = _without_headers(request, {RELAY, *AUTHENTICATION_HEADERS})
        signed = _signed(plain, known.http_url, self._sign)
        return await _forward(self._proxy, self._links, target, known.http_url, signed)


async def _forward(
    proxy: HttpProxy, links: PeerLinks, node: str, url: str, request: Request
) -> Response:
    """Send a request to a node; give it up when the node is lost, and its stream, too."""
    asked = asyncio.ensure_future(proxy.forward(url, request))
    try:
        response = await links.unless_lost(node, asked)
    except TimedOut as error:
        if request.method in ("GET", "HEAD"):
            raise Unavailable(error.detail, retry_after_ms=500) from None
        raise
    except asyncio.CancelledError:
        if asked.done() and not asked.cancelled() and asked.exception() is None:
            await _close(asked.result().stream)  # it came when nobody waited any more
        raise
    stream = response.stream
    if stream is None:
        return response
    watched = OwnedStream(_unless_lost(links, node, stream), partial(_close, stream))
    return Response(response.status, watched, response.content_type, response.headers)


async def _unless_lost(
    links: PeerLinks, node: str, stream: AsyncIterator[Item]
) -> AsyncGenerator[Item, None]:
    while True:
        try:
            yield await links.unless_lost(node, anext(stream))
        except StopAsyncIteration:
            return
        except TimedOut as error:
            raise Unavailable(f"the stream of node {node} ends: {error.detail}") from None


async def _close(stream: AsyncIterator[Item] | None) -> None:
    if isinstance(stream, OwnedStream):
        await stream.aclose()


def _relayed_text(target: str, request: Request) -> str:
    """Return what a sender signs besides the body; no part but the last can hold a space."""
    text = f"{request.method} {request.query_string} {request.path}"
    principal = request.headers.get(PRINCIPAL)
    return f"relay {target} {text}" if principal is None else f"relay {target} {principal} {text}"


def signed_text(request: Request) -> str | None:
    """Return what a node signs besides the body of a request, None for a client's request."""
    if RELAY in request.headers:
        return _relayed_text(request.headers[RELAY], request)
    if PRINCIPAL in request.headers:
        return forwarded_text(request)
    return request.path if request.path.startswith(CALL_PREFIX) else None


def forwarded_text(request: Request) -> str:
    """Return what a node signs besides the body when it forwards a principal's request."""
    principal = request.headers.get(PRINCIPAL, "")
    return f"forward {principal} {request.method} {request.query_string} {request.path}"


def _signed(request: Request, url: str, sign: Sign) -> Request:
    """Return a principal's request with a signature; another request as it is."""
    if PRINCIPAL not in request.headers:
        return request
    return _with_headers(request, sign(url, forwarded_text(request), request.body))


def _with_headers(request: Request, headers: dict[str, str]) -> Request:
    return Request(
        request.method,
        request.path,
        request.query_string,
        {**request.headers, **headers},
        request.body,
        request.peer,
        principal=request.principal,
    )


def _without_headers(request: Request, names: Collection[str]) -> Request:
    kept = {name: value for name, value in request.headers.items() if name not in names}
    return Request(
        request.method, request.path, request.query_string, kept, request.body, request.peer
    )


def _node_at(state: MetadataState, url: str) -> str:
    """Return the node that is registered with a URL; raise ``NotLeader`` if it was a moment ago."""
    for name, node in state.nodes.items():
        if node.http_url == url:
            return name
    raise NotLeader(f"no node is registered at {url} any more", retry_after_ms=500)
