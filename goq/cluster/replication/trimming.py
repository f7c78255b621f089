"""Deleting on a follower what its leader has deleted, each segment archived before.

So every replica has in its own archive what it held, whoever led when it was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from goq.cluster.replication.custody import LOGS, Custody
from goq.cluster.replication.following import Following
from goq.errors import GoqError
from goq.storage.segment import Segment

_log = logging.getLogger("goq.cluster")
_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0

InThread = Callable[[Callable[[], object]], Awaitable[object]]


class Trimming:
    """Works from its making until nothing is left to delete, or :meth:`stop`."""

    def __init__(self, following: Following, custody: Custody, in_thread: InThread) -> None:
        self._following = following
        self._custody = custody
        self._in_thread = in_thread
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
                await self._delete(*surplus)
                pause_s = _PAUSE_S_MIN
            except (GoqError, OSError) as error:
                _log.warning(
                    "%s is kept longer than by its leader: %s", surplus.segment.path, error
                )
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _delete(self, which: int, segment: Segment) -> None:
        key, log = self._following.key, LOGS[which]
        saving = self._saving = asyncio.ensure_future(self._custody.archive(key, log, segment))
        await asyncio.wait([saving])
        if saving.cancelled():
            return
        saving.result()
        await self._custody.forget(key, log, [segment])
        await self._in_thread(partial(self._following.delete, which, segment))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pausing.wait()
