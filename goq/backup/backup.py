"""One backup: the files of all partitions as objects, then the manifest.

All partitions are planned at one moment after the backup began, their files are copied, and the
manifest is written last. A backup that was cut short leaves objects without a manifest, which the
next one uses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from goq.access.token_record import TokenRecord
from goq.backup.data_dir_source import DataDirSource, locked_data_dir
from goq.backup.manifest import BackupManifest, StoredPartition, StoredTopic
from goq.backup.object_writer import ObjectWriter, known_files, stamp_of
from goq.backup.place import BackupPlace, LocalDisk, open_place
from goq.backup.planned_files import FileStamp, PlannedTopic
from goq.errors import UsageError
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.node_db import FILE_NAME as DB_NAME


class BackupResult(NamedTuple):
    """A finished backup: its name, and the bytes that it copied and found there already.

    ``missing`` are partitions that were offline: the backup lacks them.
    """

    name: str
    topics: int
    messages: int
    bytes: int
    copied_bytes: int
    missing: Sequence[str] = ()


class BackupBuilder:
    """Collects what one backup has, and writes the manifest. ``writer`` copies files.

    Close it afterwards.
    """

    def __init__(
        self,
        place: BackupPlace,
        time_us: int,
        stamp: Callable[[Path], FileStamp] = stamp_of,
    ) -> None:
        self.writer = ObjectWriter(place, known_files(place.newest(time_us)), stamp)
        self._place = place
        self._time_us = time_us
        self._topics: list[StoredTopic] = []

    def close(self) -> None:
        """Stop the thread of ``writer``."""
        self.writer.close()

    def add_topic(self, topic: PlannedTopic, logs: list[StoredPartition]) -> None:
        """Add a topic with its copied partitions."""
        self._topics.append(
            StoredTopic(
                topic.name, topic.id, topic.partitions, topic.settings, topic.groups, tuple(logs)
            )
        )

    def finish(
        self,
        epoch: int,
        tokens: Mapping[str, TokenRecord],
        schedules: Mapping[str, ScheduleRecord],
    ) -> BackupResult:
        """Write the manifest; return what the backup has."""
        topics = sorted(self._topics, key=lambda topic: topic.name)
        by_id = tuple(tokens[name] for name in sorted(tokens))
        by_name = tuple(schedules[name] for name in sorted(schedules))
        manifest = BackupManifest(self._time_us, epoch, tuple(topics), by_id, by_name)
        name = self._place.add(manifest)
        return BackupResult(
            name,
            len(topics),
            manifest.message_count,
            manifest.size_bytes,
            self.writer.copied_bytes,
            manifest.missing,
        )


def check_apart(place: BackupPlace, data_dir: Path) -> None:
    """Raise ``UsageError`` for a place in the data folder, around it, or in that of a node."""
    if place.store is not None:
        return
    folder, data = place.folder.resolve(), data_dir.resolve()
    if folder.is_relative_to(data) or data.is_relative_to(folder):
        raise UsageError(
            f"{place.where} and the data folder {data_dir} contain each other; choose another place"
        )
    if (folder / DB_NAME).exists():
        raise UsageError(f"{place.where} is the data folder of a node; choose another place")


def back_up_folder(
    disk: LocalDisk,
    data_dir: Path,
    where: Path | str,
    time_us: int,
    on_bytes: Callable[[int], object] = lambda _count: None,
) -> BackupResult:
    """Back up the data folder of a stopped node to a place; return what the backup has.

    Raises ``DataDirLocked`` if a node uses the folder, ``CorruptData``, ``Conflict`` for a place in
    use, ``UsageError``, and ``OSError``.
    """
    place = open_place(disk, where)
    check_apart(place, data_dir)
    with locked_data_dir(data_dir):
        source = DataDirSource(disk, data_dir)
        place.create()
        with place.locked(exclusive=True), closing(BackupBuilder(place, time_us)) as builder:
            for topic in source.topics:
                logs: list[StoredPartition] = []
                for number in topic.numbers:
                    copying = builder.writer.copy_partition(source.plan(topic, number))
                    logs.append(_copied(copying, on_bytes))
                builder.add_topic(topic, logs)
            return builder.finish(source.epoch, source.tokens, source.schedules)


def _copied(
    copying: Generator[int, None, StoredPartition], on_bytes: Callable[[int], object]
) -> StoredPartition:
    """Run a copy to its end without a pause; return what it copied."""
    while True:
        try:
            on_bytes(next(copying))
        except StopIteration as done:
            copied: StoredPartition = done.value
            return copied
