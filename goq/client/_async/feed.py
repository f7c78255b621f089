"""What a node pushes from one topic: one stream after the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from goq import limits
from goq.client._async.http import Http, Streaming
from goq.client._async.receive import OWN_ALONE, ReceiveOptions
from goq.client.cluster_map import VERSION_HEADER
from goq.client.errors import unreadable
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.frames import Delivery
from goq.errors import GoqError, InvalidFrame, Unavailable
from goq.http.client.http1 import ANSWER_BYTES_MAX

_SILENCE_MS_MAX: Final = 2 * limits.HEARTBEAT_MS
_STREAM_ID: Final = "goq-stream"


class Feed:
    """Opens streams of a topic, and knows how much of its credit the present one has left.

    ``in_flight`` is what this client knows of: messages that came, less those settled here. The
    node knows better, as leases also end by themselves; :meth:`more` takes over what it says.

    ``server`` is the one node to ask, None for any. Whichever answers then says whether it is one
    of several (``is_of_cluster``): what comes is of that one alone.
    """

    def __init__(
        self,
        http: Http,
        topic: str,
        group: str,
        options: ReceiveOptions,
        server: str | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self.server = server
        self.is_of_cluster = False
        self.is_wanted = True
        self.partitions: set[int] = set()
        """From where something came."""
        self.in_flight = 0
        self._http = http
        self._options = options
        self._credit = 0
        self._arrived = 0
        self._arrived_at_grant = 0
        self._stream: Streaming | None = None

    async def open(self, limit: int | None) -> None:
        """Begin a stream, of ``limit`` messages in all."""
        self.in_flight = self._arrived = self._arrived_at_grant = 0
        self._credit = min(self._options.max, limits.RECEIVE_MESSAGES_MAX)
        self._stream = await self._http.stream(
            f"{routes.group(self.topic, self.group)}/receive",
            self._options.stream_body(limit),
            accept=routes.FRAMES,
            wait_ms=_SILENCE_MS_MAX,
            extra=[OWN_ALONE],
            server=self.server,
        )
        self.is_of_cluster = VERSION_HEADER in self._stream.headers
        if self.is_of_cluster:
            self.server = self._stream.server

    async def deliveries(self) -> AsyncIterator[list[Delivery]]:
        """Yield what comes; raise when the stream ends, in whatever way."""
        assert self._stream is not None
        answers = wire.StreamedAnswers(ANSWER_BYTES_MAX)
        try:
            async for piece in self._stream.pieces():
                for answer in answers.feed(piece):
                    deliveries = wire.decode_deliveries(answer)
                    count = sum(delivery.message_count() for delivery in deliveries)
                    if count:
                        self._arrived += count
                        self.in_flight += count
                        self.partitions.update(delivery.partition for delivery in deliveries)
                        yield deliveries
        except (msgspec.DecodeError, InvalidFrame) as error:
            raise unreadable(f"a stream of {self.topic}", error) from None
        finally:
            self._stream = None
        raise Unavailable("the node ended the stream; it is stopping, or the topic is gone")

    def brought(self, topic: str, partition: int) -> bool:
        """Return whether messages of a partition came over this feed."""
        return topic == self.topic and partition in self.partitions

    def settled(self, topic: str, group: str, partition: int, count: int) -> None:
        """Note that messages were settled, if they are of this feed."""
        if group == self.group and self.brought(topic, partition):
            self.in_flight = max(0, self.in_flight - count)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing can come before something is settled, as far as is known here."""
        return self.in_flight >= self._credit

    @property
    def may_be_exhausted(self) -> bool:
        """Whether the node may see it so: something came since it was asked."""
        return self._arrived > self._arrived_at_grant

    async def more(self) -> None:
        """Let the node hand over as much again as the credit was at first."""
        self._arrived_at_grant = self._arrived
        asked = {"more": min(self._options.max, limits.RECEIVE_MESSAGES_MAX)}
        with contextlib.suppress(GoqError):  # the stream has ended: there will be another
            stream = self._stream
            if stream is not None:
                answer = await stream.ask("PATCH", self._path(stream), asked)
                self._credit, self.in_flight = answer["max"], answer["in_flight"]

    async def abandon(self) -> None:
        """Break the stream: the node gives back at once what it handed over."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def end(self) -> bool:
        """Tell the node to end the stream and to leave its leases as they are; return if it does.

        What it had sent until then still comes.
        """
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(GoqError):
                await stream.ask("DELETE", self._path(stream))
                return True
        return False

    def _path(self, stream: Streaming) -> str:
        return routes.stream(self.topic, self.group, stream.headers.get(_STREAM_ID, ""))
