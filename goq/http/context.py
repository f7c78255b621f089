"""Limits and shared state of one HTTP server."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from goq import limits
from goq.errors import GoqError
from goq.http.failure_log import REQUEST_ID, FailureLog
from goq.http.loop_watch import LoopWatch
from goq.http.message import CreateProtocol, Handler, Request, Response
from goq.http.request.allowed_hosts import AllowedHosts
from goq.http.stream_heartbeat import StreamHeartbeat
from goq.http.unsent_answers import UnsentAnswers

if TYPE_CHECKING:
    from goq.http.connection import Connection
    from goq.http.tls.handshake import TlsHandshake


class HttpLimits(msgspec.Struct, frozen=True):
    """Limits of an HTTP server; the defaults are those of ``goq.limits``.

    ``header_timeout_ms`` and ``body_timeout_ms`` bound the whole head and the whole body, so
    sending a byte now and then gains a client nothing. ``write_timeout_ms`` bounds the time in
    which a client reads less than ``taken_bytes_min`` of its answer. ``headers_bytes_max`` counts
    names, values and four bytes a header for the rest of its line.

    No timeout ends a stream that has nothing to send. It sends its heartbeat after ``heartbeat_ms``
    or up to twice that.
    """

    connections_max: int = limits.CONNECTIONS_MAX
    target_bytes_max: int = limits.TARGET_BYTES_MAX
    headers_bytes_max: int = limits.HTTP_HEADERS_BYTES_MAX
    headers_max: int = limits.HTTP_HEADERS_MAX
    body_bytes_max: int = limits.BODY_BYTES_MAX
    bodies_in_flight_bytes_max: int = limits.BODIES_IN_FLIGHT_BYTES_MAX
    pipeline_requests_max: int = limits.PIPELINE_REQUESTS_MAX
    header_timeout_ms: int = limits.HEADER_TIMEOUT_MS
    body_timeout_ms: int = limits.BODY_TIMEOUT_MS
    idle_timeout_ms: int = limits.IDLE_TIMEOUT_MS
    write_timeout_ms: int = limits.WRITE_TIMEOUT_MS
    taken_bytes_min: int = limits.TAKEN_BYTES_MIN
    unsent_bytes_max: int = limits.UNSENT_BYTES_MAX
    heartbeat_ms: int = limits.HEARTBEAT_MS


OnError = Callable[[GoqError, Mapping[str, str]], Response]
"""Makes the response of an error, from it and the headers of the request."""
_NO_HEADERS: Final[Mapping[str, str]] = {}
OnUnreadBody = Callable[[Request, bool], None]
"""Gets a request whose body has not arrived with its head, and whether the body is large; raises
``GoqError`` to refuse it."""
_KNOWN_HOSTS_MAX: Final = 1000
logger: Final = logging.getLogger("goq.http")

HEADS_MAX: Final = 1024
HEAD_BYTES_MAX: Final = 2048
_END: Final = b"\r\n\r\n"
_UNFIT: Final = ("transfer-encoding", "expect", "origin", "traceparent", "upgrade")


class KnownHead(NamedTuple):
    """The parts of a request that its head gives."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body_bytes: int


