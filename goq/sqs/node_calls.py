"""Requests to the node's own HTTP handler: they are checked and routed as a client's would be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from goq.http.message import Handler, Request, Response
from goq.sqs.protocol.errors import error_of

T = TypeVar("T")
_JSON: Final = "application/json"
_encoder: Final = msgspec.json.Encoder()


class SqsCall(msgspec.Struct):
    """A request of a client: its operation's input, and the address that the client called.

    ``readable`` returns a text as the answer can have it: digests are of that. ``encode_part``
    encodes a member of a list of the output by itself; the result stands in for it.
    """

    operation: str
    shape: Any
    request: Request
    base_url: str
    readable: Callable[[str], str] = str
    encode_part: Callable[[dict[str, Any]], Any] = dict


class BegunCall(msgspec.Struct, frozen=True):
    """A request to the node that was begun, and how its answer becomes that of the operation."""

    answer: Response | Awaitable[Response]
    finish: Callable[[Response], Any]


class NodeCalls:
    """Sends requests to the node's handler in the name of a client."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def begin(
        self, call: SqsCall, method: str, path: str, body: object = None
    ) -> Response | Awaitable[Response]:
        """Return the answer, or an awaitable of it.

        The outer request ends with its connection, and needs a task, only if the inner one does.
        """
        sent = b"" if body is None else _encoder.encode(body)
        outer = call.request
        headers = {"content-type": _JSON} if sent else {}
        inner = Request(method, path, "", headers, sent, outer.peer, principal=outer.principal)
        answer = self._handler(inner)
        outer.outlives_eof, outer.is_brief = inner.outlives_eof, inner.is_brief
        return answer

    async def ask(self, call: SqsCall, method: str, path: str, body: object = None) -> Response:
        """Return the answer of a request."""
        answer = self.begin(call, method, path, body)
        return answer if isinstance(answer, Response) else await answer

    async def ask_for(
        self, call: SqsCall, shape: type[T], method: str, path: str, body: object = None
    ) -> T:
        """Return the decoded answer of a request. Raises ``SqsError``."""
        return decoded(await self.ask(call, method, path, body), shape)


def decoded(response: Response, shape: type[T]) -> T:
    """Return the body of an answer. Raises ``SqsError`` for a problem."""
    if response.status >= 400:
        raise error_of(response)
    body = response.body
    assert isinstance(body, (bytes, list, tuple))
    return msgspec.json.decode(body if isinstance(body, bytes) else b"".join(body), type=shape)
