"""Receive from all nodes that lead a partition of the topic.

The leaders are asked one after another, each for the rest of the request, and none of them waits.
So no answer with leases is ever abandoned. If all are empty, all are asked at once to answer when
they have messages; these requests lease nothing and can be abandoned. The first to answer is asked
for the messages, without the others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

import msgspec

from goq import limits
from goq.api.codec.leased import LeasedMessages, LeaseReturner, merge_leased, read_leased
from goq.api.codec.negotiation import wants_frames
from goq.api.codec.receive_request import asks_for_stream, receive_options
from goq.api.codec.request import json_body, parse_client_id
from goq.api.gateway.coverage import COVERAGE_OF, covered_by, led_partitions, partition_moving
from goq.api.gateway.fanout import (
    Fanout,
    copy_request,
    decode_document,
    error_code,
    incomplete_answer,
    partition_offline,
)
from goq.api.gateway.streams import StreamGateway
from goq.api.routing_policy import BYTES_MAX, HOLDER, OFFLINE, READY, REST
from goq.api.schemas.groups import Receive
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.errors import GoqError, NotLeader, PartitionOffline, TimedOut, Unavailable
from goq.http.message import Request, Response

_WAIT_S = 30.0
_RETRY_S = 1.0  # of a node that could not be asked
_PAUSE_S = 0.05
_MISTAKES = frozenset({400, 401, 403, 409, 413, 415})
_TOO_MANY = 429
_UNAVAILABLE = frozenset({_TOO_MANY, 503, 504})


class ReceiveGateway:
    """Receives for the clients of one node."""

    def __init__(self, fanout: Fanout, leases: LeaseReturner, streams: StreamGateway) -> None:
        self._fanout = fanout
        self._streams = streams
        self._leases = leases
        self._turn = 0
        self._releases: set[asyncio.Future[None]] = set()

    async def receive(self, request: Request, values: Sequence[str]) -> Response:
        """Return messages of any leader; wait for them as long as asked.

        Raises ``InvalidInput``. Without messages, raises the error of a leader that failed, or
        ``PartitionOffline`` if a partition is offline, or has no leader that serves it.
        """
        asked = json_body(request, Receive)
        asked.consumer = asked.consumer or parse_client_id(request) or ""
        if asks_for_stream(request, asked):
            return await self._streams.open(request, values, asked)
        receive = _Receive(self, request, values, asked, receive_options(request, asked))
        try:
            return await receive.run()
        except BaseException:
            self.release_all(values, receive.leased)
            raise

    def leaders_in_rotation(self, topic: str) -> list[str | None]:
        """Return the leaders of a topic's partitions, each call beginning with the next."""
        urls = self._fanout.partition_leaders.leader_urls(topic)
        self._turn += 1
        first = self._turn % len(urls)
        return [*urls[first:], *urls[:first]]

    def leaders_of(self, topic: str) -> Sequence[str | None]:
        """Return the leader of each partition of a topic, None where there is none."""
        return self._fanout.partition_leaders.leaders(topic)

    async def take(
        self, url: str | None, values: Sequence[str], request: Request, *, is_small: bool
    ) -> Response:
        """Return a leader's answer. Leases of one that comes too late, or is lost, are released.

        Raises ``NotLeader``, and ``TimedOut`` if the leader may have leased messages.
        """
        leaders = self._fanout.partition_leaders
        loop = asyncio.get_running_loop()
        until = loop.time() + limits.REMOTE_STORE_WAIT_MS / 1000
        holder_id = secrets.token_hex(8)
        request = copy_request(request, headers={HOLDER: holder_id})
        asked: asyncio.Future[Any] = asyncio.ensure_future(
            self._fanout.ask(url, request, is_small=is_small)
        )
        try:
            while not asked.done():
                change: asyncio.Future[Any] = leaders.next_change()
                await asyncio.wait(
                    {asked, change},
                    timeout=max(0.0, until - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not asked.done() and url not in leaders.leader_urls(values[0]):
                    raise TimedOut(f"the node at {url} leads nothing of {values[0]} any more")
                if not asked.done() and loop.time() >= until:
                    raise TimedOut(f"the node at {url} does not answer", retry_after_ms=1000)
        except BaseException:
            self._track(asyncio.ensure_future(self._release_late(asked, values, holder_id)))
            raise
        if isinstance(asked.exception(), TimedOut):
            self._track(asyncio.ensure_future(self._release_late(asked, values, holder_id)))
        answer: Response = asked.result()
        return answer

    async def _release_late(
        self, asked: asyncio.Future[Response], values: Sequence[str], holder_id: str
    ) -> None:
        try:
            answer = await asked
        except TimedOut:  # the leader, or the next one, may have leases of it
            self._leases.return_held(values[0], values[1], holder_id)
            return
        except GoqError:
            return
        if answer.status == 200:
            await self._leases.return_leases(values[0], values[1], read_leased(answer).receipts())

    def release_all(self, values: Sequence[str], leased: Sequence[LeasedMessages]) -> None:
        """Release leases that do not reach their consumer, in the background."""
        receipts = [receipt for each in leased for receipt in each.receipts()]
        if receipts:
            self._track(
                asyncio.ensure_future(self._leases.return_leases(values[0], values[1], receipts))
            )

    def _track(self, task: asyncio.Future[None]) -> None:
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def wait(
        self, requests: dict[str | None, Request], wait_s: float
    ) -> dict[str | None, Response]:
        """Return the answers of the nodes that are first to answer, by their URLs.

        Without any, return when one fails, leaders change, or ``wait_s`` has passed.
        """
        held_ms = round(wait_s * 1000)
        waiting: dict[asyncio.Future[Any], str | None] = {
            asyncio.ensure_future(
                self._fanout.ask(url, request, is_small=True, held_ms=held_ms)
            ): url
            for url, request in requests.items()
        }
        change = self._fanout.partition_leaders.next_change()
        try:
            done, _ = await asyncio.wait(
                {*waiting, change}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            answered = [each for each in done if each is not change and each.exception() is None]
            return {waiting[each]: each.result() for each in answered}
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


class _Room(NamedTuple):
    """A number of messages, and their size."""

    messages: int
    size_bytes: int

    def few(self) -> _Room:
        """Return as much of it as a stream between nodes carries at once."""
        messages = min(self.messages, limits.STREAM_ANSWER_MESSAGES_MAX)
        return _Room(messages, min(self.size_bytes, limits.STREAM_ANSWER_BYTES_MAX))

    def without(self, taken: _Room) -> _Room:
        """Return what is left when something was taken."""
        return _Room(self.messages - taken.messages, self.size_bytes - taken.size_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether there is no room left."""
        return self.messages <= 0 or self.size_bytes <= 0

    def is_far_from(self, taken: _Room) -> bool:
        """Whether so little was taken that nothing was left out for lack of room."""
        return taken.messages < self.messages and 2 * taken.size_bytes < self.size_bytes


class _Receive:
    """One receive in progress."""

    def __init__(
        self,
        gateway: ReceiveGateway,
        request: Request,
        values: Sequence[str],
        asked: Receive,
        options: ReceiveRequest,
    ) -> None:
        self.leased: list[LeasedMessages] = []
        self._gateway = gateway
        self._request = request
        self._values = values
        self._asked = asked
        self._options = options
        self._counts: dict[str | None, str] = {}
        self._nothing: LeasedMessages | None = None
        self._failure: GoqError | Response | None = None
        self._offline: PartitionOffline | None = None
        self._covered: set[int] | None = set()
        """The partitions that the leaders looked into, None if one of them does not say."""

    async def run(self) -> Response:
        """Ask all leaders until there are messages or the wait is over; return the answer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.wait_ms / 1000
        ready: Sequence[str | None] = ()
        while True:
            mistake = await (self._take(ready) if ready else self._take_all())
            left_s = until - loop.time()
            if self.leased:
                answer = merge_leased(self.leased, as_frames=wants_frames(self._request))
                answer.on_refused = partial(self._gateway.release_all, self._values, self.leased)
                return answer
            if mistake is not None:
                return mistake
            if (left_s <= 0 and not ready) or self._is_refused():
                return self._end()
            ready = await self._wait(left_s) if left_s > 0 else ()

    async def _take_all(self) -> Response | None:
        """Ask all leaders; return the answer that refuses the request, if one does."""
        self._counts, self._failure, self._offline = {}, None, None
        self._covered = set()
        return await self._take(self._gateway.leaders_in_rotation(self._values[0]))

    async def _take(self, urls: Sequence[str | None]) -> Response | None:
        """Ask leaders in turn; return the answer that refuses the request, if one does.

        Each is asked for a few messages first, which most receives are answered with, and for the
        rest if it seems to have more.
        """
        left = _Room(self._options.messages_max, self._options.bytes_max)
        for url in urls:
            self._counts.pop(url, None)
            room = left.few()
            while not left.is_empty:
                taken = await self._take_from(url, room)
                if isinstance(taken, Response):
                    return taken
                is_all = room == left or room.is_far_from(taken)
                left = left.without(taken)
                if is_all:
                    break
                room = left
        return None

    async def _take_from(self, url: str | None, room: _Room) -> Response | _Room:
        """Ask a leader for as much as has room; return how much it gave, or its refusal."""
        is_small = room == room.few()
        request = self._for_one(room)
        try:
            answer = await self._gateway.take(url, self._values, request, is_small=is_small)
        except Unavailable as error:
            self._note_failure(error)
            return _Room(0, 0)
        if answer.status in _MISTAKES:
            return answer
        if answer.status != 200:
            self._note_failure(answer)
            return _Room(0, 0)
        self._counts[url] = answer.headers.get(READY, "")
        numbers = covered_by(answer)
        if numbers is None:
            self._covered = None
        elif self._covered is not None:
            self._covered |= numbers
        if (reason := answer.headers.get(OFFLINE)) is not None:
            self._offline = PartitionOffline(unquote(reason), retry_after_ms=1000)
        found = read_leased(answer)
        if found.message_count:
            self.leased.append(found)
        else:
            self._nothing = found
        return _Room(found.message_count, found.size_bytes)

    def _is_refused(self) -> bool:
        """Return whether no leader takes the request for now, as when a quota is used up."""
        failure = self._failure
        is_refusal = isinstance(failure, Response) and failure.status == _TOO_MANY
        return is_refusal and not self._counts

    def _note_failure(self, failure: GoqError | Response) -> None:
        """Remember a failure; an unknown outcome counts for more than a refusal."""
        if not isinstance(self._failure, TimedOut):
            self._failure = failure

    def _for_one(self, room: _Room) -> Request:
        body = msgspec.json.encode(
            {
                "max_messages": room.messages,
                "visibility": self._asked.visibility,
                "consumer": self._asked.consumer,
            }
        )
        headers = {BYTES_MAX: str(room.size_bytes), COVERAGE_OF: self._values[0]}
        if self.leased:
            headers[REST] = "1"
        return copy_request(self._request, body=body, headers=headers)

    async def _wait(self, left_s: float) -> list[str | None]:
        """Wait until a leader may have messages, and return those; none if all are to be asked."""
        if not self._counts:
            await asyncio.sleep(min(left_s, _PAUSE_S))
            return []
        if self._failure is not None or self._uncovered():
            left_s = min(left_s, _RETRY_S)
        left_s = min(left_s, _WAIT_S)
        waiting = {url: self._waiting(count, left_s) for url, count in self._counts.items()}
        answers = await self._gateway.wait(waiting, left_s)
        return [url for url, answer in answers.items() if _is_ready(answer, self._counts[url])]

    def _waiting(self, count: str, wait_s: float) -> Request:
        topic, group = self._values
        query = {
            "seen": count,
            "wait": f"{max(1, round(wait_s * 1000))}ms",
            "consumer": self._asked.consumer,
        }
        return copy_request(
            self._request,
            method="GET",
            path=f"/internal/v1/topics/{topic}/groups/{group}/ready",
            query=urlencode(query, quote_via=quote),
            body=b"",
        )

    def _end(self) -> Response:
        """Return the answer without messages; raise an error if a partition may have some."""
        topic, failure = self._values[0], self._failure
        if isinstance(failure, Response):
            if failure.status in _UNAVAILABLE or not self._counts:
                return failure
            raise incomplete_answer(topic, Unavailable(f"a node answers {error_code(failure)}"))
        if failure is not None:
            is_other = isinstance(failure, NotLeader) and self._counts
            raise incomplete_answer(topic, failure) if is_other else failure
        if self._offline is not None:
            raise self._offline
        leaders = self._gateway.leaders_of(topic)
        if None in leaders:
            raise partition_offline(topic, leaders.index(None))
        if uncovered := self._uncovered():
            raise partition_moving(topic, min(uncovered))
        nothing = [] if self._nothing is None else [self._nothing]
        return merge_leased(nothing, as_frames=wants_frames(self._request))

    def _uncovered(self) -> frozenset[int]:
        """Return the partitions that have a leader and that no leader looked into."""
        if self._covered is None:
            return frozenset()
        return led_partitions(self._gateway.leaders_of(self._values[0])) - self._covered


def _is_ready(answer: Response, count: str) -> bool:
    """Return whether a leader has had messages since it gave ``count``."""
    return answer.status == 200 and str(decode_document(answer)["count"]) != count
