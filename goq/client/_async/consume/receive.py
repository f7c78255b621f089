"""One receive request and its batch.

A receive asks each leader of a topic's partitions for the messages that it leads itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import msgspec

from goq import limits
from goq.client._async.consume.received_message import AsyncReceivedMessage
from goq.client._async.consume.settlement import Settler, extend_details, nack_details
from goq.client._async.http import Http
from goq.client.arguments import Duration
from goq.client.delivery_options import delivery_fields, lanes_of
from goq.client.errors import UNREADABLE, Answer, unreadable
from goq.client.leases.message_buffer import NO_LEASE, LeaseTime
from goq.client.messages import Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.frames import PartitionDelivery
from goq.client.protocol.request_builder import session_header
from goq.errors import GoqError, InvalidFrame
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
            continue  # the node that is asked last asks the next leader
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
