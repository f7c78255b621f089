"""Routes of schedules: create, list, show, pause, resume, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from goq import limits
from goq.access.rule import Principal, Verb
from goq.api.codec.messages import json_response, list_response
from goq.api.codec.publish_request import time_to_live_ms
from goq.api.codec.request import json_body
from goq.api.needs import TOKEN, End, TopicVerbs, principal_of
from goq.api.route import Route
from goq.api.routing_policy import CustomRouting
from goq.api.schemas.schedules import NewSchedule, PeriodicMessage, ScheduleOut, SchedulesOut
from goq.broker.broker import Broker
from goq.errors import Conflict, InvalidInput, NotAllowed, NotFound
from goq.http.message import Request, Response
from goq.schedules.schedule_manager import ScheduleManager
from goq.schedules.schedule_record import ScheduleRecord
from goq.units import format_duration_ms, format_time_us, parse_duration_ms

_SCHEDULES = "/v1/schedules"
_ONE = f"{_SCHEDULES}/{{schedule}}"


class ScheduleRoutes:
    """Create, list, show, pause, resume and remove of schedules."""

    def __init__(self, broker: Broker, manager: ScheduleManager) -> None:
        self._broker = broker
        self._manager = manager

    def routes(self) -> list[Route]:
        """Return the declarations."""
        creates = TopicVerbs((Verb.MANAGE,), _topic_of_body)
        changes = TopicVerbs((Verb.MANAGE,), self._topic_of_schedule)
        return [
            Route(
                "PUT",
                _ONE,
                self.create,
                "Create a schedule: messages that the node publishes periodically",
                body=NewSchedule,
                answer=ScheduleOut,
                status=201,
                errors=("invalid_input", "conflict", "schedule_exists", "not_allowed"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=creates,
            ),
            Route(
                "GET",
                _SCHEDULES,
                self.list,
                "List schedules",
                answer=SchedulesOut,
                routing=CustomRouting.SHOW_METADATA,
                needs=TOKEN,
            ),
            Route(
                "GET",
                _ONE,
                self.show,
                "Show a schedule",
                answer=ScheduleOut,
                errors=("not_found",),
                routing=CustomRouting.SHOW_METADATA,
                needs=TOKEN,
            ),
            Route(
                "POST",
                f"{_ONE}/pause",
                self.pause,
                "Pause a schedule: it publishes nothing until it is resumed",
                answer=ScheduleOut,
                errors=("not_found", "conflict"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=changes,
            ),
            Route(
                "POST",
                f"{_ONE}/resume",
                self.resume,
                "Resume a paused schedule, from its next time on",
                answer=ScheduleOut,
                errors=("not_found", "conflict"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=changes,
            ),
            Route(
                "DELETE",
                _ONE,
                self.remove,
                "Remove a schedule",
                status=204,
                errors=("not_found", "conflict"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=changes,
            ),
        ]

    async def create(self, request: Request, name: str) -> Response:
        """Create a schedule, in the name of the sender."""
        new = json_body(request, NewSchedule)
        principal = principal_of(request)
        if not principal.allows(Verb.PUBLISH, new.topic):
            raise NotAllowed(
                f"token {principal.id} may not publish to {new.topic}, so its schedules may not"
                f" either: it needs the rule publish:{new.topic}"
            )
        every_ms = 0 if new.every is None else parse_duration_ms(new.every, field="every")
        if new.every is not None and every_ms == 0:
            raise InvalidInput("an interval is at least 1 s", field="every")
        if new.tz is not None and new.cron is None:
            raise InvalidInput("an interval has no time zone", field="tz")
        self._check_lanes(new)
        try:
            record = await self._manager.create(
                name,
                new.topic,
                _checked(new.messages),
                cron=new.cron or "",
                tz=new.tz or "UTC",
                every_ms=every_ms,
                principal=principal.id,
            )
        except Conflict:
            if not self._is_hidden(principal, name):
                raise
            raise NotAllowed(
                f"token {principal.id} may not give a schedule this name; take another one",
                field="name",
            ) from None
        return json_response(await self._shown(record), 201)

    async def list(self, request: Request) -> Response:
        """List schedules by name."""
        principal = principal_of(request)
        records = [each for each in self._manager.all if _may_show(principal, each)]
        now_ms = self._broker.clock.wall_ms()
        found = await asyncio.to_thread(lambda: [schedule_out(each, now_ms) for each in records])
        return await list_response("schedules", found)

    async def show(self, request: Request, name: str) -> Response:
        """Show a schedule."""
        return json_response(await self._shown(self._visible(request, name)))

    async def pause(self, _request: Request, name: str) -> Response:
        """Pause a schedule."""
        return json_response(await self._shown(await self._manager.pause(name)))

    async def resume(self, _request: Request, name: str) -> Response:
        """Resume a schedule."""
        return json_response(await self._shown(await self._manager.resume(name)))

    async def remove(self, _request: Request, name: str) -> Response:
        """Remove a schedule."""
        await self._manager.remove(name)
        return Response(204)

    def _check_lanes(self, new: NewSchedule) -> None:
        """Raise ``InvalidInput`` for a lane that the topic does not have now."""
        topic = self._broker.topics.get(new.topic)
        for number, message in enumerate(new.messages):
            if topic is not None and message.priority is not None:
                topic.settings.lane(message.priority, field=f"messages[{number}].priority")

    async def _shown(self, record: ScheduleRecord) -> ScheduleOut:
        return await asyncio.to_thread(schedule_out, record, self._broker.clock.wall_ms())

    def _visible(self, request: Request, name: str) -> ScheduleRecord:
        """Return a schedule; one that the sender may not know of is as if not there."""
        record = self._manager.find(name)
        if not _may_show(principal_of(request), record):
            raise NotFound(f"there is no schedule {name[:200]!r}; goq schedule list shows all")
        return record

    def _is_hidden(self, principal: Principal, name: str) -> bool:
        """Return whether there is a schedule that a principal may not know of."""
        try:
            return not _may_show(principal, self._manager.find(name))
        except NotFound:
            return False

    def _topic_of_schedule(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return the topic of the schedule in the path."""
        return ((self._visible(request, values[0]).topic, None),)


