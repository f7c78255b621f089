"""Whether a node can lead: not while its disk is full, or has just failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from goq import limits
from goq.errors import StorageFailed, StorageFull
from goq.storage.disk import Disk, is_full

_log = logging.getLogger("goq.cluster")
_FILE = "room"


class DiskHealth:
    """Of a node with its data in ``folder``; ``reason`` says why it cannot lead, empty if it can.

    It can again when the disk has taken, synced and given up ``limits.FIT_AGAIN_BYTES``.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        in_thread: Callable[[Callable[[], object]], Awaitable[object]],
    ) -> None:
        self.reason = ""
        self._disk = disk
        self._path = folder / _FILE
        self._in_thread = in_thread
        self._troubled = asyncio.Event()

    def failed(self, error: Exception) -> None:
        """Hear that something could not be stored; what is no fault of the disk is passed over."""
        if isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error)):
            self._note("its disk is full")
        elif isinstance(error, StorageFailed | OSError):
            self._note("its disk has failed")

    def _note(self, reason: str) -> None:
        if not self.reason:
            _log.error("this node leads nothing now: %s", reason)
        self.reason = reason
        self._troubled.set()

    async def watch(self) -> None:
        """Find out when the disk works again, until cancelled; nothing runs while it does."""
        while True:
            await self._troubled.wait()
            self._troubled.clear()
            await asyncio.sleep(limits.FIT_AGAIN_PAUSE_S)
            try:
                await self._in_thread(self._try)
            except OSError:
                self._troubled.set()
                continue
            if not self._troubled.is_set():
                self.reason = ""
                _log.warning("this node can lead again: its disk takes what is written")

    def _try(self) -> None:
        self._disk.replace(self._path, bytes(limits.FIT_AGAIN_BYTES))
        self._disk.remove(self._path)
