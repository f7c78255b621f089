"""The stream of a topic: messages that one node pushes.

The node pushes as far as the credit of the stream: the messages that may be in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from goq import limits
from goq.client._async.consume.receive import OWN_ALONE, ReceiveOptions
from goq.client._async.http import Http
from goq.client._async.streamed_response import StreamedResponse
from goq.client.cluster_map import VERSION_HEADER
from goq.client.errors import UNREADABLE, unreadable
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import StreamAnswer, read_answer
from goq.client.protocol.frames import PartitionDelivery
from goq.errors import GoqError, InvalidFrame, Unavailable
from goq.http.client.http1 import ANSWER_BYTES_MAX

_SILENCE_MS_MAX: Final = 2 * limits.HEARTBEAT_MS
_STREAM_ID: Final = "goq-stream"


class DeliveryStream:
    """The streams of a topic, one after the other, with the credit of the present one.

    ``window`` is how many messages the stream may bring ahead of the caller; a stream that
    ``is_paused`` brings none.

    ``server`` is the node to ask, None for any. The answer says whether the node is one of a
    cluster (``is_of_cluster``): the stream then has the messages of that node alone.
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
        """The partitions that messages came from."""
        self.window = 0
        self.is_paused = False
        self.is_arriving = False
        """Whether messages were counted that are not in the buffer yet.

        Who puts them there says so: before the loop takes them, and asks for more.
        """
        self._http = http
        self._options = options
        self._credit = 0
        self._limit: int | None = None
        self._arrived = self._settled = 0
        self._arrived_at_grant = 0
        self._in_flight_besides = 0
        """What the node counts beyond these two: less than 0, as leases also expire."""
        self._stream: StreamedResponse | None = None

    async def open(self, window: int, limit: int | None) -> None:
        """Open a stream that ends after ``limit`` messages, or never with None."""
        self._arrived = self._settled = self._arrived_at_grant = self._in_flight_besides = 0
        self.is_paused = False
        self._credit = self.window = window
        self._limit = limit
        self._stream = await self._http.stream(
            f"{routes.group(self.topic, self.group)}/receive",
            self._options.stream_body(window, limit),
            accept=routes.FRAMES,
            wait_ms=_SILENCE_MS_MAX,
            extra=[OWN_ALONE],
            server=self.server,
        )
        self.is_of_cluster = VERSION_HEADER in self._stream.headers
        if self.is_of_cluster:
            self.server = self._stream.server

    async def deliveries(self) -> AsyncIterator[list[PartitionDelivery]]:
        """Yield the deliveries as they come, up to the limit; raise when the stream ends before."""
        assert self._stream is not None
        answers = wire.StreamSplitter(ANSWER_BYTES_MAX)
        try:
            async for piece in self._stream.pieces():
                for answer in answers.feed(piece):
                    deliveries = wire.decode_deliveries(answer)
                    count = sum(delivery.message_count() for delivery in deliveries)
                    if count:
                        self.is_arriving = True
                        self._arrived += count
                        self.partitions.update(delivery.partition for delivery in deliveries)
                        yield deliveries
        except (*UNREADABLE, InvalidFrame) as error:
            raise unreadable(f"a stream of {self.topic}", error) from None
        finally:
            self._stream = None
            self.is_arriving = False
        if self._limit is not None and self._arrived >= self._limit:
            return
        raise Unavailable("the node ended the stream; it is stopping, or the topic is gone")

    def brought(self, topic: str, partition: int) -> bool:
        """Return whether messages of a partition came over this stream."""
        return topic == self.topic and partition in self.partitions

    def settled(self, topic: str, group: str, partition: int, count: int) -> None:
        """Count messages of this stream as settled; others are ignored."""
        if group == self.group and self.brought(topic, partition):
            self._settled += min(count, self.in_flight)

    @property
    def in_flight(self) -> int:
        """The messages that came, less those that this client settled.

        The node's count is exact: what it answers to a grant is taken over. What comes while that
        is asked is counted besides, since a node that has no credit sends nothing before.
        """
        return self._in_flight_besides + self._arrived - self._settled

    @property
    def is_exhausted(self) -> bool:
        """Whether the credit is used up, as far as this client knows."""
        return self.in_flight >= self._credit

    @property
    def may_be_exhausted(self) -> bool:
        """Whether the credit may be used up at the node: messages came since it was asked."""
        return self._arrived > self._arrived_at_grant

    async def more(self, window: int) -> None:
        """Allow so many messages beyond those in flight."""
        self._arrived_at_grant = self._arrived
        self.is_paused = False
        await self._grant(window, {"more": window})

    async def resize(self, window: int, held: int) -> None:
        """Allow so many messages beyond those that the caller has; ``held`` wait here."""
        await self._grant(window, {"max_in_flight": max(0, self.in_flight - held) + window})

    async def _grant(self, window: int, asked: dict[str, int]) -> None:
        self.window = window
        with contextlib.suppress(GoqError):  # the stream has ended: there will be another
            stream = self._stream
            if stream is not None:
                known = self._arrived - self._settled
                answer = await stream.ask("PATCH", self._path(stream), asked)
                account = read_answer(StreamAnswer, answer)
                self._credit = account.max_in_flight
                self._in_flight_besides = account.in_flight - known

    @property
    def place(self) -> tuple[str, str] | None:
        """The node and the path of the stream, None while it is not open."""
        stream = self._stream
        return None if stream is None else (stream.server, self._path(stream))

    async def abandon(self) -> None:
        """Break the connection: the node releases the leases of the stream at once."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def end(self) -> bool:
        """Ask the node to end the stream and keep its leases; return whether it does.

        Messages that it had sent before still come.
        """
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(GoqError):
                await stream.ask("DELETE", self._path(stream))
                return True
        return False

    def _path(self, stream: StreamedResponse) -> str:
        return routes.stream(self.topic, self.group, stream.headers.get(_STREAM_ID) or "")
