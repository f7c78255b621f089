"""Deletion of segments on a follower once its leader has deleted them, each archived first.

So every replica has in its own archive what it held, whichever node led when it was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from goq.cluster.replication.follower import FollowerReplica, SealedSegment
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.errors import GoqError
from goq.event_loop import wait_for_event
from goq.storage.log.repair import scan_segment
from goq.storage.log.segment import Segment

_log = logging.getLogger("goq.cluster")
_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0

InThread = Callable[[Callable[[], object]], Awaitable[object]]
IsRepairable = Callable[[PartitionKey, SealedSegment], bool]
"""Whether a segment of a follower has bad frames that another replica may have."""


class _NeedsRepair(Exception):
    """A segment must be repaired first: in the archive its damage would stay."""


class FollowerRetention:
    """Deletes expired segments from its creation until none is left, or until :meth:`stop`."""

    def __init__(
        self,
        follower: FollowerReplica,
        manifest: SegmentManifest,
        in_thread: InThread,
        is_repairable: IsRepairable,
    ) -> None:
        self._follower = follower
        self._manifest = manifest
        self._in_thread = in_thread
        self._is_repairable = is_repairable
        self._is_stopping = False
        self._archiving: asyncio.Future[None] | None = None
        self._stopped = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    async def stop(self) -> None:
        """Delete nothing more; archiving is cancelled. On return nothing is being deleted."""
        self._is_stopping = True
        self._stopped.set()
        if self._archiving is not None:
            self._archiving.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while not self._is_stopping:
            expired = self._follower.expired_segment()
            if expired is None and not self._follower.has_detached:
                return
            try:
                if self._follower.has_detached:
                    await self._change(self._follower.remove_detached)
                if expired is not None:
                    await self._archive_and_delete(expired)
                pause_s = _PAUSE_S_MIN
            except _NeedsRepair:
                await wait_for_event(self._stopped, pause_s)
            except (GoqError, OSError) as error:
                _log.warning(
                    "%s keeps files longer than on its leader: %s", self._follower.key, error
                )
                await wait_for_event(self._stopped, pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _archive_and_delete(self, expired: SealedSegment) -> None:
        await self._check_whole(expired)
        if await self._archive(*expired):
            await self._check_whole(expired)  # the archived copy may be of bad frames
            await self._delete(*expired)

    async def _check_whole(self, expired: SealedSegment) -> None:
        """Raise ``_NeedsRepair`` for a segment that will be archived and can be repaired first."""
        which, segment = expired
        key = self._follower.key
        if self._manifest.is_archived(key):
            log = self._follower.logs[which]
            await self._in_thread(partial(scan_segment, log, segment))
            if self._is_repairable(key, expired):
                raise _NeedsRepair

    async def _archive(self, which: int, segment: Segment) -> bool:
        """Archive a segment if its topic wants that; return whether it was not cancelled."""
        work = self._manifest.archive_segment(self._follower.key, LOGS[which], segment)
        archiving = self._archiving = asyncio.ensure_future(work)
        await asyncio.wait([archiving])
        if archiving.cancelled():
            return False
        archiving.result()
        return True

    async def _delete(self, which: int, segment: Segment) -> None:
        key, log = self._follower.key, LOGS[which]
        async with self._follower.manifest_lock:
            await self._manifest.remove(key, log, [segment])
            await self._change(partial(self._follower.delete_segment, which, segment))

    async def _change(self, work: Callable[[], None]) -> None:
        """Run work that changes the follower's logs in a thread, while nothing else does."""
        await self._follower.log_lock.run(partial(self._in_thread, work))
