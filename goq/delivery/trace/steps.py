"""The steps in the life of a message, and what may be missing among them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class StepName(StrEnum):
    """What a step is called."""

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
    """It was leased and never left the node: that counts as no attempt."""
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
    """Where the copy of a message that left is: ``number`` behind the one at ``offset``.

    ``offset`` is -1 where it is not known, or the copy is still on its way.
    """

    topic: str
    partition: int
    offset: int
    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to the message, with what is known of it; times as they are named."""

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
    """Between which times something may be missing, as far as that is known, and why."""

    from_us: int | None
    to_us: int | None
    reason: str


class PublishRecord(NamedTuple):
    """What the message itself tells; ``due_ms`` 0 where it was not delayed."""

    offset: int
    time_us: int
    due_ms: int = 0
