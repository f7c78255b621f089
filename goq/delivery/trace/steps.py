"""The steps in the life of a message, and the gaps between them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class StepName(StrEnum):
    """The name of a step."""

    PUBLISHED = "PUBLISHED"
    SCHEDULED = "SCHEDULED"
    MATURED = "MATURED"
    DELIVERED = "DELIVERED"
    EXTENDED = "EXTENDED"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    NACKED = "NACKED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    RETURNED = "RETURNED"
    """A lease was released before delivery: it counts as no attempt."""
    DEAD_LETTERED = "DEAD_LETTERED"
    REDRIVEN = "REDRIVEN"
    MOVED = "MOVED"
    CANCELLED = "CANCELLED"
    RESCHEDULED = "RESCHEDULED"
    SKIPPED = "SKIPPED"
    DROPPED = "DROPPED"
    RESET = "RESET"
    GROUP_DELETED = "GROUP_DELETED"
    CORRUPTED = "CORRUPTED"
    REPAIRED = "REPAIRED"
    COMPACTED = "COMPACTED"
    ARCHIVED = "ARCHIVED"
    DELETED = "DELETED"


class CopyLocation(NamedTuple):
    """The location of a message's copy in another topic: ``number`` offsets after ``offset``.

    ``offset`` is -1 where it is not known, or the copy is not stored yet.
    """

    topic: str
    partition: int
    offset: int
    number: int


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to the message, with what is known of it; units as in the names."""

    time_us: int
    name: StepName
    group: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    until_ms: int | None = None
    reason: str | None = None
    lane: int | None = None
    due_ms: int | None = None
    copy: CopyLocation | None = None


class TraceGap(NamedTuple):
    """A time span, as far as it is known, in which steps may be missing, and the reason."""

    from_us: int | None
    to_us: int | None
    reason: str


class PublishRecord(NamedTuple):
    """The offset and times of the message itself; ``due_ms`` 0 where it was not delayed."""

    offset: int
    time_us: int
    due_ms: int = 0
