"""Routes of topics, and of a topic's history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Raw

from goq import limits
from goq.access.rule import Verb
from goq.api.codec.messages import encode_json, encode_list, json_response
from goq.api.codec.request import (
    SETTINGS_BODY_BYTES_MAX,
    flatten_settings,
    json_body,
    number_of,
    query_int,
)
from goq.api.needs import (
    MANAGE,
    PUBLISH,
    READ,
    SEE,
    TOKEN,
    End,
    TopicVerbs,
    check_dead_letter_target,
    principal_of,
)
from goq.api.route import Parameter, Route
from goq.api.routing_policy import CustomRouting, Document, LocalThenMerged, ToAllLeaders
from goq.api.schemas.topics import (
    ArchivedOut,
    DayOut,
    HistoryOut,
    NewTopic,
    PartitionOut,
    RatesOut,
    ScheduledSummaryOut,
    TopicChange,
    TopicOut,
    TopicsOut,
)
from goq.api.values import integer
from goq.api.views.merge import is_shown_by_all, merge_history, merge_topic, merge_topics
from goq.broker.broker import Broker
from goq.broker.metadata import TopicReplication
from goq.broker.partition.delayed_reader import DelayedMessage, DelayedReader
from goq.broker.partition.partition import Partition
from goq.broker.retention.daily_counts import bounds_us, daily_volumes, day_starts
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.types import NONE
from goq.errors import InvalidInput
from goq.http.message import Request, Response
from goq.model import check_name, format_topic_id
from goq.units import format_time_us

_DAYS = 14
_DEAD_LETTER_TOPIC: Final = "dead_letters.topic"
_FIRST = DelayedMessage(0, -1)
_FOREVER_MS = 2**63 - 1
_DATE_CHARS = len("2025-01-15")


def _path(topic: Document) -> str:
    return f"/v1/topics/{topic['name']}"


def _new_topic(request: Request, _values: Sequence[str]) -> list[End]:
    """Return the topic that a request creates."""
    return [(json_body(request, NewTopic, bytes_max=SETTINGS_BODY_BYTES_MAX).name, None)]


CREATE_TOPIC: Final = TopicVerbs((Verb.MANAGE,), _new_topic)


class TopicRoutes:
    """Create, list, describe, change and delete of topics.

    ``replication_of`` returns a topic's replication factor and its ``min_insync``.
    """

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        replication_of: Callable[[str], tuple[int, int]] = lambda _topic: (1, 1),
    ) -> None:
        self._broker = broker
        self._node_id = node_id
        self._replication_of = replication_of

    def routes(self) -> list[Route]:
        """Return the declarations."""
        missing = ("topic_not_found",)
        return [
            Route(
                "POST",
                "/v1/topics",
                self.create,
                "Create a topic",
                body=NewTopic,
                is_body_audited=True,
                answer=TopicOut,
                status=201,
                errors=("topic_exists", "node_full"),
                routing=LocalThenMerged(merge_topic, _path, is_shown_by_all),
                needs=CREATE_TOPIC,
            ),
            Route(
                "GET",
                "/v1/topics",
                self.list,
                "List topics",
                answer=TopicsOut,
                routing=ToAllLeaders(merge_topics),
                needs=TOKEN,
            ),
            Route(
                "GET",
                "/v1/topics/{topic}",
                self.show,
                "Show a topic",
                answer=TopicOut,
                errors=missing,
                routing=ToAllLeaders(merge_topic, shows_offline=True),
                needs=SEE,
            ),
            Route(
                "PUT",
                "/v1/topics/{topic}",
                self.use,
                "Show a topic, created first if there is none and the node is set to do so",
                answer=TopicOut,
                errors=(*missing, "node_full"),
                routing=LocalThenMerged(merge_topic, _path, is_shown_by_all),
                needs=PUBLISH,
            ),
            Route(
                "PATCH",
                "/v1/topics/{topic}",
                self.alter,
                "Change settings or the replication, or add partitions",
                body=TopicChange,
                is_body_audited=True,
                answer=TopicOut,
                errors=(*missing, "node_full"),
                routing=LocalThenMerged(merge_topic, _path, is_shown_by_all),
                needs=MANAGE,
            ),
            Route(
                "POST",
                "/v1/topics/{topic}/partitions/{partition}/reopen",
                self.reopen,
                "Open a partition that is offline, once its cause is removed",
                answer=PartitionOut,
                errors=(*missing, "partition_not_found", "partition_offline", "conflict"),
                needs=MANAGE,
            ),
            Route(
                "DELETE",
                "/v1/topics/{topic}",
                self.delete,
                "Delete a topic and all its messages",
                status=204,
                errors=missing,
                routing=CustomRouting.CHANGE_METADATA,
                needs=MANAGE,
            ),
        ]

    async def reopen(self, _request: Request, name: str, partition: str) -> Response:
        """Open a partition that is offline."""
        number = number_of(partition, "partition")
        await self._broker.topic_admin.reopen_partition(name, number)
        return json_response(self._partition(self._broker.topic(name).partitions[number]))

    async def create(self, request: Request) -> Response:
        """Create a topic."""
        new = json_body(request, NewTopic, bytes_max=SETTINGS_BODY_BYTES_MAX)
        replication = TopicReplication(new.replication_factor, new.min_insync)
        settings = _allowed_settings(request, new.name, new.settings)
        topic = await self._broker.topic_admin.create(
            new.name, new.partitions, settings, replication
        )
        return json_response(await self._topic(topic), 201)

    async def list(self, request: Request) -> Response:
        """List topics by name, those that the sender may know of."""
        found, time_slice = [], TimeSlice()
        sees = principal_of(request).sees
        for name in sorted(self._broker.topics):
            topic = self._broker.topics.get(name)
            if topic is not None and sees(name):  # else it was deleted meanwhile
                found.append(encode_json(await self._topic(topic)))
            if time_slice.is_over:
                await time_slice.next()
        return json_response(TopicsOut(Raw(b"[%b]" % b",".join(found))))

    async def show(self, _request: Request, name: str) -> Response:
        """Show a topic."""
        return json_response(await self._timed(self._broker.topic(name)))

    async def use(self, request: Request, name: str) -> Response:
        """Show a topic before publishing to it; the topic may be created automatically."""
        if request.body.strip() not in (b"", b"{}"):
            raise InvalidInput(
                "this creates a topic with the defaults and takes no body: POST /v1/topics creates"
                f" one with settings, PATCH /v1/topics/{name[:200]} changes them",
                field="body",
            )
        if name not in self._broker.topics:
            check_name(name, "topic")
        topic = await self._broker.topic_admin.topic_for_publish(name)
        return json_response(await self._timed(topic))

    async def alter(self, request: Request, name: str) -> Response:
        """Change settings or the replication, or add partitions."""
        change = json_body(request, TopicChange, bytes_max=SETTINGS_BODY_BYTES_MAX)
        replication = TopicReplication(change.replication_factor, change.min_insync)
        topic = await self._broker.topic_admin.alter(
            name,
            _allowed_settings(request, name, change.settings),
            change.partitions,
            replication,
            frozenset(change.unset),
            flatten_settings(change.expected),
        )
        return json_response(await self._topic(topic))

    async def delete(self, _request: Request, name: str) -> Response:
        """Delete a topic."""
        await self._broker.topic_admin.delete(name)
        return Response(204)

    async def _timed(self, topic: Topic) -> TopicOut:
        """Return a topic with the node's time, from which delays and relative times count."""
        out = await self._topic(topic)
        out.time = format_time_us(self._broker.clock.wall_us())
        return out

    async def _topic(self, topic: Topic) -> TopicOut:
        replication_factor, min_insync = self._replication_of(topic.name)
        out = TopicOut(
            name=topic.name,
            id=format_topic_id(topic.id),
            partitions=await encode_list(self._partitions(topic)),
            settings=topic.settings.written(),
            replication_factor=replication_factor,
            min_insync=min_insync,
        )
        here = {partition.identity.number for partition in topic.partitions}
        archived = self._broker.archive.segments.topic_totals(topic.folder, here)
        if archived is not None:
            first_us = archived.first_time_us
            out.archived = ArchivedOut(
                archived.segments,
                archived.messages,
                archived.bytes,
                format_time_us(first_us) if first_us else None,
            )
        return out

    def _partitions(self, topic: Topic) -> Iterator[PartitionOut]:
        """Yield the partitions of now, in order, each as it is when it is asked for."""
        here = {partition.identity.number: partition for partition in topic.partitions}
        for number in sorted({*here, *topic.partitions.offline}):
            if number in here:
                yield self._partition(here[number])
            else:
                yield PartitionOut(number, None, 0, 0, 0, 0, online=False)

    def _partition(self, partition: Partition) -> PartitionOut:
        return PartitionOut(
            partition=partition.identity.number,
            leader=self._node_id,
            start_offset=partition.log_start_offset,
            end_offset=partition.log_end_offset,
            high_watermark=partition.end_offset,
            bytes=partition.size_bytes,
            online=partition.is_online,
            damaged=[
                {"start_offset": d.start_offset, "end_offset": d.end_offset, "reason": d.reason}
                for d in partition.message_damage
            ],
        )


