"""Keeping a partition in bounds: sealing its active segment, deleting what retention gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from goq.broker.commit import GroupCommit
from goq.broker.opening import Machinery, PartitionId
from goq.delivery.events import Trimmed
from goq.storage.log import Log
from goq.storage.segment import Segment


class Keeping:
    """The files of a partition's two logs.

    ``record`` writes an event; ``rebuilds_from`` says with which event a rebuild would begin.
    """

    def __init__(
        self,
        identity: PartitionId,
        machinery: Machinery,
        publisher: GroupCommit,
        recorder: GroupCommit,
        *,
        record: Callable[[Trimmed], Awaitable[object]],
        rebuilds_from: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._machinery = machinery
        self._publisher = publisher
        self._recorder = recorder
        self._record = record
        self._rebuilds_from = rebuilds_from

    async def trim(self, offset: int) -> list[tuple[str, Segment]]:
        """Delete the whole segments before ``offset``, and events that speak of nothing else.

        Returns what was deleted, each with the name of its log.
        """
        messages = self._publisher.log
        end = _last_sealed_end(messages, offset)
        if end <= messages.start_offset:
            return []
        await self._record(Trimmed(end))
        deleted = messages.detach_before(end)
        await self._publisher.run_alone(lambda: messages.remove(deleted))
        return [("messages", s) for s in deleted] + [
            ("events", s) for s in await self._trim_events()
        ]

    async def _trim_events(self) -> list[Segment]:
        """Delete segments of events older than every message: an event is never older than that.

        Those that a rebuild would begin with stay.
        """
        events, rebuilds_from = self._recorder.log, self._rebuilds_from()
        old = [s for s in events.segments[:-1] if s.end_offset <= rebuilds_from]
        first = self._publisher.log.segments[0]
        disk = self._machinery.disk

        def find_end() -> int:
            end, first_us = events.start_offset, first.read_first_time(disk)
            for segment in old:
                segment.load_index(disk)
                if first_us is None or segment.time_us >= first_us:
                    break
                end = segment.end_offset
            return end

        loop = asyncio.get_running_loop()
        end = await loop.run_in_executor(self._machinery.executor, find_end)
        deleted = events.detach_before(end)
        await self._recorder.run_alone(lambda: events.remove(deleted))
        return deleted

    async def roll(self) -> None:
        """Seal the active segment of messages."""
        messages = self._publisher.log
        sealed: list[Segment | None] = []
        await self._publisher.run_alone(lambda: sealed.append(messages.roll()))
        if sealed[0]:
            self._machinery.on_seal(self._identity, "messages", sealed[0])


def _last_sealed_end(log: Log, offset: int) -> int:
    ends = [s.end_offset for s in log.segments[:-1] if s.end_offset <= offset]
    return max(ends, default=log.start_offset)