def _may_show(principal: Principal, record: ScheduleRecord) -> bool:
    """Return whether a principal may know of a schedule, whose messages have values."""
    return any(principal.allows(verb, record.topic) for verb in (Verb.READ, Verb.MANAGE))


def schedule_out(record: ScheduleRecord, now_ms: int) -> ScheduleOut:
    """Return a schedule as the API shows it."""
    out = ScheduleOut(
        name=record.name,
        topic=record.topic,
        messages=msgspec.json.decode(record.messages, type=list[PeriodicMessage]),
        principal=record.principal,
        created=format_time_us(record.created_ms * 1000),
    )
    if record.cron:
        out.cron, out.tz = record.cron, record.tz
    else:
        out.every = format_duration_ms(record.every_ms)
    if record.paused_ms:
        out.paused = format_time_us(record.paused_ms * 1000)
    else:
        after_ms = now_ms if record.is_ahead_of(now_ms) else max(now_ms, record.done_until_ms)
        if (next_ms := record.timetable.next_after(after_ms)) is not None:
            out.next = format_time_us(next_ms * 1000)
    if record.last_due_ms:
        out.last = format_time_us(record.last_due_ms * 1000)
    out.problem = record.problem or None
    return out


def _topic_of_body(request: Request, _values: Sequence[str]) -> Iterable[End]:
    return ((json_body(request, NewSchedule).topic, None),)


def _checked(messages: Sequence[PeriodicMessage]) -> str:
    """Return messages as JSON. The publish checks the rest: it depends on the topic's settings."""
    if not 1 <= len(messages) <= limits.SCHEDULE_MESSAGES_MAX:
        raise InvalidInput(
            f"a schedule has 1 to {limits.SCHEDULE_MESSAGES_MAX} messages, not {len(messages)}",
            field="messages",
        )
    for number, message in enumerate(messages):
        if (message.value is None) == (message.value_base64 is None):
            raise InvalidInput(
                "a message has either value or value_base64", field=f"messages[{number}]"
            )
        if message.ttl is not None:
            time_to_live_ms(message.ttl, f"messages[{number}].ttl")
    return msgspec.json.encode(messages).decode()