def _allowed_settings(request: Request, name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name.

    Raises ``NotAllowed`` if they let a topic's messages go to one that the sender may not publish
    to, and ``InvalidInput`` if that is the topic itself.
    """
    settings = flatten_settings(written)
    target = settings.get(_DEAD_LETTER_TOPIC)
    if isinstance(target, str) and target != NONE:
        check_dead_letter_target(principal_of(request), name, target)
    return settings


class HistoryRoutes:
    """A topic's messages by day; one topic at a time is scanned."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._looking = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/history",
                self.show,
                "Show what a topic holds by day, how much happens now, and what is scheduled",
                answer=HistoryOut,
                parameters=(
                    Parameter(
                        "days",
                        "the last so many, today included",
                        integer(1, limits.HISTORY_DAYS_MAX, _DAYS),
                    ),
                ),
                errors=("topic_not_found",),
                routing=ToAllLeaders(merge_history, needs_all=True),
                needs=READ,
            )
        ]

    async def show(self, request: Request, name: str) -> Response:
        """Show a topic over time."""
        topic = self._broker.topic(name)
        maximum = limits.HISTORY_DAYS_MAX
        days = query_int(request, "days", _DAYS, minimum=1, maximum=maximum)
        scheduled = await _scheduled(topic)
        async with self._looking:
            out = await self._history(topic, days, scheduled)
        return json_response(out)

    async def _history(self, topic: Topic, days: int, scheduled: ScheduledSummaryOut) -> HistoryOut:
        partitions = topic.partitions.here()
        bounds = []
        for partition in partitions:
            found = await partition.in_thread(partial(bounds_us, partition.message_reader))
            bounds += [found] if found is not None else []
        rates = RatesOut(*topic.stats.rates(asyncio.get_running_loop().time()))
        if not bounds:
            return HistoryOut(None, None, [], rates, scheduled)
        first_us = min(first for first, _ in bounds)
        starts_us = day_starts(first_us, self._broker.clock.wall_us(), days)
        amounts = [
            await partition.in_thread(partial(daily_volumes, partition.message_reader, starts_us))
            for partition in partitions
        ]
        return HistoryOut(
            format_time_us(first_us),
            format_time_us(max(last for _, last in bounds)),
            [
                DayOut(
                    format_time_us(start_us)[:_DATE_CHARS],
                    sum(amount.messages for amount in of_day),
                    sum(amount.size_bytes for amount in of_day),
                )
                for start_us, of_day in zip(starts_us, zip(*amounts, strict=True), strict=True)
            ],
            rates,
            scheduled,
        )


async def _scheduled(topic: Topic) -> ScheduledSummaryOut:
    """Return the number of delayed messages, and when the next is due."""
    waits = [p for p in topic.partitions if p.delayed_count]
    earliest = partial(DelayedReader.earliest, after=_FIRST, until_ms=_FOREVER_MS, count=1)
    due = [found for p in waits for found in await p.read_delayed(earliest)]
    next_ms = min((each.due_ms for each in due), default=None)
    return ScheduledSummaryOut(
        sum(p.delayed_count for p in waits),
        None if next_ms is None else format_time_us(next_ms * 1000),
    )
