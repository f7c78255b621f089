"""When the topics of a node are compacted: one pass at a time, when a segment is sealed that makes
it worth while, and when a tombstone's time is over. In between nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from goq import limits
from goq.broker.partition.compactor import CompactionResources
from goq.broker.partition.partition import Partition
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.topic import Topic
from goq.clock import Clock
from goq.config.topic import Cleanup
from goq.storage.disk import is_full

_log = logging.getLogger("goq.broker")
_SECRET_BYTES = 32
_AGAIN_S = 60.0  # after a pass that failed


class Compacting:
    """Looks after the topics with ``cleanup: compact``."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        clock: Clock,
        *,
        keys_max: int = limits.COMPACTION_KEYS_MAX,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._keys_max = keys_max
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="goq-compact")
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._working = asyncio.Lock()

    def start(self, tasks: Tasks) -> None:
        """Begin to look after them."""
        self._wanted.set()
        self._task = tasks.start(self._run())

    def wake(self) -> None:
        """Look whether something is to be done: a segment was sealed, a setting was changed."""
        self._wanted.set()

    async def stop(self) -> None:
        """End what is under way, and begin nothing more."""
        stopping = [p.compactor.stop() for t in self._topics.values() for p in t.partitions]
        await asyncio.gather(*stopping)  # first: cancelling would not end the thread
        if self._task is not None:
            self._task.cancel()
        self._executor.shutdown(wait=False)

    async def apply(self) -> int:
        """Compact what is due now; return how many messages were taken away."""
        taken = 0
        async with self._working:
            for topic, partition in list(self._partitions()):
                taken += await self._compact(topic, partition)
        return taken

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._due_in_s()):
                    await self._wanted.wait()
            self._wanted.clear()
            await self.apply()

    def _due_in_s(self) -> float | None:
        """Return how long it is until the first tombstone may go, None if there is none."""
        dues = [p.compactor.due_us(t.settings) for t, p in self._partitions()]
        due_us = min((due for due in dues if due is not None), default=None)
        if due_us is None:
            return None
        left_s = (due_us - self._clock.wall_us()) / 1_000_000
        return left_s if left_s > 0 else _AGAIN_S  # it was tried just now

    def _partitions(self) -> Iterator[tuple[Topic, Partition]]:
        for topic in self._topics.values():
            if topic.settings.cleanup is Cleanup.COMPACT:
                for partition in topic.partitions:
                    yield topic, partition

    async def _compact(self, topic: Topic, partition: Partition) -> int:
        """Make passes until none is due, or one gets no further; failures are for the next time."""
        compaction, taken, before = partition.compactor, 0, -1
        means = CompactionResources(
            self._executor, secrets.token_bytes(_SECRET_BYTES), self._keys_max
        )
        try:
            while await compaction.is_due(topic.settings, means):
                progress = compaction.progress
                if progress is None or progress.compacted_to == before:
                    break
                before = progress.compacted_to
                taken += await compaction.run(topic.settings, means)
        except Exception as error:  # whatever it is, the others are still to be compacted
            if isinstance(error, OSError) and is_full(error):
                _log.warning("no room on the disk to compact %s", partition.identity)
            elif partition.is_online and not topic.is_closed:
                _log.exception("compaction failed in %s", partition.identity)
        return taken
