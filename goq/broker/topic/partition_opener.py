"""Opens the partitions of a topic from the disk, and again those that are offline.

New partitions are open when publishers see them, and numbered without a gap. A partition that
cannot be loaded is offline: it is tried again in the background, with growing pauses, or by
:meth:`PartitionOpener.reopen`. One lock keeps two tries of a partition apart. Once the topic is
closing, no partition is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.partition.loader import LoadedPartition, open_partition, release_logs
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionContext
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.partition_table import PartitionTable
from goq.config.topic import EffectiveSettings
from goq.errors import GoqError, PartitionOffline
from goq.storage.catalog.rows import TopicManifest

_log = logging.getLogger("goq.broker")
_OPENED_AT_ONCE = limits.COMMIT_THREADS // 2  # the other threads commit for other topics


class ReopenPause(NamedTuple):
    """The pause before a partition that is offline is opened again; each one is doubled."""

    first_s: float
    max_s: float


class PartitionOpener:
    """Opens the partitions of one topic. ``build`` makes one of what was loaded.

    ``manifest`` returns the known logs, ``closing`` is set when the topic closes. ``close_failed``
    closes a partition that failed while it was open; ``on_reopened`` is called once it, or one that
    could not be opened, is open. ``on_added`` is called when the topic may have more partitions.
    """

    def __init__(
        self,
        directory: Path,
        partitions: PartitionTable,
        settings: EffectiveSettings,
        context: PartitionContext,
        tasks: Tasks,
        pause: ReopenPause,
        manifest: Callable[[], Awaitable[TopicManifest]],
        closing: asyncio.Event,
        *,
        build: Callable[[int, LoadedPartition], Partition],
        close_failed: Callable[[Partition], Awaitable[None]],
        on_added: Callable[[], None],
        on_reopened: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._settings = settings
        self._context = context
        self._tasks = tasks
        self._pause = pause
        self._manifest = manifest
        self._build = build
        self._close_failed = close_failed
        self._on_added = on_added
        self._on_reopened = on_reopened
        self._closing = closing
        self._reopening: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()

    async def open(self, count: int, manifest: TopicManifest, *, skip_failed: bool = False) -> None:
        """Recover and open the partitions below number ``count`` that are not open yet.

        Publishers see all that are added at once: a key moves only once. With ``skip_failed`` one
        that cannot be opened is offline, and tried again later.
        """
        partitions = self._partitions
        added: list[Partition] = []
        is_served = partitions.count > 0
        try:
            for first in range(partitions.count, count, _OPENED_AT_ONCE):
                numbers = range(first, min(first + _OPENED_AT_ONCE, count))
                found = await self._load_some(numbers, manifest)
                failed = self._build_some(numbers, found, added, skip_failed=skip_failed)
                if failed is not None:
                    raise failed
                if not is_served:
                    partitions.put(*added)
                    added.clear()
        finally:
            partitions.put(*added)
            self._on_added()

    def _build_some(
        self,
        numbers: Sequence[int],
        found: Sequence[LoadedPartition | BaseException],
        added: list[Partition],
        *,
        skip_failed: bool,
    ) -> BaseException | None:
        """Add what was loaded, up to the first failure that is not skipped; return that."""
        failed: BaseException | None = None
        for number, loaded in zip(numbers, found, strict=True):
            if not isinstance(loaded, BaseException):
                if failed is None:
                    added.append(self._build(number, loaded))
                else:  # partitions are numbered without a gap
                    release_logs(loaded)
            elif skip_failed and isinstance(loaded, Exception):
                self._put_offline(number, loaded)
                self.reopen_later(number)
            else:
                failed = failed or loaded
        return failed

    async def _load_some(
        self, numbers: Sequence[int], manifest: TopicManifest
    ) -> Sequence[LoadedPartition | BaseException]:
        """Load new partitions together, as each waits for syncs; others in turn in one thread."""
        if not all(manifest.of(number).has_existed for number in numbers):
            loading = (self._load(number, manifest) for number in numbers)
            return await asyncio.gather(*loading, return_exceptions=True)

        def load_all() -> list[LoadedPartition | BaseException]:
            found: list[LoadedPartition | BaseException] = []
            for number in numbers:
                parts = self._directory / str(number), self._context, self._settings.topic
                try:
                    found.append(open_partition(*parts, manifest.of(number)))
                except Exception as error:
                    found.append(error)
            return found

        return await asyncio.get_running_loop().run_in_executor(self._context.executor, load_all)

    async def _load(self, number: int, manifest: TopicManifest) -> LoadedPartition:
        parts = self._directory / str(number), self._context, self._settings.topic
        return await asyncio.get_running_loop().run_in_executor(
            self._context.executor, open_partition, *parts, manifest.of(number)
        )

    def _put_offline(self, number: int, error: Exception) -> None:
        why = error.detail if isinstance(error, GoqError) else f"{type(error).__name__}: {error}"
        topic = self._partitions.topic
        _log.error("partition %d of %s is offline: %s", number, topic, why)
        reason = f"partition {number} of {topic} is offline: {why}"
        pause_ms = int(1000 * self._pause.first_s)
        self._partitions.put_offline(number, PartitionOffline(reason, retry_after_ms=pause_ms))

    def reopen_later(self, number: int) -> None:
        """Open a partition again in the background, until that works."""
        self._reopening = [task for task in self._reopening if not task.done()]
        self._reopening.append(self._tasks.start(self._reopen_until_open(number)))

    async def _reopen_until_open(self, number: int) -> None:
        pause_s = self._pause.first_s
        while not await self._closes_within(pause_s):
            try:
                await self.reopen(number)
            except GoqError as error:
                topic = self._partitions.topic
                _log.warning("partition %d of %s stays offline: %s", number, topic, error)
                pause_s = min(2 * pause_s, self._pause.max_s)
            else:
                return

    async def reopen(self, number: int) -> None:
        """Open a partition that is offline, from the disk; nothing happens to one that is online.

        Raises ``PartitionOffline`` if it stays offline, and ``PartitionNotFound``.
        """
        partitions = self._partitions
        async with self._lock:
            partition = partitions.get(number)
            if self._closing.is_set() or (partition is not None and partition.is_online):
                return
            if partition is None and number not in partitions.offline:
                raise partitions.not_here(number)
            if partition is not None and number not in partitions.offline:
                await self._close_failed(partition)
            try:
                loaded = await self._load(number, await self._manifest())
            except Exception as error:  # whatever keeps it from opening
                self._put_offline(number, error)
                raise partitions.offline[number] from error
            partitions.put(self._build(number, loaded))
            self._on_reopened(number)

    async def _closes_within(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Wait, once the topic is closing, until no partition is being opened any more."""
        await asyncio.gather(*self._reopening, return_exceptions=True)
        async with self._lock:
            pass
