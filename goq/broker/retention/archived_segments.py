"""The archived segments of a node, in memory: the rows of the manifest, by log and offset.

The list of a log is never changed in place: a reader that has one may go on with it, in any thread.
All readers of a segment share one object for it, with its index, until the segment is deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from goq.broker.partition_context import PartitionId
from goq.storage.archive.disk import ArchiveDisk
from goq.storage.archive.file import archive_path
from goq.storage.archive.loaded_indexes import LoadedIndexes
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment
from goq.storage.scanner import BadRegion, ScannedFrame

_LogKey = tuple[int, str]
_NO_ROWS: Mapping[_LogKey, Sequence[ArchiveRow]] = {}


class ArchiveTotals(NamedTuple):
    """The archived messages of a topic. ``bytes`` are those of all its files, here or stored."""

    segments: int
    messages: int
    bytes: int
    first_time_us: int


class ArchivedSegment(Segment):
    """A segment in the archive. If its file is missing, all of it counts as damaged."""

    def _places(self, disk: Disk, end_position: int) -> Iterator[ScannedFrame | BadRegion]:
        try:
            yield from super()._places(disk, end_position)
        except FileNotFoundError:
            yield BadRegion(0, end_position, self.base_offset, None, "the file is missing")


class ArchivedSegments:
    """The archived segments of all topics. ``disk`` reads their content."""

    def __init__(self, root: Path, disk: ArchiveDisk) -> None:
        self.indexes = LoadedIndexes()
        self._root = root
        self._disk = disk
        self._segments: dict[ArchiveRow, Segment] = {}
        self._rows: dict[str, dict[_LogKey, Sequence[ArchiveRow]]] = {}  # by the topic's folder
        self._expired_to: dict[str, dict[_LogKey, int]] = {}

    def directory(self, identity: PartitionId, log: str) -> Path:
        """Return the directory of the archived segments of a log."""
        return self._root / identity.folder / str(identity.number) / log

    def rows(self, identity: PartitionId, log: str) -> Sequence[ArchiveRow]:
        """Return the archived segments of a log by offset. The list is never changed in place."""
        return self._rows.get(identity.folder, _NO_ROWS).get((identity.number, log), ())

    def segment(self, row: ArchiveRow, *, has_columns: bool) -> Segment:
        """Return an archived segment; all readers share it. Any thread may call."""
        segment = self._segments.get(row)
        if segment is None:
            directory = self._root / row.topic / str(row.partition) / row.log
            segment = ArchivedSegment(directory, row.base_offset)
            segment.size_bytes = row.size_bytes
            segment.end_offset = row.end_offset
            segment.first_time_us = row.first_time_us or None
            segment.time_us = row.last_time_us
            segment.on_load = self.indexes.on_load
            if has_columns:
                segment.attach_columns_later(self._disk)
            segment = self._segments.setdefault(row, segment)
        return segment

    def find(self, identity: PartitionId, log: str, offset: int) -> ArchiveRow | None:
        """Return the archived segment that holds ``offset``."""
        rows = self.rows(identity, log)
        number = bisect_right(rows, offset, key=lambda row: row.base_offset) - 1
        return rows[number] if number >= 0 and offset < rows[number].end_offset else None

    def expired_to(self, identity: PartitionId, log: str) -> int:
        """Return the offset before which this run has deleted archived segments of a log."""
        return self._expired_to.get(identity.folder, {}).get((identity.number, log), 0)

    def file_of(self, row: ArchiveRow) -> Path:
        """Return the file of an archived segment."""
        directory = self._root / row.topic / str(row.partition) / row.log
        return archive_path(directory, Segment(directory, row.base_offset).path)

    def topic_totals(
        self, folder: str, partitions: Collection[int] | None = None
    ) -> ArchiveTotals | None:
        """Return the totals of a topic, or of some of its partitions; None if it has no archive.

        ``folder`` is the topic's.
        """
        found = [
            row
            for (number, _), rows in self._rows.get(folder, _NO_ROWS).items()
            if partitions is None or number in partitions
            for row in rows
        ]
        if not found:
            return None
        messages = [row for row in found if row.log == "messages"]
        return ArchiveTotals(
            len(messages),
            sum(row.end_offset - row.base_offset for row in messages),
            sum(row.archived_bytes for row in found),
            min((row.first_time_us for row in messages if row.first_time_us), default=0),
        )

    def logs(self, folder: str) -> Mapping[_LogKey, Sequence[ArchiveRow]]:
        """Return the rows of a topic, by partition and log."""
        return self._rows.get(folder, _NO_ROWS)

    def add(self, row: ArchiveRow) -> None:
        """List a segment; it replaces one with the same first offset."""
        key = row.partition, row.log
        logs = self._rows.setdefault(row.topic, {})
        others = [known for known in logs.get(key, ()) if known[:4] != row[:4]]
        logs[key] = sorted([*others, row], key=lambda known: known.base_offset)

    def expire(self, folder: str, rows: Collection[ArchiveRow]) -> None:
        """List segments of a topic no more: they are beyond its total retention."""
        logs, ends = self._rows.get(folder, {}), self._expired_to.setdefault(folder, {})
        gone = set(rows)
        for row in rows:
            key = row.partition, row.log
            ends[key] = max(ends.get(key, 0), row.end_offset)
        for key, listed in logs.items():
            logs[key] = [row for row in listed if row not in gone]

    def release(self, row: ArchiveRow) -> None:
        """Drop the shared object of a deleted segment."""
        segment = self._segments.pop(row, None)
        if segment is not None:
            self.indexes.forget(segment)

    def remove_topic(self, folder: str) -> None:
        """List nothing of a deleted topic, and drop its shared objects."""
        self._rows.pop(folder, None)
        self._expired_to.pop(folder, None)
        for row in [row for row in list(self._segments) if row.topic == folder]:
            self.indexes.forget(self._segments.pop(row))
