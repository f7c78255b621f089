"""Routes of dead letters: list, redrive, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from goq import limits
from goq.access.rule import Verb
from goq.api.codec.messages import JsonMessages, json_response, put_delivery, put_message
from goq.api.codec.request import json_body, query_int, time_us
from goq.api.needs import (
    MANAGE_DEAD_LETTERS,
    READ_DEAD_LETTERS,
    End,
    TopicVerbs,
    check_ends,
    dead_letters_of_path,
    principal_of,
)
from goq.api.route import Parameter, Route
from goq.api.routing_policy import Sequential, ToAllLeaders
from goq.api.schemas.dead_letters import (
    DeadLetterOut,
    DeadLettersOut,
    PurgeOut,
    Redrive,
    RedriveOut,
)
from goq.api.values import FLAG, MESSAGE_ID, TIME, integer, one_of
from goq.api.views.merge_pages import PAGE_MESSAGES, merge_by_offset
from goq.broker.broker import Broker
from goq.broker.dlq.place import DeadLetterPlace, dead_letter_place
from goq.broker.dlq.redrive import RemovalRequest, purge, redrive
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch, FoundDeadLetter
from goq.broker.topic.topic import Topic
from goq.delivery.events.event import Cause
from goq.errors import InvalidInput, TooLarge, TopicNotFound
from goq.http.message import Request, Response
from goq.model import MessageId, check_not_internal
from goq.units import format_time_us

_CAUSES = (Cause.NACKED, Cause.EXPIRED, Cause.REJECTED, Cause.TTL)
_FILTERS = (
    Parameter("group", "only what this group gave up"),
    Parameter("reason", "only with this in the reason"),
    Parameter("reason_is", "only with exactly this reason; empty: none was given"),
    Parameter("cause", "only of this cause", one_of(_CAUSES)),
    Parameter("key", "only with this key"),
    Parameter("from_time", "only what died at or after this time", TIME),
    Parameter("to_time", "only what died before this time", TIME),
    Parameter("partition", "only in this partition of the dead letters", integer()),
    Parameter("ids", "only these: ids, of now or of before, with commas between"),
    Parameter("after", "go on behind this id", MESSAGE_ID),
)
_FILTER_FIELDS = ("group", "reason", "reason_is", "cause", "key", "from_time", "to_time")
_MISSING = ("topic_not_found",)
_REDRIVEN = ("matched", "redriven", "looped", "lost", "without_origin")
_merge = merge_by_offset(PAGE_MESSAGES)
_IDS_MAX = 1_000
_TRUE = {"true": True, "1": True, "false": False, "0": False}


def _redriven(request: Request, values: Sequence[str]) -> list[End]:
    """Return the topics that a redrive concerns: the dead letters, their origin, the target."""
    target = json_body(request, Redrive).to
    return [*dead_letters_of_path(request, values), *([] if target is None else [(target, None)])]


REDRIVE: Final = TopicVerbs((Verb.MANAGE,), _redriven)


class DeadLetterRoutes:
    """List, redrive and purge of dead letters."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        path = "/v1/topics/{topic}/dead"
        return [
            Route(
                "GET",
                path,
                self.list,
                "List the dead letters of a topic",
                answer=DeadLettersOut,
                parameters=(
                    *_FILTERS,
                    Parameter(
                        "limit",
                        "at most so many messages",
                        integer(1, limits.READ_MESSAGES_MAX, PAGE_MESSAGES),
                    ),
                ),
                errors=_MISSING,
                routing=ToAllLeaders(_merge, self._topic_of_path, needs_all=True),
                needs=READ_DEAD_LETTERS,
            ),
            Route(
                "DELETE",
                path,
                self.purge,
                "Take dead letters away for good",
                answer=PurgeOut,
                parameters=(
                    *_FILTERS,
                    Parameter(
                        "max_messages",
                        "at most so many messages",
                        integer(1, limits.REDRIVE_MESSAGES_MAX, limits.REDRIVE_MESSAGES_MAX),
                    ),
                    Parameter("dry_run", "only count", FLAG),
                ),
                errors=_MISSING,
                routing=Sequential(
                    ("matched", "purged"),
                    "purged",
                    limits.REDRIVE_MESSAGES_MAX,
                    self._topic_of_path,
                ),
                needs=MANAGE_DEAD_LETTERS,
            ),
            Route(
                "POST",
                "/v1/topics/{topic}/redrive",
                self.redrive,
                "Put dead letters back",
                body=Redrive,
                answer=RedriveOut,
                errors=(*_MISSING, "partition_offline", "too_many_requests"),
                routing=Sequential(
                    _REDRIVEN, "redriven", Redrive().max_messages, self._topic_of_path
                ),
                needs=REDRIVE,
            ),
        ]

    async def list(self, request: Request, name: str) -> Response:
        """List dead letters by partition and offset."""
        limit = query_int(
            request, "limit", PAGE_MESSAGES, minimum=1, maximum=limits.READ_MESSAGES_MAX
        )
        place, dead = await self._find(request, name, READ_DEAD_LETTERS)
        wanted = self._wanted(request.query, _ids(request), _partition(request), place)
        if dead is None:
            return json_response(DeadLettersOut([]))
        topic = dead.name
        _check_partition(dead, wanted)
        search = DeadLetterSearch(dead, wanted, _position(request.query.get("after"), topic))
        out = JsonMessages(limits.READ_BYTES_MAX)
        async with aclosing(search.run()) as letters:
            async for found in letters:
                if not await out.add(_letter(dead, found)):
                    break
                search.next = (found.partition, found.offset)
                if len(out) >= limit:
                    break
        return out.response(DeadLettersOut([], _id(topic, search.next)))

    async def redrive(self, request: Request, name: str) -> Response:
        """Redrive dead letters to their origin or to another topic."""
        asked = json_body(request, Redrive)
        fields = {n: str(v) for n in _FILTER_FIELDS if (v := getattr(asked, n)) is not None}
        place, dead = await self._find(request, name, MANAGE_DEAD_LETTERS)
        wanted = self._wanted(fields, asked.ids, asked.partition, place)
        _check_max(asked.max_messages)
        check_not_internal(asked.to or name)
        if dead is None:
            return json_response(RedriveOut(asked.dry_run, 0, 0, 0, 0))
        _check_partition(dead, wanted)
        to = asked.to or place.origin
        if to is None:
            raise InvalidInput(
                f"letters of several topics may be in {dead.name}: name the topic that they died"
                " in, or the one to put them into",
                field="to",
            )
        target = self._target(to, dead)
        after = _position(asked.after, dead.name)
        taking = RemovalRequest(
            wanted,
            after,
            asked.max_messages,
            asked.dry_run,
            asked.force,
            to_origin=asked.to is None,
        )
        took = await redrive(dead, target, self._broker.clock.wall_ms(), taking)
        return json_response(
            RedriveOut(
                asked.dry_run,
                took.matched,
                took.removed,
                took.looped,
                took.lost,
                _id(dead.name, took.next),
                took.without_origin,
            )
        )

    async def purge(self, request: Request, name: str) -> Response:
        """Delete dead letters for good."""
        query = request.query
        place, dead = await self._find(request, name, MANAGE_DEAD_LETTERS)
        wanted = self._wanted(query, _ids(request), _partition(request), place)
        messages_max = query_int(request, "max_messages", limits.REDRIVE_MESSAGES_MAX)
        _check_max(messages_max)
        dry_run = _TRUE.get(query.get("dry_run", "false"))
        if dry_run is None:
            raise InvalidInput("dry_run is true or false", field="dry_run")
        if dead is None:
            return json_response(PurgeOut(dry_run, 0, 0))
        _check_partition(dead, wanted)
        after = _position(query.get("after"), dead.name)
        took = await purge(dead, RemovalRequest(wanted, after, messages_max, dry_run))
        at = _id(dead.name, took.next)
        return json_response(PurgeOut(dry_run, took.matched, took.removed, at))

    def _topic_of_path(self, _request: Request, values: Sequence[str]) -> str | None:
        """Return the dead-letter topic of the topic in the path."""
        return self._place(values[0]).dead

    def _place(self, name: str) -> DeadLetterPlace:
        return dead_letter_place(name, self._broker.topics, self._broker.start_queue.rows)

    async def _find(
        self, request: Request, name: str, needs: TopicVerbs
    ) -> tuple[DeadLetterPlace, Topic | None]:
        """Return the place of the dead letters of ``name``, and their topic, ``None`` while it has
        none.

        The router has checked the sender for the topic and its own dead-letter topic only: raises
        as it does for another one.
        """
        place = self._place(name)
        check_ends(principal_of(request), needs.verbs, [(place.dead, None)])
        await self._broker.start_queue.wait_for(place.dead)
        dead = self._broker.topics.get(place.dead)
        if dead is None:
            self._broker.topic(place.origin or name)
        return place, dead

    def _target(self, name: str, dead: Topic) -> Topic:
        if name == dead.name:
            raise InvalidInput("dead letters cannot be put where they are", field="to")
        try:
            return self._broker.topic(name)
        except TopicNotFound as error:
            error.field = "to"
            raise

    def _wanted(
        self,
        fields: Mapping[str, str],
        ids: Sequence[str],
        partition: int | None,
        place: DeadLetterPlace,
    ) -> DeadLetterQuery:
        now_us = self._broker.clock.wall_us()
        times = {
            name: time_us(fields[name], name, now_us) if name in fields else None
            for name in ("from_time", "to_time")
        }
        cause = fields.get("cause")
        if cause is not None and cause not in _CAUSES:
            raise InvalidInput(
                f"{cause[:50]!r} is not a cause; there are {', '.join(_CAUSES)}", field="cause"
            )
        if len(ids) > _IDS_MAX:
            raise TooLarge(f"{len(ids)} ids are over the limit of {_IDS_MAX}", field="ids")
        for text in ids:
            _parse_id(text, "ids")
        return DeadLetterQuery(
            group=fields.get("group"),
            reason=fields.get("reason"),
            exact_reason=fields.get("reason_is"),
            cause=cause,
            key=fields["key"].encode() if "key" in fields else None,
            from_us=times["from_time"],
            to_us=times["to_time"],
            ids=frozenset(ids),
            partition=partition,
            origin_topic=place.origin if place.is_shared else None,
        )


