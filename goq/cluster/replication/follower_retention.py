"""Deleting on a follower what its leader has deleted, each segment archived before.

So every replica has in its own archive what it held, whoever led when it was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from goq.cluster.replication.follower import FollowerReplica, SealedSegment
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.errors import GoqError
from goq.storage.log.segment import Segment
from goq.storage.repair import scan_segment

_log = logging.getLogger("goq.cluster")
_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0

InThread = Callable[[Callable[[], object]], Awaitable[object]]
MayBeRepaired = Callable[[PartitionKey, SealedSegment], bool]
"""Whether a segment of a follower has bad frames that another replica may have."""


class _NeedsRepair(Exception):
    """A segment is to be mended first: in the archive it would stay as it is."""


class FollowerRetention:
    """Works from its making until nothing is left to delete, or :meth:`stop`."""

    def __init__(
        self,
        following: FollowerReplica,
        custody: SegmentManifest,
        in_thread: InThread,
        may_be_repaired: MayBeRepaired,
    ) -> None:
        self._following = following
        self._custody = custody
        self._in_thread = in_thread
        self._may_be_repaired = may_be_repaired
        self._is_stopping = False
        self._saving: asyncio.Future[None] | None = None
        self._pausing = asyncio.Event()
        self._work = asyncio.ensure_future(self._run())

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._work.done()

    async def stop(self) -> None:
        """Delete nothing more; on return nothing is being deleted. An archive is broken off."""
        self._is_stopping = True
        self._pausing.set()
        if self._saving is not None:
            self._saving.cancel()
        await asyncio.wait([self._work])

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while not self._is_stopping and (surplus := self._following.surplus()) is not None:
            try:
                await self._look_through(surplus)
                if await self._is_archived(*surplus):
                    await self._look_through(surplus)  # or it was archived when it was bad already
                    await self._delete(*surplus)
                pause_s = _PAUSE_S_MIN
            except _NeedsRepair:
                await self._pause(pause_s)
            except (GoqError, OSError) as error:
                _log.warning(
                    "%s is kept longer than by its leader: %s", surplus.segment.path, error
                )
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _look_through(self, surplus: SealedSegment) -> None:
        """Raise ``_NeedsRepair`` for what is going to be archived and may be mended before."""
        which, segment = surplus
        key = self._following.key
        if self._custody.archives(key):
            log = self._following.logs[which]
            await self._in_thread(partial(scan_segment, log, segment))
            if self._may_be_repaired(key, surplus):
                raise _NeedsRepair

    async def _is_archived(self, which: int, segment: Segment) -> bool:
        """Archive a segment, if its topic wants that; return whether nobody broke it off."""
        archiving = self._custody.archive(self._following.key, LOGS[which], segment)
        saving = self._saving = asyncio.ensure_future(archiving)
        await asyncio.wait([saving])
        if saving.cancelled():
            return False
        saving.result()
        return True

    async def _delete(self, which: int, segment: Segment) -> None:
        key, log = self._following.key, LOGS[which]
        async with self._following.listing:
            await self._custody.forget(key, log, [segment])
            await self._in_thread(partial(self._following.delete, which, segment))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pausing.wait()
