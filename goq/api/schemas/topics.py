"""JSON bodies of topics, and of a topic's history."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from goq.api.schemas.base import Input, Output


class NewTopic(Input):
    """A topic to create."""

    name: str
    partitions: int | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class TopicChange(Input):
    """Settings to change, or more partitions."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    partitions: int | None = None


class PartitionOut(Output):
    """One partition of a topic.

    While it has no leader, or none that has taken it up, nothing else is known of it, and 0 shown.
    """

    partition: int
    leader: str | None
    start_offset: int
    end_offset: int
    high_watermark: int
    bytes: int
    online: bool = True
    damaged: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ArchivedOut(Output):
    """What retention deleted of a topic and the archive has; ``bytes`` as it lies on the disk."""

    segments: int
    messages: int
    bytes: int
    first_time: str | None


class TopicOut(Output):
    """A topic."""

    name: str
    partitions: list[PartitionOut]
    settings: dict[str, str]
    time: str | UnsetType = UNSET
    archived: ArchivedOut | UnsetType = UNSET


class TopicsOut(Output):
    """All topics."""

    topics: list[TopicOut]


class DayOut(msgspec.Struct):
    """What was appended on a day of UTC and is still there."""

    date: str
    messages: int
    bytes: int


class RatesOut(msgspec.Struct):
    """What happened a second, on the average of the last ``window_s`` seconds."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


class ScheduledSummaryOut(msgspec.Struct):
    """How many messages wait for their time, and when the next is due."""

    count: int
    next_due: str | None


class HistoryOut(msgspec.Struct):
    """A topic over time: its first and last message, by day, now, and what is to come."""

    first_time: str | None
    last_time: str | None
    days: list[DayOut]
    rates: RatesOut
    scheduled: ScheduledSummaryOut
