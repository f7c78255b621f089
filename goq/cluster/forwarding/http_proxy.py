"""A proxy that forwards a client's HTTP request to the node that can answer it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from urllib.parse import quote

from goq import limits
from goq.cluster.rpc.client import UNSENT, NodeConnections, PeerTls, header_pairs, parsed_url
from goq.errors import NotLeader, TimedOut, TooManyRequests, Unavailable
from goq.http.client.errors import PoolTimeout, TransportError
from goq.http.client.http1 import ClientRequest, RequestTimeouts, encode_head
from goq.http.client.transport import ProtocolStream
from goq.http.message import LOCAL, Item, OwnedStream, Request, Response

_HOP_BY_HOP = frozenset(
    {
        "host",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "expect",
        "te",
        "authorization",  # a client's token stays on the node that the client asked
        LOCAL,
    }
)


class HttpProxy:
    """Forwards requests over connections to the HTTP ports of the other nodes.

    Receives have connections of their own, as many as clients may have here: a stream keeps one for
    as long as it lasts, and one that got none would be deaf to what the other node leads.
    """

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._connections = NodeConnections(limits.FORWARD_CONNECTIONS_MAX, tls)
        self._receiving = NodeConnections(limits.CONNECTIONS_MAX, tls)

    async def forward(self, url: str, request: Request) -> Response:
        """Return the response of the node at ``url``, which must not forward the request again.

        Raises ``NotLeader`` if nothing listens there, and ``TooManyRequests`` if no connection is
        free; nothing was done then. If no response came, the node may have done
        what was asked: ``TimedOut``, or ``Unavailable`` for a request that only reads.
        """
        target = quote(request.path, safe="/:")
        if request.query_string:
            target += "?" + request.query_string
        headers = passed_on(request.headers)
        parsed = parsed_url(url)
        pairs = header_pairs(headers)
        head = encode_head(request.method, parsed, target.encode("latin-1"), pairs)
        timeout_s = limits.FORWARD_TIMEOUT_S
        timeouts = RequestTimeouts(
            limits.FORWARD_CONNECTION_WAIT_S,
            limits.FORWARD_CONNECT_TIMEOUT_S,
            timeout_s,
            timeout_s,
        )
        forwarded = ClientRequest(request.method, parsed, head, request.body, timeouts)
        connections = self._receiving if _receives(request) else self._connections
        try:
            return await _response(await connections.transport(url).stream(forwarded))
        except PoolTimeout:
            raise TooManyRequests(
                f"this node has {connections.connections_max} requests under way at {url}, and"
                " no connection is free for more; ask that node itself, or later",
                retry_after_ms=1000,
            ) from None
        except UNSENT as error:
            raise NotLeader(
                f"the node at {url} cannot be reached ({error})", retry_after_ms=500
            ) from None
        except TransportError as error:
            detail = f"the leader, at {url}, does not answer ({error})"
            if request.method in ("GET", "HEAD"):
                raise Unavailable(detail, retry_after_ms=500) from None
            raise TimedOut(
                f"{detail}; it is not known whether it did what was asked", retry_after_ms=500
            ) from None

    async def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        await self._connections.close()
        await self._receiving.close()


def _receives(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/receive")


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a client's request that go to another node, which answers itself."""
    passed = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
    passed[LOCAL] = "true"
    return passed


async def _response(answer: ProtocolStream) -> Response:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in ("content-type", "date")
    }
    content_type = answer.headers.get("content-type")
    if "content-length" in answer.headers or answer.status == 204:
        return Response(answer.status, await answer.read(), content_type, headers)
    body = OwnedStream(_chunks(answer), answer.aclose)
    return Response(answer.status, body, content_type, headers)


async def _chunks(answer: ProtocolStream) -> AsyncGenerator[Item, None]:
    try:
        async for chunk in answer:
            yield chunk
    except TransportError as error:
        raise Unavailable(f"the node that streams this is gone ({error})") from None
