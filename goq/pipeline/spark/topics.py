"""The topics of a Spark query, as input partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from goq.client import Client
from goq.client.messages import ReadBatch
from goq.errors import Conflict, InvalidInput
from goq.pipeline.arrow.node_source import LogBounds, NodeSource
from goq.pipeline.arrow.tables import TABLES
from goq.pipeline.spark.offset_ranges import (
    Offsets,
    Range,
    check_named,
    ranges_between,
    resolve,
)
from goq.pipeline.spark.source_options import SourceOptions
from goq.pipeline.spark.transaction_topics import COMMITS_SUFFIX, STAGED_SUFFIX


class Task(InputPartition):
    """The input of one task; a query without messages has one empty task.

    ``topic_id`` is that of the topic when the task was planned; "" where the node does not say.
    """

    def __init__(self, piece: Range | None, default_lane: int = 0, topic_id: str = "") -> None:
        super().__init__(piece)
        self.piece = piece
        self.default_lane = default_lane
        self.topic_id = topic_id

    def check_topic(self, topic: str, now_id: str) -> None:
        """Raise ``Conflict`` if the topic is not the one that the task was planned for."""
        if self.topic_id and now_id and self.topic_id != now_id:
            raise Conflict(
                f"{topic} was deleted and created again since the query was planned (id"
                f" {self.topic_id}, now {now_id}): load it again, or run the stream again",
                field="topic",
            )


class Topics:
    """The topics of a query, as they exist on the node now."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._source = NodeSource(client, include_deleted=options.include_deleted)
        names = self._names()
        self.ids = {topic: self._source.topic_id(topic) for topic in names}
        """The ids of the topics, read before their bounds; "" where the node does not say."""
        every = {topic: self._every(topic) for topic in names}
        self.bounds = _chosen(every, options.partitions)

    def _names(self) -> Sequence[str]:
        """Return the topic names; a pattern never matches the sink's internal topics."""
        if self._options.pattern is None:
            return self._options.topics
        names = {topic.name for topic in self._client.list_topics()}
        beside = {name + suffix for name in names for suffix in (STAGED_SUFFIX, COMMITS_SUFFIX)}
        wanted = re.compile(self._options.pattern).fullmatch
        return [name for name in sorted(names - beside) if wanted(name)]

    def _every(self, topic: str) -> Mapping[int, LogBounds]:
        return TABLES[self._options.table].bounds(self._source, topic)

    def starts(self, *, default: str) -> Offsets:
        """Return the first offsets of a new query."""
        since = self._options.starting_timestamp
        if since is None:
            return resolve(self._options.starting or default, self.bounds, "startingOffsets")
        return self._since(since, "startingOffsetsByTimestamp")

    def ends(self) -> Offsets:
        """Return the offsets up to which a query reads."""
        until = self._options.ending_timestamp
        if until is None:
            return resolve(self._options.ending, self.bounds, "endingOffsets")
        return self._since(until, "endingOffsetsByTimestamp")

    def message_bytes(self) -> Mapping[str, float]:
        """Return the mean size of the messages of each topic, by what its log has on the disk."""
        means = {}
        for topic in self.bounds:
            partitions = self._client.describe_topic(topic).partitions
            count = sum(p.end_offset - p.start_offset for p in partitions)
            means[topic] = sum(p.bytes for p in partitions) / count if count else 1.0
        return means

    def _since(self, times: str | Offsets, field: str) -> Offsets:
        """Return the offset of the first message at a time or later, or the end."""
        if not isinstance(times, str):
            check_named(times, self.bounds, field)
        return {
            topic: {
                p: _first(
                    self._client.read(
                        topic,
                        partition=p,
                        from_time=_time(times) if isinstance(times, str) else times[topic][p],
                        limit=1,
                        include_deleted=self._options.include_deleted,
                    )
                )
                for p in partitions
            }
            for topic, partitions in self.bounds.items()
        }

    def tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks that read from ``start`` up to ``end``; at least one."""
        pieces = ranges_between(start, end, self._options.tasks_min)
        lanes = {topic: self._source.default_lane(topic) for topic in {p.topic for p in pieces}}
        return [Task(p, lanes[p.topic], self.ids[p.topic]) for p in pieces] or [Task(None)]


def _chosen(
    every: Mapping[str, Mapping[int, LogBounds]], chosen: frozenset[int] | None
) -> Mapping[str, Mapping[int, LogBounds]]:
    """Return only the chosen partitions; raise ``InvalidInput`` for an unknown one."""
    if chosen is None:
        return every
    missing = chosen.difference(*every.values())
    if missing and every:
        raise InvalidInput(
            f"there is no partition {min(missing)} in {', '.join(every)[:200]}", field="partitions"
        )
    return {t: {p: b for p, b in found.items() if p in chosen} for t, found in every.items()}


def _first(piece: ReadBatch) -> int:
    return piece.frames[0].header.base_offset if piece.frames else piece.next


def _time(text: str) -> str | int:
    return int(text) if text.isdigit() else text
