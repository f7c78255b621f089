"""Requests to nodes: sent to leaders where they are known, retried, answered or raised."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from goq.client._async.client_connections import AttemptFailed, ClientConnections
from goq.client._async.runtime import sleep
from goq.client._async.streamed_response import StreamedResponse
from goq.client.arguments import check_json
from goq.client.cluster_map import ClusterMap, TopicPartition, decode_map
from goq.client.errors import UNREADABLE, Answer, unreadable
from goq.client.protocol import routes
from goq.client.protocol.request_builder import Headers, HttpOptions
from goq.client.retry import RetryAttempts
from goq.errors import Conflict, GoqError, NotFound, NotLeader, outcome_unknown
from goq.http.client.http1 import CONNECTIONS_MAX

Outcome = TypeVar("Outcome")

ASK_MS_MAX: Final = 5_000
NO_CONTENT: Final = 204
_CHANGES: Final = frozenset({"PATCH", "DELETE"})  # of what a repetition may find changed


class Http:
    """Sends all requests of a client. Every error that it raises is a ``GoqError``.

    A ``repeatable`` request is sent again although an earlier attempt may have been carried out;
    another one only when it certainly was not. If the attempts end with a refusal after one that
    may have been carried out, and that one may be why, the error is ``TimedOut``: the outcome is
    not known. ``aclose`` breaks requests that are under way, also those of its forks; later ones
    raise ``InvalidInput``.
    """

    def __init__(
        self,
        options: HttpOptions,
        connections_max: int = CONNECTIONS_MAX,
        cluster_map: ClusterMap | None = None,
    ) -> None:
        self.options = options
        self.cluster_map = cluster_map or ClusterMap(options.servers, time.monotonic)
        self._connections = ClientConnections(options, connections_max, self.cluster_map)
        self._forks: WeakSet[Http] = WeakSet()

    def name_client(self, client_id: str) -> None:
        """Send another client id."""
        self.options = replace(self.options, client_id=client_id)
        self._connections.configure(self.options)

    def fork(self, connections_max: int, session_id: str | None = None) -> Http:
        """Return another sender for the same servers, with connections of its own."""
        options = replace(self.options, session_id=session_id)
        forked = Http(options, connections_max, self.cluster_map)
        self._forks.add(forked)
        self._connections.check_open()  # now: a close that comes later closes the fork
        return forked

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is being closed."""
        return self._connections.closed

    def finish(self) -> None:
        """Send no more requests, but finish those under way: a node then ends its long polls."""
        self._connections.finish()

    def abort(self) -> None:
        """Break all connections, without a wait."""
        self._connections.abort()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()
        for forked in list(self._forks):
            await forked.aclose()

    async def call(
        self,
        method: str,
        target: str,
        payload: object = None,
        *,
        repeatable: bool = False,
        wait_ms: int = 0,
    ) -> Any:
        """Send JSON and return the decoded answer: a dict, a list, or None where there is none.

        Raises ``InvalidInput`` for a payload that JSON cannot hold. If the answer to a write cannot
        be read, the outcome is not known.
        """
        check_json(payload, "")
        body = b"" if payload is None else msgspec.json.encode(payload)
        answer = await self.request(
            method, target, body, repeatable=repeatable or method == "GET", wait_ms=wait_ms
        )
        try:
            return _decoded(self.cluster_map.current, answer)
        except GoqError as error:
            raise error if method == "GET" else outcome_unknown(error) from None

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
        partition: TopicPartition | None = None,
        is_publish: bool = False,
        extra: Sequence[tuple[bytes, bytes]] = (),
        until_s: float = inf,
        on_failed: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Return the answer, or raise its error. The node may hold it for ``wait_ms``.

        The leader of the ``partition`` is asked if it is known, else any node. With ``is_publish``
        no error at all is raised as it is after an attempt that may have been carried out. After
        ``until_s``, in monotonic seconds, the request is not sent again. ``on_failed`` is called
        before it is.
        """
        headers = [(b"Accept", accept), *extra]
        if body:
            headers.append((b"Content-Type", content_type))
        attempts = self.attempts(until_s, on_failed)
        return await self._persist(
            lambda server: self._connections.attempt(
                server, method, target, headers, body, wait_ms, attempts.timeout_ms()
            ),
            attempts,
            repeatable,
            partition,
            is_publish=is_publish,
            is_change=method in _CHANGES,
            wait_ms=wait_ms,
        )

    async def request_at(
        self,
        server: str,
        target: str,
        body: bytes,
        *,
        accept: bytes,
        extra: Sequence[tuple[bytes, bytes]],
    ) -> Answer:
        """Send JSON to one node, once; return the answer, or raise its error."""
        headers = [(b"Accept", accept), (b"Content-Type", routes.JSON), *extra]
        return await self._once(
            server, lambda: self._connections.attempt(server, "POST", target, headers, body, 0)
        )

    async def stream(
        self,
        target: str,
        body: bytes,
        *,
        accept: bytes,
        wait_ms: int,
        extra: Sequence[tuple[bytes, bytes]] = (),
        server: str | None = None,
    ) -> StreamedResponse:
        """Open a streamed answer to a POST; ``wait_ms`` may pass between two pieces.

        Opening is retried like any request, unless at one ``server``. A stream that broke is not
        reopened: only the caller knows where to go on.
        """
        headers = [(b"Accept", accept), (b"Content-Type", routes.JSON), *extra]
        if server is not None:
            return await self._once(
                server, lambda: self._begin(server, target, headers, body, wait_ms)
            )
        return await self._persist(
            lambda chosen: self._begin(chosen, target, headers, body, wait_ms),
            self.attempts(),
            repeatable=True,
        )

    async def ask(
        self,
        server: str,
        method: str,
        target: str,
        payload: object = None,
        *,
        extra: Sequence[tuple[bytes, bytes]] = (),
    ) -> Any:
        """Send a small request in JSON to one node, once; return the decoded answer."""
        body = b"" if payload is None else msgspec.json.encode(payload)
        headers = [(b"Accept", routes.JSON), (b"Content-Type", routes.JSON), *extra]
        try:
            answer = await self._connections.attempt(
                server, method, target, headers, body, 0, ASK_MS_MAX
            )
        except AttemptFailed as failed:
            raise failed.failure.error from failed
        return _decoded(server, answer)

    async def learn(self, topic: str, *, wait_ms: int = 0) -> None:
        """Learn the leaders of a topic; with ``wait_ms``, when they have changed."""
        version = self.cluster_map.version(topic) if wait_ms else None
        wait = f"{wait_ms}ms" if version is not None else None
        target = routes.query(routes.CLUSTER, topic=topic, version=version, wait=wait)
        answer = await self.request(
            "GET", target, repeatable=True, wait_ms=wait_ms if wait is not None else 0
        )
        try:
            self.cluster_map.take(topic, decode_map(answer.body))
        except UNREADABLE as error:
            raise unreadable(self.cluster_map.current, error) from None

    async def find_leaders(self, topic: str) -> None:
        """Learn the leaders of a topic if they may have changed.

        A failure is no error: requests also reach a leader through another node.
        """
        if self.cluster_map.wants(topic):
            target = routes.query(routes.CLUSTER, topic=topic)
            server, accept = self.cluster_map.current, [(b"Accept", routes.JSON)]
            try:
                answer = await self._connections.attempt(
                    server, "GET", target, accept, b"", 0, ASK_MS_MAX
                )
                self.cluster_map.take(topic, decode_map(answer.body))
            except AttemptFailed as failed:
                if not failed.has_answer:
                    self.cluster_map.failed(server, answered=False)
            except UNREADABLE:
                pass

    def attempts(
        self, until_s: float = inf, on_failed: Callable[[], None] = lambda: None
    ) -> RetryAttempts:
        """Return the retries of a new request, which is of no use after ``until_s``."""
        return RetryAttempts(
            self.options.retry,
            draw=random.random,
            now_s=time.monotonic,
            until_s=until_s,
            on_failed=on_failed,
        )

    async def _persist(
        self,
        attempt: Callable[[str], Awaitable[Outcome]],
        attempts: RetryAttempts,
        repeatable: bool,
        partition: TopicPartition | None = None,
        *,
        is_publish: bool = False,
        is_change: bool = False,
        wait_ms: int = 0,
    ) -> Outcome:
        has_doubt = False
        while True:
            if partition is not None:
                await self.find_leaders(partition.topic)
            server = self.cluster_map.url_for(partition)
            began_s = time.monotonic()
            try:
                outcome = await attempt(server)
                attempts.note_answer()
                if has_doubt and isinstance(outcome, Answer):
                    return outcome._replace(has_doubt=True)
                return outcome
            except AttemptFailed as failed:
                failure, has_answer, leader = failed.failure, failed.has_answer, failed.leader
            if not has_answer:
                attempts.note_held(failure, time.monotonic() - began_s, wait_ms)
            pause_s = attempts.pause_s(failure, repeatable=repeatable)
            if not (has_answer or has_doubt or failure.maybe_done):
                self._connections.check_open()
            if pause_s is None or self.closed:
                may_be_why = is_change and isinstance(failure.error, (Conflict, NotFound))
                if has_doubt and (is_publish or may_be_why or failure.error.retryable):
                    raise outcome_unknown(failure.error)
                raise failure.error
            has_doubt = has_doubt or failure.maybe_done
            if isinstance(failure.error, NotLeader):
                self.cluster_map.moved(partition, leader)
            else:
                self.cluster_map.failed(server, answered=has_answer)
            await sleep(pause_s)

    async def _once(self, server: str, attempt: Callable[[], Awaitable[Outcome]]) -> Outcome:
        try:
            return await attempt()
        except AttemptFailed as failed:
            if not failed.has_answer:
                self.cluster_map.failed(server, answered=False)
            raise failed.failure.error from failed

    async def _begin(
        self, server: str, target: str, headers: Headers, body: bytes, wait_ms: int
    ) -> StreamedResponse:
        opened = await self._connections.stream(server, target, headers, body, wait_ms)
        return StreamedResponse(self, server, *opened)

    async def is_answered(self, server: str) -> bool:
        """Return whether a node answers a small request at once."""
        try:
            await self._connections.attempt(server, "GET", routes.LIVEZ, [], b"", 0, ASK_MS_MAX)
        except AttemptFailed as failed:
            if not failed.has_answer:
                self.cluster_map.failed(server, answered=False)
            return failed.has_answer
        return True


def _decoded(server: str, answer: Answer) -> Any:
    """Return the JSON of an answer, None for the status 204 (No Content)."""
    if answer.status == NO_CONTENT:
        return None
    try:
        return msgspec.json.decode(answer.body)
    except UNREADABLE as error:
        raise unreadable(server, error) from None
