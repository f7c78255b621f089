"""The plan of a backup for a running node: the files of a partition at one moment.

:func:`plan_partition` runs on the event loop, where commits are. So both ends are of the same
moment: each event is about messages that are committed by then, and in the plan. Both logs only
grow there, so their bytes up to the ends stay what they are.
"""

from __future__ import annotations

from pathlib import Path

from goq.backup.planned_files import PlannedFile, PlannedLog, PlannedPartition, PlannedTopic
from goq.broker.topic.topic import Topic
from goq.errors import PartitionOffline
from goq.storage.disk import Disk
from goq.storage.log.reader import LogReader


def plan_topic(topic: Topic) -> PlannedTopic:
    """Return the settings of a topic and its groups. Raises ``PartitionOffline``."""
    partitions = topic.partitions
    for number in range(partitions.count):
        partition = partitions.get(number)
        if partition is None or not partition.is_online:
            raise PartitionOffline(
                f"{topic.name}:{number} is offline, so no backup would be complete; see goq doctor"
            )
    groups = {name: dict(own) for name, own in topic.groups.items()}
    settings = topic.settings.written()
    numbers = range(partitions.count)
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
    files = [
        PlannedFile(each.path, each.base_offset, each.size_bytes, disk, each.generation)
        for each in segments
    ]
    return PlannedLog(segments[-1].end_offset, files, archive_dir)
