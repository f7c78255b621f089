"""The archive of a node: compressed copies of segments that retention deletes.

A segment is archived in this order: its file is written whole, made durable and compared with the
segment; its row is added to the manifest; then the caller may delete the segment. At any moment the
live segment or its archive exists. After a crash the next start removes unfinished files. It takes
over finished files after another comparison and does not write them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from goq import limits
from goq.broker.metadata import MetadataStore
from goq.broker.partition_context import PartitionId
from goq.clock import Clock
from goq.errors import CorruptData
from goq.storage.archive.disk import ArchiveDisk
from goq.storage.archive.file import (
    PART_SUFFIX,
    Footer,
    Interrupted,
    archive_path,
    check_archive,
    copy_file,
    crc_of,
    read_footer,
    write_archive,
)
from goq.storage.archive.loaded_indexes import LoadedIndexes
from goq.storage.archive.manifest import archive_row, find_unlisted
from goq.storage.column_index.file import SUFFIX as COLUMNS_SUFFIX
from goq.storage.disk import Disk
from goq.storage.log.segment import INDEX_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX, Segment
from goq.storage.node_db import ArchiveRow
from goq.storage.scanner import Damage

T = TypeVar("T")
_SIDECARS = (INDEX_SUFFIX, COLUMNS_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX)
_NICENESS = 10
_LogKey = tuple[int, str]
_NO_ROWS: Mapping[_LogKey, Sequence[ArchiveRow]] = {}


class ArchiveTotals(NamedTuple):
    """The archived messages of a topic. ``bytes`` is the disk usage of all its archive files."""

    segments: int
    messages: int
    bytes: int
    first_time_us: int


class Archiver:
    """Writes, lists and copies archived segments. ``disk`` reads their content.

    It works in threads of its own, unless it is given an executor.
    """

    def __init__(
        self,
        root: Path,
        disk: Disk,
        metadata: MetadataStore,
        clock: Clock,
        *,
        executor: Executor | None = None,
    ) -> None:
        self.root = root
        self.disk = ArchiveDisk(disk, root)
        self._disk = disk
        self._metadata = metadata
        self._clock = clock
        self.indexes = LoadedIndexes()
        self._segments: dict[ArchiveRow, Segment] = {}
        self._rows: dict[str, dict[_LogKey, Sequence[ArchiveRow]]] = {}  # by the topic's folder
        self._damage: dict[tuple[PartitionId, str], list[Damage]] = {}
        self._lock = asyncio.Lock()
        self._closing = threading.Event()
        self._writer = executor or ThreadPoolExecutor(1, "goq-archive", initializer=_lower_priority)
        self._readers = executor or ThreadPoolExecutor(
            limits.ARCHIVE_READ_THREADS, "goq-archive-read"
        )

    async def open(self, folders: Collection[str]) -> None:
        """Read the manifest, add files that it lacks, and remove unfinished files.

        ``folders`` are those of all topics.
        """
        known = {row[:4]: row for row in await self._metadata.archived()}
        found = await self._run_in(
            self._writer, lambda: list(find_unlisted(self._disk, self.root, folders, known))
        )
        if found:
            await self._metadata.put_archived(found)
        for row in [*known.values(), *found]:
            self._add_row(row)

    def directory(self, identity: PartitionId, log: str) -> Path:
        """Return the directory of the archived segments of a log."""
        return self.root / identity.folder / str(identity.number) / log

    def rows(self, identity: PartitionId, log: str) -> Sequence[ArchiveRow]:
        """Return the archived segments of a log by offset. The list is never changed in place."""
        return self._rows.get(identity.folder, _NO_ROWS).get((identity.number, log), ())

    def segment(self, row: ArchiveRow, *, has_columns: bool) -> Segment:
        """Return an archived segment; all readers share it. Any thread may call."""
        segment = self._segments.get(row)
        if segment is None:
            directory = self.root / row.topic / str(row.partition) / row.log
            segment = Segment(directory, row.base_offset)
            segment.size_bytes = row.size_bytes
            segment.end_offset = row.end_offset
            segment.first_time_us = row.first_time_us or None
            segment.time_us = row.last_time_us
            segment.on_load = self.indexes.on_load
            if has_columns:
                segment.attach_columns(self.disk)
            segment = self._segments.setdefault(row, segment)
        return segment

    def find(self, identity: PartitionId, log: str, offset: int) -> ArchiveRow | None:
        """Return the archived segment that holds ``offset``."""
        rows = self.rows(identity, log)
        number = bisect_right(rows, offset, key=lambda row: row.base_offset) - 1
        return rows[number] if number >= 0 and offset < rows[number].end_offset else None

    def file_of(self, row: ArchiveRow) -> Path:
        """Return the file of an archived segment."""
        directory = self.root / row.topic / str(row.partition) / row.log
        return archive_path(directory, Segment(directory, row.base_offset).path)

    def damage(self, identity: PartitionId, log: str) -> list[Damage]:
        """Return the known damage of a log's archived segments. Readers add to the list."""
        return self._damage.setdefault((identity, log), [])

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

    async def archive_segment(
        self, identity: PartitionId, log: str, segment: Segment
    ) -> ArchiveRow:
        """Archive a sealed segment. The caller may delete the segment when this returns.

        Raises ``OSError`` if the disk fails or is full. Raises ``CorruptData`` if the disk does not
        return what was written. The segment must then stay.
        """
        async with self._lock:
            directory, now_us = self.directory(identity, log), self._clock.wall_us()
            footer = await self._run_in(
                self._writer, lambda: self._write_segment(directory, segment, now_us)
            )
            path = archive_path(directory, segment.path)
            partition = identity.folder, identity.number
            row = archive_row(partition, log, footer, self._disk.size(path))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self._add_row(row)
            return row

    async def read_chunk(self, row: ArchiveRow, position: int, size_bytes: int) -> bytes:
        """Return bytes of the file of an archived segment; empty at its end."""
        path = self.file_of(row)
        return await self.in_thread(lambda: bytes(self._disk.read(path, position, size_bytes)))

    async def copy_segment(
        self, row: ArchiveRow, read_chunk: Callable[[int], Awaitable[bytes]]
    ) -> None:
        """Copy an archived segment from another node. ``row`` describes it as it is there.

        ``read_chunk`` returns bytes of its file from a position on, empty at its end. Raises
        ``CorruptData`` if the bytes do not match ``row``, ``OSError``, and what ``read_chunk``
        raises. Nothing is changed then.
        """
        path = self.file_of(row)
        part = path.with_name(f"{path.name}.copy{PART_SUFFIX}")
        await self._run_in(self._writer, lambda: self._begin_copy(part))
        position = 0
        while position < row.archived_bytes and (data := await read_chunk(position)):
            await self._run_in(self._writer, partial(self._append, part, data))
            position += len(data)
        async with self._lock:
            await self._run_in(self._writer, lambda: self._finish_copy(part, path, row))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self._add_row(row)

    def _begin_copy(self, part: Path) -> None:
        self._disk.make_dir(part.parent)
        self._disk.remove(part)  # of an interrupted copy

    def _append(self, part: Path, data: bytes) -> None:
        file = self._disk.open(part)
        try:
            file.append([data])
        finally:
            file.close()

    def _finish_copy(self, part: Path, path: Path, row: ArchiveRow) -> None:
        file = self._disk.open(part)
        try:
            file.sync()
        finally:
            file.close()
        footer = check_archive(self._disk, part)
        found = archive_row((row.topic, row.partition), row.log, footer, self._disk.size(part))
        if found._replace(archived_at_us=row.archived_at_us) != row:
            self._disk.remove(part)
            raise CorruptData(
                f"{path} was not copied: it differs from the manifest of the other node"
            )
        self._disk.rename(part, path)

    async def delete_topic(self, folder: str) -> None:
        """Delete the archive of a topic, except its rows in the manifest."""
        async with self._lock:
            directory = self.root / folder
            await self._run_in(self._writer, lambda: self._disk.remove_dir(directory))
            self.disk.invalidate(directory)
            self._rows.pop(folder, None)
            for row in [row for row in list(self._segments) if row.topic == folder]:
                self.indexes.forget(self._segments.pop(row))
            for key in [key for key in self._damage if key[0].folder == folder]:
                del self._damage[key]

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that reads the archive in a thread that no commit uses."""
        return await self._run_in(self._readers, work)

    def close(self) -> None:
        """Stop the threads. Archiving in progress is interrupted."""
        self._closing.set()
        self._writer.shutdown()
        self._readers.shutdown()

    async def _run_in(self, executor: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def _check(self) -> None:
        if self._closing.is_set():
            raise Interrupted

    def _write_segment(self, directory: Path, segment: Segment, now_us: int) -> Footer:
        disk, path = self._disk, archive_path(directory, segment.path)
        disk.make_dir(directory)
        stored = self._find_finished(path, segment)
        if stored is not None:
            return msgspec.structs.replace(stored, archived_at_us=now_us)
        segment.load_index(disk)
        footer = Footer(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            crc32c=0,
            first_time_us=segment.read_first_time(disk) or 0,
            last_time_us=segment.time_us,
            archived_at_us=now_us,
            chunks=[],
        )
        names = set(disk.names(segment.path.parent))
        for source in (segment.path.with_suffix(suffix) for suffix in _SIDECARS):
            if source.name in names:
                with contextlib.suppress(OSError, CorruptData):  # it can be rebuilt
                    copy_file(disk, source, archive_path(directory, source))
        return write_archive(disk, segment.path, path, footer, self._check)

    def _find_finished(self, path: Path, segment: Segment) -> Footer | None:
        """Return the footer of a finished and intact archive of this segment, if there is one."""
        expected = (segment.base_offset, segment.end_offset, segment.size_bytes)
        try:
            footer = read_footer(self._disk, path)
            if (footer.base_offset, footer.end_offset, footer.size_bytes) != expected:
                return None
            if footer.crc32c != crc_of(self._disk, segment.path, segment.size_bytes):
                return None
            return check_archive(self._disk, path)
        except (FileNotFoundError, CorruptData):
            return None

    def _add_row(self, row: ArchiveRow) -> None:
        key = row.partition, row.log
        logs = self._rows.setdefault(row.topic, {})
        others = [known for known in logs.get(key, ()) if known[:4] != row[:4]]
        logs[key] = sorted([*others, row], key=lambda known: known.base_offset)


def _lower_priority() -> None:
    """Lower the CPU priority of this thread, where the platform supports it."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
