"""The API as one handler: match, run, count."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence

from goq.api.metrics import HttpStats
from goq.api.problems import problem_response
from goq.api.route import Route, Router
from goq.errors import GoqError
from goq.http.message import Request, Response

_UNMATCHED = "(none)"


class Api:
    """Answers requests by the routes it was given."""

    def __init__(self, routes: Sequence[Route], stats: HttpStats) -> None:
        self._router = Router(routes)
        self._stats = stats

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it; every error becomes a problem."""
        began = time.perf_counter()
        try:
            route, values = self._router.match(request)
            request.outlives_eof = not route.waits
            answer = route.handler(request, *values)
        except GoqError as error:
            response = problem_response(error)
            self._count(request, _UNMATCHED, response, began)
            return response
        if isinstance(answer, Response):
            self._count(request, route.path, answer, began)
            return answer
        return self._finish(request, route, answer, began)

    async def _finish(
        self, request: Request, route: Route, answer: Awaitable[Response], began: float
    ) -> Response:
        try:
            response = await answer
        except GoqError as error:
            response = problem_response(error)
        self._count(request, route.path, response, began)
        return response

    def _count(self, request: Request, path: str, response: Response, began: float) -> None:
        self._stats.count(request.method, path, response.status, time.perf_counter() - began)
