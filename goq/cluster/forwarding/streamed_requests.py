"""Clients' small requests, sent to other nodes over the streams between nodes.

A receive, an ack or another step of a message through a node that does not lead its partition
costs one message there and one back: no connection, no HTTP, no signature of its own, since the
stream has authenticated the node. The node says for which principal it asks, as for requests that
it forwards over HTTP; the receiver checks that principal by its own metadata.

Only requests with a small answer may go this way: it is one message on a stream that carries
pushes, too. Where it turns out too large what it holds is given back, and the request goes over
HTTP. A request that the other node may hold must change nothing: it is given up when its
client has left.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol, cast

import msgspec

from goq import limits
from goq.access.rule import Principal
from goq.cluster.forwarding.http_proxy import passed_on
from goq.cluster.rpc.server import CALL_PREFIX, RefusableBody, ResponseBody, RpcHandler
from goq.errors import InvalidFrame, InvalidInput, NotLeader, RouteNotFound, TimedOut
from goq.http.message import PRINCIPAL, Handler, Item, Request, Response

_log = logging.getLogger("goq.cluster")

REQUEST: Final = CALL_PREFIX + "request"
_WAIT_MS: Final = int(limits.FORWARD_TIMEOUT_S * 1000) - limits.RPC_TIMEOUT_MS


class StreamCall(Protocol):
    """Calls a node by its id over its stream, as :meth:`rpc.stream_calls.StreamCalls.call`."""

    async def __call__(
        self, node: str, path: str, body: bytes, wait_ms: int, *, is_held: bool = False
    ) -> bytes | None:
        """Return the answer; None if the call must go over HTTP.

        Raises ``TimedOut`` if no answer came, and the ``GoqError`` of an answer.
        """


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    principal: str | None
    peer: str
    body: bytes


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    status: int
    content_type: str | None
    headers: dict[str, str]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(_Asked).decode
_decode_answered = msgspec.msgpack.Decoder(_Answered).decode


class StreamedRequests:
    """Sends requests over streams, by ``call``."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    async def ask(self, node: str, request: Request, held_ms: int = 0) -> Response | None:
        """Return a node's answer to a request; None if it must be asked over HTTP.

        A request that the node may hold for ``held_ms`` is given up when this is cancelled.

        Raises ``NotLeader`` if the node did nothing, ``TimedOut`` if it may have.
        """
        principal = request.principal
        asked = _Asked(
            request.method,
            request.path,
            request.query_string,
            passed_on(request.headers),
            None if principal is None else principal.id,
            request.peer,
            request.body,
        )
        try:
            answer = await self._call(
                node, REQUEST, _encode(asked), held_ms or _WAIT_MS, is_held=held_ms > 0
            )
        except RouteNotFound:  # a node of an earlier version
            return None
        if answer is None:
            return None
        answered = _decode_answered(answer)
        return Response(
            answered.status, answered.body, answered.content_type, dict(answered.headers)
        )


class StreamedRequestServer:
    """Answers the requests that other nodes send over their streams."""

    def __init__(self) -> None:
        self._handle: Handler | None = None
        self._find: Callable[[str], Principal] | None = None

    def attach(self, handle: Handler, find: Callable[[str], Principal] | None) -> None:
        """Answer by ``handle``.

        ``find`` returns a principal by its id. It raises ``NotAuthenticated``, and ``NotLeader``
        for one that is not known here yet. It is None where nobody needs a token.
        """
        self._handle, self._find = handle, find

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {REQUEST: self.handle_request}

    async def handle_request(self, node: str, body: bytes) -> ResponseBody:
        """Answer a request; raise ``NotLeader`` if this node cannot yet, and as the sender's check.

        Raises ``TimedOut`` if it is not known what was done.
        """
        try:
            asked = _decode_asked(body)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this request cannot be read: {error}") from None
        if self._handle is None:
            raise NotLeader("this node starts", retry_after_ms=500)
        request = Request(
            asked.method, asked.path, asked.query, asked.headers, asked.body, asked.peer
        )
        request.outlives_eof = True
        if asked.principal is not None and self._find is not None:
            request.headers[PRINCIPAL] = asked.principal
            request.principal = self._find(asked.principal)
        try:
            answer = self._handle(request)
            response = answer if isinstance(answer, Response) else await answer
        except Exception:
            _log.exception("%s %s of node %s failed", asked.method, asked.path, node)
            raise TimedOut("the node failed; it is not known whether this was done") from None
        if response.stream is not None:
            await cast(AsyncGenerator[Item, None], response.stream).aclose()
            raise InvalidInput("this is answered by a stream: ask over HTTP")
        pieces = response.body if isinstance(response.body, list | tuple) else [response.body]
        answered = _Answered(
            response.status,
            response.content_type,
            response.headers,
            b"".join(pieces),  # type: ignore[arg-type]
        )
        data = _encode(answered)
        return [data] if response.on_refused is None else RefusableBody([data], response.on_refused)
