"""HTTP requests of a client: the server's URL, headers, body and timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import httpx

from goq import __version__, limits
from goq.client.retry import BackoffPolicy
from goq.errors import InvalidInput
from goq.http.client.trust import ClientTls

Headers = list[tuple[bytes, bytes]]

CONNECT_S_MAX: Final = 5.0


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
        self._servers = {text: _server_of(text) for text in options.servers}
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

    def server(self, text: str) -> httpx.URL:
        """Return the parsed URL of a server, also of one that a node has named."""
        found = self._servers.get(text)
        if found is None:
            found = self._servers[text] = _server_of(text)
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
    ) -> httpx.Request:
        """Return a request to the server ``text``, which may hold the answer for ``wait_ms``.

        ``timeout_ms`` can shorten the timeout of the client.
        """
        server = self.server(text)
        timeout_s = min(self._timeout_ms, timeout_ms or inf) / 1000
        every = [(b"Host", server.netloc), *self._headers, *headers]
        if body or method in ("POST", "PUT", "PATCH"):
            every.append((b"Content-Length", b"%d" % len(body)))
        return httpx.Request(
            method,
            server,
            headers=every,
            stream=httpx.ByteStream(body),
            extensions={
                "target": server.raw_path.rstrip(b"/") + target.encode("ascii"),
                "timeout": {
                    "connect": min(timeout_s, CONNECT_S_MAX),
                    "write": timeout_s,
                    "read": timeout_s + wait_ms / 1000,
                    "pool": timeout_s,
                },
            },
        )


class StreamTimeouts:
    """The time limits of a stream: a short one until its first bytes, then that of the request.

    A node sends a heartbeat with the head of its answer. The limits are those in the request's
    extensions, which transports read anew for each piece.
    """

    def __init__(self, request: httpx.Request) -> None:
        self._timeouts = request.extensions["timeout"]
        self._silence_s = self._timeouts["read"]
        self._timeouts["read"] = min(limits.STREAM_BEGINS_MS / 1000, self._silence_s)

    def begun(self, server: str) -> None:
        """Note the head of the answer. The transport for TLS reads the limit once, here."""
        if server.startswith("https:"):
            self.heard()

    def heard(self) -> None:
        """Note the first bytes."""
        self._timeouts["read"] = self._silence_s


def _server_of(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput(f"{text!r} is not a server's URL: {error}", field="servers") from None
    if url.scheme not in ("http", "https") or not url.host or (url.port or 1) > 65_535:
        raise InvalidInput(
            f"{text!r} is not a server's URL; one reads http://127.0.0.1:8080", field="servers"
        )
    return url


def _header_text(token: str) -> bytes:
    if not token.isascii() or not token.isprintable():
        raise InvalidInput("a token has only printable ASCII characters", field="token")
    return token.encode("ascii")
