"""The health of a node's disk, which decides whether the node can lead partitions.

A node whose disk is full or has failed leads nothing. It can lead again once the disk has written,
synced and freed ``limits.DISK_RECOVERED_BYTES``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from goq import limits
from goq.errors import ResourcesExhausted, StorageFailed, StorageFull
from goq.storage.disk import Disk, is_full, is_temporary

_log = logging.getLogger("goq.cluster")
_FILE = "room"


class DiskHealth:
    """The health of the disk under ``folder``.

    ``reason`` says why the node cannot lead; it is empty if it can.
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
        self._has_failed = asyncio.Event()

    def on_error(self, error: Exception) -> None:
        """Note that a write failed; errors that are not the disk's fault are ignored."""
        if isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error)):
            self._fail("its disk is full")
        elif isinstance(error, ResourcesExhausted) or (
            isinstance(error, OSError) and is_temporary(error)
        ):
            self._fail("it has no descriptors or memory left")
        elif isinstance(error, StorageFailed | OSError):
            self._fail("its disk has failed")

    def _fail(self, reason: str) -> None:
        if not self.reason:
            _log.error("this node leads nothing now: %s", reason)
        self.reason = reason
        self._has_failed.set()

    async def run(self) -> None:
        """After each failure, probe the disk until it works again; runs until cancelled."""
        while True:
            await self._has_failed.wait()
            self._has_failed.clear()
            await asyncio.sleep(limits.DISK_CHECK_PAUSE_S)
            try:
                await self._in_thread(self._probe)
            except OSError:
                self._has_failed.set()
                continue
            if not self._has_failed.is_set():
                self.reason = ""
                _log.warning("this node can lead again: its disk accepts writes")

    def _probe(self) -> None:
        self._disk.replace(self._path, bytes(limits.DISK_RECOVERED_BYTES))
        self._disk.remove(self._path)
