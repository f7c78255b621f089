"""The connections of a client to its nodes: one attempt of a request, at one node."""

from __future__ import annotations

from goq.client.cluster_map import LEADER_HEADER, VERSION_HEADER, ClusterMap
from goq.client.errors import (
    Answer,
    SilentStream,
    client_closed,
    error_of_answer,
    failure_of_transport,
)
from goq.client.protocol import routes
from goq.client.protocol.request_builder import Headers, HttpOptions, RequestBuilder, StreamTimeouts
from goq.client.retry import RequestFailure, answered
from goq.http.client.errors import ReadTimeout, TransportError
from goq.http.client.http1 import ClientRequest
from goq.http.client.process_fork import renew_in_children
from goq.http.client.transport import ProtocolStream, ProtocolTransport, open_transport


class ClientConnections:
    """Sends requests, each once. Raises ``AttemptFailed``, or ``InvalidInput`` if it was closed.

    ``closed`` once it was closed, or is being closed.
    """

    def __init__(self, options: HttpOptions, connections_max: int, cluster_map: ClusterMap) -> None:
        self.closed = False
        self._options = options
        self._builder = RequestBuilder(options)
        self._connections_max = connections_max
        self._cluster_map = cluster_map
        self._open_transports()
        renew_in_children(self, ClientConnections._renew)

    def _open_transports(self) -> None:
        self._transports = {
            scheme: open_transport(scheme, self._connections_max, self._options.tls)
            for scheme in self._builder.schemes
        }

    def _renew(self) -> None:
        """Leave the connections to the parent process, and have others."""
        for transport in self._transports.values():
            transport.abandon()
        self._open_transports()

    def configure(self, options: HttpOptions) -> None:
        """Send later requests with other options, to the same servers."""
        self._options = options
        self._builder = RequestBuilder(options)

    def check_open(self) -> None:
        """Raise ``InvalidInput`` if it was closed."""
        if self.closed:
            raise client_closed()

    def finish(self) -> None:
        """Send no more requests, but finish those under way."""
        self.closed = True
        for transport in self._transports.values():
            transport.finish()

    def abort(self) -> None:
        """Break all connections, without a wait."""
        self.closed = True
        for transport in self._transports.values():
            transport.abort()

    async def aclose(self) -> None:
        """Close all connections."""
        self.closed = True
        for transport in self._transports.values():
            await transport.aclose()

    async def attempt(
        self,
        server: str,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        wait_ms: int,
        timeout_ms: int | None = None,
    ) -> Answer:
        """Return the answer of a node to a request."""
        self.check_open()
        request = self._builder.build(server, method, target, headers, body, wait_ms, timeout_ms)
        try:
            answer = Answer(*await self._transport_of(request).fetch(request))
        except TransportError as error:
            failure = failure_of_transport(error, server, is_read=method == "GET")
            raise AttemptFailed(failure) from error
        self._cluster_map.hear(answer.headers.get(VERSION_HEADER))
        if 200 <= answer.status < 300 or _is_health(target, answer):
            return answer
        raise _refused(answer, server)

    async def stream(
        self, server: str, target: str, headers: Headers, body: bytes, wait_ms: int
    ) -> tuple[ProtocolStream, StreamTimeouts]:
        """Return the streamed answer to a POST, and what bounds the time between its pieces.

        Raises ``SilentStream`` if it does not begin in time.
        """
        self.check_open()
        request = self._builder.build(server, "POST", target, headers, body, wait_ms)
        timeouts = StreamTimeouts(request.timeouts)
        try:
            response = await self._transport_of(request).stream(request)
            self._cluster_map.hear(response.headers.get(VERSION_HEADER))
            if response.status < 300:
                return response, timeouts
            text = await response.read()
        except ReadTimeout:
            raise SilentStream(server) from None
        except TransportError as error:
            raise AttemptFailed(failure_of_transport(error, server)) from error
        raise _refused(Answer(response.status, response.headers, text), server)

    def _transport_of(self, request: ClientRequest) -> ProtocolTransport:
        return self._transports[request.url.scheme]


class AttemptFailed(Exception):
    """A failed attempt; ``leader`` is the node that the answer names as leader."""

    def __init__(
        self, failure: RequestFailure, *, has_answer: bool = False, leader: str | None = None
    ) -> None:
        super().__init__(failure.error)
        self.failure = failure
        self.has_answer = has_answer
        self.leader = leader


def _is_health(target: str, answer: Answer) -> bool:
    """Return whether this says how a node is, with status 503 if it is not well or not ready."""
    kind = answer.headers.get("Content-Type") or ""
    return target in (routes.HEALTHZ, routes.READYZ) and kind.startswith("application/json")


def _refused(answer: Answer, server: str) -> AttemptFailed:
    return AttemptFailed(
        answered(error_of_answer(answer, server)),
        has_answer=True,
        leader=answer.headers.get(LEADER_HEADER),
    )
