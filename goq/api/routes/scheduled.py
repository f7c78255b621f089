"""Route of delayed messages, in the order of their delivery time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.api.codec.messages import JsonMessages, messages_json, put_current_lane
from goq.api.codec.request import query_int, time_us
from goq.api.needs import READ
from goq.api.route import Parameter, Route
from goq.api.routing_policy import ToAllLeaders
from goq.api.schemas.messages import MessageOut, ScheduledOut
from goq.api.values import TIME, integer
from goq.api.views.log_read import RecentFrames
from goq.api.views.merge_pages import PAGE_MESSAGES, merge_by_due_time
from goq.broker.broker import Broker
from goq.broker.partition.delayed_reader import DelayedMessage, DelayedReader
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.delivery.events.transitions import MessageState
from goq.errors import InvalidInput
from goq.frame.view import FrameView
from goq.http.message import Request, Response
from goq.units import format_time_us

_FOREVER_MS = 2**63 - 1
_DIGITS_MAX = 19


class ScheduledCursor(NamedTuple):
    """The position of a delayed message: by delivery time, partition and offset."""

    due_ms: int
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> ScheduledCursor:
        """Parse what :meth:`__str__` wrote; raise ``InvalidInput`` for anything else."""
        parts = text.split(".")
        if len(parts) != len(cls._fields) or not all(map(_is_number, parts)):
            raise InvalidInput(
                f"{text[:80]!r} is not what the page before gave as next", field="after"
            )
        due_ms, partition, offset = map(int, parts)
        return cls(due_ms, partition, offset)

    def __str__(self) -> str:
        """Return the ``next`` of a page."""
        return ".".join(map(str, self))

    def within(self, partition: int) -> DelayedMessage:
        """Return the position to continue after in one of the partitions."""
        if partition == self.partition:
            return DelayedMessage(self.due_ms, self.offset)
        return DelayedMessage(self.due_ms, _FOREVER_MS if partition < self.partition else -1)


def _is_number(text: str) -> bool:
    return len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit() and int(text) < 2**62


class ScheduledRoutes:
    """Lists of delayed messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/scheduled",
                self.page,
                "List the messages that wait for their time, the next to be due first",
                answer=ScheduledOut,
                parameters=(
                    Parameter(
                        "limit",
                        "at most so many messages",
                        integer(1, limits.SCHEDULED_MESSAGES_MAX, PAGE_MESSAGES),
                    ),
                    Parameter("after", "go on behind the page that gave this as next"),
                    Parameter("until", "no message that is due at or after this time", TIME),
                ),
                errors=("topic_not_found",),
                routing=ToAllLeaders(merge_by_due_time, needs_all=True),
                needs=READ,
            )
        ]

    async def page(self, request: Request, name: str) -> Response:
        """List messages in the order of delivery time, partition and offset."""
        topic, query = self._broker.topic(name), request.query
        limit = query_int(
            request, "limit", PAGE_MESSAGES, minimum=1, maximum=limits.SCHEDULED_MESSAGES_MAX
        )
        after = (
            ScheduledCursor.parse(query["after"]) if "after" in query else ScheduledCursor(0, 0, -1)
        )
        until_ms = _FOREVER_MS
        if "until" in query:
            until_ms = -(-time_us(query["until"], "until", self._broker.clock.wall_us()) // 1000)
        found = await self._due(topic, after, until_ms, limit + 1)
        page, last, reader = JsonMessages(limits.READ_BYTES_MAX), after, _Reader(topic)
        time_slice = TimeSlice()
        for due in found[:limit]:
            out = await reader.message(due)
            if time_slice.is_over:
                await time_slice.next()
            if out is not None and not await page.add(out):
                return page.response(ScheduledOut([], str(last)))
            last = due
        return page.response(ScheduledOut([], str(last) if found[limit:] else None))

    async def _due(
        self, topic: Topic, after: ScheduledCursor, until_ms: int, count: int
    ) -> list[ScheduledCursor]:
        """Return the next positions of all partitions."""
        asked = [(p.identity.number, p) for p in topic.partitions if p.delayed_count]
        pending = await asyncio.gather(
            *(
                p.read_delayed(
                    partial(
                        DelayedReader.earliest,
                        after=after.within(number),
                        until_ms=until_ms,
                        count=count,
                    )
                )
                for number, p in asked
            )
        )
        found = [
            ScheduledCursor(due_ms, number, offset)
            for (number, _), some in zip(asked, pending, strict=True)
            for due_ms, offset in some
        ]
        return sorted(found)[:count]


class _Reader:
    """Reads messages one by one, in any order."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._frames = RecentFrames()

    async def message(self, due: ScheduledCursor) -> MessageOut | None:
        """Return a message, ``None`` if it cannot be read or was deleted."""
        topic, partition = self._topic, self._topic.partitions[due.partition]
        reading = await self._frames.read(partition, due.offset, due.offset + 1)
        view = next((view for view in reading.frames if _holds(view, due.offset)), None)
        if view is None:
            return None
        out = next(messages_json(topic, due.partition, [view], due.offset, due.offset + 1), None)
        if out is None:  # compacted away
            return None
        put_current_lane(out, topic, partition)
        out.deliver_at = format_time_us(due.due_ms * 1000)
        out.state = str(MessageState.SCHEDULED)
        return out


def _holds(view: FrameView, offset: int) -> bool:
    return view.header.base_offset <= offset < view.header.end_offset
