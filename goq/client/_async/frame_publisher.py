"""Publishing whole frames under numbers of the caller's own: what makes a copy exact.

A producer that is known by what it does, and not by who does it, can be run again: the node
refuses what it has already, and tells how far the earlier run got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from goq.client._async.http import Http
from goq.client._async.runtime import Worker
from goq.client.cluster_map import TopicPartition
from goq.client.errors import unreadable
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.errors import InvalidFrame, TopicExists


async def post_frames(
    http: Http, topic: str, frames: Sequence[tuple[int, bytes]], acks: str | None = None
) -> list[wire.StoredFrame]:
    """Store frames, each in the partition before it; return where each lies.

    One request brings those of one leader. When it raises, some may be stored and others not: to
    be sent again they must carry a producer's numbers.
    """
    parts = await _by_leader(http, topic, frames)
    posts = [_Post(http, topic, [frames[n] for n in numbers], acks) for numbers in parts]
    if len(posts) == 1:
        return await posts[0].send()
    workers = [Worker(post.run) for post in posts[1:]]
    try:
        await posts[0].run()
        for worker in workers:
            await worker.join()
    finally:
        for worker in workers:
            await worker.stop()
    for post in posts:
        if post.error is not None:
            raise post.error
    found = {
        number: stored
        for numbers, post in zip(parts, posts, strict=True)
        for number, stored in zip(numbers, post.stored, strict=True)
    }
    return [found[number] for number in range(len(frames))]


async def _by_leader(
    http: Http, topic: str, frames: Sequence[tuple[int, bytes]]
) -> list[list[int]]:
    """Return the numbers of the frames that go out in a request together."""
    if not http.places.is_cluster or len(frames) == 1:
        return [list(range(len(frames)))]
    await http.find_leaders(topic)
    found: dict[str | None, list[int]] = {}
    for number, (partition, _) in enumerate(frames):
        found.setdefault(http.places.leader(TopicPartition(topic, partition)), []).append(number)
    return list(found.values())


class _Post:
    """One request, and what became of it."""

    def __init__(
        self, http: Http, topic: str, frames: Sequence[tuple[int, bytes]], acks: str | None
    ) -> None:
        self.stored: list[wire.StoredFrame] = []
        self.error: Exception | None = None
        self._http = http
        self._topic = topic
        self._frames = frames
        self._acks = acks

    async def run(self) -> None:
        """Send; keep what came of it."""
        try:
            self.stored = await self.send()
        except Exception as error:
            self.error = error

    async def send(self) -> list[wire.StoredFrame]:
        """Send; return where each frame lies."""
        answer = await self._http.request(
            "POST",
            routes.query(routes.messages(self._topic), acks=self._acks),
            b"".join([piece for placed in self._frames for piece in wire.place(*placed)]),
            content_type=routes.FRAMES,
            repeatable=True,
            place=TopicPartition(self._topic, self._frames[0][0]) if self._frames else None,
        )
        try:
            return wire.decode_published(answer.body, len(self._frames))
        except (msgspec.DecodeError, InvalidFrame) as error:
            raise unreadable(self._topic, error) from None


class FramePublisher:
    """What a client can do with frames that it or somebody else made."""

    _http: Http

    async def publish_frames(
        self, topic: str, frames: Sequence[tuple[int, bytes]]
    ) -> list[wire.StoredFrame]:
        """Store frames, each in the partition before it; return where each lies.

        Sent again when the answer is lost: only frames that carry a producer's numbers are then
        stored once. Raises ``OutOfOrderSequence`` where a frame neither follows its producer's last
        one nor is one of the last few.
        """
        return await post_frames(self._http, topic, frames)

    async def topic_for_publish(self, name: str) -> dict[str, Any]:
        """Return a topic that is about to be published to.

        The node makes it if it makes those that are published to; else ``TopicNotFound``.
        """
        found = await self._http.call("PUT", routes.topic(name), repeatable=True)
        return found if isinstance(found, dict) else {}

    async def topic_for_copies(
        self, name: str, partitions: int, settings: Mapping[str, object]
    ) -> dict[str, Any]:
        """Return a topic, made if there is none: as it was asked for, or as somebody else did."""
        body = {"name": name, "partitions": partitions, "settings": dict(settings)}
        try:
            found = await self._http.call("POST", routes.TOPICS, body, repeatable=True)
        except TopicExists:  # which may be the answer to the second time that it was sent
            found = await self._http.call("GET", routes.topic(name))
        return found if isinstance(found, dict) else {}

    async def producer_reached(self, topic: str, producer_id: int) -> dict[int, int]:
        """Return by partition the number with which a producer goes on, where it is known."""
        found = await self._http.call("GET", routes.producer(topic, producer_id))
        return {each["partition"]: each["next_sequence"] for each in found["partitions"]}
