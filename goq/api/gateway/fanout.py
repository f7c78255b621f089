"""Requests to the nodes of a cluster, this node among them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from goq import limits
from goq.api.codec.leased import response_bytes
from goq.api.gateway.coverage import (
    COVERAGE_OF,
    LocalAnswers,
    covered_by,
    led_partitions,
    partition_moving,
)
from goq.api.routing_policy import DONE, Document, MergeContext, encode_partitions
from goq.cluster.forwarding.relay import RoutedProxy
from goq.errors import (
    GoqError,
    NotLeader,
    PartitionOffline,
    TimedOut,
    Unavailable,
    outcome_unknown,
)
from goq.http.message import LOCAL, Request, Response

_NOT_THERE_YET = ("topic_not_found", "group_not_found")


class LeaderDirectory(Protocol):
    """The leaders of partitions, from the cluster metadata."""

    def leader_url(self, topic: str, number: int) -> str | None:
        """Return the URL of a partition's leader, ``None`` for this node.

        Raises ``NotLeader`` while there is no leader, ``NotFound`` for an unknown partition.
        """

    def has_session(self) -> bool:
        """Whether this node cannot have been fenced by now, so that others lead what it led."""

    def leader_urls(self, topic: str | None) -> list[str | None]:
        """Return the URLs of all leaders of a topic's partitions, each once, and ``None`` for this
        node.

        Without a topic: the URLs of all nodes that are up.
        """

    def leaders(self, topic: str) -> Sequence[str | None]:
        """Return the leader of each partition by node id, ``None`` where there is none.

        Raises ``TopicNotFound``.
        """

    def patience_s(self) -> float:
        """Return how long to wait for a leader that is missing; not at all on a node that would not
        hear of it."""

    def next_change(self) -> asyncio.Future[None]:
        """Return a future that completes when leadership or membership may have changed."""

    async def call_leader(self, topic: str, number: int, path: str, body: bytes) -> bytes:
        """Call the leader of a partition; raise ``NotLeader`` if none is known."""


class Fanout:
    """Sends requests to partition leaders, which answer from the partitions that they lead."""

    def __init__(self, local: LocalAnswers, leaders: LeaderDirectory, proxy: RoutedProxy) -> None:
        self.partition_leaders = leaders
        self._local = local
        self._proxy = proxy

    async def answer_here(self, request: Request) -> Response:
        """Return this node's answer to a request."""
        answer = self._local.answer(request)
        return answer if isinstance(answer, Response) else await answer

    async def ask(
        self, url: str | None, request: Request, *, is_small: bool = False, held_ms: int = 0
    ) -> Response:
        """Return the answer of one node, this node for ``None``.

        ``is_small`` says that the answer is small, and comes at once or after ``held_ms`` at most.

        Raises ``NotLeader`` if the node cannot be reached and so did nothing, ``PartitionOffline``
        if that has lasted, ``TooManyRequests`` if too many requests are under way there,
        ``TimedOut`` if it may have carried out a write, ``Unavailable`` if it did not answer a
        read.
        """
        if url is not None:
            if request.method == "HEAD":  # which has no body by which to tell that it has ended
                request = copy_request(request, method="GET")
            return await self._proxy.forward(url, request, is_small=is_small, held_ms=held_ms)
        return await self.answer_here(copy_request(request, headers={LOCAL: "true"}))

    async def ask_while_up(self, url: str | None, topic: str | None, request: Request) -> Response:
        """Return the answer to a read; raise ``NotLeader`` also when the node stops leading."""
        asked: asyncio.Future[Any] = asyncio.ensure_future(self.ask(url, request))
        try:
            while not asked.done():
                change = self.partition_leaders.next_change()
                await asyncio.wait({asked, change}, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done() and url not in self.partition_leaders.leader_urls(topic):
                    raise NotLeader(f"the node at {url} does not lead a part of this any more")
            answer: Response = await asked
            return answer
        finally:
            asked.cancel()

    async def ask_all_leaders(
        self,
        topic: str | None,
        request: Request,
        *,
        needs_all: bool = False,
        may_lack: bool = False,
    ) -> list[Response]:
        """Return the answers of all leaders of a topic, this node's first.

        Either all answers are successful, or one answer that is not is returned. When leaders
        change, the new ones are asked. The answers to a read are for each partition that has a
        leader once, and none is for no partition: it may be of a node that others have replaced.
        A write is not repeated for partitions in which it is done. Where it may be, since one has
        left its leader meanwhile, there are two answers for it, and the last one counts.

        Raises ``PartitionOffline`` after a timeout, unless the answers ``may_lack`` partitions that
        no leader serves yet, or if ``needs_all`` and a partition has no leader. Raises ``TimedOut``
        if a write fails that some leaders may have carried out.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.partition_leaders.patience_s()
        is_reading = request.method in ("GET", "HEAD")
        is_partly_done = False
        earlier = list[Response]()
        if topic is not None:
            request = copy_request(request, headers={COVERAGE_OF: topic})
        while True:
            results = await self._ask_once(topic, request, is_reading, needs_all)
            answers = [result for result in results if isinstance(result, Response)]
            errors = [result for result in results if isinstance(result, GoqError)]
            is_partly_done |= not is_reading and any(map(_may_be_done, answers))
            lacking: GoqError | Response | None = _retryable_answer(answers)
            if errors and (is_reading or lacking is None):
                lacking = errors[0]
            for error in errors:
                is_passing = isinstance(error, Unavailable if is_reading else NotLeader)
                if not is_passing or isinstance(error, PartitionOffline):
                    raise outcome_unknown(error) if is_partly_done else error
            if lacking is None:
                bad = [answer for answer in answers if answer.status >= 300]
                if bad and is_partly_done:
                    raise _partly_done(bad[0])
                whole = [*earlier, *answers]
                lacking = (
                    None if bad or topic is None else self._uncovered(topic, whole, is_reading)
                )
                if lacking is None or (may_lack and loop.time() >= until):
                    return bad[:1] or (_for_partitions(whole) if is_reading else whole)
            if loop.time() >= until:
                if is_partly_done:
                    raise _partly_done(lacking)
                if isinstance(lacking, Response):
                    return [lacking]
                if isinstance(lacking, PartitionOffline):
                    raise lacking
                raise incomplete_answer(topic, lacking)
            if not is_reading:
                earlier += [answer for answer in answers if answer.status < 300]
                done = frozenset[int]().union(*(covered_by(answer) or () for answer in earlier))
                request = copy_request(request, headers={DONE: encode_partitions(done)})
            await asyncio.sleep(limits.FORWARD_RETRY_PAUSE_S)

    async def _ask_once(
        self, topic: str | None, request: Request, is_reading: bool, needs_all: bool
    ) -> list[Response | GoqError]:
        """Return an answer or an error of each leader; those that count for more come first."""
        if needs_all and topic is not None and None in self.partition_leaders.leaders(topic):
            return [NotLeader(f"a partition of {topic} has no leader now")]
        urls = sorted(self.partition_leaders.leader_urls(topic), key=lambda url: url or "")
        asked = (
            self.ask_while_up(url, topic, request) if is_reading else self.ask(url, request)
            for url in urls
        )
        results = await asyncio.gather(*asked, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, GoqError):
                raise result
        found = [result for result in results if isinstance(result, Response | GoqError)]
        return sorted(found, key=_certainty)  # what is not known counts for more

    def _uncovered(
        self, topic: str, answers: Sequence[Response], is_reading: bool
    ) -> PartitionOffline | None:
        """Return the error of a partition that answers are not for, or not once those to a read.

        None if there is no such partition, or a node of an earlier version is among those asked.
        """
        covered = list[int]()
        for answer in answers:
            numbers = covered_by(answer)
            if numbers is None:
                return None
            covered += numbers
        wrong = set(led_partitions(self.partition_leaders.leaders(topic)).difference(covered))
        if is_reading:
            wrong |= {number for number, count in Counter(covered).items() if count > 1}
        return partition_moving(topic, min(wrong)) if wrong else None

    async def ask_partition_leader(self, topic: str, number: int, request: Request) -> Response:
        """Return the answer of a partition's leader, also when it changes meanwhile.

        Raises ``PartitionOffline`` after a timeout, ``TimedOut`` if a leader may have carried out
        the request, ``Unavailable`` if it did not answer a read.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.partition_leaders.patience_s()
        while True:
            failure: Unavailable | None = None
            try:
                url = self.partition_leaders.leader_url(topic, number)
                response = await self.ask(url, request)
                if response.status != NotLeader.http_status:
                    return response
                failure = partition_moving(topic, number)
            except NotLeader:
                pass
            except Unavailable as error:
                if request.method not in ("GET", "HEAD") or isinstance(error, PartitionOffline):
                    raise
                failure = error
            if loop.time() >= until:
                raise failure or partition_offline(topic, number)
            await asyncio.sleep(limits.FORWARD_RETRY_PAUSE_S)


def partition_offline(topic: str, number: int) -> PartitionOffline:
    """Return the error for a partition without a leader."""
    return PartitionOffline(
        f"partition {number} of {topic} has no leader now; goq cluster status says why",
        retry_after_ms=1000,
    )


def incomplete_answer(topic: str | None, error: GoqError) -> PartitionOffline:
    """Return the error for a request that not all leaders answered."""
    what = "the cluster" if topic is None else f"topic {topic}"
    return PartitionOffline(
        f"not all of {what} can be asked now: {error.detail}; goq cluster status says more",
        retry_after_ms=1000,
    )


def _certainty(result: Response | GoqError) -> int:
    """Return 0 for an unknown outcome of a request, 1 for a refusal or an answer."""
    status = result.status if isinstance(result, Response) else result.http_status
    return int(status != TimedOut.http_status)


def _for_partitions(answers: list[Response]) -> list[Response]:
    """Return the answers without those that are for no partition, unless all are."""
    return [answer for answer in answers if covered_by(answer) != frozenset()] or answers


def _may_be_done(answer: Response) -> bool:
    """Return whether a leader has carried out a write, or may have."""
    return answer.status < 300 or answer.status == TimedOut.http_status


def _partly_done(failure: Response | GoqError) -> TimedOut:
    """Return the error of a write that one leader refused after others carried it out."""
    why = failure.detail if isinstance(failure, GoqError) else error_code(failure)
    return TimedOut(f"only a part of this was done; another was refused: {why}")


def _retryable_answer(answers: Sequence[Response]) -> Response | None:
    """Return an answer to retry: its node leads no more, or lacks metadata that others have."""
    is_known = any(answer.status < 300 for answer in answers)
    for answer in answers:
        if answer.status == NotLeader.http_status:
            return answer
        if is_known and answer.status == 404 and error_code(answer) in _NOT_THERE_YET:
            return answer
    return None


def copy_request(
    request: Request,
    *,
    method: str | None = None,
    path: str | None = None,
    query: str | None = None,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> Request:
    """Return a changed copy of a request; ``headers`` are added."""
    return Request(
        request.method if method is None else method,
        request.path if path is None else path,
        request.query_string if query is None else query,
        {**request.headers, **(headers or {})},
        request.body if body is None else body,
        request.peer,
        principal=request.principal,
    )


def decode_document(response: Response) -> Document:
    """Return the JSON of an answer."""
    found: Document = msgspec.json.decode(response_bytes(response))
    return found


def error_code(response: Response) -> str:
    """Return the error code of a failed answer."""
    try:
        code = decode_document(response).get("code", "")
    except (msgspec.DecodeError, AttributeError):
        return ""
    return code if isinstance(code, str) else ""


def merge_context(
    request: Request, values: Sequence[str], leaders: LeaderDirectory
) -> MergeContext:
    """Return what a merge may need of a request."""
    return MergeContext(values, request.query, leaders.leaders)
