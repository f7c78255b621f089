"""Topics as a node describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

from goq.client.results.result import Result, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedOffsets:
    """Offsets of a partition whose stored bytes failed their check; ``end_offset`` is excluded."""

    start_offset: int
    end_offset: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition of a topic.

    It holds the offsets from ``start_offset`` up to ``end_offset``, which is excluded. Messages
    below ``high_watermark`` are on all in-sync replicas. ``bytes`` is the size of its segments.
    ``leader`` is None where no node leads it; the offsets are 0 then.
    """

    partition: int
    leader: str | None
    start_offset: int
    end_offset: int
    high_watermark: int
    bytes: int
    online: bool = True
    damaged: tuple[DamagedOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """The archived part of a topic, which retention deleted; ``bytes`` is its size on disk."""

    segments: int
    messages: int
    bytes: int
    first_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(Result):
    """One topic.

    ``id`` tells the topic from others that have, or had, its name; "" from an older node.
    ``settings`` are all settings in force, as text (docs/configuration.md). ``time`` is the node's
    clock when it answered. ``archived`` is None where nothing of the topic is archived. Writes are
    refused where fewer than ``min_insync`` replicas are in sync.
    """

    name: str
    partitions: tuple[PartitionDescription, ...]
    settings: Mapping[str, str]
    id: str = ""
    replication_factor: int = 1
    min_insync: int = 1
    time: datetime | None = None
    archived: ArchiveSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyVolume:
    """Messages of a day of UTC that retention has not deleted, and their bytes.

    Those that compaction removed are counted, as they keep their offsets.
    """

    date: date
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRates:
    """Messages and bytes per second, averaged over the last ``window_s`` seconds."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSummary:
    """How many messages wait for their time, and when the next one is due."""

    count: int
    next_due: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHistory(Result):
    """A topic over time; ``first_time`` and ``last_time`` are None where it has no message."""

    first_time: datetime | None
    last_time: datetime | None
    days: tuple[DailyVolume, ...]
    rates: TopicRates
    scheduled: ScheduledSummary


def decode_topic(answer: object) -> TopicDescription:
    """Return a topic from an answer."""
    return decode(TopicDescription, answer)


def decode_topics(answer: object) -> tuple[TopicDescription, ...]:
    """Return all topics from an answer."""
    return tuple(map(decode_topic, items_of(answer, "topics")))


def decode_topic_history(answer: object) -> TopicHistory:
    """Return a topic's history from an answer."""
    return decode(TopicHistory, answer)
