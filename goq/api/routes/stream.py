"""Streaming receive: messages as they become ready, in one answer that does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from goq import limits
from goq.api.codec.frames import deliveries_parts, frames_parts, lanes_of
from goq.api.codec.long_value import LongValue, message_parts
from goq.api.codec.messages import delivery_json, json_response
from goq.api.codec.receive_request import granted
from goq.api.codec.request import json_body
from goq.api.needs import CONSUME
from goq.api.route import FRAMES, NDJSON, Route
from goq.api.routing_policy import ALIVE, STREAM_ID, UNBUFFERED, CustomRouting
from goq.api.schemas.groups import StreamGrant, StreamOut
from goq.broker.broker import Broker
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.push_streams import PushStream
from goq.broker.topic.topic import Topic
from goq.http.message import BytesLike, Item, LiveStream, Request, Response

_PIECE_BYTES: Final = 64 * limits.KIB
_STREAM = "/v1/topics/{topic}/groups/{group}/streams/{stream}"


class StreamRoutes:
    """Opens streams, grants them messages, ends them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        errors = ("stream_not_found",)
        return [
            Route(
                "PATCH",
                _STREAM,
                self.grant,
                "Let a stream hand over more",
                StreamGrant,
                StreamOut,
                errors=errors,
                routing=CustomRouting.STREAM,
                needs=CONSUME,
            ),
            Route(
                "DELETE",
                _STREAM,
                self.end,
                "End a stream and keep what it handed over",
                status=204,
                errors=errors,
                routing=CustomRouting.STREAM,
                needs=CONSUME,
            ),
        ]

    def answer(self, stream: PushStream, *, frames: bool) -> Response:
        """Open a stream and return the streaming answer, which closes it.

        Raises as :meth:`PushStreams.open` does.
        """
        streams = self._broker.streams
        streams.open(stream)

        async def close() -> None:
            streams.close(stream)

        if frames:
            heartbeat = b"".join(_framed(_no_deliveries(stream.topic)))
            live = LiveStream(self._frames(stream), heartbeat, close)
        else:
            live = LiveStream(self._lines(stream), b"\n", close)
        headers = {STREAM_ID: stream.id, UNBUFFERED: "no"}
        return Response(200, live, FRAMES if frames else NDJSON, headers)

    async def grant(self, request: Request, topic: str, group: str, stream_id: str) -> Response:
        """Grant a stream messages beyond those in flight, or note that its consumer lives."""
        more, maximum = granted(json_body(request, StreamGrant))
        stream = self._broker.streams.find(topic, group, stream_id)
        if ALIVE in request.headers:
            stream.topic.settler.on_grant(stream.account)
        else:
            stream.grant(more, maximum)
        account = stream.account
        return json_response(StreamOut(stream.id, account.credit, account.in_flight))

    async def end(self, _request: Request, topic: str, group: str, stream_id: str) -> Response:
        """End a stream; its consumer keeps its leases."""
        self._broker.streams.find(topic, group, stream_id).end()
        return Response(204)

    async def _frames(self, stream: PushStream) -> AsyncGenerator[Item, None]:
        while deliveries := await stream.next():
            now_ms = self._broker.clock.wall_ms()
            yield _framed(await deliveries_parts(stream.topic, deliveries, now_ms))

    async def _lines(self, stream: PushStream) -> AsyncGenerator[Item, None]:
        while deliveries := await stream.next():
            for delivery in deliveries:
                for piece in _pieces(stream.topic, delivery):
                    if piece:
                        yield piece
                    await asyncio.sleep(0)  # there may be megabytes: yield to other requests


def _no_deliveries(topic: Topic) -> list[BytesLike]:
    return frames_parts({"deliveries": [], "lanes": lanes_of(topic)}, [])


def _framed(parts: list[BytesLike]) -> list[BytesLike]:
    size = sum(len(part) for part in parts)
    return [size.to_bytes(4, "little"), *parts]


def _pieces(topic: Topic, delivery: LeasedBatch) -> Iterator[Item]:
    """Yield messages, one a line, in pieces; empty ones while a long value is encoded."""
    lines: list[bytes] = []
    size_bytes = 0
    for out in delivery_json(topic, delivery):
        long_value = LongValue.of(out)
        if long_value is not None:
            yield from (b"" for _ in long_value.steps())
        parts = message_parts(out)
        lines += (*parts, b"\n")
        size_bytes += sum(map(len, parts))
        if size_bytes >= _PIECE_BYTES:
            yield lines if long_value is not None else b"".join(lines)
            lines, size_bytes = [], 0
    if lines:
        yield b"".join(lines)
