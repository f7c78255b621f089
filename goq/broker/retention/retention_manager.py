"""The retention manager of a node: seals segments by age and deletes segments past retention.

It knows for each partition the time of the next action: the active segment is old enough to be
sealed, or the oldest sealed segment leaves retention. It sleeps until the earliest of these times.
A sealed segment, changed settings or a new partition wake it. It reads the clock at least once a
minute, because the clock may have been set. Age is measured by :class:`RetentionClock`.

An action that is due but not possible is retried after a minute: segments are protected, or the
disk is full.

Partitions are checked in turn. One that has something to archive goes on beside the others, because
that takes long; partitions archive a segment each in turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from goq.broker.metadata import MetadataStore
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.due_times import DueTimes
from goq.broker.retention.retention_clock import RetentionClock
from goq.broker.retention.retention_policy import (
    Retained,
    first_protected_offset,
    retained_from,
    unread_counts,
)
from goq.broker.topic.topic import Topic
from goq.config.topic import TopicSettings
from goq.errors import GoqError, StorageFull, TopicNotFound
from goq.event_loop import wait_for_event
from goq.storage.disk import is_full
from goq.storage.log.segment import Segment

T = TypeVar("T")
_log = logging.getLogger("goq.broker")
_CHECK_INTERVAL_S = 60.0

ReplicaStartOffset = Callable[[Partition], int | None]
"""Returns the first offset of a partition that its replicas still need, or None."""
Wait = Callable[[asyncio.Event, float], Awaitable[object]]
"""Returns when the event is set, or after so many seconds."""


class RetentionManager:
    """Applies retention to all partitions of a node. See the module for when."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        context: PartitionContext,
        metadata: MetadataStore,
        archive: Archiver,
        *,
        replica_start_offset: ReplicaStartOffset,
        wait: Wait = wait_for_event,
        clock_path: Path | None = None,
    ) -> None:
        self._topics = topics
        self._context = context
        self._metadata = metadata
        self._archive = archive
        self.clock = RetentionClock(context.clock, context.disk, context.executor, clock_path)
        self._replica_start_offset = replica_start_offset
        self._wait = wait
        self._due = DueTimes()
        self._woken = asyncio.Event()
        self._lock = asyncio.Lock()
        self._archiving: dict[PartitionId, asyncio.Task[None]] = {}
        self._due_after_archiving: set[PartitionId] = set()
        self._checked: set[str] = set()  # topics whose archives may have changed
        self._all_checked_us: int | None = None
        self._ahead_us = context.clock.wall_us() - context.clock.uptime_us()
        self._archive_turn = asyncio.Lock()
        self._out_of_space: set[PartitionId] = set()

    def wake(self, identity: PartitionId) -> None:
        """Check a partition now: an action may be due earlier than expected."""
        self._due.set_no_later(identity, 0)
        self._woken.set()

    def wake_topic(self, topic: Topic) -> None:
        """Check all partitions of a topic now: the topic is new, or its settings have changed."""
        for partition in topic.partitions:
            self.wake(partition.identity)

    async def run(self) -> None:
        """Apply retention until cancelled."""
        try:
            while True:
                self._woken.clear()
                self._wake_if_set_back()
                await self._run_due()
                await self._expire_archives(self._topics_to_expire())
                await self._wait(self._woken, self._pause_s())
        finally:
            for task in self._archiving.values():
                task.cancel()

    def _wake_if_set_back(self) -> None:
        """Check everything if the clock was set back: due times of before are too late."""
        ahead_us = self._context.clock.wall_us() - self._context.clock.uptime_us()
        if self._ahead_us - ahead_us > _CHECK_INTERVAL_S * 1_000_000:
            for topic in list(self._topics.values()):
                self.wake_topic(topic)
        self._ahead_us = ahead_us

    async def apply(self) -> None:
        """Check every partition now; return when all possible actions are done."""
        for topic in list(self._topics.values()):
            self.wake_topic(topic)
        await self._run_due()
        while self._archiving:
            await asyncio.wait(self._archiving.values())
            await self._run_due()
        await self._expire_archives(list(self._topics))

    def _pause_s(self) -> float:
        next_us = self._due.next_us()
        if next_us is None:
            return _CHECK_INTERVAL_S
        left_s = (next_us - self._context.clock.wall_us()) / 1_000_000
        return min(max(0.0, left_s), _CHECK_INTERVAL_S)

    async def _run_due(self) -> None:
        async with self._lock:
            now_us = self._context.clock.wall_us()
            for identity in self._due.take_due(now_us):
                self._checked.add(identity.topic)
                if identity in self._archiving:
                    self._due_after_archiving.add(identity)
                    continue
                topic = self._topics.get(identity.topic)
                partition = topic.partitions.get(identity.number) if topic is not None else None
                if topic is not None and partition is not None:
                    work = partial(self._apply, topic, partition)
                    due_us = await self._run_logged(topic, partition, work)
                    self._due.set_no_later(identity, due_us)  # wake() may have set an earlier time

    async def _run_logged(
        self, topic: Topic, partition: Partition, work: Callable[[], Awaitable[int | None]]
    ) -> int:
        """Work on a partition and log failures. Return when to check again."""
        again_us = self._context.clock.wall_us() + int(_CHECK_INTERVAL_S * 1_000_000)
        if not partition.is_online or topic.is_read_only:
            return again_us
        try:
            due_us = await work()
        except Exception as error:  # the other partitions must go on
            if isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error)):
                self._note_disk_full(topic, partition)
            elif partition.is_online and not topic.is_closed:
                _log.exception("retention failed in %s", partition.identity)
            return again_us
        return again_us if due_us is None else due_us

    def _note_disk_full(self, topic: Topic, partition: Partition) -> None:
        topic.stats.retention_stalls += 1
        if partition.identity not in self._out_of_space:
            self._out_of_space.add(partition.identity)
            _log.warning(
                "the disk is full: retention of partition %d of %s stops, nothing is archived or"
                " deleted until there is space",
                partition.identity.number,
                topic.name,
            )

    async def _apply(self, topic: Topic, partition: Partition) -> int | None:
        """Seal and delete what is due. Return the time of the next action, None if not known."""
        seal_us = await partition.trimmer.roll_if_old(topic.settings.segment_age_ms * 1000)
        now_us = await self.clock.now_us()
        keep, due_us = await self._in_thread(
            partial(self._find_retained, list(partition.trimmer.segments), topic.settings, now_us)
        )
        if topic.settings.archive and await self._has_expired(partition, keep):
            archiving = self._archive_expired(topic, partition, keep)
            self._archiving[partition.identity] = self._context.tasks.start(archiving)
            return None
        await self._delete_expired(topic, partition, keep)
        if partition.log_start_offset < keep or self.clock.is_held:
            return None
        return seal_us if due_us is None else min(seal_us, due_us)

    def _topics_to_expire(self) -> Collection[str]:
        """Return the topics that were checked, and all of them once in a while."""
        checked, self._checked = self._checked, set()
        now_us, before_us = self._context.clock.uptime_us(), self._all_checked_us
        interval_us = _CHECK_INTERVAL_S * 1_000_000
        if before_us is not None and 0 <= now_us - before_us < interval_us:
            return checked
        self._all_checked_us = now_us
        return list(self._topics)

    async def _expire_archives(self, names: Collection[str]) -> None:
        """Delete what is beyond the total retention of its topic."""
        for topic in [self._topics[name] for name in names if name in self._topics]:
            settings = topic.settings
            is_bounded = settings.total_age_ms is not None or settings.total_bytes is not None
            if not is_bounded or topic.is_closed or topic.is_read_only:
                continue
            live_bytes = {each.identity.number: each.size_bytes for each in topic.partitions}
            try:
                now_us = await self.clock.now_us()
                await self._archive.expire(topic.folder, settings, now_us, live_bytes)
            except (GoqError, OSError):
                _log.exception("the archive of %s keeps what has expired", topic.name)

    async def _has_expired(self, partition: Partition, keep: int) -> bool:
        return keep > partition.log_start_offset or bool(await partition.trimmer.old_events())

    async def _archive_expired(self, topic: Topic, partition: Partition, keep: int) -> None:
        """Archive and delete what is due, then check the partition again."""

        async def work() -> int | None:
            await self._delete_expired(topic, partition, keep)
            return None if partition.log_start_offset < keep else 0

        try:
            due_us = await self._run_logged(topic, partition, work)
            if partition.identity in self._due_after_archiving:
                due_us = 0
            self._due.set_no_later(partition.identity, due_us)
        finally:
            self._due_after_archiving.discard(partition.identity)
            del self._archiving[partition.identity]
            self._woken.set()

    async def _delete_expired(self, topic: Topic, partition: Partition, keep: int) -> None:
        await partition.trimmer.finish()
        if keep > partition.log_start_offset:
            await self._delete(topic, partition, await self._before_delayed(partition, keep))
        await self._trim_events(topic, partition)
        self._out_of_space.discard(partition.identity)

    def _find_retained(
        self, segments: Sequence[Segment], settings: TopicSettings, now_us: int
    ) -> Retained:
        """Return what is kept of these segments. Runs in a thread."""
        disk = self._context.disk
        return retained_from(
            segments,
            settings,
            now_us,
            lambda segment: segment.load_index(disk),
            lambda segment: segment.read_first_time(disk),
        )

    async def _before_delayed(self, partition: Partition, keep: int) -> int:
        """Return ``keep``, or the first offset before it whose delivery time has not come."""
        start = partition.log_start_offset
        waits = await partition.read_delayed(lambda waiting: waiting.first(start, keep))
        return keep if waits is None else min(keep, waits)

    async def _delete(self, topic: Topic, partition: Partition, keep: int) -> None:
        """Delete sealed segments up to ``keep``, each archived first if the topic has an archive.

        The protected offset is read right before each deletion: a group may seek back while a
        segment is archived.
        """
        if not topic.settings.archive:
            await self._trim(topic, partition, min(keep, self._protected_from(topic, partition)))
            return
        for segment in partition.trimmer.segments[:-1]:
            if segment.end_offset > min(keep, self._protected_from(topic, partition)):
                return
            await self._check_undamaged(partition, segment)
            await self._archive_segment(topic, partition, "messages", segment)
            await self._check_undamaged(
                partition, segment
            )  # it may have been damaged when it was read
            topic.stats.archived_messages += segment.message_count
            end = min(segment.end_offset, self._protected_from(topic, partition))
            await self._trim(topic, partition, end)

    def _protected_from(self, topic: Topic, partition: Partition) -> int:
        """Return the first offset that must not be deleted, whatever retention says."""
        replicas = self._replica_start_offset(partition)
        unread = first_protected_offset(topic, partition)
        return min(
            offset for offset in (replicas, unread, partition.log_end_offset) if offset is not None
        )

    async def _check_undamaged(self, partition: Partition, segment: Segment) -> None:
        """Raise ``PartitionOffline`` for damage that replicas can repair: repair comes first."""
        if not partition.appender.holders(segment.base_offset):
            return
        for damage in await partition.trimmer.find_damage(segment):
            partition.check_repairable(damage)

    async def _archive_segment(
        self, topic: Topic, partition: Partition, log: str, segment: Segment
    ) -> None:
        async with self._archive_turn:
            if topic.is_closed:
                raise TopicNotFound(f"topic {topic.name} was deleted", field="topic")
            await self._archive.archive_segment(partition.identity, log, segment)

    async def _trim(self, topic: Topic, partition: Partition, offset: int) -> None:
        unread = await unread_counts(topic, partition, partition.trimmer.trimmed_end(offset))

        def count(deleted: Sequence[Segment]) -> None:
            topic.stats.deleted_messages += sum(segment.message_count for segment in deleted)
            for name, unread_count in unread.items():
                topic.stats.groups[name].deleted_unread_messages += unread_count

        forget = partial(self._forget_segments, partition.identity, "messages")
        await partition.trimmer.trim(offset, forget, count)

    async def _trim_events(self, topic: Topic, partition: Partition) -> None:
        """Delete the events of deleted messages, archived first if the topic has an archive."""
        for segment in await partition.trimmer.old_events():
            if topic.settings.archive:
                await self._archive_segment(topic, partition, "events", segment)
            forget = partial(self._forget_segments, partition.identity, "events")
            await partition.trimmer.trim_events(segment.end_offset, forget)

    async def _forget_segments(
        self, identity: PartitionId, log: str, segments: Sequence[Segment]
    ) -> None:
        """Remove segments from the manifest. Their absence is no damage from now on."""
        place = identity.folder, identity.number, log
        keys = [(*place, segment.base_offset) for segment in segments]
        await self._metadata.delete_segments(keys)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._context.executor, work)
