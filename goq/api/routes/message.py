"""Routes of one message: show, change, cancel."""

from __future__ import annotations

import asyncio
from typing import Any

from goq import limits
from goq.api.codec.long_value import encode_long_value, message_parts
from goq.api.codec.messages import is_compacted_away, messages_json, put_current_lane
from goq.api.codec.request import json_body, time_us
from goq.api.needs import MANAGE_MESSAGE, READ_MESSAGE
from goq.api.route import Parameter, Route
from goq.api.routing_policy import ToPartitionLeader, partition_of_message
from goq.api.schemas.messages import GroupStateOut, MessageChange, MessageOut, StatusOut
from goq.api.views.log_read import read_log
from goq.broker.broker import Broker
from goq.broker.group.message_changes import MessageChanges, message_status
from goq.broker.partition.group_view import GroupMessageStatus
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.delivery.events.transitions import MessageState
from goq.errors import CorruptData, InvalidInput, MessageCompacted, MessageNotFound, TooLarge
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.http.message import BytesLike, Request, Response
from goq.model import MessageId, check_not_internal
from goq.storage.log.reader import ReadResult
from goq.units import format_duration_ms, format_time_us

_MESSAGE = "/v1/messages/{id}"
_AVAILABLE = "available"
_GROUPS_AT_ONCE = 100


