"""Requests to a node: servers taken in turn, retries, answers turned into values or errors."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeVar

import httpx
import msgspec

from goq import __version__
from goq.client import routes
from goq.client._async.backend import sleep
from goq.client._async.transport import finish, open_transport
from goq.client.http1 import ANSWER_BYTES_MAX, CONNECTIONS_MAX
from goq.client.problems import Answer, error_of_answer, failure_of_transport, unreadable
from goq.client.retry import Attempts, Failure, RetryPolicy, answered
from goq.errors import InvalidInput, TooLarge

Outcome = TypeVar("Outcome")
Headers = list[tuple[bytes, bytes]]

CONNECT_S_MAX: Final = 5.0
ASK_MS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How a client talks to its servers."""

    servers: Sequence[str]
    token: str | None
    timeout_ms: int
    retry: RetryPolicy
    client_id: str | None = None


class Http:
    """The one place that sends requests. Every error that leaves it is a ``GoqError``.

    ``repeatable`` requests may be sent again although an earlier attempt may have been carried
    out; others only when it certainly was not. ``aclose`` breaks what is under way.
    """

    def __init__(self, options: HttpOptions, connections_max: int = CONNECTIONS_MAX) -> None:
        self._options = options
        self._servers = [_server_of(text) for text in options.servers]
        schemes = {server.scheme for server in self._servers}
        self._transports = {scheme: open_transport(scheme, connections_max) for scheme in schemes}
        self._current = 0
        self._closed = False
        self._headers = [
            (b"User-Agent", b"goq/" + __version__.encode()),
            (b"Accept-Encoding", b"identity"),
        ]
        if options.client_id is not None:
            self._headers.append((b"Goq-Client-Id", options.client_id.encode()))
        if options.token is not None:
            self._headers.append((b"Authorization", b"Bearer " + _header_text(options.token)))

    def fork(self, connections_max: int) -> Http:
        """Return another one for the same servers, with connections of its own."""
        return Http(self._options, connections_max)

    def finish(self) -> None:
        """Ask no more, but hear what is under way to its end: a node then ends its waiting."""
        self._closed = True
        for transport in self._transports.values():
            finish(transport)

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        for transport in self._transports.values():
            await transport.aclose()

    async def call(
        self,
        method: str,
        target: str,
        payload: object = None,
        *,
        repeatable: bool = False,
        wait_ms: int = 0,
    ) -> Any:
        """Send JSON and return the decoded answer: a dict, a list, or None for an empty one."""
        body = b"" if payload is None else msgspec.json.encode(payload)
        answer = await self.request(
            method, target, body, repeatable=repeatable or method == "GET", wait_ms=wait_ms
        )
        try:
            return msgspec.json.decode(answer.body) if answer.body else None
        except msgspec.DecodeError as error:
            raise unreadable(self._options.servers[self._current], error) from None

    async def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        content_type: bytes = routes.JSON,
        accept: bytes = routes.JSON,
        repeatable: bool,
        wait_ms: int = 0,
    ) -> Answer:
        """Return the answer, if it is a good one. ``wait_ms`` is how long the node may hold it."""
        headers = [(b"Accept", accept)]
        if body:
            headers.append((b"Content-Type", content_type))
        return await self._persist(
            lambda chosen: self._attempt(chosen, method, target, headers, body, wait_ms), repeatable
        )

    async def stream(self, target: str, body: bytes, *, accept: bytes, wait_ms: int) -> Streaming:
        """Begin an answer to a POST that goes on; ``wait_ms`` may pass between two pieces.

        Beginning is tried again like any request, a stream that broke is not: only the caller
        knows where to go on.
        """
        headers = [(b"Accept", accept), (b"Content-Type", routes.JSON)]
        return await self._persist(
            lambda chosen: self._begin(chosen, target, headers, body, wait_ms), repeatable=True
        )

    def attempts(self) -> Attempts:
        """Return a fresh count of attempts, as patient as this client is to be."""
        return Attempts(self._options.retry, draw=random.random, now_s=time.monotonic)

    async def _persist(
        self, attempt: Callable[[int], Awaitable[Outcome]], repeatable: bool
    ) -> Outcome:
        attempts = self.attempts()
        while True:
            chosen = self._current
            try:
                return await attempt(chosen)
            except _Failed as failed:
                failure = failed.failure
            pause_s = attempts.pause_s(failure, repeatable=repeatable)
            if pause_s is None or self._closed:
                raise failure.error
            if self._current == chosen:
                self._current = (chosen + 1) % len(self._servers)
            await sleep(pause_s)

    async def _attempt(
        self,
        chosen: int,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        wait_ms: int,
        timeout_ms: int | None = None,
    ) -> Answer:
        request = self._build(chosen, method, target, headers, body, wait_ms, timeout_ms)
        server = self._options.servers[chosen]
        try:
            response = await self._transport_of(chosen).handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            answer = Answer(response.status_code, response.headers, await _body_of(response.stream))
        except httpx.TransportError as error:
            raise _Failed(failure_of_transport(error, server)) from error
        if 200 <= answer.status < 300:
            return answer
        raise _Failed(answered(error_of_answer(answer, server)))

    async def _begin(
        self, chosen: int, target: str, headers: Headers, body: bytes, wait_ms: int
    ) -> Streaming:
        request = self._build(chosen, "POST", target, headers, body, wait_ms)
        server = self._options.servers[chosen]
        try:
            response = await self._transport_of(chosen).handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            if response.status_code < 300:
                return Streaming(self, chosen, server, response)
            text = await _body_of(response.stream)
        except httpx.TransportError as error:
            raise _Failed(failure_of_transport(error, server)) from error
        answer = Answer(response.status_code, response.headers, text)
        raise _Failed(answered(error_of_answer(answer, server)))

    def _build(
        self,
        chosen: int,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        wait_ms: int,
        timeout_ms: int | None = None,
    ) -> httpx.Request:
        server = self._servers[chosen]
        timeout_s = min(self._options.timeout_ms, timeout_ms or inf) / 1000
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

    def _transport_of(self, chosen: int) -> httpx.AsyncBaseTransport:
        return self._transports[self._servers[chosen].scheme]


