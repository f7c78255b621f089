"""The archive of a node: what retention deletes, kept compressed where the topic asks for it.

A segment is archived in this order: its file, whole, durable and compared with what was read; its
row in the manifest; and only then whoever asked may delete it. So at any moment the live segment
is there, or the archive is. What a crash leaves is made good: an unfinished file is removed at the
next start, a finished one is taken up, compared again, and not written twice.
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
from goq.errors import CorruptData, TopicExists
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
from goq.storage.archive.manifest import archive_row, find_unlisted
from goq.storage.column_index.file import SUFFIX as COLUMNS_SUFFIX
from goq.storage.disk import Disk
from goq.storage.log.segment import INDEX_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX, Segment
from goq.storage.node_db import ArchiveRow
from goq.storage.scanner import Damage

T = TypeVar("T")
_SIDECARS = (INDEX_SUFFIX, COLUMNS_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX)
_NICENESS = 10
_LogKey = tuple[PartitionId, str]
_NOTHING: Mapping[_LogKey, Sequence[ArchiveRow]] = {}


class Archived(NamedTuple):
    """What a topic has in the archive: of messages; ``bytes`` on the disk of everything."""

    segments: int
    messages: int
    bytes: int
    first_time_us: int


class Archive:
    """See the module. ``disk`` reads what is in it.

    Everything runs in threads of its own, unless it is given an executor.
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
        self._real = disk
        self._metadata = metadata
        self._clock = clock
        self._rows: dict[str, dict[_LogKey, Sequence[ArchiveRow]]] = {}
        self._damage: dict[_LogKey, list[Damage]] = {}
        self._changing = asyncio.Lock()
        self._closing = threading.Event()
        self._writer = executor or ThreadPoolExecutor(1, "goq-archive", initializer=_be_nice)
        self._readers = executor or ThreadPoolExecutor(
            limits.ARCHIVE_READ_THREADS, "goq-archive-read"
        )

    async def open(self, topics: Collection[str]) -> None:
        """Take up the manifest and what the files say besides; remove what was not finished."""
        known = {row[:4]: row for row in await self._metadata.archived()}
        found = await self._in(
            self._writer, lambda: list(find_unlisted(self._real, self.root, topics, known))
        )
        if found:
            await self._metadata.put_archived(found)
        for row in [*known.values(), *found]:
            self._add(row)

    def directory(self, identity: PartitionId, log: str) -> Path:
        """Return where the segments of a log lie."""
        return self.root / identity.topic / str(identity.number) / log

    def rows(self, identity: PartitionId, log: str) -> Sequence[ArchiveRow]:
        """Return the archived segments of a log by offset; the list is never changed in place."""
        return self._rows.get(identity.topic, _NOTHING).get((identity, log), ())

    def find(self, identity: PartitionId, log: str, offset: int) -> ArchiveRow | None:
        """Return the archived segment that holds ``offset``."""
        rows = self.rows(identity, log)
        number = bisect_right(rows, offset, key=lambda row: row.base_offset) - 1
        return rows[number] if number >= 0 and offset < rows[number].end_offset else None

    def file_of(self, row: ArchiveRow) -> Path:
        """Return the file of an archived segment."""
        directory = self.directory(PartitionId(row.topic, row.partition), row.log)
        return archive_path(directory, Segment(directory, row.base_offset).path)

    def damage(self, identity: PartitionId, log: str) -> list[Damage]:
        """Return the damage that was met in a log's archived segments; readers add to it."""
        return self._damage.setdefault((identity, log), [])

    def of_topic(self, topic: str, partitions: Collection[int] | None = None) -> Archived | None:
        """Return what a topic, or some of its partitions, has in the archive, None if nothing."""
        found = [
            row
            for (identity, _), rows in self._rows.get(topic, _NOTHING).items()
            if partitions is None or identity.number in partitions
            for row in rows
        ]
        if not found:
            return None
        messages = [row for row in found if row.log == "messages"]
        return Archived(
            len(messages),
            sum(row.end_offset - row.base_offset for row in messages),
            sum(row.archived_bytes for row in found),
            min((row.first_time_us for row in messages if row.first_time_us), default=0),
        )

    def check_free(self, topic: str) -> None:
        """Raise ``TopicExists`` where a topic would come into another one's archive."""
        if self._real.names(self.root / topic):
            raise TopicExists(
                f"{self.root / topic} holds the archive of an earlier topic {topic};"
                " move it away, then create the topic",
                field="name",
            )

    async def take(self, identity: PartitionId, log: str, segment: Segment) -> ArchiveRow:
        """Archive a sealed segment; it may be deleted when this returns.

        Raises ``OSError`` when the disk fails or is full, and ``CorruptData`` when it does not
        give back what was written: the segment must then stay.
        """
        async with self._changing:
            directory, now_us = self.directory(identity, log), self._clock.wall_us()
            footer = await self._in(self._writer, lambda: self._take(directory, segment, now_us))
            path = archive_path(directory, segment.path)
            row = archive_row(identity, log, footer, self._real.size(path))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self._add(row)
            return row

    async def piece(self, row: ArchiveRow, position: int, size_bytes: int) -> bytes:
        """Return some bytes of the file of an archived segment; none at its end."""
        path = self.file_of(row)
        return await self.in_thread(lambda: bytes(self._real.read(path, position, size_bytes)))

    async def copy(self, row: ArchiveRow, piece: Callable[[int], Awaitable[bytes]]) -> None:
        """Take over an archived segment of another node, as ``row`` says it is there.

        ``piece`` returns bytes of its file from a position on, none at its end. Raises
        ``CorruptData``, and ``OSError``, with nothing changed, where they are not what ``row``
        says, and what ``piece`` raises.
        """
        path = self.file_of(row)
        part = path.with_name(f"{path.name}.copy{PART_SUFFIX}")
        await self._in(self._writer, lambda: self._begin_copy(part))
        position = 0
        while position < row.archived_bytes and (data := await piece(position)):
            await self._in(self._writer, partial(self._append, part, data))
            position += len(data)
        async with self._changing:
            await self._in(self._writer, lambda: self._finish_copy(part, path, row))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self._add(row)

    def _begin_copy(self, part: Path) -> None:
        self._real.make_dir(part.parent)
        self._real.remove(part)  # what was broken off

    def _append(self, part: Path, data: bytes) -> None:
        file = self._real.open(part)
        try:
            file.append([data])
        finally:
            file.close()

    def _finish_copy(self, part: Path, path: Path, row: ArchiveRow) -> None:
        file = self._real.open(part)
        try:
            file.sync()
        finally:
            file.close()
        footer = check_archive(self._real, part)
        found = archive_row((row.topic, row.partition), row.log, footer, self._real.size(part))
        if found._replace(archived_at_us=row.archived_at_us) != row:
            self._real.remove(part)
            raise CorruptData(f"{path} was not copied: it is not what another node said it is")
        self._real.rename(part, path)

    async def delete(self, topic: str) -> None:
        """Delete all of a topic's archive but its rows in the manifest."""
        async with self._changing:
            directory = self.root / topic
            await self._in(self._writer, lambda: self._real.remove_dir(directory))
            self.disk.invalidate(directory)
            self._rows.pop(topic, None)
            for key in [key for key in self._damage if key[0].topic == topic]:
                del self._damage[key]

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what reads the archive, in a thread that no commit needs."""
        return await self._in(self._readers, work)

    def close(self) -> None:
        """Let go of the threads; what is being archived is broken off."""
        self._closing.set()
        self._writer.shutdown()
        self._readers.shutdown()

    async def _in(self, executor: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def _check(self) -> None:
        if self._closing.is_set():
            raise Interrupted

    def _take(self, directory: Path, segment: Segment, now_us: int) -> Footer:
        disk, path = self._real, archive_path(directory, segment.path)
        disk.make_dir(directory)
        stored = self._left_by_crash(path, segment)
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
                with contextlib.suppress(OSError, CorruptData):  # it can be made anew
                    copy_file(disk, source, archive_path(directory, source))
        return write_archive(disk, segment.path, path, footer, self._check)

    def _left_by_crash(self, path: Path, segment: Segment) -> Footer | None:
        """Return the archive of just this segment, if it is there already and sound."""
        wanted = (segment.base_offset, segment.end_offset, segment.size_bytes)
        try:
            footer = read_footer(self._real, path)
            if (footer.base_offset, footer.end_offset, footer.size_bytes) != wanted:
                return None
            if footer.crc32c != crc_of(self._real, segment.path, segment.size_bytes):
                return None
            return check_archive(self._real, path)
        except (FileNotFoundError, CorruptData):
            return None

    def _add(self, row: ArchiveRow) -> None:
        key = PartitionId(row.topic, row.partition), row.log
        logs = self._rows.setdefault(row.topic, {})
        others = [known for known in logs.get(key, ()) if known[:4] != row[:4]]
        logs[key] = sorted([*others, row], key=lambda known: known.base_offset)


def _be_nice() -> None:
    """Let this thread take only the processor time that nobody else wants, where that is known."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
