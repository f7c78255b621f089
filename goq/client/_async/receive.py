"""Receiving: one request, and what it hands over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import msgspec

from goq import limits
from goq.client._async.http import Http
from goq.client._async.settlement import (
    AsyncReceivedMessage,
    Settler,
    extend_details,
    nack_details,
)
from goq.client.arguments import Duration
from goq.client.errors import Answer, unreadable
from goq.client.lanes import delivery_fields
from goq.client.messages import Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.frames import Delivery
from goq.errors import GoqError, InvalidFrame
from goq.units import format_duration_ms

OWN_ALONE: Final = (b"Goq-Local", b"true")
"""Asks a node of a cluster for what it leads alone, as the others are asked, too."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """What to ask a group for."""

    max: int
    wait_ms: int
    visibility_ms: int | None
    consumer: str | None

    def body(self) -> bytes:
        """Return the request's body."""
        return self._body({"wait": format_duration_ms(self.wait_ms)})

    def stream_body(self, limit: int | None) -> bytes:
        """Return the body that asks for a stream, of ``limit`` messages in all."""
        return self._body({"stream": True} if limit is None else {"stream": True, "limit": limit})

    def _body(self, asked: dict[str, object]) -> bytes:
        asked["max"] = min(self.max, limits.RECEIVE_MESSAGES_MAX)
        if self.visibility_ms is not None:
            asked["visibility"] = format_duration_ms(self.visibility_ms)
        if self.consumer is not None:
            asked["consumer"] = self.consumer
        return msgspec.json.encode(asked)


class AsyncDeliveryBatch:
    """What one receive handed over, unsplit: settling it costs a receipt a range."""

    def __init__(
        self, settler: Settler, topic: str, group: str, deliveries: Sequence[Delivery]
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
    for server in http.places.leaders_in_turn(topic):
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


def _decoded(path: str, answer: Answer) -> list[Delivery]:
    try:
        return wire.decode_deliveries(answer.body)
    except (msgspec.DecodeError, InvalidFrame) as error:
        raise unreadable(path, error) from None
