"""The router: finds the route of each request, runs its handler and counts the answer.

Routes are declared once. The same declaration is matched here and described in OpenAPI. It says
which nodes of a cluster answer (``goq.api.routing_policy``), and what the sender of a request must
be allowed to do (``goq.api.needs``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from goq.api.access_control import AccessControl
from goq.api.errors import problem_response
from goq.api.needs import Needs
from goq.api.routing_policy import RoutingPolicy
from goq.api.values import TEXT, Schema
from goq.errors import (
    GoqError,
    InvalidInput,
    MethodNotAllowed,
    QuotaExceeded,
    RouteNotFound,
    ShuttingDown,
    TooManyRequests,
    UnsupportedMedia,
)
from goq.histogram import Histogram
from goq.http.failure_log import FailureLog
from goq.http.message import DeferredAnswer, Request, Response

T = TypeVar("T")
RouteHandler = Callable[..., Response | Awaitable[Response]]
FRAMES: Final = "application/vnd.goq.frames"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_CODING: Final = "content-encoding"
_UNMATCHED: Final = "(none)"
_STOPPED_RETRY_MS: Final = 1000
_PATHS_KNOWN_MAX: Final = 1024


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter or a header."""

    name: str
    description: str
    schema: Schema = msgspec.field(default_factory=lambda: TEXT)
    required: bool = False


class Route(msgspec.Struct, frozen=True):
    """A method, a path with ``{parameters}``, and the handler.

    The handler gets the request and the values of the path parameters.
    """

    method: str
    path: str
    handler: RouteHandler
    summary: str
    body: type[Any] | None = None
    answer: Any = None
    status: int = 200
    parameters: Sequence[Parameter] = ()
    headers: Sequence[Parameter] = ()
    """Headers that only this route reads."""
    errors: Sequence[str] = ()
    """Error codes of this route; codes that any request can cause (``invalid_input``) are left
    out."""
    takes_frames: bool = False
    gives_frames: bool = False
    gives_lines: bool = False
    waits: bool = False
    """Whether the answer may wait for messages; such a request ends with its connection."""
    is_brief: bool = False
    """Whether the answer waits for nothing but the disk, so that a single node needs no task."""
    at_once: Callable[..., Coroutine[Any, Any, Response] | None] | None = None
    """Begins an answer that waits for nothing but the disk; None if ``handler`` must wait. The
    caller must run what it gets. Only a single node calls it."""
    answer_type: str = JSON
    ignores_query: bool = False
    """Whether unknown query parameters are accepted: monitoring systems may add some."""

    needs: Needs | None = None
    """What the sender of a request must be allowed to do; a route without it is refused."""

    is_body_audited: bool = False
    """Whether the audit trail has the body of a request: it has settings and no messages."""

    routing: RoutingPolicy = None
    """Which nodes answer when several nodes lead the topic's partitions."""

    is_audited: bool = False
    """Whether the audit trail records each request."""

    is_async: bool = False
    """Whether the handler is a coroutine function; otherwise it answers at once."""

    def __post_init__(self) -> None:
        if self.needs is None:
            raise ValueError(f"{self.method} {self.path} does not declare what it needs")
        is_audited = self.needs.is_audited and self.method != "GET"
        force_setattr(self, "is_audited", is_audited)
        force_setattr(self, "is_async", inspect.iscoroutinefunction(self.handler))

    def check_query(self, request: Request) -> None:
        """Raise ``InvalidInput`` for a query parameter that the route does not have."""
        if self.ignores_query:
            return
        names = [parameter.name for parameter in self.parameters]
        for name in request.query:
            if name not in names:
                raise InvalidInput(
                    f"unknown parameter {name[:50]!r}; there are {', '.join(names) or 'none'}",
                    field=name[:50],
                )


