"""HTTP requests of a client: the server's URL, headers, body and timeouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from goq import __version__, limits
from goq.client.retry import BackoffPolicy
from goq.client.tracing.trace_context import span_headers
from goq.errors import InvalidInput
from goq.http.client.http1 import (
    ClientRequest,
    RequestTimeouts,
    Url,
    encode_head,
    encode_headers,
    parse_url,
)
from goq.http.client.trust import ClientTls
from goq.model import check_text

Headers = list[tuple[bytes, bytes]]

CONNECT_S_MAX: Final = 5.0
_HEADS_MAX: Final = 256
_USER: Final = re.compile(r"//[^/]*@")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Servers, token, timeout and retries of a client."""

    servers: Sequence[str]
    token: str | None
    timeout_ms: int
    retry: BackoffPolicy
    client_id: str | None = None
    session_id: str | None = None
    """Tells a consume loop from others whose consumers have its name."""
    tls: ClientTls = field(default_factory=ClientTls)


def session_header(session_id: str) -> tuple[bytes, bytes]:
    """Return the header that names a session."""
    return b"Goq-Session", session_id.encode()


class RequestBuilder:
    """Builds the requests of one client, each for one of its servers.

    Raises ``InvalidInput`` for a malformed URL or token.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._timeout_ms = options.timeout_ms
        self._servers = {text: server_of(text) for text in options.servers}
        self._heads: dict[tuple[object, ...], bytes] = {}
        self._headers = [
            (b"User-Agent", b"goq/" + __version__.encode()),
            (b"Accept-Encoding", b"identity"),
        ]
        if options.client_id is not None:
            self._headers.append((b"Goq-Client-Id", options.client_id.encode()))
        if options.session_id is not None:
            self._headers.append(session_header(options.session_id))
        if options.token is not None:
            self._headers.append((b"Authorization", b"Bearer " + _header_text(options.token)))

    @property
    def schemes(self) -> set[str]:
        """The URL schemes of the configured servers."""
        return {server.scheme for server in self._servers.values()}

    def server(self, text: str) -> Url:
        """Return the parsed URL of a server, also of one that a node has named."""
        found = self._servers.get(text)
        if found is None:
            found = self._servers[text] = server_of(text)
        return found

    def build(
        self,
        text: str,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        wait_ms: int,
        timeout_ms: int | None = None,
    ) -> ClientRequest:
        """Return a request to the server ``text``, which may hold the answer for ``wait_ms``.

        ``timeout_ms`` can shorten the timeout of the client. The request carries the OpenTelemetry
        span that is active here, if there is one.
        """
        server = self.server(text)
        timeout_s = min(self._timeout_ms, timeout_ms or inf) / 1000
        key = text, method, target, *headers
        head = self._heads.get(key)
        if head is None:
            path = server.path.rstrip(b"/") + target.encode("ascii")
            head = encode_head(method, server, path, [*self._headers, *headers])
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            self._heads[key] = head
        if traced := span_headers():
            head += encode_headers(traced)
        timeouts = RequestTimeouts(
            timeout_s, min(timeout_s, CONNECT_S_MAX), timeout_s, timeout_s + wait_ms / 1000
        )
        return ClientRequest(method, server, head, body, timeouts)


class StreamTimeouts:
    """The time limits of a stream: a short one until its first bytes, then that of the request.

    A node sends a heartbeat with the head of its answer. Transports read the limits anew for each
    piece.
    """

    def __init__(self, timeouts: RequestTimeouts) -> None:
        self._timeouts = timeouts
        self._silence_s = timeouts.read_s
        began_s = limits.STREAM_BEGINS_MS / 1000
        timeouts.read_s = began_s if timeouts.read_s is None else min(began_s, timeouts.read_s)

    def heard(self) -> None:
        """Note the first bytes."""
        self._timeouts.read_s = self._silence_s


def server_of(text: str) -> Url:
    """Return the URL of a server. Raises ``InvalidInput`` for any other text."""
    try:
        return parse_url(text)
    except ValueError as error:
        shown = _USER.sub("//...@", text)
        raise InvalidInput(
            f"{shown!r} is not a server's URL ({error}); one reads http://127.0.0.1:8080",
            field="servers",
        ) from None


def _header_text(token: str) -> bytes:
    if not check_text(token, "token").isascii() or not token.isprintable():
        raise InvalidInput("a token has only printable ASCII characters", field="token")
    return token.encode("ascii")
