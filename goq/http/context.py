"""What all connections of one server share."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from goq.errors import GoqError
from goq.http.bounds import HttpLimits
from goq.http.message import Handler, Request, Response
from goq.http.stream_heartbeat import Pulse

if TYPE_CHECKING:
    from goq.http.connection import Connection

logger: Final = logging.getLogger("goq.http")


class Shared:
    """The handler, the bounds and the counters of one server, in one event loop.

    ``connections`` holds every open connection, ``connection_count`` counts those that were
    admitted: a refused one stays open for the moment its refusal takes to reach the client.
    """

    __slots__ = (
        "bodies_in_flight_bytes",
        "connection_count",
        "connections",
        "draining",
        "handler",
        "limits",
        "loop",
        "on_empty",
        "on_error",
        "pulse",
        "requests_total",
    )

    def __init__(
        self, handler: Handler, on_error: Callable[[GoqError], Response], limits: HttpLimits
    ) -> None:
        self.handler = handler
        self.on_error = on_error
        self.limits = limits
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[Connection] = set()
        self.draining = False
        self.on_empty: asyncio.Future[None] | None = None
        self.connection_count = 0
        self.requests_total = 0
        self.bodies_in_flight_bytes = 0
        self.pulse = Pulse(limits.heartbeat_ms)

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is lost; the last one to leave ends a drain."""
        self.connections.discard(connection)
        waiter = self.on_empty
        if waiter is not None and not self.connections and not waiter.done():
            waiter.set_result(None)

    def failure(self, error: BaseException, request: Request | None) -> Response:
        """Return the answer that tells the client of ``error``.

        What is not a ``GoqError`` is a bug: it is logged with its traceback and the client hears
        only of an internal error.
        """
        if not isinstance(error, GoqError):
            logger.error("handler failed: %r", request, exc_info=error)
            error = GoqError("internal error; the node's log has the cause")
        try:
            response = self.on_error(error)
        except Exception:
            logger.exception("on_error failed for %r", error)
            return Response(500)
        if error.retry_after_ms is not None:
            seconds = max(1, math.ceil(error.retry_after_ms / 1000))
            response.headers.setdefault("Retry-After", str(seconds))
        return response
