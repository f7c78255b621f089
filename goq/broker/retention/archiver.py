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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from goq import limits
from goq.broker.metadata import MetadataStore
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archive_uploader import ArchiveUploader
from goq.broker.retention.archive_writer import ArchiveWriter
from goq.broker.retention.archived_segments import ArchivedSegments
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock
from goq.config.archive import ArchiveConfig
from goq.config.topic import TopicSettings
from goq.errors import GoqError
from goq.storage.archive.disk import ArchiveDisk
from goq.storage.archive.file import (
    PART_SUFFIX,
    archive_path,
)
from goq.storage.archive.manifest import archive_row, find_unlisted, find_unlisted_of
from goq.storage.archive.store_cache import CACHE_DIR, StoreCache
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage

T = TypeVar("T")
_NICENESS = 10
WhyAbsent = Callable[[PartitionId, str, int, int], str]
"""Returns why messages of a log between two offsets that are neither live nor archived here may be
elsewhere; "" if they are gone. A cluster sets it; any thread may call."""


def _gone(_identity: PartitionId, _log: str, _start: int, _end: int) -> str:
    return ""


class Archiver:
    """Archives, copies and deletes segments, and keeps their list. ``disk`` reads their content.

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
        config: ArchiveConfig | None = None,
        node_id: str = "",
    ) -> None:
        """``config`` and ``node_id`` say where in an object store the segments go, if anywhere."""
        config = config or ArchiveConfig()
        self.root = root
        self.store_cache = StoreCache(disk, root.with_name(CACHE_DIR), config.cache_bytes)
        self._disk = TieredDisk(disk, self.store_cache)
        self.disk = ArchiveDisk(self._disk, root)
        self._metadata = metadata
        self._clock = clock
        self.segments = ArchivedSegments(root, self.disk)
        self._writer = ArchiveWriter(self._disk)
        self.why_absent: WhyAbsent = _gone
        self._damage: dict[tuple[PartitionId, str], list[Damage]] = {}
        self._lock = asyncio.Lock()
        self._mover = executor or ThreadPoolExecutor(1, "goq-store", initializer=_lower_priority)
        self.uploader = ArchiveUploader(root, self._disk, config.url_of(node_id), self._mover)
        self._uploading: asyncio.Task[None] | None = None
        self._writing = executor or ThreadPoolExecutor(
            1, "goq-archive", initializer=_lower_priority
        )
        self.readers = executor or ThreadPoolExecutor(
            limits.ARCHIVE_READ_THREADS, "goq-archive-read"
        )

    async def open(self, folders: Collection[str]) -> None:
        """Read the manifest, add files that it lacks, and remove unfinished files.

        ``folders`` are those of all topics.
        """
        known = {row[:4]: row for row in await self._metadata.archived()}
        local = self._disk.local
        await self._run_in(self._writing, self.store_cache.open)
        found = await self._run_in(
            self._writing, lambda: list(find_unlisted(local, self.root, folders, known))
        )
        if found:
            await self._metadata.put_archived(found)
        known |= {row[:4]: row for row in found}
        here = await self._run_in(
            self._writing,
            lambda: [row for row in known.values() if _is_here(local, self.segments.file_of(row))],
        )
        for row in known.values():
            self.segments.add(row)
        for row in here:
            self.uploader.add(row, self.segments.file_of(row))

    async def take_up(self, folder: str) -> None:
        """Add the archived segments of a topic whose files have come after the start."""
        local, logs = self._disk.local, self.segments.logs(folder)
        known = {row[:4]: row for rows in logs.values() for row in rows}
        found = await self._run_in(
            self._writing, lambda: list(find_unlisted_of(local, self.root, folder, known))
        )
        if not found:
            return
        await self._metadata.put_archived(found)
        for row in found:
            self.segments.add(row)
            self.uploader.add(row, self.segments.file_of(row))

    def start(self, tasks: Tasks) -> None:
        """Begin to move segments to the store, and to delete what has expired there."""
        self._uploading = tasks.start(self.uploader.run())

    def damage(self, identity: PartitionId, log: str) -> list[Damage]:
        """Return the known damage of a log's archived segments. Readers add to the list."""
        return self._damage.setdefault((identity, log), [])

    def damaged(self) -> list[tuple[PartitionId, str, list[Damage]]]:
        """Return the logs with known damage in their archived segments."""
        return [(*log, damage) for log, damage in list(self._damage.items()) if damage]

    async def archive_segment(
        self, identity: PartitionId, log: str, segment: Segment
    ) -> ArchiveRow:
        """Archive a sealed segment. The caller may delete the segment when this returns.

        Raises ``OSError`` if the disk fails or is full, ``CorruptData`` if the disk does not return
        what was written, and ``Unavailable`` while the same segment is still to be deleted. The
        segment must then stay.
        """
        async with self._lock:
            directory, now_us = self.segments.directory(identity, log), self._clock.wall_us()
            path = archive_path(directory, segment.path)
            self.uploader.check_settled(path)
            footer = await self._run_in(
                self._writing, lambda: self._writer.write(directory, segment, now_us)
            )
            partition = identity.folder, identity.number
            row = archive_row(partition, log, footer, self._disk.size(path))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self.segments.add(row)
            self.uploader.add(row, path)
            return row

    async def read_chunk(self, row: ArchiveRow, position: int, size_bytes: int) -> bytes:
        """Return bytes of the file of an archived segment; empty at its end."""
        path = self.segments.file_of(row)
        return await self.in_thread(lambda: bytes(self._disk.read(path, position, size_bytes)))

    async def copy_segment(
        self, row: ArchiveRow, read_chunk: Callable[[int], Awaitable[bytes]]
    ) -> None:
        """Copy an archived segment from another node. ``row`` describes it as it is there.

        ``read_chunk`` returns bytes of its file from a position on, empty at its end. Raises
        ``CorruptData`` if the bytes do not match ``row``, ``Unavailable``, ``OSError``, and what
        ``read_chunk`` raises. Nothing is changed then.
        """
        path = self.segments.file_of(row)
        part = path.with_name(f"{path.name}.copy{PART_SUFFIX}")
        try:
            await self._run_in(self._writing, lambda: self._writer.begin_copy(part))
            position = 0
            while position < row.archived_bytes and (data := await read_chunk(position)):
                await self._run_in(self._writing, partial(self._writer.append_copy, part, data))
                position += len(data)
        except (GoqError, OSError):  # on a full disk it would hold the last room
            await self._run_in(self._writing, lambda: self._disk.remove(part))
            raise
        async with self._lock:
            self.uploader.check_settled(path)
            await self._run_in(self._writing, lambda: self._writer.finish_copy(part, path, row))
            await self._metadata.put_archived([row])
            self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
            self.segments.add(row)
            self.uploader.add(row, path)

    async def expire(
        self, folder: str, settings: TopicSettings, now_us: int, live_bytes: Mapping[int, int]
    ) -> int:
        """Delete archived segments beyond the total retention of a topic; return how many.

        ``live_bytes`` are the bytes of the messages that are not archived, by partition.
        """
        logs = self.segments.logs(folder)
        expired = [
            row
            for number in {number for number, _ in logs}
            for row in find_expired(
                logs.get((number, "messages"), ()),
                logs.get((number, "events"), ()),
                settings,
                now_us,
                live_bytes.get(number, 0),
            )
        ]
        if not expired:
            return 0
        async with self._lock:
            self.segments.expire(folder, expired)
            self._forget_damage(folder)
            await self._metadata.delete_archived([row[:4] for row in expired])
            for row in expired:
                path = self.segments.file_of(row)
                self.uploader.expire(row, path)
                self.disk.invalidate(path.with_name(path.name.removesuffix(".zst")))
                self.segments.release(row)
        return len(expired)

    def _forget_damage(self, folder: str) -> None:
        """Forget the damage of archived segments that are gone."""
        for (identity, log), damage in self._damage.items():
            if identity.folder == folder and damage:
                rows = self.segments.rows(identity, log)
                first = rows[0].base_offset if rows else damage[-1].end_offset
                damage[:] = [each for each in damage if each.end_offset > first]

    async def delete_topic(self, folder: str) -> None:
        """Delete the archive of a topic, except its rows in the manifest."""
        async with self._lock:
            directory = self.root / folder
            self.uploader.forget(folder)
            await self._run_in(self._writing, lambda: self.uploader.begin_deletion(folder))
            await self._run_in(self._writing, lambda: self._disk.remove_dir(directory))
            self.disk.invalidate(directory)
            self.uploader.forget(folder)
            self.segments.remove_topic(folder)
            for key in [key for key in self._damage if key[0].folder == folder]:
                del self._damage[key]

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that reads the archive in a thread that no commit uses."""
        return await self._run_in(self.readers, work)

    def stop_uploads(self) -> None:
        """Interrupt the move of segments to the store; the next start goes on."""
        self.uploader.close()
        if self._uploading is not None:
            self._uploading.cancel()

    def close(self) -> None:
        """Stop the threads. Archiving in progress is interrupted."""
        self._writer.close()
        self._mover.shutdown()
        self._writing.shutdown()
        self.readers.shutdown()

    async def _run_in(self, executor: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)


def find_expired(
    messages: Sequence[ArchiveRow],
    events: Sequence[ArchiveRow],
    settings: TopicSettings,
    now_us: int,
    live_bytes: int,
) -> list[ArchiveRow]:
    """Return the archived segments of a partition that are beyond the total retention.

    They go oldest first, like live segments. Events go once they are older than all messages that
    stay; a segment of unknown age goes with the next one.
    """
    horizon_us = 0
    if settings.total_age_ms is not None:
        horizon_us = now_us - settings.total_age_ms * 1000
    kept_bytes = live_bytes + sum(row.size_bytes for row in messages)
    count = 0
    for number in range(len(messages)):
        is_too_much = settings.total_bytes is not None and kept_bytes > settings.total_bytes
        if not is_too_much:
            last_us = _last_time_us(messages, number, now_us)
            if last_us is None:
                continue
            if last_us >= horizon_us:
                break
        kept_bytes -= sum(each.size_bytes for each in messages[count : number + 1])
        count = number + 1
    if count < len(messages):
        firsts_us = [row.first_time_us for row in messages[count:]]
        known_us = [first_us for first_us in firsts_us if first_us <= now_us]
        if len(known_us) < len(firsts_us):  # of a clock that was ahead: perhaps as old as may be
            known_us.append(horizon_us)
        horizon_us = min(known_us)
    elif messages:
        horizon_us = max(horizon_us, messages[-1].last_time_us)
    expired = list(messages[:count])
    undecided: list[ArchiveRow] = []
    for number, row in enumerate(events):
        undecided.append(row)
        last_us = _last_time_us(events, number, now_us)
        if last_us is None:
            continue
        if last_us >= horizon_us:
            break
        expired += undecided
        undecided.clear()
    return expired


def _last_time_us(rows: Sequence[ArchiveRow], number: int, now_us: int) -> int | None:
    """Return a time by which all of a segment was appended, None if it is not known.

    ``last_time_us`` is a running maximum. One later than now is of a clock that was ahead. Then a
    segment is as old as the first frame of the next one, or as its file.
    """
    row = rows[number]
    if row.last_time_us <= now_us:
        return row.last_time_us
    firsts = [each.first_time_us for each in rows[number : number + 2]]
    if len(firsts) < 2 or firsts[1] > now_us:
        return row.archived_at_us if row.archived_at_us <= now_us else None
    return max(first for first in firsts if first <= now_us)


def _is_here(disk: Disk, path: Path) -> bool:
    try:
        disk.size(path)
    except FileNotFoundError:
        return False
    return True


def _lower_priority() -> None:
    """Lower the CPU priority of this thread, where the platform supports it."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