class Streaming:
    """An answer that goes on. What is asked about it is asked of the node that gives it."""

    def __init__(self, http: Http, chosen: int, server: str, response: httpx.Response) -> None:
        self.headers = response.headers
        self._http = http
        self._chosen = chosen
        self._server = server
        self._body = response.stream

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what comes, as it comes; raise when the connection breaks before the end."""
        assert isinstance(self._body, httpx.AsyncByteStream)
        try:
            async for piece in self._body:
                yield piece
        except httpx.TransportError as error:
            raise failure_of_transport(error, self._server).error from error
        finally:
            await self._body.aclose()

    async def ask(self, method: str, target: str, payload: object = None) -> Any:
        """Send JSON to the node that gives this answer, once; return the decoded answer."""
        body = b"" if payload is None else msgspec.json.encode(payload)
        headers = [(b"Accept", routes.JSON), (b"Content-Type", routes.JSON)]
        try:
            answer = await self._http._attempt(
                self._chosen, method, target, headers, body, 0, ASK_MS_MAX
            )
        except _Failed as failed:
            raise failed.failure.error from failed
        return msgspec.json.decode(answer.body) if answer.body else None


class _Failed(Exception):
    """An attempt came to nothing."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


async def _body_of(stream: httpx.AsyncByteStream) -> bytes:
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in stream:
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > ANSWER_BYTES_MAX:
            await stream.aclose()
            raise TooLarge(f"an answer of over {ANSWER_BYTES_MAX} bytes; ask for less at a time")
    await stream.aclose()
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


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
