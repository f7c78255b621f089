"""The API as one handler: match, run, count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from goq.api.errors import problem_response
from goq.api.metrics.node import HttpStats
from goq.api.router import Route, Router
from goq.errors import GoqError, MethodNotAllowed, ShuttingDown
from goq.http.message import Request, Response

_UNMATCHED = "(none)"

_STOPPED_RETRY_MS = 1000


class Api:
    """Answers requests by the routes it was given.

    Who waits when the node stops is told to come again later, unless ``others_answer``.
    """

    def __init__(
        self, routes: Sequence[Route], stats: HttpStats, *, others_answer: bool = False
    ) -> None:
        self.routes = routes
        self._router = Router(routes)
        self._stats = stats
        self._stopped_retry_ms = None if others_answer else _STOPPED_RETRY_MS
        self.on_stop: list[Callable[[], None]] = []
        """Called when requests that wait are answered, as the node is stopping."""
        self._waiting: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()

    def match(self, request: Request) -> tuple[Route, list[str]]:
        """Return the route of a request, and its path parameters; raises as ``Router.match``."""
        return self._router.match(request)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it; every error becomes a problem."""
        began = time.perf_counter()
        path = _UNMATCHED
        try:
            route, values = self._router.match(request)
            path = route.path
            request.outlives_eof = not route.waits
            if request.query_string:
                route.check_query(request)
            if route.is_async:
                return self._run(request, route, values, began)
            response = cast(Response, route.handler(request, *values))
        except GoqError as error:
            response = problem_response(error)
            if isinstance(error, MethodNotAllowed):
                response.headers["Allow"] = ", ".join(self._router.allowed(request))
        self._count(request, path, response, began)
        return response

    async def _run(
        self, request: Request, route: Route, values: list[str], began: float
    ) -> Response:
        try:
            answer = cast(Awaitable[Response], route.handler(request, *values))
            response = await (self._interrupted_or(answer) if route.waits else answer)
        except GoqError as error:
            response = problem_response(error)
        self._count(request, route.path, response, began)
        return response

    async def interruptible(self, answer: Awaitable[Response]) -> Response:
        """Await an answer that :meth:`stop_waiting` may cut short, with a problem."""
        try:
            return await self._interrupted_or(answer)
        except GoqError as error:
            return problem_response(error)

    async def _interrupted_or(self, answer: Awaitable[Response]) -> Response:
        """Await an answer that :meth:`stop_waiting` may cut short."""
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

    def stop_waiting(self) -> None:
        """Answer every request that waits for messages now: the node is stopping."""
        for stop in self.on_stop:
            stop()
        self._interrupted.update(self._waiting)
        for task in self._interrupted:
            task.cancel()

    def _count(self, request: Request, path: str, response: Response, began: float) -> None:
        self._stats.count(request.method, path, response.status, time.perf_counter() - began)
