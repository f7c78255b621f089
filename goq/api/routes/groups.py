"""Routes of groups: receive, settle, progress, settings, reset."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from goq import limits
from goq.api.codec.messages import deliveries_parts, encode_deliveries, json_response
from goq.api.codec.request import (
    CLIENT_ID,
    KEYS_BYTES_MAX,
    SESSION_ID,
    SETTINGS_BODY_BYTES_MAX,
    duration_ms,
    flatten_settings,
    json_body,
    parse_client_id,
    parse_receipts,
    parse_session_id,
    query_int,
    receive_options,
    stream_credit,
    visibility_ms,
    wants_frames,
)
from goq.api.needs import CONSUME, DESCRIBE_GROUP, MANAGE_GROUP, READ_GROUP, SEE, principal_of
from goq.api.router import FRAMES, JSON, NDJSON, Parameter, Route, RouteHandler
from goq.api.routes.stream import StreamRoutes
from goq.api.routing_policy import (
    BYTES_MAX,
    OFFLINE,
    READY,
    CustomRouting,
    LocalThenMerged,
    ToAllLeaders,
)
from goq.api.schemas.groups import (
    Extend,
    FailedOut,
    GroupOut,
    GroupReset,
    GroupSettings,
    GroupsOut,
    Nack,
    ReadyOut,
    Receive,
    ReceivedOut,
    Reject,
    ResetOut,
    Settle,
    SettledOut,
)
from goq.api.schemas.messages import MessagesOut
from goq.api.values import DURATION, MESSAGE_ID, TIME, integer, one_of
from goq.api.views.group import GroupProgressView, reset_target
from goq.api.views.group_at_time import GroupAtTimeView
from goq.api.views.merge import merge_group, merge_groups, merge_partitions
from goq.api.views.merge_pages import merge_by_offset
from goq.api.views.peek import Peek, state_of
from goq.broker.broker import Broker
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.push_streams import PushStream, PushStreamOptions
from goq.broker.topic.settler import UnsettledReceipt
from goq.broker.topic.topic import Topic
from goq.delivery.events.event import Span
from goq.delivery.events.transitions import MessageState
from goq.errors import GoqError, GroupNotFound, PartitionOffline, TooLarge, raise_failures
from goq.http.message import LOCAL, Request, Response
from goq.model import check_name

_GROUP = "/v1/topics/{topic}/groups/{group}"
_PEEKED = 10
_REASON_BYTES = 2_000
_merge_peeked = merge_by_offset(_PEEKED)
_MISSING = ("topic_not_found", "group_not_found")


class GroupRoutes:
    """Receive, settle, describe and reset of groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._views = GroupProgressView(broker.clock)
        self._past = GroupAtTimeView(broker.clock, broker.archive)
        self._peek = Peek(broker)
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
                routing=CustomRouting.RECEIVE,
                needs=CONSUME,
            ),
            *self._streams.routes(),
            _settling("ack", self.ack, "Mark as done", Settle),
            _settling("nack", self.nack, "Give back", Nack),
            _settling("reject", self.reject, "Give up", Reject),
            _settling("release", self.release, "Give back what was not begun", Settle),
            _settling("extend", self.extend, "Keep longer", Extend),
            Route(
                "GET",
                "/v1/topics/{topic}/groups",
                self.list,
                "List the groups of a topic",
                answer=GroupsOut,
                errors=("topic_not_found",),
                routing=ToAllLeaders(merge_groups),
                needs=SEE,
            ),
            Route(
                "GET",
                _GROUP,
                self.show,
                "Show a group",
                answer=GroupOut,
                parameters=(Parameter("as_of", "as it was at this time", TIME),),
                errors=(*_MISSING, "history_not_retained"),
                routing=ToAllLeaders(merge_group),
                needs=DESCRIBE_GROUP,
            ),
            Route(
                "PUT",
                _GROUP,
                self.configure,
                "Give a group settings of its own",
                body=GroupSettings,
                is_body_audited=True,
                answer=GroupOut,
                errors=("topic_not_found", "node_full"),
                routing=LocalThenMerged(merge_group),
                needs=MANAGE_GROUP,
            ),
            Route(
                "DELETE",
                _GROUP,
                self.delete,
                "Delete a group",
                status=204,
                errors=_MISSING,
                routing=CustomRouting.DELETE_GROUP,
                needs=MANAGE_GROUP,
            ),
            Route(
                "POST",
                f"{_GROUP}/reset",
                self.reset,
                "Let a group go on from another place",
                body=GroupReset,
                answer=ResetOut,
                errors=_MISSING,
                routing=ToAllLeaders(merge_partitions, needs_all=True, partition_of=_partition_of),
                needs=CONSUME,
            ),
            Route(
                "GET",
                f"{_GROUP}/peek",
                self.peek,
                "Look at messages without touching them",
                answer=MessagesOut,
                parameters=(
                    Parameter("state", "their state; default ready", one_of(MessageState)),
                    Parameter(
                        "limit",
                        "at most so many messages",
                        integer(1, limits.READ_MESSAGES_MAX, _PEEKED),
                    ),
                    Parameter("after", "go on behind this message id", MESSAGE_ID),
                ),
                errors=_MISSING,
                routing=ToAllLeaders(_merge_peeked),
                needs=READ_GROUP,
            ),
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
                errors=_MISSING,
                waits=True,
                needs=CONSUME,
            ),
        ]

    async def receive(self, request: Request, name: str, group: str) -> Response:
        """Lease messages; wait for them as long as asked."""
        asked = json_body(request, Receive)
        asked.consumer = asked.consumer or parse_client_id(request) or ""
        topic = self._broker.topic(name)
        accept = request.headers.get("accept", "")
        if asked.stream or NDJSON in accept:
            return await self._stream(request, topic, group, asked)
        options = receive_options(request, asked)
        headers = {}
        is_local = LOCAL in request.headers
        if is_local:
            options = replace(options, bytes_max=_bytes_max(request))
            headers[READY] = str(topic.receiver.ready_count(group))
        try:
            deliveries = await topic.receiver.receive(group, options)
        except PartitionOffline as error:
            if not is_local:
                raise
            deliveries, headers[OFFLINE] = [], quote(error.detail)[:_REASON_BYTES]
        whole = [(delivery, delivery.spans) for delivery in deliveries]
        unsent: Sequence[tuple[LeasedBatch, Sequence[Span]]] = ()
        try:
            if FRAMES in accept:
                parts = await deliveries_parts(topic, deliveries, self._broker.clock.wall_ms())
                answer = Response(200, parts, FRAMES, headers)
            else:
                body, unsent = await encode_deliveries(topic, deliveries, options.bytes_max)
                answer = Response(200, body, JSON, headers)
        except BaseException:  # the client is gone
            self._release(topic, group, whole)
            raise
        if unsent:
            self._release(topic, group, unsent)
        answer.on_refused = partial(self._release, topic, group, whole)
        return answer

    async def ready(self, request: Request, name: str, group: str) -> Response:
        """Answer when this node may have messages for the group."""
        topic, query = self._known(name, group), request.query
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
        await self._broker.remember_group(topic, group)
        options = PushStreamOptions(
            asked.consumer, credit, asked.limit, chosen_ms, parse_session_id(request)
        )
        return self._streams.answer(PushStream(topic, group, options), frames=wants_frames(request))

    def _release(
        self,
        topic: Topic,
        group: str,
        unsent: Sequence[tuple[LeasedBatch, Sequence[Span]]],
    ) -> None:
        """Release leases whose messages had no room in the answer, without counting an attempt.

        A lease that cannot be released ends by itself.
        """
        for delivery, spans in unsent:
            with contextlib.suppress(GoqError):
                topic.partitions[delivery.partition].leases.undo_receive(
                    group, delivery.token, spans
                )
        topic.receiver.wake()

    async def ack(self, request: Request, name: str, group: str) -> Response:
        """Acknowledge leased messages."""
        receipts = parse_receipts(
            json_body(request, Settle, keys_bytes_max=KEYS_BYTES_MAX).receipts,
            limits.RECEIPTS_PER_REQUEST_MAX,
        )
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.acknowledge(group, receipts))

    async def nack(self, request: Request, name: str, group: str) -> Response:
        """Return leased messages for a retry after a delay."""
        asked = json_body(request, Nack, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        reason = _reason(asked.reason)
        delay_ms = None
        if asked.delay is not None:
            delay_ms = duration_ms(asked.delay, "delay", limits.NACK_DELAY_MS_MAX)
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.nack(group, receipts, delay_ms, reason))

    async def reject(self, request: Request, name: str, group: str) -> Response:
        """Reject leased messages; they become dead letters at once."""
        asked = json_body(request, Reject, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        reason = _reason(asked.reason)
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.reject(group, receipts, reason))

    async def release(self, request: Request, name: str, group: str) -> Response:
        """Return leased messages without counting an attempt."""
        receipts = parse_receipts(
            json_body(request, Settle, keys_bytes_max=KEYS_BYTES_MAX).receipts,
            limits.RECEIPTS_PER_REQUEST_MAX,
        )
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.release(group, receipts))

    async def extend(self, request: Request, name: str, group: str) -> Response:
        """Extend leases."""
        asked = json_body(request, Extend, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        topic = self._broker.topic(name)
        new_ms = visibility_ms(asked.visibility) or topic.settings_of(group).visibility_timeout_ms
        deadline_ms = self._broker.clock.wall_ms() + new_ms
        return _settled(*await topic.settler.extend(group, receipts, deadline_ms))

    async def list(self, request: Request, name: str) -> Response:
        """List the groups of a topic by name, those that the sender may know of."""
        topic = self._broker.topic(name)
        sees = partial(principal_of(request).sees_group, name)
        groups: list[GroupOut] = []
        for group in filter(sees, sorted(topic.groups)):
            groups.append(await self._views.group(topic, group))
            await asyncio.sleep(0)  # there may be thousands of groups: yield to other requests
        return json_response(GroupsOut(groups))

    async def show(self, request: Request, name: str, group: str) -> Response:
        """Show a group now or at an earlier time; the latter knows groups deleted since."""
        as_of = request.query.get("as_of")
        if as_of is not None:
            topic = self._broker.topic(name)
            is_part = LOCAL in request.headers
            name = check_name(group, "group")
            return json_response(await self._past.group(topic, name, as_of, is_part=is_part))
        topic = self._known(name, group)
        return json_response(await self._views.group(topic, group))

    async def configure(self, request: Request, name: str, group: str) -> Response:
        """Set the settings of a group; a new group is created with them."""
        asked = json_body(request, GroupSettings, bytes_max=SETTINGS_BODY_BYTES_MAX)
        topic = self._broker.topic(name)
        await self._broker.configure_group(topic, group, flatten_settings(asked.settings))
        return json_response(await self._views.group(topic, group))

    async def delete(self, request: Request, name: str, group: str) -> Response:
        """Delete a group and its progress; for another node, only its progress here."""
        if LOCAL in request.headers:
            partitions = self._broker.topic(name).partitions
            deleting = (partition.delete_group(group) for partition in partitions)
            raise_failures(await asyncio.gather(*deleting, return_exceptions=True))
            return Response(204)
        await self._broker.delete_group(self._known(name, group), group)
        return Response(204)

    async def reset(self, request: Request, name: str, group: str) -> Response:
        """Move a group to another position, perhaps with an end; a new group may begin there."""
        asked = json_body(request, GroupReset)
        topic = self._broker.topic(name)
        check_name(group, "group")
        one = asked.partition
        if one is None:
            topic.partitions.check_all_open()
        chosen = topic.partitions.here() if one is None else [topic.partitions[one]]
        now_us = self._broker.clock.wall_us()
        targets = [(p, reset_target(p, asked.to, asked.end, now_us)) for p in chosen]
        plan = [self._views.reset(partition, group, target) for partition, target in targets]
        if not asked.dry_run:
            await self._broker.remember_group(topic, group)
            resets = (partition.reset(group, *target) for partition, target in targets)
            raise_failures(await asyncio.gather(*resets, return_exceptions=True))
        return json_response(ResetOut(group, asked.dry_run, plan))

    async def peek(self, request: Request, name: str, group: str) -> Response:
        """Show a group's messages in one state."""
        topic = self._known(name, group)
        limit = query_int(request, "limit", _PEEKED, minimum=1, maximum=limits.READ_MESSAGES_MAX)
        state, after = state_of(request.query.get("state", "ready")), request.query.get("after")
        return json_response(await self._peek.page(topic, group, state, limit, after))

    def _known(self, name: str, group: str) -> Topic:
        topic = self._broker.topic(name)
        if group not in topic.groups:
            raise GroupNotFound(
                f"topic {name} has no group {group[:200]!r}; a group begins with its first receive",
                field="group",
            )
        return topic


def _settling(name: str, handler: RouteHandler, summary: str, body: type[Any]) -> Route:
    path = f"{_GROUP}/{name}"
    return Route(
        "POST",
        path,
        handler,
        summary,
        body,
        SettledOut,
        routing=CustomRouting.SETTLE,
        is_brief=True,
        needs=CONSUME,
    )


def _partition_of(request: Request) -> int | None:
    return json_body(request, GroupReset).partition


def _settled(done: int, failed: Sequence[UnsettledReceipt]) -> Response:
    return json_response(SettledOut(done, [FailedOut(str(r), code) for r, code in failed]))


def _reason(reason: str) -> str:
    if len(reason) > limits.REASON_CHARS_MAX:
        raise TooLarge(f"a reason has at most {limits.REASON_CHARS_MAX} characters", field="reason")
    return reason


def _bytes_max(request: Request) -> int:
    """Return the maximum size of an answer that another node merges with others."""
    text = request.headers.get(BYTES_MAX, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return min(int(text), limits.RECEIVE_BYTES_MAX) if is_number else limits.RECEIVE_BYTES_MAX
