"""The route of receive: messages that are ready, or the first ones that come while it waits.

A receive that finds messages is answered without a task where nothing else must be waited for: its
answer depends on the disk alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from goq import limits
from goq.api.codec.frames import deliveries_parts
from goq.api.codec.messages import encode_deliveries, json_response
from goq.api.codec.negotiation import wants_frames
from goq.api.codec.receive_request import (
    SESSION_ID,
    asks_for_stream,
    parse_session_id,
    receive_options,
    stream_credit,
    visibility_ms,
)
from goq.api.codec.request import (
    CLIENT_ID,
    duration_ms,
    json_body,
    parse_client_id,
    query_int,
)
from goq.api.needs import CONSUME
from goq.api.route import FRAMES, JSON, Parameter, Route
from goq.api.routes.stream import StreamRoutes
from goq.api.routing_policy import (
    BYTES_MAX,
    HOLDER,
    MERGED_STREAM,
    OFFLINE,
    READY,
    REOPENED,
    REST,
    CustomRouting,
)
from goq.api.schemas.groups import ReadyOut, Receive, ReceivedOut
from goq.api.values import DURATION, integer
from goq.api.views.principal_usage import PrincipalUsage
from goq.broker.broker import Broker
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.push_streams import PushStream, PushStreamOptions
from goq.broker.topic.topic import Topic
from goq.errors import GroupNotFound, PartitionOffline
from goq.http.message import LOCAL, Request, Response

_GROUP = "/v1/topics/{topic}/groups/{group}"
_REASON_BYTES = 2_000


class ReceiveRoutes:
    """Receive of groups, as one answer or as a stream."""

    def __init__(self, broker: Broker, usage: PrincipalUsage) -> None:
        self._broker = broker
        self._usage = usage
        self._streams = StreamRoutes(broker)

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                f"{_GROUP}/receive",
                self.receive,
                "Lease messages to a consumer",
                body=Receive,
                answer=ReceivedOut,
                headers=(
                    Parameter(CLIENT_ID, "the consumer, where the body names none"),
                    Parameter(SESSION_ID, "the loop, where several have one consumer's name"),
                ),
                errors=(
                    "topic_not_found",
                    "too_many_requests",
                    "partition_offline",
                    "node_full",
                ),
                gives_frames=True,
                gives_lines=True,
                waits=True,
                at_once=self.receive_at_once,
                routing=CustomRouting.RECEIVE,
                needs=CONSUME,
            ),
            *self._streams.routes(),
        ]

    def internal_routes(self) -> list[Route]:
        """Return the declarations of routes that only other nodes call."""
        return [
            Route(
                "GET",
                f"/internal{_GROUP}/ready",
                self.ready,
                "Wait until there may be something to receive from this node itself",
                answer=ReadyOut,
                parameters=(
                    Parameter("seen", "the count to wait for a change of", integer(), True),
                    Parameter("wait", "hold the answer so long", DURATION),
                    Parameter("consumer", "who would receive"),
                ),
                errors=("topic_not_found", "group_not_found"),
                waits=True,
                needs=CONSUME,
            ),
        ]

    async def receive(self, request: Request, name: str, group: str) -> Response:
        """Lease messages; wait for them as long as asked."""
        asked = _asked(request)
        topic = self._broker.topic(name)
        if asks_for_stream(request, asked):
            return await self._stream(request, topic, group, asked)
        options = receive_options(request, asked)
        if request.principal is not None and request.principal.quotas:
            options = replace(options, room=self._usage.in_flight_room(request.principal))
        headers = {}
        is_local = LOCAL in request.headers
        if is_local:
            holder_id = request.headers.get(HOLDER, "")
            options = replace(options, bytes_max=_bytes_max(request), holder_id=holder_id)
            headers[READY] = str(topic.receiver.ready_count(group))
        try:
            deliveries = await topic.receiver.receive(group, options)
        except PartitionOffline as error:
            if not is_local:
                raise
            deliveries, headers[OFFLINE] = [], quote(error.detail)[:_REASON_BYTES]
        return await self._answer(
            request,
            topic,
            group,
            deliveries,
            options.bytes_max,
            headers,
            is_rest=is_local and REST in request.headers,
        )

    def receive_at_once(
        self, request: Request, name: str, group: str
    ) -> Coroutine[Any, Any, Response] | None:
        """Lease messages that are ready and in memory; None if the receive may have to wait."""
        topic = self._broker.topics.get(name)
        if topic is None or group not in topic.groups:
            return None
        asked = _asked(request)
        if asks_for_stream(request, asked):
            return None
        options = receive_options(request, asked)
        if request.principal is not None and request.principal.quotas:
            options = replace(options, room=self._usage.in_flight_room(request.principal))
        receiving = topic.receiver.receive_at_once(group, options)
        if receiving is None:
            return None
        return self._received(request, topic, group, receiving, options.bytes_max)

    async def _received(
        self,
        request: Request,
        topic: Topic,
        group: str,
        receiving: Awaitable[Sequence[LeasedBatch]],
        bytes_max: int,
    ) -> Response:
        return await self._answer(request, topic, group, await receiving, bytes_max, {})

    async def _answer(
        self,
        request: Request,
        topic: Topic,
        group: str,
        deliveries: Sequence[LeasedBatch],
        bytes_max: int,
        headers: dict[str, str],
        *,
        is_rest: bool = False,
    ) -> Response:
        leased = deliveries
        unsent: Sequence[LeasedBatch] = ()
        try:
            if wants_frames(request):
                if is_rest:
                    deliveries, unsent = _within(deliveries, bytes_max)
                parts = await deliveries_parts(topic, deliveries, self._broker.clock.wall_ms())
                answer = Response(200, parts, FRAMES, headers)
            else:
                body, unsent = await encode_deliveries(
                    topic, deliveries, bytes_max, is_rest=is_rest
                )
                answer = Response(200, body, JSON, headers)
        except BaseException:  # the client is gone
            topic.receiver.release(group, leased)
            raise
        if unsent:
            topic.receiver.release(group, unsent)
        answer.on_refused = partial(topic.receiver.release, group, leased)
        return answer

    async def ready(self, request: Request, name: str, group: str) -> Response:
        """Answer when this node may have messages for the group."""
        topic, query = known_group(self._broker, name, group), request.query
        wait_ms = duration_ms(query.get("wait", "0"), "wait", limits.WAIT_MS_MAX)
        seen, consumer = query_int(request, "seen", -1, minimum=0), query.get("consumer", "")
        session_id = parse_session_id(request)
        count = await topic.receiver.wait_until_ready(group, consumer, session_id, seen, wait_ms)
        return json_response(ReadyOut(count))

    async def _stream(self, request: Request, topic: Topic, group: str, asked: Receive) -> Response:
        credit = stream_credit(asked)
        chosen_ms = visibility_ms(asked.visibility)
        self._broker.streams.check_room(topic, group)
        topic.partitions.check_any_online()
        await self._broker.group_admin.remember(topic, group)
        room = self._usage.in_flight_room(request.principal)
        options = PushStreamOptions(
            asked.consumer,
            credit,
            asked.limit,
            chosen_ms,
            parse_session_id(request),
            room,
            request.headers.get(MERGED_STREAM, ""),
            REOPENED in request.headers,
        )
        return self._streams.answer(PushStream(topic, group, options), frames=wants_frames(request))


def _asked(request: Request) -> Receive:
    asked = json_body(request, Receive)
    asked.consumer = asked.consumer or parse_client_id(request) or ""
    return asked


def _within(
    deliveries: Sequence[LeasedBatch], bytes_max: int
) -> tuple[Sequence[LeasedBatch], Sequence[LeasedBatch]]:
    """Return the first deliveries that fit a size, and the others."""
    count = 0
    for delivery in deliveries:
        bytes_max -= delivery.size_bytes
        if bytes_max < 0:
            break
        count += 1
    return deliveries[:count], deliveries[count:]


def known_group(broker: Broker, name: str, group: str) -> Topic:
    """Return the topic of a group that exists.

    Raises ``TopicNotFound`` and ``GroupNotFound``.
    """
    topic = broker.topic(name)
    if group not in topic.groups:
        raise GroupNotFound(
            f"topic {name} has no group {group[:200]!r}; a group begins with its first receive",
            field="group",
        )
    return topic


def _bytes_max(request: Request) -> int:
    """Return the maximum size of an answer that another node merges with others."""
    text = request.headers.get(BYTES_MAX, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return min(int(text), limits.RECEIVE_BYTES_MAX) if is_number else limits.RECEIVE_BYTES_MAX
