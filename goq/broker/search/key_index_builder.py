"""Builds the ``.keys`` files of sealed segments in the background, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from goq import limits
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.runtime.background import ThreadThrottle
from goq.broker.runtime.tasks import Tasks
from goq.broker.search.finder import Finder
from goq.errors import ShuttingDown
from goq.storage.log.segment import Segment

_log = logging.getLogger("goq.broker")
_REST_FACTOR = 2.0  # of the working time: no request waits for it


class KeyIndexBuilder:
    """Builds the file of each sealed segment. After a failure the first lookup builds it."""

    def __init__(
        self,
        finder: Finder,
        executor: Executor,
        tasks: Tasks,
        partition_of: Callable[[PartitionId], Partition | None],
    ) -> None:
        self._finder = finder
        self._executor = executor
        self._tasks = tasks
        self._partition_of = partition_of
        self._waiting: deque[tuple[PartitionId, Segment]] = deque(maxlen=limits.KEYS_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def on_seal(self, identity: PartitionId, segment: Segment) -> None:
        """Queue a sealed segment of messages. Lookups build the oldest files of a full queue."""
        self._waiting.append((identity, segment))
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        pause = ThreadThrottle(_REST_FACTOR, lambda: self._finder.is_stopped)
        while self._waiting and not self._finder.is_stopped:
            identity, segment = self._waiting.popleft()
            partition = self._partition_of(identity)
            if partition is None:
                continue
            index = self._finder.index_of(partition)
            try:
                await loop.run_in_executor(self._executor, index.build, segment, pause)
            except (ShuttingDown, OSError) as error:
                _log.info("keys of %s are indexed at the first lookup: %s", segment.path, error)
