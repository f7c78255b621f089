"""The plan of a backup for the data folder of a stopped node: read, and nothing of it changed.

What a segment may lack is taken from the journal (:class:`JournalView`). The end of a log is where
a start would find it: bad bytes from the durable end on were never acknowledged and are left out.
Damage before it is copied as it is, and the restored node tells it.

Topics and settings are those of ``node.db`` and of the topic files, a sound file first.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from goq import limits
from goq.access.token_record import TokenRecord
from goq.backup.planned_files import (
    PlannedFile,
    PlannedLog,
    PlannedPartition,
    PlannedTopic,
    list_archived_files,
)
from goq.errors import CorruptData, DataDirLocked, NotFound, UsageError
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.catalog.rows import TopicRow
from goq.storage.catalog.topic_file import read_topic_file
from goq.storage.data_dir_lock import FILE_NAME as LOCK_NAME
from goq.storage.data_dir_lock import check_format
from goq.storage.disk import Disk
from goq.storage.journal.journal import JOURNAL_DIR
from goq.storage.journal.piece import journal_damage, scan_pieces
from goq.storage.journal.record import JournalEntry
from goq.storage.journal.redo import MarkedEntry
from goq.storage.log.recovery_point import (
    DurableEnd,
    JournalMark,
    read_durable_end,
    read_journal_mark,
)
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import list_segments
from goq.storage.node_db import FILE_NAME as DB_NAME
from goq.storage.node_db import NodeDb
from goq.storage.scanner import BadRegion, Scanner
from goq.storage.verification import TOPICS_DIR

CLUSTER_DIR = "cluster"
_START = "start the node, which tells what it makes of that, then back up"


class JournalView:
    """Files with the bytes of journal entries in their place. Reads only."""

    def __init__(self, disk: Disk, entries: Mapping[Path, Sequence[JournalEntry]]) -> None:
        self._disk = disk
        self._entries = entries

    def size(self, path: Path) -> int:
        """Return the size of a file with what the journal adds to it."""
        ends = [entry.position + len(entry.data) for entry in self._entries.get(path, ())]
        return max([self._disk.size(path), *ends])

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return bytes of a file as ``Disk.read`` does."""
        entries = self._entries.get(path)
        if not entries:
            return self._disk.read(path, position, size_bytes, wait=wait)
        data = bytearray(self._disk.read(path, position, size_bytes, wait=wait))
        end = min(position + size_bytes, self.size(path))
        data.extend(bytes(max(0, end - position - len(data))))
        for entry in entries:
            first, last = max(position, entry.position), min(end, entry.position + len(entry.data))
            if first < last:
                part = entry.data[first - entry.position : last - entry.position]
                data[first - position : last - position] = part
        return memoryview(bytes(data))


