"""The router: finds the route of each request, runs its handler and counts the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

from goq.api.access_control import AccessControl
from goq.api.codec.problem import problem_response
from goq.api.route import Route
from goq.errors import (
    GoqError,
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
_CODING: Final = "content-encoding"
_UNMATCHED: Final = "(none)"
_STOPPED_RETRY_MS: Final = 1000
_PATHS_KNOWN_MAX: Final = 1024


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
