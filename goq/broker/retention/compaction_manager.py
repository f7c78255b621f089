"""The compaction manager of a node: decides when topics with ``cleanup: compact`` are compacted.

It runs one pass at a time: when a sealed segment makes a pass worthwhile, when a tombstone expires,
and when a sealed segment has waited for the maximum lag. Between passes nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from goq import limits
from goq.broker.partition.compactor import CompactionResources
from goq.broker.partition.partition import Partition
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.topic import Topic
from goq.clock import Clock
from goq.config.topic import Cleanup
from goq.event_loop import wait_for_event
from goq.storage.disk import is_full

_log = logging.getLogger("goq.broker")
_SECRET_BYTES = 32
_RETRY_S = 60.0  # after a failed pass


class CompactionManager:
    """Starts the compaction passes of all topics with ``cleanup: compact``.

    ``now_us`` is the time of retention: a clock that jumps ahead does not count at once.
    """

    def __init__(
        self,
        topics: Mapping[str, Topic],
        clock: Clock,
        now_us: Callable[[], Awaitable[int]],
        *,
        keys_max: int = limits.COMPACTION_KEYS_MAX,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._now_us = now_us
        self._keys_max = keys_max
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="goq-compact")
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def start(self, tasks: Tasks) -> None:
        """Start the background task."""
        self._woken.set()
        self._task = tasks.start(self._run())

    def wake(self) -> None:
        """Check whether a pass is due: a segment was sealed, or settings were changed."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop the current pass and start no other."""
        stopping = [p.compactor.stop() for t in self._topics.values() for p in t.partitions]
        await asyncio.gather(*stopping)  # before cancel(), which would not stop the thread
        if self._task is not None:
            self._task.cancel()
        self._executor.shutdown(wait=False)

    async def apply(self) -> int:
        """Compact what is due now; return the number of removed messages."""
        removed = 0
        async with self._lock:
            for topic, partition in list(self._partitions()):
                removed += await self._compact(topic, partition)
        return removed

    async def _run(self) -> None:
        while True:
            await wait_for_event(self._woken, self._due_in_s())
            self._woken.clear()
            await self.apply()

    def _due_in_s(self) -> float | None:
        """Return the time until a pass is due at the latest, or None if none is."""
        dues = [p.compactor.due_us(t.settings) for t, p in self._partitions()]
        due_us = min((due for due in dues if due is not None), default=None)
        if due_us is None:
            return None
        left_s = (due_us - self._clock.wall_us()) / 1_000_000
        return left_s if left_s > 0 else _RETRY_S  # the last pass was just now

    def _partitions(self) -> Iterator[tuple[Topic, Partition]]:
        for topic in self._topics.values():
            if topic.settings.cleanup is Cleanup.COMPACT and not topic.is_read_only:
                for partition in topic.partitions:
                    yield topic, partition

    async def _compact(self, topic: Topic, partition: Partition) -> int:
        """Run passes until none is due or one makes no progress. Failures are retried later."""
        compactor, removed, before = partition.compactor, 0, -1
        try:
            resources = CompactionResources(
                self._executor,
                secrets.token_bytes(_SECRET_BYTES),
                self._keys_max,
                await self._now_us(),
            )
            while await compactor.is_due(topic.settings, resources):
                progress = compactor.progress
                if progress is None or progress.compacted_to == before:
                    break
                before = progress.compacted_to
                removed += await compactor.run(topic.settings, resources)
        except Exception as error:  # the other partitions must go on
            if isinstance(error, OSError) and is_full(error):
                _log.warning("the disk is full: %s is not compacted", partition.identity)
            elif partition.is_online and not topic.is_closed:
                _log.exception("compaction failed in %s", partition.identity)
        return removed
