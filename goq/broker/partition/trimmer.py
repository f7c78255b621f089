"""The trimmer: seals, checks and deletes the segments of a partition's two logs for retention.

Messages are deleted in this order: the event becomes durable, the log drops the segments, the
manifest drops them, their files are removed. What fails after the log has dropped them, because the
disk is full, is tried again by :meth:`Trimmer.finish`. After a crash in between, the next open of
the log finishes the deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from goq import limits
from goq.broker.events.writer import EventWriter
from goq.broker.log.group_commit import GroupCommit
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.delivery.events.event import Trimmed
from goq.delivery.events.frame_codec import messages_end_of
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.log.repair import scan_segment
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage

T = TypeVar("T")
Forget = Callable[[Sequence[Segment]], Awaitable[None]]
"""Removes segments from the manifest, before their files are removed."""


class _Detached(NamedTuple):
    """Segments that a log has dropped and whose files are not removed yet."""

    writer: GroupCommit
    segments: list[Segment]
    forget: Forget


async def _forget_nothing(_segments: Sequence[Segment]) -> None:
    """Do nothing: there is no manifest."""


class Trimmer:
    """The segments of a partition's two logs; ``messages`` and ``events`` are their writers."""

    def __init__(
        self,
        identity: PartitionId,
        context: PartitionContext,
        messages: GroupCommit,
        events: EventWriter,
    ) -> None:
        self._identity = identity
        self._context = context
        self._messages = messages
        self._events = events
        self._kept_from = 0
        self._unfinished: list[_Detached] = []
        self._finishing = asyncio.Lock()

    @property
    def segments(self) -> Sequence[Segment]:
        """The current segments of the message log in order; the last one is active."""
        return self._messages.log.segments

    def trimmed_end(self, offset: int) -> int:
        """Return the offset before which :meth:`trim` would delete everything."""
        return _last_sealed_end(self._messages.log, offset)

    async def trim(
        self,
        offset: int,
        forget: Forget = _forget_nothing,
        on_deleted: Callable[[Sequence[Segment]], None] = lambda _segments: None,
    ) -> list[Segment]:
        """Delete the message segments that end at or before ``offset``; return them.

        ``on_deleted`` gets them once their messages are gone, also if their files stay for now.
        """
        messages = self._messages.log
        end = self.trimmed_end(offset)
        if end <= messages.start_offset:
            return []
        await self._events.record([Trimmed(end)], is_vital=True)
        deleted = messages.detach_before(end)
        self._unfinished.append(_Detached(self._messages, deleted, forget))
        on_deleted(deleted)
        await self.finish()
        return deleted

    async def finish(self) -> None:
        """Remove from manifest and disk what the logs have dropped, as far as that is to do.

        One call at a time does that: files are removed once, the oldest first.
        """
        async with self._finishing:
            while self._unfinished:
                writer, segments, forget = self._unfinished[0]
                await forget(segments)
                await writer.run_exclusive(partial(writer.log.remove, segments))
                del self._unfinished[0]

    async def old_events(self) -> list[Segment]:
        """Return the event segments that are about deleted messages only.

        All messages before the segment's end must be gone. The end offset of the messages at that
        time is in the next segment: clocks do not count. The segments that a rebuild needs are not
        returned.
        """
        rebuilds_from = self._events.rebuilds_from
        events = [s for s in self._events.commit.log.segments if s.base_offset <= rebuilds_from]
        if len(events) < 2:
            return []
        messages, disk = self._messages.log, self._context.disk

        def find() -> list[Segment]:
            self._kept_from = first_kept_offset(messages, self._kept_from)
            return _about_messages_before(self._kept_from, events, disk)

        return await self._in_thread(find)

    async def trim_events(self, end_offset: int, forget: Forget = _forget_nothing) -> None:
        """Delete the event segments that end at or before ``end_offset``."""
        writer = self._events.commit
        deleted = writer.log.detach_before(end_offset)
        self._unfinished.append(_Detached(writer, deleted, forget))
        await self.finish()

    async def roll(self) -> None:
        """Seal the active message segment."""
        messages = self._messages.log
        sealed: list[Segment | None] = []
        await self._messages.run_exclusive(lambda: sealed.append(messages.roll()))
        if sealed[0]:
            self._context.on_seal(self._identity, "messages", sealed[0])

    async def roll_if_old(self, age_us: int) -> int:
        """Seal the active message segment if it has that age; return when it will have, in µs.

        One that is as far ahead of now is sealed, too: the clock was set back since. For an empty
        segment the time is a lower bound: a first message could arrive now.
        """
        active, disk = self._messages.log.active, self._context.disk
        first_us = active.first_time_us
        if first_us is None and active.size_bytes:
            first_us = await self._in_thread(lambda: active.read_first_time(disk))
        now_us = self._context.clock.wall_us()
        if first_us is not None and abs(now_us - first_us) >= age_us:
            await self.roll()
            first_us = None
        return (now_us if first_us is None else first_us) + age_us

    async def find_damage(self, segment: Segment) -> list[Damage]:
        """Read a whole message segment; return the damage in it."""
        messages = self._messages.log
        await self._in_thread(lambda: scan_segment(messages, segment))
        start, end = segment.base_offset, segment.end_offset
        return [damage for damage in messages.damage if start <= damage.start_offset < end]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._context.executor, work)


def _last_sealed_end(log: Log, offset: int) -> int:
    ends = [s.end_offset for s in log.segments[:-1] if s.end_offset <= offset]
    return max(ends, default=log.start_offset)


def _about_messages_before(offset: int, segments: Sequence[Segment], disk: Disk) -> list[Segment]:
    """Return the segments from the first on that are about no message from ``offset`` on."""
    found: list[Segment] = []
    undecided: list[Segment] = []
    for segment, after in pairwise(segments):
        undecided.append(segment)
        header = after.read_first_header(disk)
        messages_end = None if header is None else messages_end_of(header)
        if messages_end is None:
            continue  # the next segment decides for both
        if messages_end > offset:
            break
        found += undecided
        undecided.clear()
    return found


def first_kept_offset(log: Log, known: int = 0) -> int:
    """Return the first offset whose message may be there; blocks on the disk.

    Compaction removes messages and keeps their offsets. ``known`` is an earlier result: the search
    goes on from there. Damaged messages count as there, because a replica may repair them.
    """
    first, end_offset = log.segments[0], log.end_offset
    offset = max(known, first.base_offset)
    if not first.generation:
        return offset
    while offset < end_offset:
        reading = log.reader.read(offset, end_offset, bytes_max=limits.MIB)
        for view in reading.frames:
            header = view.header
            if header.base_offset > offset:
                return offset  # damaged
            kept = view.kept(offset - header.base_offset, header.message_count)
            if True in kept:
                return offset + kept.index(True)
            offset = header.end_offset
        if reading.next_offset > offset or not reading.frames:
            return offset  # damaged
    return offset