class SingleMessageRoutes:
    """Show, change and cancel of one message."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                _MESSAGE,
                self.show,
                "Show one message and what it is for each group",
                answer=StatusOut,
                routing=ToPartitionLeader(partition_of_message, needs_session=True),
                errors=("message_not_found", "message_compacted", "corrupt_data"),
                needs=READ_MESSAGE,
            ),
            Route(
                "PATCH",
                _MESSAGE,
                self.change,
                "Change the priority of a message that waits, or when it is delivered",
                body=MessageChange,
                is_body_audited=True,
                answer=StatusOut,
                routing=ToPartitionLeader(partition_of_message, needs_session=True),
                errors=("message_not_found", "message_compacted", "conflict", "too_many_requests"),
                needs=MANAGE_MESSAGE,
            ),
            Route(
                "DELETE",
                _MESSAGE,
                self.cancel,
                "Cancel a message: no group gets it that has not got it yet",
                answer=StatusOut,
                routing=ToPartitionLeader(partition_of_message, needs_session=True),
                parameters=(Parameter("reason", "why, for those who look later"),),
                errors=("message_not_found", "message_compacted", "conflict", "too_many_requests"),
                needs=MANAGE_MESSAGE,
            ),
        ]

    async def show(self, _request: Request, text: str) -> Response:
        """Show one message."""
        return await self._status(*self._find(text))

    async def change(self, request: Request, text: str) -> Response:
        """Change the lane or the delivery time of a message, not both at once."""
        asked = json_body(request, MessageChange)
        topic, partition, offset = self._find_changeable(text)
        await self._check_kept(partition, offset)
        marking = MessageChanges(partition, offset, topic.groups)
        if (asked.priority is None) == (asked.deliver_at is None):
            raise InvalidInput("give one of priority and deliver_at", field="priority")
        if asked.priority is not None:
            await marking.move(topic.settings.lane(asked.priority, field="priority"))
        else:
            assert asked.deliver_at is not None
            await marking.reschedule(self._due_ms(asked.deliver_at, topic.settings))
        return await self._status(topic, partition, offset)

    async def cancel(self, request: Request, text: str) -> Response:
        """Cancel a message for all groups without it; a lease may still be settled."""
        reason = request.query.get("reason", "")
        if len(reason) > limits.REASON_CHARS_MAX:
            raise TooLarge(
                f"a reason has at most {limits.REASON_CHARS_MAX} characters", field="reason"
            )
        topic, partition, offset = self._find_changeable(text)
        await self._check_kept(partition, offset)
        await MessageChanges(partition, offset, topic.groups).cancel(reason)
        return await self._status(topic, partition, offset)

    def _find_changeable(self, text: str) -> tuple[Topic, Partition, int]:
        found = self._find(text)
        check_not_internal(found[0].name)
        return found

    def _find(self, text: str) -> tuple[Topic, Partition, int]:
        message_id = MessageId.parse(text)
        topic = self._broker.topic(message_id.topic)
        return topic, topic.partitions[message_id.partition], message_id.offset

    def _due_ms(self, asked: str | float, settings: TopicSettings) -> int:
        """Return a delivery time, never earlier than asked."""
        now_us = self._broker.clock.wall_us()
        at_us = time_us(asked, "deliver_at", now_us)
        if at_us > now_us + 1000 * settings.delay_max_ms:
            raise InvalidInput(
                f"{asked!r} is later than the topic's delay.max allows, which is"
                f" {format_duration_ms(settings.delay_max_ms)} from now",
                field="deliver_at",
            )
        return -(-at_us // 1000)

    async def _check_kept(self, partition: Partition, offset: int) -> None:
        """Raise ``MessageNotFound`` or ``MessageCompacted`` before anything is changed."""
        partition.check_exists(offset)
        reading = await read_log(partition, offset, offset + 1)
        _check_not_gone(f"{partition.identity}:{offset}", reading, offset)

    async def _status(self, topic: Topic, partition: Partition, offset: int) -> Response:
        partition.check_exists(offset)
        number = partition.identity.number
        text = f"{topic.name}:{number}:{offset}"
        reading = await read_log(partition, offset, offset + 1)
        found = list(messages_json(topic, number, reading.frames, offset, offset + 1))
        _check_not_gone(text, reading, offset)
        if not found and not reading.damage:
            raise MessageNotFound(f"{text} is gone", field="id")
        if not found:
            raise CorruptData(f"{text} cannot be read: {reading.damage[0].reason}", field="id")
        status = await message_status(partition, offset)
        out = StatusOut(**_fields(found[0]), groups=[])
        (view,) = (
            v for v in reading.frames if v.header.base_offset <= offset < v.header.end_offset
        )
        expires_ms = _expires_ms(view, offset)
        put_current_lane(out, topic, partition)
        if status.due_ms:
            out.deliver_at = format_time_us(status.due_ms * 1000)
        out.state = _AVAILABLE
        if status.is_cancelled or status.is_scheduled:
            out.state = str(
                MessageState.CANCELLED if status.is_cancelled else MessageState.SCHEDULED
            )
        now_ms = self._broker.clock.wall_ms()
        for count, name in enumerate(sorted(topic.groups), start=1):
            each = partition.group(name).message_status(status, now_ms, expires_ms=expires_ms)
            out.groups.append(_group_out(name, each))
            if count % _GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await encode_long_value(out, TimeSlice())
        parts: list[BytesLike] = [*message_parts(out)]
        return Response(200, parts, "application/json")


def _check_not_gone(text: str, reading: ReadResult, offset: int) -> None:
    if is_compacted_away(reading.frames, offset):
        raise MessageCompacted(
            f"{text} was compacted away: of each key the newest message is kept, and nothing of"
            " one that was deleted; read the topic for what there is",
            field="id",
        )


def _fields(out: MessageOut) -> dict[str, Any]:
    return {name: getattr(out, name) for name in MessageOut.__struct_fields__}


def _expires_ms(view: FrameView, offset: int) -> int:
    column = view.column(Attribute.EXPIRES_AT)
    return 0 if column is None else int(column.cast("q")[offset - view.header.base_offset])


def _group_out(name: str, status: GroupMessageStatus) -> GroupStateOut:
    time = None if status.time_ms is None else format_time_us(status.time_ms * 1000)
    return GroupStateOut(
        name,
        str(status.state),
        status.attempt or None,
        status.consumer,
        time if status.state is MessageState.LEASED else None,
        time if status.state is MessageState.RETRY else None,
    )
