"""Routes of groups: settle, progress, settings, reset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from goq import limits
from goq.access.rule import Verb
from goq.api.codec.messages import encode_json, json_response
from goq.api.codec.receive_request import visibility_ms
from goq.api.codec.request import (
    KEYS_BYTES_MAX,
    SETTINGS_BODY_BYTES_MAX,
    duration_ms,
    flatten_settings,
    json_body,
    parse_receipts,
    query_int,
)
from goq.api.needs import (
    CONSUME,
    DESCRIBE_GROUP,
    MANAGE_GROUP,
    SEE,
    End,
    TopicVerbs,
    check_ends,
    dead_letters_of_path,
    group_of_path,
    principal_of,
)
from goq.api.route import Parameter, Route, RouteHandler
from goq.api.routes.receive import known_group
from goq.api.routing_policy import (
    DONE,
    CustomRouting,
    LocalThenMerged,
    ToAllLeaders,
    decode_partitions,
)
from goq.api.schemas.groups import (
    Extend,
    FailedOut,
    GroupOut,
    GroupReset,
    GroupSettings,
    GroupsOut,
    Nack,
    Reject,
    ResetOut,
    Settle,
    SettledOut,
)
from goq.api.schemas.messages import MessagesOut
from goq.api.values import MESSAGE_ID, TIME, integer, one_of
from goq.api.views.group import GroupProgressView, latest_time_us, reset_target
from goq.api.views.group_at_time import GroupAtTimeView
from goq.api.views.merge import merge_group, merge_groups, merge_partitions
from goq.api.views.merge_pages import merge_by_offset
from goq.api.views.peek import Peek, state_of
from goq.broker.broker import Broker
from goq.broker.dlq.place import DeadLetterPlace, dead_letter_place
from goq.broker.topic.settler import UnsettledReceipt
from goq.clock import TimeSlice
from goq.delivery.events.transitions import MessageState
from goq.errors import TooLarge, raise_failures
from goq.http.message import LOCAL, Request, Response
from goq.model import check_name

_GROUP = "/v1/topics/{topic}/groups/{group}"
_PEEKED = 10
_merge_peeked = merge_by_offset(_PEEKED)
_MISSING = ("topic_not_found", "group_not_found")


def _peeked(request: Request, values: Sequence[str]) -> list[End]:
    """Return what a peek concerns: the group, for dead ones also the topic that they are in."""
    ends = [*group_of_path(request, values)]
    if _is_dead(request):
        _origin, dead = dead_letters_of_path(request, values)
        ends.append(dead)
    return ends


PEEK: Final = TopicVerbs((Verb.READ,), _peeked)


class GroupRoutes:
    """Settle, describe and reset of groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._views = GroupProgressView(broker.clock)
        self._past = GroupAtTimeView(broker.clock, broker.archive)
        self._peek = Peek(broker)

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
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
                routing=ToAllLeaders(merge_groups, needs_all=True),
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
                routing=ToAllLeaders(merge_group, needs_all=True),
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
                routing=ToAllLeaders(_merge_peeked, self._peeked_topic, needs_all=True),
                needs=PEEK,
            ),
        ]

    async def ack(self, request: Request, name: str, group: str) -> Response:
        """Acknowledge leased messages."""
        receipts = await parse_receipts(
            json_body(request, Settle, keys_bytes_max=KEYS_BYTES_MAX).receipts,
            limits.RECEIPTS_PER_REQUEST_MAX,
        )
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.acknowledge(group, receipts))

    async def nack(self, request: Request, name: str, group: str) -> Response:
        """Return leased messages for a retry after a delay."""
        asked = json_body(request, Nack, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = await parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        reason = _reason(asked.reason)
        delay_ms = None
        if asked.delay is not None:
            delay_ms = duration_ms(asked.delay, "delay", limits.NACK_DELAY_MS_MAX)
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.nack(group, receipts, delay_ms, reason))

    async def reject(self, request: Request, name: str, group: str) -> Response:
        """Reject leased messages; they become dead letters at once."""
        asked = json_body(request, Reject, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = await parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        reason = _reason(asked.reason)
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.reject(group, receipts, reason))

    async def release(self, request: Request, name: str, group: str) -> Response:
        """Return leased messages without counting an attempt."""
        receipts = await parse_receipts(
            json_body(request, Settle, keys_bytes_max=KEYS_BYTES_MAX).receipts,
            limits.RECEIPTS_PER_REQUEST_MAX,
        )
        topic = self._broker.topic(name)
        return _settled(*await topic.settler.release(group, receipts))

    async def extend(self, request: Request, name: str, group: str) -> Response:
        """Extend leases."""
        asked = json_body(request, Extend, keys_bytes_max=KEYS_BYTES_MAX)
        receipts = await parse_receipts(asked.receipts, limits.RECEIPTS_PER_REQUEST_MAX)
        topic = self._broker.topic(name)
        new_ms = visibility_ms(asked.visibility) or topic.settings_of(group).visibility_timeout_ms
        deadline_ms = self._broker.clock.wall_ms() + new_ms
        return _settled(*await topic.settler.extend(group, receipts, deadline_ms))

    async def list(self, request: Request, name: str) -> Response:
        """List the groups of a topic by name, those that the sender may know of."""
        topic = self._broker.topic(name)
        sees = partial(principal_of(request).sees_group, name)
        parts, time_slice = [b'{"groups":['], TimeSlice()
        for group in filter(sees, sorted(topic.groups)):  # encoded singly: there may be 10,000
            comma = b"," * (len(parts) > 1)
            parts.append(comma + encode_json(await self._views.group(topic, group)))
            if time_slice.is_over:
                await time_slice.next()
        parts.append(b"]}")
        return Response(200, b"".join(parts), "application/json")

    async def show(self, request: Request, name: str, group: str) -> Response:
        """Show a group now or at an earlier time; the latter knows groups deleted since."""
        as_of = request.query.get("as_of")
        if as_of is not None:
            topic = self._broker.topic(name)
            is_part = LOCAL in request.headers
            name = check_name(group, "group")
            return json_response(await self._past.group(topic, name, as_of, is_part=is_part))
        topic = known_group(self._broker, name, group)
        return json_response(await self._views.group(topic, group))

    async def configure(self, request: Request, name: str, group: str) -> Response:
        """Set the settings of a group; a new group is created with them."""
        asked = json_body(request, GroupSettings, bytes_max=SETTINGS_BODY_BYTES_MAX)
        topic = self._broker.topic(name)
        await self._broker.group_admin.configure(topic, group, flatten_settings(asked.settings))
        return json_response(await self._views.group(topic, group))

    async def delete(self, request: Request, name: str, group: str) -> Response:
        """Delete a group and its progress; for another node, only its progress here."""
        if LOCAL in request.headers:
            partitions = self._broker.topic(name).partitions
            deleting = (partition.delete_group(group) for partition in partitions)
            raise_failures(await asyncio.gather(*deleting, return_exceptions=True))
            return Response(204)
        await self._broker.group_admin.delete(known_group(self._broker, name, group), group)
        return Response(204)

    async def reset(self, request: Request, name: str, group: str) -> Response:
        """Move a group to another position, perhaps with an end; a new group may begin there."""
        asked = json_body(request, GroupReset)
        topic = self._broker.topic(name)
        check_name(group, "group")
        one = asked.partition
        if one is None:
            done = decode_partitions(request.headers.get(DONE, "0"))
            chosen = [p for p in topic.partitions.here() if p.identity.number not in done]
        else:
            chosen = [topic.partitions[one]]
        now_us = self._broker.clock.wall_us()
        until_us = latest_time_us(asked.to, asked.end, now_us)
        waits = [partition.wait_for_times_before(until_us) for partition in chosen]
        raise_failures(await asyncio.gather(*waits, return_exceptions=True))
        targets = [(p, reset_target(p, asked.to, asked.end, now_us)) for p in chosen]
        plan = [self._views.reset(partition, group, target) for partition, target in targets]
        if not asked.dry_run:
            await self._broker.group_admin.remember(topic, group)
            resets = (partition.reset(group, *target) for partition, target in targets)
            raise_failures(await asyncio.gather(*resets, return_exceptions=True))
        return json_response(ResetOut(group, asked.dry_run, plan))

    async def peek(self, request: Request, name: str, group: str) -> Response:
        """Show a group's messages in one state."""
        topic = known_group(self._broker, name, group)
        limit = query_int(request, "limit", _PEEKED, minimum=1, maximum=limits.READ_MESSAGES_MAX)
        state, after = state_of(request.query.get("state", "ready")), request.query.get("after")
        if state is not MessageState.DEAD:
            return await self._peek.page(topic, group, state, limit, after)
        place = self._dead_letter_place(name)
        # The router has checked the sender for the topic's own dead-letter topic only.
        check_ends(principal_of(request), PEEK.verbs, [(place.dead, None)])
        return await self._peek.dead_letters(place, group, limit, after)

    def _peeked_topic(self, request: Request, values: Sequence[str]) -> str | None:
        """Return the topic that has the messages of a peek: dead ones are in another."""
        return self._dead_letter_place(values[0]).dead if _is_dead(request) else values[0]

    def _dead_letter_place(self, name: str) -> DeadLetterPlace:
        return dead_letter_place(name, self._broker.topics, self._broker.start_queue.rows)


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


def _is_dead(request: Request) -> bool:
    return request.query.get("state") == MessageState.DEAD


def _partition_of(request: Request) -> int | None:
    return json_body(request, GroupReset).partition


def _settled(done: int, failed: Sequence[UnsettledReceipt]) -> Response:
    return json_response(SettledOut(done, [FailedOut(str(r), code) for r, code in failed]))


def _reason(reason: str) -> str:
    if len(reason) > limits.REASON_CHARS_MAX:
        raise TooLarge(f"a reason has at most {limits.REASON_CHARS_MAX} characters", field="reason")
    return reason
