"""The audit trail: who managed, operated and administered what, and what was refused.

A record is stored before its action begins. So no action is without a record, whatever fails; one
that cannot be recorded is refused. There are two exceptions, which would keep a node from being
mended: on a full disk, and for what needs the rule ``operate:*``. Those records go to the log of
the node instead. An action that fails after its record gets a second one with the same id.

The node that a client asks records; nodes that it relays to do not.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.access.audit_record import (
    AuditRecord,
    AuditResult,
    RefusalBound,
    encode_record,
    shortened,
)
from goq.access.rule import NOBODY, Principal, Verb
from goq.api.codec.problem import Problem, problem_of, problem_response
from goq.api.needs import ServerVerb
from goq.api.route import Route
from goq.api.router import Router
from goq.broker.topic.audit_log import AuditLog
from goq.clock import Clock
from goq.errors import GoqError, NodeFull, StorageFull, Unavailable
from goq.http.message import PRINCIPAL, Handler, Request, Response
from goq.units import format_time_us

_READS: Final = ("GET", "HEAD")
_REQUEST_ID_BYTES: Final = 8
_CLOSE_S: Final = 2.0
_log = logging.getLogger("goq.audit")


class AuditTrail:
    """Records the actions and refusals of the requests to one node."""

    def __init__(self, audit_log: AuditLog, router: Router, node_id: str, clock: Clock) -> None:
        self._audit_log = audit_log
        self._router = router
        self._node_id = node_id
        self._clock = clock
        self._unaudited = _unaudited_ends(router.routes)
        self._known = RefusalBound(limits.TOKENS_MAX)
        self._unknown = RefusalBound(limits.AUDIT_PEERS_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def recorded(self, handler: Handler) -> Handler:
        """Return a handler that records what ``handler`` is about to do, and what it refused."""

        def handle(request: Request) -> Response | Awaitable[Response]:
            if self._may_act(request):
                try:
                    route, values = self._router.match(request)
                except GoqError:
                    pass  # which the handler answers
                else:
                    if route.is_audited:
                        request.outlives_eof = True
                        return self._act(request, route, values, handler)
            answer = handler(request)
            return answer if request.refusal is None else self.refused(request, answer)

        return handle

    async def close(self) -> None:
        """Record the counts of refusals, if that is quick."""
        if self._timer is not None:
            self._timer.cancel()
        self._start(self._record_counts(float("inf")))
        await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    def _may_act(self, request: Request) -> bool:
        """Return whether the route of a request may be an audited one, without looking it up."""
        if request.method in _READS or PRINCIPAL in request.headers:
            return False
        return request.method != "POST" or request.path.rpartition("/")[2] not in self._unaudited

    async def _act(
        self, request: Request, route: Route, values: Sequence[str], handler: Handler
    ) -> Response:
        assert route.needs is not None
        record = replace(
            self._record(request, AuditResult.ALLOWED, route.path),
            topics=[_end(*end) for end in route.needs.concerns(request, values)],
            body=_body(request, route),
        )
        try:
            await self._store(record)
        except GoqError as error:
            if not _may_go_on(error, route):
                failure = Unavailable(
                    f"the audit trail cannot be written, so nothing was done: {error.detail}",
                    retry_after_ms=1000,
                )
                return problem_response(failure)
            _log.warning("not in the audit trail: %s", encode_record(record).decode())
        try:
            answer = handler(request)
            response = answer if isinstance(answer, Response) else await answer
        except Exception as error:  # the server answers it with an internal error, and logs it
            known = error if isinstance(error, GoqError) else GoqError(type(error).__name__)
            await self._store_failure(record, problem_of(known))
            raise
        if response.status >= 400:
            await self._store_failure(record, _problem(response))
        return response

    async def _store_failure(self, record: AuditRecord, problem: Problem) -> None:
        """Record that a recorded action failed, and with which answer."""
        await self._try_store(
            replace(
                record,
                time=self._now(),
                result=AuditResult.FAILED,
                status=problem.status,
                code=problem.code,
                detail=shortened(problem.detail),
            )
        )

    async def refused(self, request: Request, pending: Response | Awaitable[Response]) -> Response:
        """Return the answer of a request with a ``refusal``, once that is recorded."""
        response = pending if isinstance(pending, Response) else await pending
        error = request.refusal
        if error is not None:  # else it was let through at the second look
            await self._record_refusal(request, error)
        return response

    def note_refusal(self, request: Request, error: GoqError) -> None:
        """Record a refusal in the background: its body has not been read."""
        self._start(self._record_refusal(request, error))

    async def _record_refusal(self, request: Request, error: GoqError) -> None:
        now_s = asyncio.get_running_loop().time()
        principal = request.principal
        if principal is None:
            is_first = self._unknown.admit(request.peer_host, now_s)
        else:
            is_first = self._known.admit(principal.id, now_s)
        self._set_timer()
        if is_first:
            record = self._record(request, AuditResult.REFUSED, request.route)
            await self._try_store(
                replace(
                    record,
                    status=error.http_status,
                    code=error.code,
                    detail=shortened(error.detail),
                )
            )

    def _record(self, request: Request, result: AuditResult, route: str) -> AuditRecord:
        principal: Principal = request.principal or NOBODY
        return AuditRecord(
            time=self._now(),
            result=result,
            node=self._node_id,
            request=secrets.token_hex(_REQUEST_ID_BYTES),
            principal=principal.id,
            name=principal.name,
            peer=request.peer,
            method=request.method,
            route=route,
            path=shortened(request.path),
        )

    def _now(self) -> str:
        return format_time_us(self._clock.wall_us())

    async def _store(self, record: AuditRecord) -> None:
        """Append a record, also if the client leaves meanwhile."""
        appending = self._audit_log.append(record.principal, encode_record(record))
        await asyncio.shield(self._start(appending))

    async def _try_store(self, record: AuditRecord) -> None:
        try:
            await self._store(record)
        except GoqError as error:
            text = encode_record(record).decode()
            _log.warning("not in the audit trail, because %s: %s", error.detail, text)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _set_timer(self) -> None:
        ends = [b.next_end_s for b in (self._known, self._unknown) if b.next_end_s is not None]
        if self._timer is None and ends:
            self._timer = asyncio.get_running_loop().call_at(min(ends), self._on_period_end)

    def _on_period_end(self) -> None:
        self._timer = None
        self._start(self._record_counts(asyncio.get_running_loop().time()))
        self._set_timer()

    async def _record_counts(self, now_s: float) -> None:
        """Record how many refusals followed the recorded one of each sender."""
        for bound in (self._known, self._unknown):
            for sender, count in bound.take_ended(now_s):
                is_known = bound is self._known
                await self._try_store(
                    AuditRecord(
                        time=self._now(),
                        result=AuditResult.REFUSED,
                        node=self._node_id,
                        request=secrets.token_hex(_REQUEST_ID_BYTES),
                        principal=sender if is_known else NOBODY.id,
                        peer="" if is_known else sender,
                        count=count,
                    )
                )


def _unaudited_ends(routes: Sequence[Route]) -> frozenset[str]:
    """Return the last segments of paths by which a POST is known not to be audited."""
    posts = [route for route in routes if route.method == "POST"]
    audited = {route.path.rpartition("/")[2] for route in posts if route.is_audited}
    if any(end.startswith("{") for end in audited):
        return frozenset()
    return frozenset(route.path.rpartition("/")[2] for route in posts) - audited


def _may_go_on(error: GoqError, route: Route) -> bool:
    """Return whether an action goes on without its record, so that a node can be mended."""
    if isinstance(error, StorageFull | NodeFull):
        return True
    return isinstance(route.needs, ServerVerb) and route.needs.verb is Verb.OPERATE


def _end(topic: str, group: str | None) -> str:
    return topic if group is None else f"{topic}/{group}"


def _body(request: Request, route: Route) -> dict[str, Any]:
    """Return the body of a request, checked, where the route says that it may be recorded."""
    if not route.is_body_audited or route.body is None:
        return {}
    if len(request.body) > limits.AUDIT_BODY_BYTES_MAX:
        return {}
    try:
        decoded = msgspec.json.decode(request.body, type=route.body)
        found = msgspec.to_builtins(decoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # which the handler refuses
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def _problem(response: Response) -> Problem:
    try:
        assert isinstance(response.body, bytes)
        return msgspec.json.decode(response.body, type=Problem)
    except (AssertionError, msgspec.MsgspecError):
        return Problem("", "", response.status, "", "")
