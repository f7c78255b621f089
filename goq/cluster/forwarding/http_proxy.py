"""A proxy that forwards a client's HTTP request to the node that can answer it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx

from goq import limits
from goq.cluster.rpc.client import UNSENT, NodeConnections, PeerTls
from goq.errors import NotLeader, TimedOut, Unavailable
from goq.http.message import LOCAL, Request, Response

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
    """Forwards requests over connections to the HTTP ports of the other nodes."""

    def __init__(self, tls: PeerTls = PeerTls()) -> None:  # noqa: B008 - frozen
        self._connections = NodeConnections(limits.FORWARD_CONNECTIONS_MAX, tls)

    async def forward(self, url: str, request: Request) -> Response:
        """Return the response of the node at ``url``, which must not forward the request again.

        Raises ``NotLeader`` if nothing listens there. If no response came, the node may have done
        what was asked: ``TimedOut``, or ``Unavailable`` for a request that only reads.
        """
        target = quote(request.path, safe="/:")
        if request.query_string:
            target += "?" + request.query_string
        forwarded = httpx.Request(
            request.method,
            url,
            headers={
                **{n: v for n, v in request.headers.items() if n not in _HOP_BY_HOP},
                LOCAL: "true",
            },
            content=request.body,
            extensions={
                "target": target.encode("latin-1"),
                "timeout": httpx.Timeout(
                    limits.FORWARD_TIMEOUT_S, connect=limits.FORWARD_CONNECT_TIMEOUT_S
                ).as_dict(),
            },
        )
        try:
            answer = await self._connections.transport(url).handle_async_request(forwarded)
            return await _response(answer)
        except UNSENT as error:
            raise NotLeader(
                f"the node at {url} cannot be reached ({error})", retry_after_ms=500
            ) from None
        except httpx.HTTPError as error:
            detail = f"the leader, at {url}, does not answer ({error})"
            if request.method in ("GET", "HEAD"):
                raise Unavailable(detail, retry_after_ms=500) from None
            raise TimedOut(
                f"{detail}; it is not known whether it did what was asked", retry_after_ms=500
            ) from None

    async def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        await self._connections.close()


async def _response(answer: httpx.Response) -> Response:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in ("content-type", "date")
    }
    content_type = answer.headers.get("content-type")
    if "content-length" in answer.headers or answer.status_code == 204:
        return Response(answer.status_code, await answer.aread(), content_type, headers)
    return Response(answer.status_code, _streamed(answer), content_type, headers)


async def _streamed(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise Unavailable(f"the node that streams this is gone ({error})") from None
    finally:
        await answer.aclose()