@contextmanager
def locked_data_dir(data_dir: Path) -> Generator[None]:
    """Keep nodes off a data folder, without a change to it.

    Raises ``DataDirLocked`` if a node uses it, ``NotFound``, ``UnsupportedFormat``, and
    ``UsageError`` for a folder of a cluster's node.
    """
    if not data_dir.is_dir():
        raise NotFound(f"there is no folder {data_dir}; say which with --data-dir")
    check_format(data_dir)
    if (data_dir / CLUSTER_DIR).exists():
        raise UsageError(
            f"{data_dir} is of a node of a cluster, and has what that node has only: back up the"
            " running cluster through a node with backup.to"
        )
    if not (data_dir / DB_NAME).exists():
        raise NotFound(f"{data_dir} is no data folder: it has no {DB_NAME}")
    descriptors: list[int] = []
    try:
        for path in (data_dir, data_dir / LOCK_NAME):
            if path.exists():
                descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataDirLocked(
            f"{data_dir} is in use by a node: stop it, or leave out --data-dir"
        ) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class DataDirSource:
    """The data folder of a stopped node; hold :func:`locked_data_dir` meanwhile.

    Raises ``CorruptData`` for a journal or a ``node.db`` that cannot be relied on: start the node,
    and let it tell the damage.
    """

    def __init__(self, disk: Disk, data_dir: Path) -> None:
        self._disk = disk
        self._topics_dir = data_dir / TOPICS_DIR
        self._archive_dir = data_dir / ARCHIVE_DIR
        self._entries = _journal_entries(disk, data_dir)
        db = NodeDb(data_dir, read_only=True)
        try:
            self.epoch = db.current_epoch()
            self.tokens: Mapping[str, TokenRecord] = db.tokens()
            self.schedules: Mapping[str, ScheduleRecord] = db.schedules()
            for bad in db.damaged_rows():
                raise CorruptData(f"{db.path} has {bad}; {_START}")
            rows = [row for row in db.topics() if not row.deleting]
            self._existed = {row.folder: db.manifest_of(row.folder).partitions for row in rows}
            self.topics = [self._topic(row, db.groups(row.name)) for row in rows]
            self._check_folders({row.folder for row in db.topics()})
        finally:
            db.close()

    def _check_folders(self, known: Collection[str]) -> None:
        """Raise ``CorruptData`` for a topic that only its folder knows: a start takes it up."""
        for name in self._disk.names(self._topics_dir):
            if name not in known and read_topic_file(self._disk, self._topics_dir / name):
                raise CorruptData(f"{self._topics_dir / name} is in no row of {DB_NAME}; {_START}")

    def _topic(self, row: TopicRow, groups: Mapping[str, Mapping[str, str]]) -> PlannedTopic:
        partitions, settings = row.partitions, row.settings
        record = read_topic_file(self._disk, self._topics_dir / row.folder)
        if record is not None:
            partitions, settings = record.partitions, record.settings
            groups = {**groups, **record.groups}
        written = {name: dict(own) for name, own in groups.items()}
        return PlannedTopic(
            row.name, row.id, partitions, dict(settings), written, range(partitions)
        )

    def plan(self, topic: PlannedTopic, number: int) -> PlannedPartition:
        """Return the files of a partition."""
        folder = topic.folder
        return PlannedPartition(
            folder,
            number,
            self._plan_log(folder, number, "messages"),
            self._plan_log(folder, number, "events"),
        )

    def _plan_log(self, folder: str, number: int, name: str) -> PlannedLog:
        path = f"{folder}/{number}/{name}"
        directory = self._topics_dir / path
        list_archived = partial(list_archived_files, self._disk, self._archive_dir / path)
        segments = list_segments(self._disk, directory)
        if not segments:
            if number < self._existed.get(folder, 0) or self._disk.names(directory):
                raise CorruptData(f"{directory} has no segment; {_START}")
            return PlannedLog(0, [], list_archived)  # the topic was just created
        newer = _newer(self._entries.get(path, ()), read_journal_mark(self._disk, directory))
        by_path: dict[Path, list[JournalEntry]] = defaultdict(list)
        for segment in segments:
            if not segment.generation:
                by_path[segment.path] += [e for e in newer if e.segment == segment.base_offset]
        view = cast(Disk, JournalView(self._disk, by_path))
        durable = _durable_end(read_durable_end(self._disk, directory), newer)
        files, end_offset = _sound_files(view, segments, durable)
        planned = [
            PlannedFile(
                segment.path,
                segment.base_offset,
                size_bytes,
                view,
                segment.generation,
                not by_path.get(segment.path),
            )
            for segment, size_bytes in files
        ]
        return PlannedLog(end_offset, planned, list_archived)


def _journal_entries(disk: Disk, data_dir: Path) -> Mapping[str, list[MarkedEntry]]:
    pieces = scan_pieces(disk, data_dir / JOURNAL_DIR)
    for path, reason in journal_damage(pieces):
        raise CorruptData(f"{path}: {reason}; {_START}")
    entries: dict[str, list[MarkedEntry]] = defaultdict(list)
    for piece in pieces:
        for record in piece.records:
            mark = JournalMark(record.journal_id, record.number)
            for entry in record.entries():
                entries[entry.path].append((mark, entry))
    return entries


def _newer(entries: Iterable[MarkedEntry], mark: JournalMark) -> list[JournalEntry]:
    """Return the entries that the segments may lack."""
    return [entry for marked, entry in entries if marked > mark]


def _durable_end(found: DurableEnd | None, newer: Sequence[JournalEntry]) -> DurableEnd | None:
    if found is None or not newer:
        return found
    last = newer[-1]
    end = DurableEnd(last.segment, last.position + len(last.data), last.end_offset)
    return max(found, end)


def _sound_files(
    disk: Disk, segments: Sequence[Segment], durable: DurableEnd | None
) -> tuple[list[tuple[Segment, int]], int]:
    """Return segments with the bytes that a start would keep, and the end offset of the log.

    Without a durable end all bytes count as acknowledged.
    """
    known = segments[-1].base_offset if durable is None else durable.segment
    files = [(each, each.size_bytes) for each in segments if each.base_offset < known]
    offset = segments[len(files)].base_offset if len(files) < len(segments) else 0
    for segment in segments[len(files) :]:
        if segment.base_offset != offset:
            break  # it was never durable
        position = 0
        if durable is not None and segment.base_offset == durable.segment:
            position, offset = durable.position, durable.offset
        end = disk.size(segment.path)
        scanner = Scanner(disk, segment.path, end, chunk_bytes=limits.MIB)
        for place in scanner.frames(position, offset):
            if isinstance(place, BadRegion) and durable is not None:
                return [*files, (segment, place.position)], offset
            offset = scanner.offset
        files.append((segment, end))
    return files, offset if durable is None else max(offset, durable.offset)
