"""Requests and responses as a handler sees them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Sequence,
)
from time import perf_counter
from typing import Any, Final, TypeAlias

from goq.access.rule import Principal
from goq.errors import GoqError
from goq.http.request.request_target import parse_query

BytesLike: TypeAlias = bytes | bytearray | memoryview
Item: TypeAlias = BytesLike | Sequence[BytesLike]
"""One chunk of a stream, as one piece or in parts."""
Body: TypeAlias = bytes | Sequence[BytesLike] | AsyncIterator[Item]


LOCAL: Final = "goq-local"
"""Header of a request that a cluster node answers from its own partitions, without forwarding."""


PRINCIPAL: Final = "goq-internal-principal"
"""Header of a request that a cluster node relays: the id of the principal that sent it."""


CreateProtocol: TypeAlias = Callable[[], asyncio.Protocol]
"""Creates the protocol that a connection changes to."""


class OwnedStream(AsyncIterator[Item]):
    """The items of a generator, and what has to be closed with it.

    A generator that never began ignores that it is closed; ``close`` is called all the same.
    """

    __slots__ = ("_close", "_items")

    def __init__(
        self,
        items: AsyncGenerator[Item, None],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._items = items
        self._close = close

    def __anext__(self) -> Awaitable[Item]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        """End the stream."""
        try:
            await self._items.aclose()
        finally:
            if self._close is not None:
                await self._close()


class LiveStream(OwnedStream):
    """A stream that may be idle for a long time and then sends ``heartbeat``.

    Each side thereby notices when the other has gone without closing.
    """

    __slots__ = ("heartbeat",)

    def __init__(
        self,
        items: AsyncGenerator[Item, None],
        heartbeat: bytes,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(items, close)
        self.heartbeat = heartbeat


class Request:
    """One complete request; the handler gets it when its body has arrived.

    ``path`` is percent-decoded and has no query. ``headers`` have lower-case names and values
    decoded as latin-1; values of a repeated header are joined with ``", "``. ``peer`` is
    ``host:port``, for logs, ``certificate`` the names in the client's certificate, and ``is_local``
    whether the client is on this machine. The handler sets ``route``, for metrics, and
    ``principal``, the sender, where it asks for tokens, or ``refusal``, why that sender may not do
    what it asks. ``pause_s`` is how long to hold a refusal.

    The handler sets ``outlives_eof``, at the latest when it returns. A client that shut its sending
    side looks like a client that is gone. So by default the end of input cancels the handler:
    nothing may be delivered to a client that is gone. A handler whose work is worth finishing for a
    half-closed client sets ``outlives_eof`` and is not cancelled. One that also sets ``is_brief``
    needs no task, see :class:`BriefAnswer`.
    """

    __slots__ = (
        "_query",
        "body",
        "certificate",
        "headers",
        "is_brief",
        "is_http_10",
        "is_local",
        "keep_alive",
        "method",
        "outlives_eof",
        "path",
        "pause_s",
        "peer",
        "principal",
        "query_string",
        "refusal",
        "route",
        "upgrade",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query_string: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        peer: str = "",
        *,
        keep_alive: bool = True,
        is_http_10: bool = False,
        principal: Principal | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers: dict[str, str] = {} if headers is None else headers
        self.body = body
        self.peer = peer
        self.keep_alive = keep_alive
        self.is_http_10 = is_http_10
        self.principal = principal
        self.outlives_eof = False
        self.is_brief = False
        self.certificate: tuple[str, ...] = ()
        self.is_local = False
        self.refusal: GoqError | None = None
        self.pause_s: float | None = None
        self.route = ""
        self.upgrade: CreateProtocol | None = None
        """Creates the protocol that the client asks the connection to change to."""
        self._query: dict[str, str] | None = None

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters, parsed on first use.

        Raises ``InvalidInput`` (400) naming the field when a parameter is repeated, and when the
        query is not percent-encoded UTF-8.
        """
        if self._query is None:
            self._query = parse_query(self.query_string)
        return self._query

    @property
    def peer_host(self) -> str:
        """The host of ``peer``."""
        return self.peer.rpartition(":")[0].strip("[]")

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.path} from {self.peer}>"


