"""Publishes the entries of a partition's outbox: dead letters, and dead letters that are redriven.

The outbox of the partition state holds what to copy and under which sequence numbers. The worker
handles the entries in order. It publishes the copies under the producer id of the outbox and skips
those that the target has already. Then it records that they are stored. It never publishes an entry
that is not committed yet: the next leader may lack it, and decide otherwise about its messages.
After a crash the next worker continues at the same place, and each copy is stored exactly once.

The producer epoch is the epoch of the node's start in which the entry was recorded. A source that
lost its latest events assigns their sequence numbers again; the new epoch keeps the target from
taking them for duplicates. If the target lost copies that it had stored, the entries behind the gap
continue in a new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from goq import limits
from goq.broker.outbox.copier import RecordCopier
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import PublishTarget
from goq.broker.partition_context import PartitionContext
from goq.delivery.events.event import CopyStored, epoch_of
from goq.delivery.outbox import OutboxEntry
from goq.errors import GoqError
from goq.frame.encoder import ProducerMark

_log = logging.getLogger("goq.broker")


class RetryBackoff(NamedTuple):
    """Pauses before a retry. Each pause is twice as long as the one before, up to ``max_s``."""

    min_s: float = 0.05
    max_s: float = 5.0


DEFAULT_RETRY_BACKOFF = RetryBackoff()

PublishTargetLookup = Callable[[str, int], Awaitable[PublishTarget]]
"""Returns a partition of a topic, which it creates if necessary. Raises if it is unavailable."""


class OutboxWorker:
    """The worker of the outbox of one partition. It runs only while the outbox has entries.

    It retries without end, with growing pauses.
    """

    def __init__(
        self,
        partition: Partition,
        targets: PublishTargetLookup,
        context: PartitionContext,
        default_lane: int,
        retry: RetryBackoff = DEFAULT_RETRY_BACKOFF,
        frame_messages_max: int = limits.OUTBOX_FRAME_MESSAGES,
    ) -> None:
        self._partition = partition
        self._targets = targets
        self._context = context
        self._retry = retry
        self._frame_messages_max = frame_messages_max
        self._copier = RecordCopier(
            partition.identity, partition.message_reader, default_lane, frame_messages_max
        )
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def wake(self) -> None:
        """Start to work if the outbox has entries."""
        is_idle = self._task is None or self._task.done()
        if is_idle and not self._stopped and self._partition.outbox_entries:
            self._task = self._context.tasks.start(self._run())

    async def stop(self) -> None:
        """Stop for good. The next worker finishes the entries."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = self._retry.min_s
        while self._partition.outbox_entries:
            if await self._publish_all():
                pause_s = self._retry.min_s
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._retry.max_s)

    async def _publish_all(self) -> bool:
        """Publish all entries; return whether none failed."""
        by_target: dict[tuple[str, int], list[OutboxEntry]] = {}
        for entry in self._partition.outbox_entries:
            event = entry.event
            by_target.setdefault((event.topic, event.partition), []).append(entry)
        try:
            await self._partition.recorded()
        except (GoqError, OSError) as error:
            _log.debug("%s: the outbox waits: %s", self._partition.identity, error)
            return False
        failed = False
        for (topic, number), entries in by_target.items():
            try:
                await self._publish_copies(topic, number, entries)
            except (GoqError, OSError) as error:
                failed = True
                _log.warning("the outbox waits for partition %d of %s: %s", number, topic, error)
            except Exception:  # a bug with one target must not block the others
                failed = True
                _log.exception("the outbox waits for partition %d of %s", number, topic)
        return not failed

    async def _publish_copies(
        self, topic: str, number: int, entries: Sequence[OutboxEntry]
    ) -> None:
        """Publish the copies for one target, oldest entry first."""
        loop = asyncio.get_running_loop()
        producer_id = self._partition.outbox_producer_id
        waiting = deque(entries)
        while waiting:
            target = await self._targets(topic, number)
            producers = await target.producers(producer_id)
            stored: list[CopyStored] = []
            while waiting:
                epoch, sequence = self._next_sequence(waiting[0], producers.progress(producer_id))
                if sequence < _end(waiting[0]):
                    break
                entry = waiting.popleft()
                first = producers.offset_of(producer_id, entry.first_sequence)
                stored.append(CopyStored(entry.number, -1 if first is None else first))
            if stored:
                self._partition.record(stored)
            if waiting:
                mark = ProducerMark(producer_id, epoch, sequence)
                batch = _batch(waiting, self._frame_messages_max)
                view = await loop.run_in_executor(
                    self._context.executor, self._copier.frame, batch, mark
                )
                target.check_publish(view.header.frame_bytes)
                await target.publish(view)

    def _next_sequence(
        self, entry: OutboxEntry, reached: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Return the epoch and sequence number to continue with, by what the target has."""
        first = entry.first_sequence
        entry_epoch = epoch_of(entry.number)
        if reached is None or reached[0] < entry_epoch:
            return entry_epoch, first
        epoch, sequence = reached
        if sequence < first:
            return max(self._context.epoch, epoch + 1), first
        return epoch, sequence


def _end(entry: OutboxEntry) -> int:
    return entry.first_sequence + sum(end - start for start, end, _ in entry.event.spans)


def _batch(entries: Iterable[OutboxEntry], count_max: int) -> list[OutboxEntry]:
    """Return the first entries that fit one frame: one epoch, consecutive sequence numbers."""
    found: list[OutboxEntry] = []
    for entry in islice(entries, count_max):
        if found and (
            entry.first_sequence != _end(found[-1])
            or epoch_of(entry.number) != epoch_of(found[-1].number)
        ):
            break
        found.append(entry)
    return found
