"""Access control: who sends a request, and whether its route lets this sender do it.

The router calls it before each handler. A request of a client carries a token. A request that
another node relays carries the id of the sender's principal instead, and the proof of that node:
the token itself never leaves the node that the client asked. The receiver checks the principal
again, by its own metadata.

A token that ends also ends what it began. An answer that has waited is not handed out, and streams
are ended within ``STREAM_CHECK_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol

from goq.access.quota_table import QuotaTable
from goq.access.refusal_pace import RefusalPace
from goq.access.rule import NOBODY, Principal
from goq.access.token_manager import TokenManager
from goq.access.token_record import DAY_MS
from goq.access.token_table import TokenTable
from goq.api.needs import PUBLISH, Needs
from goq.errors import (
    NotAllowed,
    NotAuthenticated,
    NotLeader,
    TooManyRequests,
    TopicNotFound,
    Unavailable,
)
from goq.http.message import PRINCIPAL, Item, LiveStream, OwnedStream, Request, Response

STREAM_CHECK_S: Final = 0.5
_AUTHORIZATION: Final = "authorization"
_BEARER: Final = "bearer "
Proof = Callable[[Request], None]
"""Raises ``GoqError`` for a request that no node of the cluster has signed."""
HeadProof = Callable[[Request], bool]
"""Returns whether a request claims to be a node's; raises ``GoqError`` if its head is not signed by
one."""


class HasNeeds(Protocol):
    """A route."""

    @property
    def needs(self) -> Needs | None:
        """The needs of the route."""


class AccessControl:
    """Checks requests against the tokens.

    ``proof`` checks those that nodes relay, ``head_proof`` the heads of all that nodes send.
    ``knows_all`` returns whether this node cannot lack a token that was created by now.
    """

    def __init__(
        self,
        table: TokenTable,
        manager: TokenManager,
        now_ms: Callable[[], int],
        proof: Proof | None = None,
        quotas: QuotaTable | None = None,
        head_proof: HeadProof | None = None,
        knows_all: Callable[[], bool] = lambda: True,
    ) -> None:
        self._head_proof = head_proof
        self._knows_all = knows_all
        self.pace = RefusalPace()
        self.quotas = quotas or QuotaTable()
        self._table = table
        self._manager = manager
        self._now_ms = now_ms
        self._proof = proof
        self._noted: tuple[int, set[str]] = (0, set())
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[_GuardedStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def check(self, request: Request, route: HasNeeds, values: Sequence[str]) -> None:
        """Set the principal of a request, or why it is refused.

        Raises ``NotAuthenticated``, ``NotAllowed``, ``TopicNotFound``, and ``Unavailable`` for a
        token that may be a new one.
        """
        needs = route.needs
        assert needs is not None
        principal, request.refusal = request.principal, None
        if needs.is_open:
            request.principal = self._if_authentic(request) if principal is None else principal
            return
        is_new = principal is None and PRINCIPAL not in request.headers
        try:
            if principal is None:
                principal = request.principal = self._authenticate(request)
            else:
                self._check_valid(principal)
            needs.check(principal, request, values)
            if is_new:
                self._admit(principal, request, needs)
        except (NotAllowed, TopicNotFound) as error:
            request.refusal = error
            raise

    def check_head(self, request: Request, *, is_large: bool) -> None:
        """Check the sender of a request whose body has not been read.

        Raises ``NotAuthenticated`` and ``NotAllowed``, and ``TooManyRequests`` if a quota is used
        up and the body is large: it is cheaper to read a small one than to close the connection.
        """
        if self._head_proof is not None and self._head_proof(request):
            return
        if PRINCIPAL in request.headers:
            raise _only_nodes()
        principal = self._find(request)
        if is_large:
            try:
                self.quotas.check(principal, monotonic())
            except TooManyRequests:
                self.hold(request, principal.id)
                raise

    def _admit(self, principal: Principal, request: Request, needs: Needs) -> None:
        """Count a request; one that a quota refuses may come again."""
        size = len(request.body) if needs is PUBLISH and request.method == "POST" else None
        try:
            self.quotas.admit(principal, size, monotonic())
        except TooManyRequests:
            request.principal = None
            self.hold(request, principal.id)
            raise

    def hold_beyond_quota(self, request: Request) -> None:
        """Hold the refusal of a request whose sender has quotas."""
        principal = request.principal
        if principal is not None and principal.quotas:
            self.hold(request, principal.id)

    def hold(self, request: Request, sender: str) -> None:
        """Have the refusal of a request wait for its turn among those of its sender."""
        if request.pause_s is None:
            request.pause_s = self.pace.pause_s(sender, monotonic())

    def answered(self, request: Request, response: Response) -> Response:
        """Return the answer of a request that may have waited.

        Raises ``NotAuthenticated`` if its token has ended; leases of the answer are given back, and
        a stream is closed.
        """
        principal = request.principal
        if principal is None or principal is NOBODY:
            return response
        try:
            self._check_valid(principal)
        except NotAuthenticated:
            if response.on_refused is not None:
                response.on_refused()
            if isinstance(response.stream, OwnedStream):
                self._start(response.stream.aclose())
            raise
        if isinstance(response.stream, LiveStream):
            guarded = _GuardedStream(response.stream, principal, self._streams)
            response.stream = response.body = guarded
            self._watch_streams()
        return response

    def close(self) -> None:
        """Stop the work in the background."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _check_valid(self, principal: Principal) -> None:
        if not self._table.is_valid(principal):
            raise NotAuthenticated(f"token {principal.id} is not valid any more")

    def _if_authentic(self, request: Request) -> Principal:
        if _AUTHORIZATION not in request.headers and not request.certificate:
            return NOBODY
        try:
            return self._authenticate(request)
        except (NotAllowed, Unavailable):
            return NOBODY

    def _authenticate(self, request: Request) -> Principal:
        headers = request.headers
        if PRINCIPAL in headers:
            return self._relayed(request)
        principal = self._find(request)
        self.note_use(principal.id)
        return principal

    def _find(self, request: Request) -> Principal:
        text = _token_of(request.headers)
        try:
            return self._table.find(text, request.certificate, is_local=request.is_local)
        except NotAuthenticated:
            self.hold(request, request.peer_host)
            if (text is None and not request.certificate) or self._knows_all():
                raise
            raise Unavailable(
                "this node knows no such token, but may lack one that was just created; ask"
                " another node, or this one in a moment",
                retry_after_ms=500,
            ) from None

    def _relayed(self, request: Request) -> Principal:
        if self._proof is None:
            raise _only_nodes()
        self._proof(request)
        return self.named(request.headers[PRINCIPAL])

    def named(self, principal_id: str) -> Principal:
        """Return the principal that a node of the cluster names.

        Raises ``NotAuthenticated``, and ``NotLeader`` for a token that is not known here yet.
        """
        if not self._table.is_known(principal_id):
            raise NotLeader(f"token {principal_id[:50]} is not known here yet", retry_after_ms=500)
        return self._table.named(principal_id)

    def note_use(self, token_id: str) -> None:
        """Record the first use of a token on a day."""
        day = self._now_ms() // DAY_MS
        if self._noted[0] != day:
            self._noted = day, set()
        noted = self._noted[1]
        if token_id not in noted:
            noted.add(token_id)
            self._start(self._manager.note_use(token_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work in the background."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _watch_streams(self) -> None:
        if self._timer is None and self._streams:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(STREAM_CHECK_S, self._end_streams)

    def _end_streams(self) -> None:
        self._timer = None
        valid: dict[Principal, bool] = {}
        for stream in list(self._streams):
            principal = stream.principal
            if principal not in valid:
                valid[principal] = self._table.is_valid(principal)
            if not valid[principal]:
                stream.end()
        self._watch_streams()


class _GuardedStream(LiveStream):
    """A stream that :meth:`end` ends, also while it waits for its next item."""

    __slots__ = ("_all", "_inner", "_is_ended", "_task", "principal")

    def __init__(
        self, inner: LiveStream, principal: Principal, streams: set[_GuardedStream]
    ) -> None:
        super().__init__(self._run(), inner.heartbeat, inner.aclose)
        self.principal = principal
        self._inner = inner
        self._all = streams
        self._is_ended = False
        self._task: asyncio.Task[object] | None = None
        streams.add(self)

    def end(self) -> None:
        """End the stream."""
        self._is_ended = True
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """End the stream, and what is behind it."""
        self._all.discard(self)
        await super().aclose()

    async def _run(self) -> AsyncGenerator[Item, None]:
        while not self._is_ended:
            task = self._task = asyncio.current_task()
            try:
                item = await anext(self._inner)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if not self._is_ended or task is None:
                    raise
                task.uncancel()
                return
            finally:
                self._task = None
            yield item


def _only_nodes() -> NotAllowed:
    return NotAllowed("only the nodes of a cluster relay requests")


def _token_of(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of a request."""
    text = headers.get(_AUTHORIZATION, "")
    is_bearer = text[: len(_BEARER)].lower() == _BEARER
    return text[len(_BEARER) :].strip() if is_bearer else None
