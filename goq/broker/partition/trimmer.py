"""Trimmer a partition in bounds: sealing its active segment, deleting what retention gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from goq.broker.log.group_commit import GroupCommit
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.delivery.events.event import Trimmed
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment

Forget = Callable[[Sequence[Segment]], Awaitable[None]]


async def _nobody(_segments: Sequence[Segment]) -> None:
    """Nobody has to hear of it."""


class Trimmer:
    """The files of a partition's two logs.

    ``record`` writes an event; ``rebuilds_from`` says with which event a rebuild would begin.
    """

    def __init__(
        self,
        identity: PartitionId,
        context: PartitionContext,
        publisher: GroupCommit,
        recorder: GroupCommit,
        *,
        record: Callable[[Trimmed], Awaitable[object]],
        rebuilds_from: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._context = context
        self._publisher = publisher
        self._recorder = recorder
        self._record = record
        self._rebuilds_from = rebuilds_from

    async def trim(self, offset: int, forget: Forget = _nobody) -> list[Segment]:
        """Delete the whole segments of messages before ``offset``; return what was deleted.

        ``forget`` hears of them before their files go.
        """
        messages = self._publisher.log
        end = _last_sealed_end(messages, offset)
        if end <= messages.start_offset:
            return []
        await self._record(Trimmed(end))
        deleted = messages.detach_before(end)
        await forget(deleted)
        await self._publisher.run_alone(lambda: messages.remove(deleted))
        return deleted

    async def old_events(self) -> list[Segment]:
        """Return the segments of events older than every message: they speak of nothing else.

        An event is never older than its message. Those that a rebuild would begin with stay.
        """
        events, rebuilds_from = self._recorder.log, self._rebuilds_from()
        candidates = [s for s in events.segments[:-1] if s.end_offset <= rebuilds_from]
        if not candidates:
            return []
        first = self._publisher.log.segments[0]
        disk = self._context.disk

        def find() -> list[Segment]:
            old: list[Segment] = []
            first_us = first.read_first_time(disk)
            for segment in candidates:
                segment.load_index(disk)
                if first_us is None or segment.time_us >= first_us:
                    break
                old.append(segment)
            return old

        return await asyncio.get_running_loop().run_in_executor(self._context.executor, find)

    async def trim_events(self, end_offset: int, forget: Forget = _nobody) -> None:
        """Delete the segments of events up to the end of one; ``forget`` as with messages."""
        events = self._recorder.log
        deleted = events.detach_before(end_offset)
        await forget(deleted)
        await self._recorder.run_alone(lambda: events.remove(deleted))

    async def roll(self) -> None:
        """Seal the active segment of messages."""
        messages = self._publisher.log
        sealed: list[Segment | None] = []
        await self._publisher.run_alone(lambda: sealed.append(messages.roll()))
        if sealed[0]:
            self._context.on_seal(self._identity, "messages", sealed[0])


def _last_sealed_end(log: Log, offset: int) -> int:
    ends = [s.end_offset for s in log.segments[:-1] if s.end_offset <= offset]
    return max(ends, default=log.start_offset)
