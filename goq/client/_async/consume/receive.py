"""One receive request and its batch, and the stream of a topic.

A receive asks each leader of a topic's partitions for the messages that it leads itself. A stream
is pushed by one node, as far as its credit: the messages that may be in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import msgspec

from goq import limits
from goq.client._async.consume.settlement import (
    AsyncReceivedMessage,
    Settler,
    extend_details,
    nack_details,
)
from goq.client._async.http import Http
from goq.client._async.streamed_response import StreamedResponse
from goq.client.arguments import Duration
from goq.client.cluster_map import VERSION_HEADER
from goq.client.delivery_options import delivery_fields, lanes_of
from goq.client.errors import UNREADABLE, Answer, unreadable
from goq.client.leases.message_buffer import NO_LEASE, LeaseTime
from goq.client.messages import Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import StreamAnswer, read_answer
from goq.client.protocol.frames import PartitionDelivery
from goq.client.protocol.request_builder import session_header
from goq.errors import GoqError, InvalidFrame, Unavailable
from goq.http.client.http1 import ANSWER_BYTES_MAX
from goq.units import format_duration_ms

OWN_ALONE: Final = (b"Goq-Local", b"true")
"""Asks a node for messages of the partitions that it leads itself: others are asked, too."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The arguments of a receive; ``max_messages`` is also the most that a stream has ahead."""

    max_messages: int
    wait_ms: int
    visibility_ms: int | None
    consumer: str | None
    session_id: str | None = None
    """The session of receives that belong to no loop."""

    def body(self) -> bytes:
        """Return the request's body."""
        wait = format_duration_ms(self.wait_ms)
        return self._body({"wait": wait, "max_messages": self.credit})

    def stream_body(self, credit: int, limit: int | None) -> bytes:
        """Return the body that asks for a stream, of ``limit`` messages in all."""
        asked: dict[str, object] = {"stream": True, "max_in_flight": credit}
        return self._body(asked if limit is None else asked | {"limit": limit})

    @property
    def credit(self) -> int:
        """How many messages one request may ask for."""
        return min(self.max_messages, limits.RECEIVE_MESSAGES_MAX)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of one request."""
        return [] if self.session_id is None else [session_header(self.session_id)]

    def _body(self, asked: dict[str, object]) -> bytes:
        if self.visibility_ms is not None:
            asked["visibility"] = format_duration_ms(self.visibility_ms)
        if self.consumer is not None:
            asked["consumer"] = self.consumer
        return msgspec.json.encode(asked)


class AsyncDeliveryBatch:
    """The messages of one receive, not split. Settling them takes one receipt for each range.

    ``deliveries`` are the frames that came, by partition.
    """

    def __init__(
        self, settler: Settler, topic: str, group: str, deliveries: Sequence[PartitionDelivery]
    ) -> None:
        self.topic = topic
        self.group = group
        self.deliveries = deliveries
        self._settler = settler

    def __len__(self) -> int:
        return sum(delivery.message_count() for delivery in self.deliveries)

    def receipts(self) -> list[str]:
        """Return one receipt for each range of messages."""
        return [str(receipt) for delivery in self.deliveries for receipt in delivery.receipts()]

    def values(self) -> Iterator[bytes | None]:
        """Yield the values alone, in the order of delivery."""
        for delivery in self.deliveries:
            for piece in delivery.pieces():
                yield from piece.frame.values(piece.start, piece.end)

    def messages(self) -> Iterator[AsyncReceivedMessage]:
        """Yield the messages, in the order of delivery."""
        for delivery in self.deliveries:
            yield from self.messages_of(delivery)

    def messages_of(
        self, delivery: PartitionDelivery, lease_time: LeaseTime = NO_LEASE
    ) -> Iterator[AsyncReceivedMessage]:
        """Yield the messages of one of the deliveries; a loop knows its lease."""
        for frame, start, end, attempt, offset, time_us in delivery.pieces():
            found = map(
                AsyncReceivedMessage,
                repeat(self.topic, end - start),
                repeat(delivery.partition),
                range(offset, offset + end - start),
                repeat(time_us),
                frame.values(start, end),
                frame.keys(start, end),
                frame.headers(start, end),
                *delivery_fields(frame, start, end, delivery.lanes),
                repeat(self.group),
                repeat(attempt),
                repeat(delivery.token),
                repeat(delivery.lease_until),
                repeat(self._settler),
                repeat(lease_time),
            )
            yield from _in_their_lanes(found, delivery) if delivery.moved else found

    async def ack(self) -> Settled:
        """Mark all messages as done. The result names the receipts whose lease was lost."""
        return await self._settle("ack")

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> Settled:
        """Give all messages back, to be delivered again after ``delay`` or the group's backoff."""
        return await self._settle("nack", **nack_details(delay, reason))

    async def extend(self, visibility: Duration | None = None) -> Settled:
        """Extend all leases to ``visibility`` from now, by default the group's setting."""
        return await self._settle("extend", **extend_details(visibility))

    async def _settle(self, verb: str, **details: Any) -> Settled:
        return await self._settler.settle(verb, self.topic, self.group, self.receipts(), **details)