def _letter(topic: Topic, found: FoundDeadLetter) -> DeadLetterOut:
    letter, origin = found.letter, found.letter.origin
    settings = topic.settings
    out = DeadLetterOut(
        id=str(MessageId(topic.name, found.partition, found.offset)),
        partition=found.partition,
        offset=found.offset,
        timestamp=format_time_us(found.time_us),
        priority=settings.lane_name(settings.default_lane),
        redrives=letter.redrives,
        lost=letter.lost or None,
        earlier=letter.earlier_origins,
    )
    put_message(out, msgspec.structs.replace(found.message, headers=letter.headers))
    put_delivery(out, found.message, settings)
    if origin is not None:
        out.origin, out.group, out.attempts = origin.id, origin.group, origin.attempts
        out.cause, out.reason, out.died_at = origin.cause, origin.reason or None, origin.time
        out.published_at, out.failures = origin.published or None, origin.failures
    return out


def _check_partition(dead: Topic, wanted: DeadLetterQuery) -> None:
    """Raise ``PartitionNotFound``, or ``NotLeader`` if another node leads it."""
    if wanted.partition is not None:
        dead.partitions[wanted.partition]


def _check_max(messages_max: int) -> None:
    if not 1 <= messages_max <= limits.REDRIVE_MESSAGES_MAX:
        raise InvalidInput(
            f"max_messages is 1 to {limits.REDRIVE_MESSAGES_MAX}, not {messages_max}",
            field="max_messages",
        )


def _partition(request: Request) -> int | None:
    return query_int(request, "partition", 0) if "partition" in request.query else None


def _ids(request: Request) -> list[str]:
    text = request.query.get("ids")
    return text.split(",") if text else []


def _parse_id(text: str, field: str) -> MessageId:
    try:
        return MessageId.parse(text)
    except InvalidInput as error:
        error.field = field
        raise


def _position(after: str | None, topic: str) -> tuple[int, int]:
    """Return the partition and offset to continue after."""
    if after is None:
        return -1, -1
    message_id = _parse_id(after, "after")
    if message_id.topic != topic:
        raise InvalidInput(f"{after[:300]} is not in topic {topic}", field="after")
    return message_id.partition, message_id.offset


def _id(topic: str, position: tuple[int, int] | None) -> str | None:
    return None if position is None else str(MessageId(topic, *position))
