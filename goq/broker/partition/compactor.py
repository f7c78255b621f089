"""Compaction of one partition: a pass over its sealed segments.

Each segment is rewritten into a new file, which then replaces it. Then small neighbours become one,
frame by frame as they are, so that no file stays for each segment that there ever was. The thread
rests for as long as it works, so clients see little of it. A crash at any point leaves a sound log.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from goq.broker.log.frame_cache import PartitionFrames
from goq.broker.log.group_commit import GroupCommit
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.config.topic import TopicSettings
from goq.delivery.events.event import AnyEvent, Compacted
from goq.errors import CorruptData, GoqError
from goq.storage.compaction.checkpoint import (
    CleanerCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.compaction.cleaner import (
    OffsetMap,
    build_offset_map,
    cleaning_due_us,
    first_dirty_segment,
    is_mostly_dirty,
)
from goq.storage.compaction.segment_merger import merge_segments, mergeable, remove_merged
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    RewritePlan,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment

T = TypeVar("T")
_WORKS_FOR_S = 0.002


class CompactionResources(NamedTuple):
    """The resources of a pass: an executor, and memory for ``keys_max`` keys.

    ``secret`` is the key of their hash. ``now_us`` is the time by which tombstones are old.
    """

    executor: Executor
    secret: bytes
    keys_max: int
    now_us: int


class CompactionStopped(Exception):
    """The partition is closing; segments replaced so far stay."""


class Compactor:
    """Compacts the message log of one partition; ``record`` writes events."""

    def __init__(
        self,
        identity: PartitionId,
        context: PartitionContext,
        messages: GroupCommit,
        cached: PartitionFrames,
        record: Callable[[Sequence[AnyEvent]], object],
    ) -> None:
        self.progress: CleanerCheckpoint | None = None
        self._dirty_us: int | None = None
        self._identity = identity
        self._context = context
        self._messages = messages
        self._cached = cached
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._rested_s = 0.0

    async def is_due(self, settings: TopicSettings, means: CompactionResources) -> bool:
        """Return whether a pass is due."""
        log = self._messages.log
        if self._stopping.is_set() or log.failed:
            return False
        if self.progress is None:
            read = partial(read_checkpoint, self._context.disk, log.directory)
            self.progress = await self._loop.run_in_executor(means.executor, read)
        if self.progress.compacted_to > log.active.base_offset:
            self.progress = CleanerCheckpoint()  # of another log, or of one truncated since
        first = first_dirty_segment(log.segments, self.progress)
        self._dirty_us = None
        if first is not None:
            read_time = partial(self._first_time_us, first.base_offset, means.now_us)
            self._dirty_us = await self._loop.run_in_executor(means.executor, read_time)
        due_us = self.due_us(settings)
        is_overdue = due_us is not None and due_us <= means.now_us
        far_us = means.now_us + settings.segment_age_ms * 1000
        is_overdue |= self.progress.tombstone_us > far_us  # the clock was set back since
        return is_overdue or is_mostly_dirty(log.segments, self.progress)

    def due_us(self, settings: TopicSettings) -> int | None:
        """Return when a pass is due at the latest, as far as is known; None if it is not."""
        if self.progress is None:
            return None
        lag_ms = max(settings.tombstone_age_ms, settings.segment_age_ms)
        return cleaning_due_us(
            self.progress, settings.tombstone_age_ms * 1000, self._dirty_us, lag_ms * 1000
        )

    async def run(self, settings: TopicSettings, means: CompactionResources) -> int:
        """Make one pass; return the number of messages it removed.

        Raises ``GoqError`` or ``OSError``; the log is sound then too.
        """
        if self._stopping.is_set():
            return 0
        self._idle.clear()
        try:
            return await self._run(settings, means)
        except CompactionStopped:
            return 0
        finally:
            self._idle.set()

    async def _run(self, settings: TopicSettings, means: CompactionResources) -> int:
        log, progress = self._messages.log, self.progress or CleanerCheckpoint()
        # A message after the replicated offset can still be truncated. And a follower would have to
        # restart if segments were rewritten before it copied them.
        end_offset = self._messages.pending.replicated_to
        await self._messages.run_exclusive(log.sync)  # a newer message must survive the older one
        newest = OffsetMap(
            min(progress.compacted_to, end_offset), secret=means.secret, keys_max=means.keys_max
        )
        terms = CleanerParameters(
            newest,
            means.now_us - settings.tombstone_age_ms * 1000,
            means.now_us - (settings.dedup_window_ms or 0) * 1000,
            self._pause,
            means.now_us,
        )
        in_thread = partial(self._in_thread, means.executor)
        await in_thread(lambda: build_offset_map(log.reader, newest, end_offset, self._pause))
        taken = tombstone_us = reached = 0
        for segment in log.segments[:-1]:
            if segment.base_offset >= newest.end or segment.end_offset > end_offset:
                break
            if segment not in log.segments:  # retention deleted it meanwhile
                continue
            found = await in_thread(partial(self._plan, segment, terms, settings.segment_age_ms))
            if found.removed_count and await self._rewrite(segment, found, terms, means.executor):
                taken += found.removed_count
            if found.tombstone_us:
                tombstone_us = min(tombstone_us or found.tombstone_us, found.tombstone_us)
            reached = segment.end_offset
        self.progress = CleanerCheckpoint(min(newest.end, reached), tombstone_us)
        await in_thread(partial(write_checkpoint, self._context.disk, log.directory, self.progress))
        cleaned = [each for each in log.segments[:-1] if each.end_offset <= reached]
        for segments in mergeable(cleaned, settings.segment_bytes):
            if len(segments) > 1 and all(each in log.segments for each in segments):
                with suppress(CorruptData):  # each keeps its damage
                    await self._merge(segments, means.executor)
        return taken

    def _plan(self, segment: Segment, terms: CleanerParameters, segment_age_ms: int) -> RewritePlan:
        after_us = self._first_time_us(segment.end_offset, terms.now_us)
        if after_us is None:  # asked again later, not in each pass that is due at once
            after_us = terms.now_us + segment_age_ms * 1000
        return plan_rewrite(self._context.disk, segment, terms, after_us)

    def _first_time_us(self, offset: int, now_us: int) -> int | None:
        """Return when the first message of the first segment from ``offset`` on was appended.

        Segments that begin later than now, as by a clock that was ahead, do not count. None without
        another. Blocks on the disk.
        """
        later = (each for each in self._messages.log.segments if each.base_offset >= offset)
        times_us = (each.read_first_time(self._context.disk) for each in later)
        return next((us for us in times_us if us is not None and us <= now_us), None)

    async def _rewrite(
        self, segment: Segment, found: RewritePlan, terms: CleanerParameters, executor: Executor
    ) -> bool:
        """Replace a segment by its next generation; return False if retention deleted it first."""
        log, disk = self._messages.log, self._context.disk

        def prepare() -> Segment:
            time_before_us = log.reader.max_time_us_before(segment)
            new = rewrite_segment(disk, segment, found, terms, time_before_us=time_before_us)
            install_generation(disk, new)
            return new

        new = await self._in_thread(executor, prepare)
        is_replaced = self._replace([segment], new)
        if is_replaced:
            with suppress(GoqError):  # offline: the rebuild reads the compacted log
                self._record([Compacted(new.base_offset, new.end_offset)])
        await self._remove(executor, (segment if is_replaced else new).remove)
        return is_replaced

    async def _merge(self, segments: Sequence[Segment], executor: Executor) -> None:
        """Replace neighbours by one segment, if retention deletes none of them first."""
        log, disk = self._messages.log, self._context.disk

        def prepare() -> Segment:
            time_before_us = log.reader.max_time_us_before(segments[0])
            return merge_segments(disk, segments, self._pause, time_before_us=time_before_us)

        new = await self._in_thread(executor, prepare)
        is_replaced = self._replace(segments, new)
        await self._remove(
            executor, lambda disk: remove_merged(disk, segments if is_replaced else [new], new)
        )

    def _replace(self, segments: Sequence[Segment], new: Segment) -> bool:
        is_replaced = self._messages.log.replace_segments(segments, new)
        if is_replaced:
            self._cached.clear()
            self._context.on_seal(self._identity, "messages", new)
        return is_replaced

    async def _remove(self, executor: Executor, remove: Callable[[Disk], None]) -> None:
        def work() -> None:
            with suppress(OSError):  # the next open of the log removes what is left
                remove(self._context.disk)

        await self._in_thread(executor, work)

    async def _in_thread(self, executor: Executor, work: Callable[[], T]) -> T:
        self._rested_s = self._loop.time()
        return await self._loop.run_in_executor(executor, work)

    def _pause(self) -> None:
        """Rest, in the compaction thread, for as long as it has worked."""
        worked_s = self._loop.time() - self._rested_s
        if worked_s >= _WORKS_FOR_S:
            if self._stopping.wait(worked_s):
                raise CompactionStopped
            self._rested_s = self._loop.time()

    async def stop(self) -> None:
        """Stop a pass under way and start no more."""
        self._stopping.set()
        await self._idle.wait()
