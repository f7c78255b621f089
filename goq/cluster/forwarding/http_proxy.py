"""Passing a client's request on to the node that can answer it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx

from goq import limits
from goq.cluster.rpc.client import NodeConnections
from goq.errors import NotLeader, Unavailable
from goq.http.message import LOCAL, Request, Response

_NOT_PASSED_ON = frozenset(
    {
        "host",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "expect",
        "te",
        LOCAL,
    }
)


class HttpProxy:
    """Keeps connections to the other nodes' HTTP ports."""

    def __init__(self) -> None:
        self._transports = NodeConnections(limits.RELAY_CONNECTIONS_MAX)

    async def ask(self, url: str, request: Request) -> Response:
        """Return the answer of the node at ``url``, which is to answer by itself.

        Raises ``NotLeader`` where nobody listens there, and ``Unavailable`` where no answer came:
        it may have done what it was asked.
        """
        target = quote(request.path, safe="/:")
        if request.query_string:
            target += "?" + request.query_string
        passed_on = httpx.Request(
            request.method,
            url,
            headers={
                **{n: v for n, v in request.headers.items() if n not in _NOT_PASSED_ON},
                LOCAL: "true",
            },
            content=request.body,
            extensions={
                "target": target.encode("latin-1"),
                "timeout": httpx.Timeout(
                    limits.RELAY_TIMEOUT_S, connect=limits.RELAY_CONNECT_TIMEOUT_S
                ).as_dict(),
            },
        )
        try:
            answer = await self._transports.to(url).handle_async_request(passed_on)
            return await _response(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotLeader(
                f"the node at {url} cannot be reached ({error})", retry_after_ms=500
            ) from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the node that leads this, at {url}, does not answer ({error}); whether it did"
                " what was asked is not known",
                retry_after_ms=500,
            ) from None

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails."""
        await self._transports.close()


async def _response(answer: httpx.Response) -> Response:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() not in _NOT_PASSED_ON and name.lower() not in ("content-type", "date")
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
