"""The route that shows a topic over time: by day, and what happens now."""

from __future__ import annotations

import asyncio
from functools import partial

from goq import limits
from goq.api.codec.messages import json_response
from goq.api.codec.request import query_int
from goq.api.gateway.merge import merge_history
from goq.api.router import Parameter, Route
from goq.api.routing import AtLeaders
from goq.api.schemas.topics import DayOut, HistoryOut, RatesOut, WaitingOut
from goq.broker.broker import Broker
from goq.broker.partition.delayed import DelayedMessage, DelayedReader
from goq.broker.retention.daily_counts import bounds_us, by_day, day_starts
from goq.broker.topic.topic import Topic
from goq.http.message import Request, Response
from goq.units import format_time_us

_DAYS = 14
_FIRST = DelayedMessage(0, -1)
_FOREVER_MS = 2**63 - 1
_DATE_CHARS = len("2025-01-15")


class HistoryRoutes:
    """What a topic holds by day; one at a time is looked through."""

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
                        f"the last so many, today included; default {_DAYS}, at most"
                        f" {limits.HISTORY_DAYS_MAX}",
                        "integer",
                    ),
                ),
                errors=("topic_not_found",),
                spread=AtLeaders(merge_history),
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

    async def _history(self, topic: Topic, days: int, scheduled: WaitingOut) -> HistoryOut:
        partitions = topic.partitions.here()
        bounds = []
        for partition in partitions:
            found = await partition.in_thread(partial(bounds_us, partition.messages.reader))
            bounds += [found] if found is not None else []
        rates = RatesOut(*topic.stats.rates(asyncio.get_running_loop().time()))
        if not bounds:
            return HistoryOut(None, None, [], rates, scheduled)
        first_us = min(first for first, _ in bounds)
        starts_us = day_starts(first_us, self._broker.clock.wall_us(), days)
        amounts = [
            await partition.in_thread(partial(by_day, partition.messages.reader, starts_us))
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


async def _scheduled(topic: Topic) -> WaitingOut:
    """Return how many messages wait for their time, and when the next is due."""
    waits = [p for p in topic.partitions if p.dispatch.schedule.count]
    earliest = partial(DelayedReader.earliest, after=_FIRST, until_ms=_FOREVER_MS, count=1)
    due = [found for p in waits for found in await p.look(earliest)]
    next_ms = min((each.due_ms for each in due), default=None)
    return WaitingOut(
        sum(p.dispatch.schedule.count for p in waits),
        None if next_ms is None else format_time_us(next_ms * 1000),
    )