class Response:
    """One response.

    ``body`` is one ``bytes``, a list or tuple of bytes-like parts (written without joining), or an
    async iterator. Each item of an iterator is sent at once as a chunk; an HTTP/1.0 client reads to
    the end of the connection. The head of a stream is sent before its first item, so an iterator
    that raises cannot change the status. It ends the connection without the last chunk, and the
    client notices.

    ``headers`` may not frame the message (Content-Length, Transfer-Encoding, Connection) nor hold
    line breaks; the server answers 500 instead.
    """

    __slots__ = ("body", "content_type", "headers", "on_refused", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: Body = b"",
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers: dict[str, str] = {} if headers is None else headers
        self.on_refused: Callable[[], None] | None = None
        """Called if the server has no room to buffer the answer, and sends another one."""
        self.stream: AsyncIterator[Item] | None = None
        """The body, if it is a stream."""
        if not isinstance(body, (bytes, list, tuple)) and isinstance(body, AsyncIterator):
            self.stream = body

    def __repr__(self) -> str:
        return f"<Response {self.status}>"


Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


OnAnswer = Callable[[Response | None, BaseException | None], None]


class BriefAnswer:
    """Runs a handler's coroutine without a task: its first step at once, the next ones as calls.

    ``on_answer`` gets its result or its error, at once or later. This is for answers that only wait
    for the disk: a task would cost more than the rest of such a request. The coroutine cannot be
    cancelled. It has no ``asyncio.current_task()``, so it may not use ``asyncio.timeout``.
    """

    __slots__ = ("_coroutine", "_loop", "_on_answer", "_on_step")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Response],
        loop: asyncio.AbstractEventLoop,
        on_answer: OnAnswer,
        on_step: Callable[[float], None],
    ) -> None:
        """``on_step`` is called after each step, with the time when it began."""
        self._coroutine = coroutine
        self._loop = loop
        self._on_answer = on_answer
        self._on_step = on_step

    def step(self, _done: object = None) -> None:
        """Run the coroutine until it waits or ends."""
        started_s = perf_counter()
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            self._on_answer(end.value, None)
        except (Exception, asyncio.CancelledError) as error:
            self._on_answer(None, error)
        else:
            if awaited is None:  # it lets others go first
                self._loop.call_soon(self.step)
            else:
                awaited._asyncio_future_blocking = False  # as a task does: the wait is taken up
                awaited.add_done_callback(self.step)
        self._on_step(started_s)


class DeferredAnswer:
    """An answer that its handler gives later, by a call: cheaper than any coroutine.

    Its handler calls :meth:`complete` once, with the answer or the error. A caller that passes it
    on may set ``finish``, which makes the response of that. It may be awaited, or asked by
    :meth:`then`, once.
    """

    __slots__ = ("_outcome", "_then", "finish")

    def __init__(self) -> None:
        self.finish: Callable[[Response | Exception], Response] = _response
        self._then: OnAnswer | None = None
        self._outcome: Response | Exception | None = None

    def complete(self, outcome: Response | Exception) -> None:
        """Give the answer, or the error instead of one."""
        if self._then is None:
            self._outcome = outcome
        else:
            self._tell(outcome, self._then)

    def then(self, on_answer: OnAnswer) -> None:
        """Have ``on_answer`` called with the response or the error."""
        self._then = on_answer
        if self._outcome is not None:
            self._tell(self._outcome, on_answer)

    def _tell(self, outcome: Response | Exception, on_answer: OnAnswer) -> None:
        response: Response | None = None
        failure: Exception | None = None
        try:
            response = self.finish(outcome)
        except Exception as error:
            failure = error
        try:
            on_answer(response, failure)
        except Exception as error:  # a connection with a bug must not keep others waiting
            context = {"message": "a deferred answer was not sent", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def __await__(self) -> Generator[Any, None, Response]:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def on_answer(response: Response | None, error: BaseException | None) -> None:
            if future.done():
                if response is not None and response.on_refused is not None:
                    response.on_refused()
            elif response is not None:
                future.set_result(response)
            elif error is not None:
                future.set_exception(error)

        self.then(on_answer)
        return future.__await__()


def _response(outcome: Response | Exception) -> Response:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