class RequestStats:
    """Requests by route and status, and their latency."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.seconds: dict[tuple[str, str], Histogram] = {}

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count one request. ``path`` is that of its route, so the number of paths is bounded."""
        key = (method, path, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.seconds.get((method, path))
        if histogram is None:
            histogram = self.seconds[method, path] = Histogram()
        histogram.observe(seconds)


class _Segment:
    """A node of the path tree: the next segments by their text, or one parameter."""

    __slots__ = ("children", "methods", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Segment] = {}
        self.parameter: _Segment | None = None
        self.methods: dict[str, Route] = {}


class Router:
    """Answers requests with the handlers of its routes.

    ``access`` checks each request before its handler, if the node asks for tokens.

    On :meth:`stop_waiting` every waiting request is answered with ``ShuttingDown``. A client is
    told to retry later, except where other nodes can answer (``has_other_nodes``).
    """

    def __init__(
        self,
        routes: Sequence[Route],
        stats: RequestStats,
        failures: FailureLog,
        *,
        has_other_nodes: bool = False,
        access: AccessControl | None = None,
        pages: Sequence[Route] = (),
    ) -> None:
        """``pages`` are for browsers: matched as routes, but no part of the API."""
        self.routes = routes
        self._access = access
        self.on_stop: list[Callable[[], None]] = []
        """Called before the waiting requests are answered."""
        self.opened: Callable[[Route, Sequence[str]], Awaitable[None] | None] | None = None
        """Returns what a request waits for while a start still opens topics."""
        self._stats = stats
        self._failures = failures
        self._is_alone = not has_other_nodes
        self._stopped_retry_ms = None if has_other_nodes else _STOPPED_RETRY_MS
        self._waiting: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()
        self._found: dict[str, tuple[_Segment, tuple[str, ...]]] = {}  # by path, as last found
        self._root = _Segment()
        for route in (*routes, *pages):
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    node.parameter = node.parameter or _Segment()
                    node = node.parameter
                else:
                    node = node.children.setdefault(segment, _Segment())
            node.methods[route.method] = route

    def match(self, request: Request) -> tuple[Route, Sequence[str]]:
        """Return the route of a request and the values of its path parameters.

        Raises ``RouteNotFound``, or ``MethodNotAllowed`` where the path has other methods, and what
        :meth:`AccessControl.check` raises.
        """
        node, values = self._found.get(request.path) or self._find(request)
        route = node.methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join(_allowed(node))
            raise MethodNotAllowed(
                f"{request.path[:200]} takes {allowed}, not {request.method}", field="method"
            )
        request.route = route.path
        if self._access is not None:
            self._access.check(request, route, values)
        return route, values

    def check_head(self, request: Request, *, is_large: bool) -> None:
        """Raise what :meth:`AccessControl.check_head` does, whatever the route: none of those that
        need no token has a body.
        """
        if self._access is None:
            return
        try:
            route = self._find(request)[0].methods.get(request.method)
        except RouteNotFound:
            route = None
        request.route = "" if route is None else route.path
        self._access.check_head(request, is_large=is_large)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or an awaitable of it; every ``GoqError`` becomes a problem."""
        started_s = perf_counter()
        path = _UNMATCHED
        try:
            route, values = self.match(request)
            path = route.path
            request.outlives_eof = not route.waits
            request.is_brief = route.is_brief and self._is_alone
            if request.query_string:
                route.check_query(request)
            if _CODING in request.headers:
                _check_coding(request)
            if self.opened is not None and (opened := self.opened(route, values)) is not None:
                request.is_brief = False
                return self._run(request, route, values, started_s, opened=opened)
            if route.at_once is not None and self._is_alone:
                begun = route.at_once(request, *values)
                if begun is not None:
                    request.is_brief = True
                    return self._run(request, route, values, started_s, begun=begun)
            if route.is_async:
                return self._run(request, route, values, started_s)
            answer = route.handler(request, *values)
            if isinstance(answer, DeferredAnswer):
                request.is_brief = True
                answer.finish = partial(self._finish, request, path, started_s)
                return answer
            if not isinstance(answer, Response):
                return self._run(request, route, values, started_s, begun=answer)
            response = answer
        except GoqError as error:
            response = self._refused(request, path, error)
            self._hold_beyond_quota(request, error)
            if isinstance(error, UnsupportedMedia):
                response.headers["Accept-Encoding"] = "identity"
            if isinstance(error, MethodNotAllowed):
                response.headers["Allow"] = ", ".join(_allowed(self._find(request)[0]))
            if request.pause_s:
                return self._held(request, path, started_s, response)
        self._stats.count(request.method, path, response.status, perf_counter() - started_s)
        return response

    def _finish(
        self, request: Request, path: str, started_s: float, outcome: Response | Exception
    ) -> Response:
        """Count a deferred answer; an error becomes a problem."""
        if isinstance(outcome, GoqError):
            outcome = self._refused(request, path, outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        self._stats.count(request.method, path, outcome.status, perf_counter() - started_s)
        return outcome

    async def _held(
        self, request: Request, path: str, started_s: float, response: Response
    ) -> Response:
        """Return a refusal when it is its turn."""
        await asyncio.sleep(request.pause_s or 0)
        self._stats.count(request.method, path, response.status, perf_counter() - started_s)
        return response

    async def interruptible(
        self, request: Request, route: Route, answer: Awaitable[Response]
    ) -> Response:
        """Await an answer that :meth:`stop_waiting` may interrupt; errors become problems."""
        try:
            return self._answered(request, await self._wait(answer))
        except GoqError as error:
            return self._refused(request, route.path, error)

    def _refused(self, request: Request, path: str, error: GoqError) -> Response:
        response = problem_response(error)
        self._failures.note(request, f"{request.method} {path}", error, response)
        return response

    def stop_waiting(self) -> None:
        """Answer every waiting request now, because the node is stopping."""
        for stop in self.on_stop:
            stop()
        self._interrupted.update(self._waiting)
        for task in self._interrupted:
            task.cancel()

    async def _run(
        self,
        request: Request,
        route: Route,
        values: Sequence[str],
        started_s: float,
        *,
        opened: Awaitable[None] | None = None,
        begun: Awaitable[Response] | None = None,
    ) -> Response:
        try:
            if opened is not None:
                await self._wait(opened)
            answer = begun or route.handler(request, *values)
            if isinstance(answer, Response):
                response = answer
            elif route.waits and begun is not None:
                response = self._answered(request, await begun)
            elif route.waits:
                response = self._answered(request, await self._wait(answer))
            else:
                response = await answer
        except GoqError as error:
            response = self._refused(request, route.path, error)
            self._hold_beyond_quota(request, error)
            if request.pause_s:
                return await self._held(request, route.path, started_s, response)
        seconds = perf_counter() - started_s
        self._stats.count(request.method, route.path, response.status, seconds)
        return response

    def _hold_beyond_quota(self, request: Request, error: GoqError) -> None:
        if self._access is not None and isinstance(error, TooManyRequests | QuotaExceeded):
            self._access.hold_beyond_quota(request)

    def _answered(self, request: Request, response: Response) -> Response:
        return response if self._access is None else self._access.answered(request, response)

    async def _wait(self, answer: Awaitable[T]) -> T:
        """Await an answer; raise ``ShuttingDown`` when :meth:`stop_waiting` interrupts it."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await answer
        except asyncio.CancelledError:
            if task not in self._interrupted:
                raise
            task.uncancel()
            raise ShuttingDown(
                "the node is stopping; ask another, or this one later",
                retry_after_ms=self._stopped_retry_ms,
            ) from None
        finally:
            self._waiting.discard(task)
            self._interrupted.discard(task)

    def _find(self, request: Request) -> tuple[_Segment, tuple[str, ...]]:
        """Return where a path leads, and remember it."""
        found = self._found.get(request.path)
        if found is None:
            if len(self._found) >= _PATHS_KNOWN_MAX:
                self._found.clear()
            node, values = self._walk(request)
            found = self._found[request.path] = node, tuple(values)
        return found

    def _walk(self, request: Request) -> tuple[_Segment, list[str]]:
        node, values = self._root, list[str]()
        for segment in request.path.split("/")[1:]:
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    raise _route_not_found(request)
                values.append(segment)
            node = child
        if not node.methods:
            raise _route_not_found(request)
        return node, values


def _check_coding(request: Request) -> None:
    """Raise ``UnsupportedMedia`` for a body that is compressed as a whole."""
    coding = request.headers[_CODING].strip().lower()
    if request.body and coding not in ("", "identity"):
        raise UnsupportedMedia(
            f"send the body as it is, not as {coding[:50]!r}; frames may be compressed inside",
            field="Content-Encoding",
        )


def _allowed(node: _Segment) -> list[str]:
    return sorted({*node.methods, *(["HEAD"] if "GET" in node.methods else [])})


def _route_not_found(request: Request) -> RouteNotFound:
    return RouteNotFound(f"there is no {request.path[:200]}; /docs lists what there is")
