"""Keeping the partitions of a node in bounds, when it is time and not before.

For each partition it is known when there is something to do next: when the active segment is old
enough to be sealed, or the oldest sealed one past retention. The keeper sleeps until the earliest
of these; a sealed segment, changed settings or a new partition wake it. While it sleeps it looks
at the clock once a minute, since that may have been set forward.

What is due and cannot be done - something is held back, the disk is full - is tried again after a
minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from goq.broker.metadata import MetadataStore
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.broker.retention.archiver import Archive
from goq.broker.topic.topic import Topic
from goq.config.topic import Cleanup, TopicSettings
from goq.errors import StorageFull, TopicNotFound
from goq.storage.disk import is_full
from goq.storage.log.segment import Segment


def first_unread(topic: Topic, partition: Partition) -> int | None:
    """Return the first offset that a group whose unread messages are protected has not done.

    None where nothing is: no group is protected, or each of these has done everything. What is
    leased, waits for a retry or for its time, or was never handed out is not done; what is damaged
    will never be, and protects nothing.
    """
    names = {*topic.groups, *partition.group_names}
    protected = [name for name in names if topic.settings_of(name).protect_unread]
    firsts = (partition.group(name).first_unfinished() for name in protected)
    return min((offset for offset in firsts if offset is not None), default=None)


def keep_from(
    segments: Sequence[Segment],
    settings: TopicSettings,
    now_us: int,
    load: Callable[[Segment], object] = lambda _segment: None,
) -> int:
    """Return the offset before which retention wants everything deleted.

    Only sealed segments go: by age when the newest message of one is older than
    ``retention.age``, by size, oldest first, while the log is over ``retention.bytes``. A log that
    is compacted keeps everything. ``load`` is called with each segment whose time is needed; its
    index must then be loaded.
    """
    keep = segments[0].base_offset
    if settings.cleanup is Cleanup.COMPACT:
        return keep
    total_bytes = sum(segment.size_bytes for segment in segments)
    for segment in segments[:-1]:
        too_many = settings.retention_bytes is not None and total_bytes > settings.retention_bytes
        if not too_many:
            if settings.retention_age_ms is None:
                break
            load(segment)
            if segment.time_us >= now_us - settings.retention_age_ms * 1000:
                break
        keep = segment.end_offset
        total_bytes -= segment.size_bytes
    return keep


def too_old_at_us(segment: Segment, settings: TopicSettings) -> int | None:
    """Return when a sealed segment becomes too old; None if it never does."""
    if settings.retention_age_ms is None or settings.cleanup is Cleanup.COMPACT:
        return None
    return segment.time_us + settings.retention_age_ms * 1000 + 1


T = TypeVar("T")
_log = logging.getLogger("goq.broker")
_LOOK_AGAIN_S = 60.0

KeptForReplicas = Callable[[Partition], int | None]
"""Returns the first offset that replicas still need of a partition, None if they need nothing."""
Wait = Callable[[asyncio.Event, float], Awaitable[object]]
"""Returns when the event is set, or after so many seconds."""


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Return when an event is set, or after a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):  # wait_for() may lose that it was cancelled
            await event.wait()


class Keeper:
    """See the module."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        context: PartitionContext,
        metadata: MetadataStore,
        archive: Archive,
        *,
        kept_for_replicas: KeptForReplicas,
        wait: Wait = wait_for,
    ) -> None:
        self._topics = topics
        self._context = context
        self._metadata = metadata
        self._archive = archive
        self._kept_for_replicas = kept_for_replicas
        self._wait = wait
        self._due_us: dict[PartitionId, int] = {}
        self._woken = asyncio.Event()
        self._working = asyncio.Lock()
        self._short_of_room: set[PartitionId] = set()

    def wake(self, identity: PartitionId) -> None:
        """Look at a partition now: there may be something to do earlier than was known."""
        self._due_us[identity] = 0
        self._woken.set()

    def wake_topic(self, topic: Topic) -> None:
        """Look at all partitions of a topic now: it is new, or its settings have changed."""
        for partition in topic.partitions:
            self.wake(partition.identity)

    async def run(self) -> None:
        """Keep everything in bounds until cancelled."""
        while True:
            self._woken.clear()
            await self._do_what_is_due()
            await self._wait(self._woken, self._pause_s())

    async def apply(self) -> None:
        """Look at every partition now, and return when all that could be done is done."""
        for topic in list(self._topics.values()):
            self.wake_topic(topic)
        await self._do_what_is_due()

    def _pause_s(self) -> float:
        next_us = min(self._due_us.values(), default=None)
        if next_us is None:
            return _LOOK_AGAIN_S
        left_s = (next_us - self._context.clock.wall_us()) / 1_000_000
        return min(max(0.0, left_s), _LOOK_AGAIN_S)

    async def _do_what_is_due(self) -> None:
        async with self._working:
            now_us = self._context.clock.wall_us()
            for identity in [i for i, due_us in self._due_us.items() if due_us <= now_us]:
                del self._due_us[identity]
                topic = self._topics.get(identity.topic)
                partition = topic.partitions.get(identity.number) if topic is not None else None
                if topic is not None and partition is not None:
                    due_us = await self._keep(topic, partition)
                    self._due_us.setdefault(identity, due_us)  # it may have been woken meanwhile

    async def _keep(self, topic: Topic, partition: Partition) -> int:
        """Keep a partition in bounds; return when to look again."""
        again_us = self._context.clock.wall_us() + int(_LOOK_AGAIN_S * 1_000_000)
        if not partition.is_online:
            return again_us
        try:
            due_us = await self._apply(topic, partition)
        except Exception as error:  # whatever it is, the others are still to be kept in bounds
            if isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error)):
                self._note_no_room(topic, partition)
            elif partition.is_online and not topic.is_closed:
                _log.exception("retention failed in %s", partition.identity)
            return again_us
        self._short_of_room.discard(partition.identity)
        return again_us if due_us is None else due_us

    def _note_no_room(self, topic: Topic, partition: Partition) -> None:
        topic.stats.retention_stalls += 1
        if partition.identity not in self._short_of_room:
            self._short_of_room.add(partition.identity)
            _log.warning(
                "no room on the disk to keep partition %d of %s in bounds: nothing of it is"
                " archived or deleted until there is",
                partition.identity.number,
                topic.name,
            )

    async def _apply(self, topic: Topic, partition: Partition) -> int | None:
        """Seal and delete what is due; return when the next is, None if something is held back."""
        seal_us = await partition.trimmer.roll_if_old(topic.settings.segment_age_ms * 1000)
        keep, due_us = await self._in_thread(
            partial(self._look, list(partition.trimmer.segments), topic.settings)
        )
        if keep > partition.log_start_offset:
            await self._delete(topic, partition, await self._not_scheduled(partition, keep))
        await self._trim_events(topic, partition)
        if partition.log_start_offset < keep:
            return None
        return seal_us if due_us is None else min(seal_us, due_us)

    def _look(self, segments: Sequence[Segment], settings: TopicSettings) -> tuple[int, int | None]:
        """Return what retention keeps, and when the first of it becomes too old; in a thread."""

        def load(segment: Segment) -> object:
            return segment.load_index(self._context.disk)

        keep = keep_from(segments, settings, self._context.clock.wall_us(), load)
        kept = next((s for s in segments[:-1] if s.base_offset >= keep), None)
        if kept is None or settings.retention_age_ms is None:
            return keep, None
        load(kept)
        return keep, too_old_at_us(kept, settings)

    async def _not_scheduled(self, partition: Partition, keep: int) -> int:
        """Return ``keep``, or the first offset before it that waits for its time."""
        start = partition.log_start_offset
        waits = await partition.read_delayed(lambda waiting: waiting.first(start, keep))
        return keep if waits is None else min(keep, waits)

    async def _delete(self, topic: Topic, partition: Partition, keep: int) -> None:
        """Delete sealed segments up to ``keep``, each archived before if the topic wants that.

        What is protected is asked right before: a group may go back while a segment is archived.
        """
        if not topic.settings.archive:
            await self._trim(topic, partition, min(keep, self._protected_from(topic, partition)))
            return
        for segment in partition.trimmer.segments[:-1]:
            if segment.end_offset > min(keep, self._protected_from(topic, partition)):
                return
            await self._check_whole(partition, segment)
            await self._save(topic, partition, "messages", segment)
            await self._check_whole(partition, segment)  # or it was bad already when it was read
            topic.stats.archived_messages += segment.message_count
            end = min(segment.end_offset, self._protected_from(topic, partition))
            await self._trim(topic, partition, end)

    def _protected_from(self, topic: Topic, partition: Partition) -> int:
        """Return from which offset on a partition is kept, whatever retention wants."""
        replicas = self._kept_for_replicas(partition)
        unread = first_unread(topic, partition)
        return min(
            offset for offset in (replicas, unread, partition.log_end_offset) if offset is not None
        )

    async def _check_whole(self, partition: Partition, segment: Segment) -> None:
        """Raise ``PartitionOffline`` where others have what is damaged here: it is mended first."""
        if not partition.appender.holders(segment.base_offset):
            return
        for damage in await partition.trimmer.find_damage(segment):
            partition.check_repairable(damage)

    async def _save(self, topic: Topic, partition: Partition, log: str, segment: Segment) -> None:
        if topic.is_closed:
            raise TopicNotFound(f"topic {topic.name} was deleted", field="topic")
        await self._archive.take(partition.identity, log, segment)

    async def _trim(self, topic: Topic, partition: Partition, offset: int) -> None:
        deleted = await partition.trimmer.trim(
            offset, partial(self._forget, partition.identity, "messages")
        )
        topic.stats.deleted_messages += sum(segment.message_count for segment in deleted)

    async def _trim_events(self, topic: Topic, partition: Partition) -> None:
        """Delete the events of deleted messages, archived before if the topic wants that."""
        for segment in await partition.trimmer.old_events():
            if topic.settings.archive:
                await self._save(topic, partition, "events", segment)
            forget = partial(self._forget, partition.identity, "events")
            await partition.trimmer.trim_events(segment.end_offset, forget)

    async def _forget(self, identity: PartitionId, log: str, segments: Sequence[Segment]) -> None:
        """Take segments out of the manifest: from now on it is no damage that they are gone."""
        keys = [(*identity, log, segment.base_offset) for segment in segments]
        await self._metadata.delete_segments(keys)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._context.executor, work)
