"""What a member of a cluster tells a client library beside each answer.

``Goq-Cluster`` is the version of what all nodes agree on: who knows an older one asks
``GET /v1/cluster``. A node of its own does not say it, so its clients ask nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from goq.http.message import Handler, Request, Response

VERSION: Final = "Goq-Cluster"


class Telling:
    """Answers as ``handler`` does, and tells the version."""

    def __init__(self, handler: Handler, version: Callable[[], int]) -> None:
        self._handler = handler
        self._version = version

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it."""
        answer = self._handler(request)
        return self._told(answer) if isinstance(answer, Response) else self._awaited(answer)

    async def _awaited(self, answer: Awaitable[Response]) -> Response:
        return self._told(await answer)

    def _told(self, response: Response) -> Response:
        response.headers.pop(VERSION.lower(), None)  # as another node told it
        response.headers[VERSION] = str(self._version())
        return response
