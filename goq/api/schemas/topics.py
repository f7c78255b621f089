"""JSON bodies of topics, and of a topic's history."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from goq.api.schemas.base import Input, Output
from goq.api.values import DateTime, Index, Partitions, Replicas, TopicName


class NewTopic(Input):
    """A topic to create. ``replication_factor`` and ``min_insync`` default to the cluster's."""

    name: TopicName
    partitions: Partitions | None = None
    replication_factor: Replicas | None = None
    min_insync: Replicas | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class TopicChange(Input):
    """Settings to change, more partitions, or another replication.

    ``unset`` names settings that get their defaults. Nothing changes unless the settings
    ``expected`` are so.
    """

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    unset: list[str] = msgspec.field(default_factory=list)
    expected: dict[str, Any] = msgspec.field(default_factory=dict)
    partitions: Partitions | None = None
    replication_factor: Replicas | None = None
    min_insync: Replicas | None = None


class PartitionOut(Output):
    """One partition of a topic.

    While it has no active leader, nothing else is known of it and the numbers are 0.
    """

    partition: Index
    leader: str | None
    start_offset: Index
    end_offset: Index
    high_watermark: Index
    bytes: Index
    online: bool = True
    damaged: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ArchivedOut(Output):
    """Archived messages of a topic that retention has deleted; ``bytes`` is their size on disk."""

    segments: Index
    messages: Index
    bytes: Index
    first_time: DateTime | None


_PARTITIONS_SCHEMA = {"type": "array", "items": {"$ref": "#/components/schemas/PartitionOut"}}
"""Partitions are encoded one by one: there may be 1,000."""


class TopicOut(Output):
    """A topic. ``id`` tells it from others that have, or had, its name.

    Writes are refused where fewer than ``min_insync`` replicas are in sync.
    """

    name: str
    id: str
    partitions: Annotated[msgspec.Raw, Meta(extra_json_schema=_PARTITIONS_SCHEMA)]
    settings: dict[str, str]
    replication_factor: int
    min_insync: int
    time: DateTime | UnsetType = UNSET
    archived: ArchivedOut | UnsetType = UNSET


_TOPICS_SCHEMA = {"type": "array", "items": {"$ref": "#/components/schemas/TopicOut"}}
"""Topics are encoded one by one: there may be 10,000."""


class TopicsOut(Output):
    """All topics."""

    topics: Annotated[msgspec.Raw, Meta(extra_json_schema=_TOPICS_SCHEMA)]


class DayOut(msgspec.Struct):
    """The messages appended on a day (UTC) that retention has not deleted.

    Those that compaction removed are counted, as they keep their offsets.
    """

    date: str
    messages: Index
    bytes: Index


class RatesOut(msgspec.Struct):
    """Events per second, averaged over the last ``window_s`` seconds."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


class ScheduledSummaryOut(msgspec.Struct):
    """The number of scheduled messages, and when the next is due."""

    count: Index
    next_due: DateTime | None


class HistoryOut(msgspec.Struct):
    """A topic over time: its first and last message, messages by day, rates, scheduled messages."""

    first_time: DateTime | None
    last_time: DateTime | None
    days: list[DayOut]
    rates: RatesOut
    scheduled: ScheduledSummaryOut
