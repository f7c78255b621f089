"""Carrying out what leaves a partition: dead letters, and dead letters that are put back.

The state's outbox says what leaves, and under which numbers. For each in order: the copies are
published under the outbox's producer, what the target has of them already being passed over, and
then it is noted that they have arrived. Nothing is done for a departure that is not durable yet.
So whenever the process ends, the next goes on where this one was, and each copy is there once.

A producer epoch is that of the node's start in which the departure was decided. Where the source
lost its latest events, the numbers it then gives again are thus not taken for the old ones; and
where the target lost copies that had arrived, the departures behind the gap go on in a new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from goq import limits
from goq.broker.outbox.copier import Copies
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import PublishTarget
from goq.broker.partition_context import PartitionContext
from goq.delivery.events.event import CopyStored, epoch_of
from goq.delivery.outbox import OutboxEntry
from goq.errors import GoqError
from goq.frame.encoder import ProducerMark

_log = logging.getLogger("goq.broker")


class RetryPause(NamedTuple):
    """Pauses before what failed is tried again: doubled each time, up to ``max_s``."""

    min_s: float = 0.05
    max_s: float = 5.0


DEFAULT_RETRY = RetryPause()

Targets = Callable[[str, int], Awaitable[PublishTarget]]
"""Returns a partition of a topic, made first if there is none, or raises why not now."""


class Departures:
    """The worker of a partition's outbox. It works while there is something to do, and no longer.

    It never gives up: what fails is tried again, with pauses that grow.
    """

    def __init__(
        self,
        partition: Partition,
        targets: Targets,
        context: PartitionContext,
        default_lane: int,
        retry: RetryPause = DEFAULT_RETRY,
    ) -> None:
        self._partition = partition
        self._targets = targets
        self._context = context
        self._retry = retry
        self._copies = Copies(partition.identity, partition.message_reader, default_lane)
        self._work: asyncio.Task[None] | None = None
        self._stopped = False

    def wake(self) -> None:
        """Begin to work, if there is work."""
        is_idle = self._work is None or self._work.done()
        if is_idle and not self._stopped and self._partition.departures:
            self._work = self._context.tasks.start(self._run())

    async def stop(self) -> None:
        """End for good; what was begun is finished by another worker."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def _run(self) -> None:
        pause_s = self._retry.min_s
        while self._partition.departures:
            if await self._all():
                pause_s = self._retry.min_s
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._retry.max_s)

    async def _all(self) -> bool:
        """Carry out all that is under way; return whether nothing failed."""
        by_target: dict[tuple[str, int], list[OutboxEntry]] = {}
        for departure in self._partition.departures:
            event = departure.event
            by_target.setdefault((event.topic, event.partition), []).append(departure)
        try:
            await self._partition.recorded()
        except (GoqError, OSError) as error:
            _log.debug("%s: departures wait: %s", self._partition.identity, error)
            return False
        failed = False
        for (topic, number), departures in by_target.items():
            try:
                await self._carry(topic, number, departures)
            except (GoqError, OSError) as error:
                failed = True
                _log.warning("what leaves for partition %d of %s waits: %s", number, topic, error)
            except Exception:  # a bug with one target must not hold up the others for ever
                failed = True
                _log.exception("what leaves for partition %d of %s waits", number, topic)
        return not failed

    async def _carry(self, topic: str, number: int, departures: Sequence[OutboxEntry]) -> None:
        """Publish the copies for one target, first to leave first."""
        loop = asyncio.get_running_loop()
        producer_id = self._partition.outbox_producer_id
        waiting = deque(departures)
        while waiting:
            target = await self._targets(topic, number)
            producers = await target.producers(producer_id)
            arrived: list[CopyStored] = []
            while waiting:
                epoch, sequence = self._place(waiting[0], producers.progress(producer_id))
                if sequence < _end(waiting[0]):
                    break
                departure = waiting.popleft()
                first = producers.offset_of(producer_id, departure.first_sequence)
                arrived.append(CopyStored(departure.number, -1 if first is None else first))
            if arrived:
                self._partition.record(arrived)
            if waiting:
                mark = ProducerMark(producer_id, epoch, sequence)
                view = await loop.run_in_executor(
                    self._context.executor, self._copies.frame, _together(waiting), mark
                )
                target.check_publish(view.header.frame_bytes)
                await target.publish(view)

    def _place(self, departure: OutboxEntry, reached: tuple[int, int] | None) -> tuple[int, int]:
        """Return the epoch and the number to go on with, from how far the target is."""
        first = departure.first_sequence
        born = epoch_of(departure.number)
        if reached is None or reached[0] < born:
            return born, first
        epoch, sequence = reached
        if sequence < first:
            return max(self._context.epoch, epoch + 1), first
        return epoch, sequence


def _end(departure: OutboxEntry) -> int:
    return departure.first_sequence + sum(end - start for start, end, _ in departure.event.spans)


def _together(departures: Iterable[OutboxEntry]) -> list[OutboxEntry]:
    """Return the first and what goes with it: of the same epoch, and numbered on."""
    found: list[OutboxEntry] = []
    for departure in islice(departures, limits.OUTBOX_FRAME_MESSAGES):
        if found and (
            departure.first_sequence != _end(found[-1])
            or epoch_of(departure.number) != epoch_of(found[-1].number)
        ):
            break
        found.append(departure)
    return found
