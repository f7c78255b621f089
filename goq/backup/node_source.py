"""The topics of a running node that is no member of a cluster, as one moment has them.

All partitions are planned in one step of the event loop, where commits are. So all ends are of the
same moment: each event is about messages that are committed by then, and in the plan, and no event
says that a copy is stored which the other topic lacks. Logs only grow there, so their bytes up to
the ends stay what they are.

Files are copied as background reads, which pause during live traffic: many pieces of a file at a
time while there is none, and one at full load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from goq.access.token_record import TokenRecord
from goq.backup.manifest import StoredPartition
from goq.backup.planned_files import (
    PlannedFile,
    PlannedLog,
    PlannedPartition,
    PlannedTopic,
    list_archived_files,
)
from goq.broker.broker import Broker
from goq.broker.topic.topic import Topic
from goq.errors import PartitionOffline, TooManyRequests
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.disk import Disk
from goq.storage.log.reader import LogReader

_STEP_S: Final = 0.02
"""How long pieces are copied without a look at the load, while there was none."""
_BUSY_S: Final = 0.2
Copying = Generator[int, None, StoredPartition]
"""A copy of a partition under way; each step blocks and yields the bytes of a piece."""


class TopicPlan(NamedTuple):
    """A topic and the files of its partitions."""

    topic: PlannedTopic
    partitions: Sequence[PlannedPartition]


class BackupSource(Protocol):
    """The topics that a running node backs up: its own, or those of its cluster."""

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The access tokens by name."""

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name."""

    @property
    def epoch(self) -> int:
        """A number that no epoch in a planned log exceeds."""

    async def plan(self, *, is_partial: bool = False) -> Sequence[TopicPlan]:
        """Return all topics with their files. Raises ``GoqError``.

        With ``is_partial`` those partitions are left out that cannot be planned.
        """

    async def copy(self, copying: Copying) -> StoredPartition:
        """Run the steps of a copy in a thread."""

    def retry_pause_s(self, error: Exception, tries: int) -> float | None:
        """Return when to plan again after an error, None if that does not help."""


class LocalSource:
    """The topics of this node."""

    def __init__(self, broker: Broker, disk: Disk) -> None:
        self._broker = broker
        self._disk = disk
        self._topics: Sequence[Topic] = ()

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The access tokens by name."""
        return dict(self._broker.metadata.tokens)

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name."""
        return dict(self._broker.metadata.schedules)

    @property
    def epoch(self) -> int:
        """The number of starts of the node."""
        return self._broker.epoch

    async def plan(self, *, is_partial: bool = False) -> Sequence[TopicPlan]:
        """Return all topics as they are now, without offline partitions.

        Raises ``PartitionOffline`` if all are.
        """
        self._topics = list(self._broker.topics.values())
        archive = self._broker.topics_dir.parent / ARCHIVE_DIR
        planned = [plan_topic(topic) for topic in self._topics]
        if planned and not any(each.numbers for each in planned):
            raise PartitionOffline("all partitions are offline, so there is nothing to back up;"
                                   " see goq doctor")  # fmt: skip
        return [
            TopicPlan(
                each,
                [plan_partition(self._disk, archive, topic, number) for number in each.numbers],
            )
            for topic, each in zip(self._topics, planned, strict=True)
        ]

    async def copy(self, copying: Copying) -> StoredPartition:
        """Run the steps of a copy as background reads."""
        while True:
            try:
                step_s = _STEP_S * (1 - self._broker.background.load)
                stored = await self._broker.background.run(partial(_advance, copying, step_s))
            except TooManyRequests:
                await asyncio.sleep(_BUSY_S)
                continue
            if stored is not None:
                return stored

    def retry_pause_s(self, error: Exception, tries: int) -> float | None:
        """Return 0 if files were deleted, with their segment or with their topic."""
        topics = self._broker.topics
        is_there = all(topics.get(each.name) is each for each in self._topics)
        is_other = is_there and not isinstance(error, FileNotFoundError)
        return None if is_other or tries >= PLAN_TRIES else 0.0


PLAN_TRIES: Final = 20


def _advance(copying: Copying, step_s: float) -> StoredPartition | None:
    """Copy at least a piece, for about so long; return the partition once it is copied."""
    until_s = time.monotonic() + step_s
    while True:
        try:
            next(copying)
        except StopIteration as done:
            stored: StoredPartition = done.value
            return stored
        if time.monotonic() >= until_s:
            return None


def plan_topic(topic: Topic) -> PlannedTopic:
    """Return the settings of a topic and its groups, and the partitions that are online."""
    partitions = topic.partitions
    groups = {name: dict(own) for name, own in topic.groups.items()}
    settings = topic.settings.written()
    numbers = [
        number
        for number in range(partitions.count)
        if (partition := partitions.get(number)) is not None and partition.is_online
    ]
    return PlannedTopic(topic.name, topic.id, partitions.count, settings, groups, numbers)


def plan_partition(disk: Disk, archive_dir: Path, topic: Topic, number: int) -> PlannedPartition:
    """Return the files of a partition; runs on the event loop."""
    partition = topic.partitions[number]
    archive = archive_dir / topic.folder / str(number)
    return PlannedPartition(
        topic.folder,
        number,
        _plan_log(disk, partition.message_reader, archive / "messages"),
        _plan_log(disk, partition.event_reader, archive / "events"),
    )


def _plan_log(disk: Disk, reader: LogReader, archive_dir: Path) -> PlannedLog:
    segments = reader.segments
    list_archived = partial(list_archived_files, disk, archive_dir)
    return PlannedLog(
        segments[-1].end_offset,
        segment_files(disk, reader),
        list_archived,
        lambda: reader.segments[0].base_offset,
    )


def segment_files(disk: Disk, reader: LogReader) -> list[PlannedFile]:
    """Return the segments of a log as they are now; runs on the event loop."""
    return [
        PlannedFile(each.path, each.base_offset, each.size_bytes, disk, each.generation)
        for each in reader.segments
    ]
