"""JSON bodies of schedules."""

from __future__ import annotations

import msgspec

from goq.api.schemas.base import Input, Output
from goq.api.values import Base64, DateTime, Duration, TopicName


class PeriodicMessage(Input, omit_defaults=True):
    """A message that a schedule publishes: its value as text or base64."""

    value: str | None = None
    value_base64: Base64 | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    priority: str | int | None = None
    ttl: Duration | None = None
    tenant: str | None = None


class NewSchedule(Input):
    """A schedule to create: what to publish to ``topic``, and when.

    ``cron`` is a line as ``0 9 * * MON-FRI`` in the time zone ``tz``, by default UTC. ``every`` is
    an interval instead.
    """

    topic: TopicName
    messages: list[PeriodicMessage]
    cron: str | None = None
    tz: str | None = None
    every: Duration | None = None


class ScheduleOut(Output, kw_only=True):
    """A schedule. ``next`` is its next time, ``last`` the last one that it has published for.

    ``problem`` is why nothing was published at ``last``.
    """

    name: str
    topic: str
    messages: list[PeriodicMessage]
    cron: str | None = None
    tz: str | None = None
    every: str | None = None
    principal: str
    created: DateTime
    paused: DateTime | None = None
    next: DateTime | None = None
    last: DateTime | None = None
    problem: str | None = None


class SchedulesOut(msgspec.Struct):
    """All schedules of topics that the sender may see."""

    schedules: list[ScheduleOut]
