"""Publisher of whole frames under producer sequences that the caller chose: exact copies.

The producer id is a function of the work, not of the process. A later run of the same work has the
same producer: the node drops the frames that it has, and returns how far the earlier run got.
Internal: the Spark sink, the replay into a topic and tests use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from goq.client import results
from goq.client._async.http import Http
from goq.client._async.runtime import Worker
from goq.client.cluster_map import TopicPartition
from goq.client.errors import (
    PARTIAL_REFUSALS,
    UNREADABLE,
    PartialRefusal,
    PartlyStored,
    unreadable,
)
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import ProducerAnswer, read_answer
from goq.errors import (
    GoqError,
    InvalidFrame,
    TopicExists,
    outcome_unknown,
    raise_failures,
)

if TYPE_CHECKING:
    from goq.client._async.client import AsyncClient


class PublishTerms(NamedTuple):
    """The terms on which a node stores frames.

    With ``acks`` of ``leader`` it does not wait for its followers. It refuses frames if the topic
    of this name has another id than ``topic_id`` (``TopicNotFound``), or other ``lanes`` than
    these, written as its setting (``LanesChanged``).
    """

    acks: str | None = None
    topic_id: str | None = None
    lanes: str | None = None


_NO_TERMS: Final = PublishTerms()


class AsyncFramePublisher:
    """Publishes frames over a client's connections."""

    def __init__(self, client: AsyncClient) -> None:
        self._http = client._http

    async def publish(
        self, topic: str, frames: Sequence[tuple[int, bytes]]
    ) -> list[wire.StoredFrame]:
        """Store frames, each ``(partition, frame)``; return where each was stored, in order.

        A request whose answer was lost is sent again. Only frames that carry a producer sequence
        are stored once then. Raises ``OutOfOrderSequence`` where a frame neither follows its
        producer's last frame nor is one of the last few.
        """
        return await post_frames(self._http, topic, frames)

    async def open_topic(self, name: str) -> results.topic.TopicDescription:
        """Return a topic that is about to be published to.

        A node that creates topics on publish creates it. Raises ``TopicNotFound`` otherwise.
        """
        return results.topic.decode_topic(
            await self._http.call("PUT", routes.topic(name), repeatable=True)
        )

    async def ensure_topic(
        self, name: str, partitions: int, settings: Mapping[str, object]
    ) -> results.topic.TopicDescription:
        """Return a topic, created with these partitions and settings if it does not exist."""
        body = {"name": name, "partitions": partitions, "settings": dict(settings)}
        try:
            found = await self._http.call("POST", routes.TOPICS, body, repeatable=True)
        except TopicExists:  # also the answer to a repeated request that had created it
            found = await self._http.call("GET", routes.topic(name))
        return results.topic.decode_topic(found)

    async def next_sequences(self, topic: str, producer_id: int) -> dict[int, int]:
        """Return the producer's next sequence by partition, for the partitions that know it."""
        answer = await self._http.call("GET", routes.producer(topic, producer_id))
        return {
            p.partition: p.next_sequence for p in read_answer(ProducerAnswer, answer).partitions
        }


async def post_frames(
    http: Http,
    topic: str,
    frames: Sequence[tuple[int, bytes]],
    terms: PublishTerms = _NO_TERMS,
) -> list[wire.StoredFrame]:
    """Store frames, each ``(partition, frame)``; return where each was stored, in order.

    Each leader gets one request. A refusal is raised only if all requests were refused: otherwise
    the error is ``TimedOut``, and some frames may be stored and others not; ``PartlyStored`` if the
    others are certainly not. Only frames that carry a producer sequence can be sent again without
    doubling.
    """
    by_leader = await _indexes_by_leader(http, topic, frames)
    requests = [_FramesRequest(http, topic, [frames[n] for n in ns], terms) for ns in by_leader]
    if len(requests) == 1:
        return await requests[0].send()
    workers = [Worker(request.run) for request in requests[1:]]
    try:
        await requests[0].run()
        for worker in workers:
            await worker.join()
    finally:
        for worker in workers:
            await worker.stop()
    stored_by_index = {
        index: stored
        for indexes, request in zip(by_leader, requests, strict=True)
        if request.error is None
        for index, stored in zip(indexes, request.stored, strict=True)
    }
    errors = [request.error for request in requests if request.error is not None]
    refusals = [error for error in errors if isinstance(error, PARTIAL_REFUSALS)]
    if stored_by_index and refusals and len(refusals) == len(errors):
        raise PartlyStored(refusals[0], stored_by_index)
    raise_failures([request.error for request in requests])
    return [stored_by_index[index] for index in range(len(frames))]


async def post_singly(
    http: Http, topic: str, frames: Sequence[tuple[int, bytes]], terms: PublishTerms
) -> list[wire.StoredFrame]:
    """Do as :func:`post_frames` with one request for each frame: it is known which are refused."""
    stored: dict[int, wire.StoredFrame] = {}
    refusals: list[PartialRefusal] = []
    for index, frame in enumerate(frames):
        try:
            [stored[index]] = await post_frames(http, topic, [frame], terms)
        except PARTIAL_REFUSALS as error:
            refusals.append(error)
        except GoqError as error:
            raise outcome_unknown(error) if stored else error from None
    if refusals:
        raise PartlyStored(refusals[0], stored) if stored else refusals[0]
    return [stored[index] for index in range(len(frames))]


async def _indexes_by_leader(
    http: Http, topic: str, frames: Sequence[tuple[int, bytes]]
) -> list[list[int]]:
    """Return the indexes of the frames of each request: one request for each leader."""
    if not http.cluster_map.is_cluster or len(frames) == 1:
        return [list(range(len(frames)))]
    await http.find_leaders(topic)
    found: dict[str | None, list[int]] = {}
    for index, (partition, _) in enumerate(frames):
        leader = http.cluster_map.leader(TopicPartition(topic, partition))
        found.setdefault(leader, []).append(index)
    return list(found.values())


class _FramesRequest:
    """One request for one leader, with its result or its error."""

    def __init__(
        self,
        http: Http,
        topic: str,
        frames: Sequence[tuple[int, bytes]],
        terms: PublishTerms,
    ) -> None:
        self.stored: list[wire.StoredFrame] = []
        self.error: Exception | None = None
        self._http = http
        self._topic = topic
        self._frames = frames
        self._terms = terms

    async def run(self) -> None:
        """Send the frames; keep the result or the error."""
        try:
            self.stored = await self.send()
        except Exception as error:
            self.error = error

    async def send(self) -> list[wire.StoredFrame]:
        """Send the frames; return where each was stored."""
        terms = self._terms
        target = routes.messages(self._topic)
        answer = await self._http.request(
            "POST",
            routes.query(target, acks=terms.acks, topic_id=terms.topic_id),
            b"".join([piece for placed in self._frames for piece in wire.place(*placed)]),
            content_type=routes.FRAMES,
            repeatable=True,
            is_publish=True,
            partition=TopicPartition(self._topic, self._frames[0][0]) if self._frames else None,
            extra=() if terms.lanes is None else [(b"Goq-Lanes", terms.lanes.encode())],
        )
        try:
            return wire.decode_published(answer.body, len(self._frames))
        except (*UNREADABLE, InvalidFrame) as error:
            raise outcome_unknown(unreadable(self._topic, error)) from None