class KnownHeads:
    """Heads of requests that were parsed before: clients send the same one again and again.

    Only a head that the parser accepted is known, byte for byte, and only of a request whose body
    has a ``Content-Length`` or is empty. So the same bytes mean the same request. What depends on
    the moment is checked each time: the allowed hosts, and the room for the body.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, int] | None:
        """Return the head of ``data`` and its size, if it is known and ``data`` is one request."""
        size = data.find(_END) + len(_END)
        head = self._heads.get(data[:size])
        if head is None or len(data) != size + head.body_bytes:
            return None
        return head, size

    def add(self, data: bytes, request: Request) -> None:
        """Remember the head of a request that was just parsed from ``data``."""
        size = data.find(_END) + len(_END)
        headers = request.headers
        if (
            size > HEAD_BYTES_MAX
            or size + len(request.body) != len(data)
            or request.is_http_10
            or any(name in headers for name in _UNFIT)
        ):
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[data[:size]] = KnownHead(
            request.method, request.path, request.query_string, headers.copy(), len(request.body)
        )


class ServerContext:
    """Handler, limits and counters of one server, in one event loop.

    ``connections`` holds every open connection, ``handshakes`` those that are not behind TLS yet.
    ``admitted_count`` counts connections that were not refused: a refused one stays open until its
    refusal has reached the client. ``known_hosts`` are values of ``Host`` that were found allowed.
    """

    __slots__ = (
        "admitted_count",
        "allowed_hosts",
        "bodies_in_flight_bytes",
        "connections",
        "draining",
        "failures",
        "handler",
        "handshakes",
        "known_heads",
        "known_hosts",
        "limits",
        "loop",
        "loop_watch",
        "on_empty",
        "on_error",
        "on_unread_body",
        "pulse",
        "requests_total",
        "unsent",
        "upgrades",
    )

    def __init__(
        self,
        handler: Handler,
        on_error: OnError,
        limits: HttpLimits,
        allowed_hosts: AllowedHosts,
        failures: FailureLog,
    ) -> None:
        self.handler = handler
        self.on_error = on_error
        self.on_unread_body: OnUnreadBody | None = None
        self.upgrades: dict[str, CreateProtocol] = {}
        """By name, what connections may upgrade to."""
        self.limits = limits
        self.allowed_hosts = allowed_hosts
        self.failures = failures
        self.known_heads = KnownHeads()
        self.known_hosts: set[str | None] = set()
        self.loop: asyncio.AbstractEventLoop
        self.loop_watch = LoopWatch()
        self.connections: set[Connection] = set()
        self.draining = False
        self.on_empty: asyncio.Future[None] | None = None
        self.admitted_count = 0
        self.handshakes: set[TlsHandshake] = set()
        self.requests_total = 0
        self.bodies_in_flight_bytes = 0
        self.pulse = StreamHeartbeat(limits.heartbeat_ms)
        self.unsent = UnsentAnswers(limits.unsent_bytes_max)

    @property
    def connection_count(self) -> int:
        """The number of handshakes and admitted connections."""
        return self.admitted_count + len(self.handshakes)

    def leave(self, connection: Connection) -> None:
        """Remove a lost connection; the last one ends a drain."""
        self.connections.discard(connection)
        waiter = self.on_empty
        if waiter is not None and not self.connections and not waiter.done():
            waiter.set_result(None)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that calls another host; remember its host otherwise.

        Raises ``HostNotAllowed``.
        """
        host = headers.get("host")
        self.allowed_hosts.check(host, headers.get("origin"))
        if len(self.known_hosts) >= _KNOWN_HOSTS_MAX:
            self.known_hosts.clear()
        self.known_hosts.add(host)

    def failure(
        self,
        error: BaseException,
        request: Request | None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> Response:
        """Return the error response for ``error``; ``headers`` are those of a refused request.

        An error that is not a ``GoqError`` is a bug: it is logged with its traceback, and the
        client gets an internal error without details.
        """
        bug_id = None
        if not isinstance(error, GoqError):
            bug_id = self.failures.next_id()
            logger.error("request %s failed: %r", bug_id, request, exc_info=error)
            error = GoqError(f"internal error; the node's log has the cause of request {bug_id}")
        try:
            response = self.on_error(error, headers if request is None else request.headers)
        except Exception:
            logger.exception("on_error failed for %r", error)
            return Response(500)
        if error.retry_after_ms is not None:
            seconds = max(1, math.ceil(error.retry_after_ms / 1000))
            response.headers.setdefault("Retry-After", str(seconds))
        if bug_id is None:
            self.failures.note(request, "a connection", error, response)
        else:
            response.headers[REQUEST_ID] = bug_id
        return response