def _in_their_lanes(
    messages: Iterable[AsyncReceivedMessage], delivery: PartitionDelivery
) -> Iterator[AsyncReceivedMessage]:
    """Yield messages, those that were moved with the lane that they were moved to."""
    named = lanes_of(delivery.lanes)
    for message in messages:
        lane = delivery.moved.get(message.offset)
        if lane is not None:
            message.priority = named.lane_name(lane)
        yield message


async def receive(
    http: Http, settler: Settler, topic: str, group: str, options: ReceiveOptions
) -> AsyncDeliveryBatch:
    """Return messages of a group: each leader is asked for its own, then any node for all.

    A request whose answer was lost is sent again. The messages of the lost answer are delivered
    again after their visibility timeout.
    """
    path = f"{routes.group(topic, group)}/receive"
    body = replace(options, wait_ms=0).body()
    await http.find_leaders(topic)
    for server in http.cluster_map.leaders_in_turn(topic):
        try:
            answer = await http.request_at(
                server, path, body, accept=routes.FRAMES, extra=[OWN_ALONE, *options.headers]
            )
        except GoqError as error:
            if not error.retryable:
                raise
            continue  # who leads next is asked by the node that is asked last
        if deliveries := _decoded(path, answer):
            return AsyncDeliveryBatch(settler, topic, group, deliveries)
    answer = await http.request(
        "POST",
        path,
        options.body(),
        accept=routes.FRAMES,
        repeatable=True,
        wait_ms=options.wait_ms,
        extra=options.headers,
    )
    return AsyncDeliveryBatch(settler, topic, group, _decoded(path, answer))


def _decoded(path: str, answer: Answer) -> list[PartitionDelivery]:
    try:
        return wire.decode_deliveries(answer.body)
    except (*UNREADABLE, InvalidFrame) as error:
        raise unreadable(path, error) from None


_SILENCE_MS_MAX: Final = 2 * limits.HEARTBEAT_MS
_STREAM_ID: Final = "goq-stream"


class DeliveryStream:
    """The streams of a topic, one after the other, with the credit of the present one.

    ``in_flight`` counts the messages that came, less those that this client settled. The node's
    count is exact, as leases also expire; :meth:`more` takes it over. ``window`` is how many
    messages the stream may bring ahead of the caller; a stream that ``is_paused`` brings none.

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
        self.in_flight = 0
        self.window = 0
        self.is_paused = False
        self.is_arriving = False
        """Whether messages were counted that are not in the buffer yet."""
        self._http = http
        self._options = options
        self._credit = 0
        self._limit: int | None = None
        self._arrived = 0
        self._arrived_at_grant = 0
        self._stream: StreamedResponse | None = None

    async def open(self, window: int, limit: int | None) -> None:
        """Open a stream that ends after ``limit`` messages, or never with None."""
        self.in_flight = self._arrived = self._arrived_at_grant = 0
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
                        self.in_flight += count
                        self.partitions.update(delivery.partition for delivery in deliveries)
                        yield deliveries
                        self.is_arriving = False
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
            self.in_flight = max(0, self.in_flight - count)

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
                answer = await stream.ask("PATCH", self._path(stream), asked)
                account = read_answer(StreamAnswer, answer)
                self._credit, self.in_flight = account.max_in_flight, account.in_flight

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
