"""Publishing whole frames under numbers of the caller's own: what makes a copy exact.

A producer that is known by what it does, and not by who does it, can be run again: the node
refuses what it has already, and tells how far the earlier run got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goq.client._async.http import Http
from goq.client._async.posting import post_frames
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.errors import TopicExists


class AsyncFrames:
    """What a client can do with frames that it or somebody else made."""

    _http: Http

    async def publish_frames(
        self, topic: str, frames: Sequence[tuple[int, bytes]]
    ) -> list[wire.StoredFrame]:
        """Store frames, each in the partition before it; return where each lies.

        Sent again when the answer is lost: only frames that carry a producer's numbers are then
        stored once. Raises ``SequenceGap`` where a frame neither follows its producer's last one
        nor is one of the last few.
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
