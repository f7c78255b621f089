"""The version of the cluster metadata, in each answer of a member."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from goq.http.message import Handler, Request, Response

CLUSTER_VERSION: Final = "Goq-Cluster"
"""The response header with the version of the cluster metadata.

A client that knows an older version reads ``GET /v1/cluster``. A standalone node sends no such
header, so its clients never ask.
"""


def with_cluster_version(handler: Handler, version: Callable[[], int]) -> Handler:
    """Return a handler that adds the cluster version to each answer of ``handler``."""

    def add(response: Response) -> Response:
        response.headers.pop(CLUSTER_VERSION.lower(), None)  # the version of a proxied answer
        response.headers[CLUSTER_VERSION] = str(version())
        return response

    async def add_later(answer: Awaitable[Response]) -> Response:
        return add(await answer)

    def handle(request: Request) -> Response | Awaitable[Response]:
        answer = handler(request)
        return add(answer) if isinstance(answer, Response) else add_later(answer)

    return handle
