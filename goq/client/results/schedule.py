"""Schedules: messages that the node publishes periodically."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goq.client.results.result import Json, Result, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDescription(Result):
    """A schedule: by ``cron`` in the time zone ``tz``, or at the interval ``every``.

    ``principal`` is the id of the token that created it. ``next`` is its next time, None while it
    is paused. ``last`` is the last time that it has published for; ``problem`` is why nothing was
    published then.
    """

    name: str
    topic: str
    messages: tuple[Json, ...]
    principal: str
    created: datetime
    cron: str | None = None
    tz: str | None = None
    every: str | None = None
    paused: datetime | None = None
    next: datetime | None = None
    last: datetime | None = None
    problem: str | None = None


def decode_schedule(answer: object) -> ScheduleDescription:
    """Return a schedule from an answer."""
    return decode(ScheduleDescription, answer)


def decode_schedules(answer: object) -> tuple[ScheduleDescription, ...]:
    """Return a list of schedules from an answer."""
    return tuple(decode_schedule(item) for item in items_of(answer, "schedules"))
