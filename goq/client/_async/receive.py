"""Receiving: one request, and what it hands over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import msgspec

from goq import limits
from goq.client._async.http import Http, StreamedResponse
from goq.client._async.settlement import (
    AsyncReceivedMessage,
    Settler,
    extend_details,
    nack_details,
)
from goq.client.arguments import Duration
from goq.client.cluster_map import VERSION_HEADER
from goq.client.delivery_options import delivery_fields
from goq.client.errors import Answer, unreadable
from goq.client.messages import Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.frames import PartitionDelivery
from goq.errors import GoqError, InvalidFrame, Unavailable
from goq.http.client.http1 import ANSWER_BYTES_MAX
from goq.units import format_duration_ms

OWN_ALONE: Final = (b"Goq-Local", b"true")
"""Asks a node of a cluster for what it leads alone, as the others are asked, too."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """What to ask a group for."""

    max_messages: int
    wait_ms: int
    visibility_ms: int | None
    consumer: str | None

    def body(self) -> bytes:
        """Return the request's body."""
        wait = format_duration_ms(self.wait_ms)
        return self._body({"wait": wait, "max_messages": self.credit})

    def stream_body(self, limit: int | None) -> bytes:
        """Return the body that asks for a stream, of ``limit`` messages in all."""
        asked: dict[str, object] = {"stream": True, "max_in_flight": self.credit}
        return self._body(asked if limit is None else asked | {"limit": limit})

    @property
    def credit(self) -> int:
        """How many messages one request may ask for."""
        return min(self.max_messages, limits.RECEIVE_MESSAGES_MAX)

    def _body(self, asked: dict[str, object]) -> bytes:
        if self.visibility_ms is not None:
            asked["visibility"] = format_duration_ms(self.visibility_ms)
        if self.consumer is not None:
            asked["consumer"] = self.consumer
        return msgspec.json.encode(asked)


class AsyncDeliveryBatch:
    """What one receive handed over, unsplit: settling it costs a receipt a range."""

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
            for frame, start, end, attempt, offset in delivery.pieces():
                yield from map(
                    AsyncReceivedMessage,
                    repeat(self.topic, end - start),
                    repeat(delivery.partition),
                    range(offset, offset + end - start),
                    repeat(frame.header.append_time_us),
                    frame.values(start, end),
                    frame.keys(start, end),
                    frame.headers(start, end),
                    *delivery_fields(frame, start, end, delivery.lanes),
                    repeat(self.group),
                    repeat(attempt),
                    repeat(delivery.token),
                    repeat(delivery.lease_until),
                    repeat(self._settler),
                )

    async def ack(self) -> Settled:
        """Mark all messages as done."""
        return await self._settle("ack")

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> Settled:
        """Give all messages back."""
        return await self._settle("nack", **nack_details(delay, reason))

    async def extend(self, visibility: Duration | None = None) -> Settled:
        """Keep all messages for longer."""
        return await self._settle("extend", **extend_details(visibility))

    async def _settle(self, verb: str, **details: object) -> Settled:
        return await self._settler.settle(verb, self.topic, self.group, self.receipts(), **details)


async def receive(
    http: Http, settler: Settler, topic: str, group: str, options: ReceiveOptions
) -> AsyncDeliveryBatch:
    """Ask a group for messages: of several nodes each for its own, then any for those of all.

    Repeated when its answer is lost: what the lost one handed over comes again after its
    visibility timeout.
    """
    path = f"{routes.group(topic, group)}/receive"
    body = replace(options, wait_ms=0).body()
    await http.find_leaders(topic)
    for server in http.cluster_map.leaders_in_turn(topic):
        try:
            answer = await http.request_at(
                server, path, body, accept=routes.FRAMES, extra=[OWN_ALONE]
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
    )
    return AsyncDeliveryBatch(settler, topic, group, _decoded(path, answer))


def _decoded(path: str, answer: Answer) -> list[PartitionDelivery]:
    try:
        return wire.decode_deliveries(answer.body)
    except (msgspec.DecodeError, InvalidFrame) as error:
        raise unreadable(path, error) from None


_SILENCE_MS_MAX: Final = 2 * limits.HEARTBEAT_MS
_STREAM_ID: Final = "goq-stream"


class DeliveryStream:
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
        self._stream: StreamedResponse | None = None

    async def open(self, limit: int | None) -> None:
        """Begin a stream, of ``limit`` messages in all."""
        self.in_flight = self._arrived = self._arrived_at_grant = 0
        self._credit = self._options.credit
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

    async def deliveries(self) -> AsyncIterator[list[PartitionDelivery]]:
        """Yield what comes; raise when the stream ends, in whatever way."""
        assert self._stream is not None
        answers = wire.StreamSplitter(ANSWER_BYTES_MAX)
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
        asked = {"more": self._options.credit}
        with contextlib.suppress(GoqError):  # the stream has ended: there will be another
            stream = self._stream
            if stream is not None:
                answer = await stream.ask("PATCH", self._path(stream), asked)
                self._credit, self.in_flight = answer["max_in_flight"], answer["in_flight"]

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

    def _path(self, stream: StreamedResponse) -> str:
        return routes.stream(self.topic, self.group, stream.headers.get(_STREAM_ID, ""))
