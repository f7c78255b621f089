"""The broker of a node: its topics, from start to close."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from goq import limits
from goq.broker.log.commit_turn import CommitTurn
from goq.broker.log.frame_cache import FrameCache
from goq.broker.metadata import DEFAULT_REPLICATION, MetadataStore, TopicReplication
from goq.broker.partition.failure_policy import dead_letter_settings
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.compaction_manager import CompactionManager
from goq.broker.retention.retention_clock import FILE_NAME
from goq.broker.retention.retention_manager import ReplicaStartOffset, RetentionManager
from goq.broker.runtime.background import BackgroundReads
from goq.broker.runtime.metrics import WriteTimes
from goq.broker.runtime.tasks import Tasks
from goq.broker.search.finder import Finder
from goq.broker.search.key_index_builder import KeyIndexBuilder
from goq.broker.topic.audit_log import AUDIT_SETTINGS, AuditLog
from goq.broker.topic.capacity import Capacity
from goq.broker.topic.push_streams import PushStreams
from goq.broker.topic.start_queue import StartQueue
from goq.broker.topic.topic import DEFAULT_PARAMETERS, Topic, TopicParameters
from goq.broker.topic.topic_loader import TopicLoader
from goq.clock import Clock
from goq.config.archive import ArchiveConfig
from goq.config.topic import TopicSettings, flatten
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
    outcome_unknown,
    raise_failures,
)
from goq.index_cache import IndexCache
from goq.model import (
    AUDIT_TOPIC,
    DEAD_LETTERS_SUFFIX,
    check_name,
    check_not_internal,
    check_partitions,
    draw_topic_id,
)
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.segment import Segment
from goq.storage.node_db import SegmentRow, TopicRow

_PRODUCER_ID_BITS = 63


class Broker:
    """The open topics of a running node."""

    def __init__(
        self,
        topics_dir: Path,
        metadata: MetadataStore,
        disk: Disk,
        clock: Clock,
        *,
        defaults: TopicSettings,
        partitions: int,
        auto_create: bool,
        replica_start_offset: ReplicaStartOffset = lambda _partition: None,
        is_member: bool = False,
        remote_target: TargetLookup | None = None,
        topic_parameters: TopicParameters = DEFAULT_PARAMETERS,
        snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS,
        journal_dir: Path | None = None,
        start_partitions: int = limits.START_PARTITIONS,
        archive_config: ArchiveConfig | None = None,
        node_id: str = "",
    ) -> None:
        """``is_member`` is true in a cluster: the cluster metadata define the topics, and the
        replica manager opens the partitions that this node leads. ``remote_target`` finds
        partitions that other nodes lead. With a ``journal_dir`` small writes of all logs share
        the journal there. :meth:`start` opens topics with ``start_partitions`` partitions, and
        leaves the others to the ``start_queue``."""
        self.topics: dict[str, Topic] = {}
        self.start_queue = StartQueue(partial(self._open, skip_failed=True), start_partitions)
        self.capacity = Capacity(
            self.topics,
            default_partitions=partitions,
            is_member=is_member,
            start_queue=self.start_queue,
        )
        self.streams = PushStreams()
        self.audit_log = AuditLog(self._audit_topic, lambda: metadata.may_audit)
        self.clock = clock
        self.metadata = metadata
        self.topics_dir = topics_dir
        self._disk = disk
        self._defaults = defaults
        self._partitions = partitions
        self._auto_create = auto_create
        self._is_member = is_member
        self._remote_target = remote_target
        self._topic_parameters = topic_parameters
        self._snapshot_limits = snapshot_limits
        self.executor = ThreadPoolExecutor(limits.COMMIT_THREADS, thread_name_prefix="goq-disk")
        self._journal_dir = journal_dir
        self._journal_executor = ThreadPoolExecutor(1, thread_name_prefix="goq-journal")
        self._commit_executor = ThreadPoolExecutor(1, thread_name_prefix="goq-commit")
        self.journal: NodeJournal | None = None
        self._tasks = Tasks()
        self.archive = Archiver(
            topics_dir.with_name(ARCHIVE_DIR),
            disk,
            metadata,
            clock,
            config=archive_config,
            node_id=node_id,
        )
        self.indexes = IndexCache()
        self.finder = Finder(self.archive, self.executor, self.indexes)
        self._keys = KeyIndexBuilder(self.finder, self.executor, self._tasks, self._partition_of)
        self.retention_manager: RetentionManager
        self._replica_start_offset = replica_start_offset
        self._retention_task: asyncio.Task[None] | None = None
        self.compaction_manager = CompactionManager(self.topics, clock)
        self._loader: TopicLoader
        self.write_seconds = WriteTimes()
        self.background = BackgroundReads(lambda: sum(self.write_seconds.counts))
        self._frames = FrameCache()
        self._context: PartitionContext | None = None
        self._changing = asyncio.Lock()
        self._started = asyncio.Event()

    async def start(self) -> None:
        """Recover the topics, most of a large node's in the background; see ``StartQueue``."""
        epoch = await self.metadata.next_epoch()
        if self._journal_dir is not None:
            open_journal = partial(NodeJournal.open, self._disk, self._journal_dir, self.topics_dir)
            self.journal = await asyncio.get_running_loop().run_in_executor(
                self.executor, open_journal, self._journal_executor, self.clock
            )
        self.commit_turn = CommitTurn(self.journal, self._commit_executor, self.clock)
        self._context = PartitionContext(
            self._disk,
            self.executor,
            self.clock,
            epoch,
            self._sealed,
            self.write_seconds,
            self._frames,
            self._tasks,
            random.Random().random,
            lambda: secrets.randbits(_PRODUCER_ID_BITS) or 1,
            self._snapshot_limits,
            self.indexes,
            self.commit_turn,
            self.journal,
        )
        self.retention_manager = RetentionManager(
            self.topics,
            self._context,
            self.metadata,
            self.archive,
            replica_start_offset=self._replica_start_offset,
            clock_path=self.topics_dir.with_name(FILE_NAME),
        )
        self._loader = TopicLoader(
            self.topics_dir,
            self.metadata,
            self._defaults,
            self._context,
            self._target,
            self._remote_target,
            remember_group=self.remember_group,
            parameters=self._topic_parameters,
            is_member=self._is_member,
            on_delete=self.archive.delete_topic,
        )
        rows = await self._loader.recover_rows()
        await self.archive.open({row.folder for row in rows.values()})
        first = rows.values() if self._is_member else self.start_queue.take(rows.values())
        await asyncio.gather(*(self._open(row, skip_failed=True) for row in first))
        self.start_queue.start()
        self.capacity.tell()
        self._started.set()
        self.archive.start(self._tasks)
        self._retention_task = self._tasks.start(self.retention_manager.run())
        self.compaction_manager.start(self._tasks)

    async def _open(self, row: TopicRow, *, skip_failed: bool = False) -> Topic:
        topic = await self._loader.open(row, skip_failed=skip_failed)
        self.topics[row.name] = topic
        self.retention_manager.wake_topic(topic)
        return topic

    def topic(self, name: str) -> Topic:
        """Return a topic; raise ``TopicNotFound``.

        Raises ``PartitionOffline`` for a topic that the start has not opened yet.
        """
        topic = self.topics.get(name)
        if topic is None:
            self.start_queue.check(name)
            raise TopicNotFound(
                f"there is no topic {name[:200]!r}; create it with: goq topic create NAME",
                field="topic",
            )
        return topic

    def cached_bytes(self) -> dict[str, int]:
        """Return the memory of the caches, by kind; ``limits.CACHES_BYTES_MAX`` bounds the sum."""
        return {
            "frames": self._frames.size_bytes,
            "archive": self.archive.disk.cached_bytes + self.archive.indexes.size_bytes,
            "indexes": self.indexes.size_bytes,
        }

    @property
    def epoch(self) -> int:
        """The number of starts of the node."""
        assert self._context is not None
        return self._context.epoch

    def settings_for_publish(self, name: str) -> TopicSettings:
        """Return a topic's settings, or the defaults of a new topic."""
        topic = self.topics.get(name)
        return self._defaults if topic is None else topic.settings

    async def topic_for_publish(self, name: str) -> Topic:
        """Return a topic; create it if it is missing and the configuration allows it."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if self.start_queue:
            await self.start_queue.wait_for(name)
        if name in self.topics or not self._auto_create:
            return self.topic(name)
        try:
            return await self.create_topic(name)
        except TopicExists:
            return self.topic(name)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, Any] | None = None,
        replication: TopicReplication = DEFAULT_REPLICATION,
    ) -> Topic:
        """Create a topic; raise ``TopicExists``."""
        check_not_internal(name)
        check_name(name, "topic", field="name")
        count = check_partitions(self._partitions if partitions is None else partitions)
        chosen = self._defaults.changed(settings or {})
        self.metadata.check_replication(replication)
        await self.start_queue.wait_for(name)
        async with self._changing:
            if name in self.topics:
                raise TopicExists(f"topic {name} exists already", field="name")
            return await self._create(name, count, chosen, replication)

    async def _audit_topic(self) -> Topic:
        """Return the topic of the audit trail; create it if there is none."""
        topic = self.topics.get(AUDIT_TOPIC)
        if topic is not None:
            return topic
        await self.start_queue.wait_for(AUDIT_TOPIC)
        async with self._changing:
            topic = self.topics.get(AUDIT_TOPIC)
            return topic or await self._create(AUDIT_TOPIC, 1, AUDIT_SETTINGS, DEFAULT_REPLICATION)

    async def _create(
        self, name: str, partitions: int, settings: TopicSettings, replication: TopicReplication
    ) -> Topic:
        with self.capacity.topic(partitions):
            await self._loader.finish_deletion(name)
            row = TopicRow(name, partitions, settings.written(), id=draw_topic_id(secrets.randbits))
            row = await self.metadata.create_topic(row, replication)
            try:
                return self.topics.get(name) or await self._open(row)
            except GoqError as error:
                raise outcome_unknown(error) from error  # the topic exists, but is not open here

    async def adopt_topic(
        self,
        row: TopicRow,
        groups: Mapping[str, Mapping[str, str]],
        epoch: int,
        put_in_place: Callable[[], None],
    ) -> None:
        """Add a topic whose files ``put_in_place`` renames to their place; it blocks on the disk.

        No epoch in its logs exceeds ``epoch``. Raises ``TopicExists``, and ``TimedOut`` if it may
        have been added.
        """
        check_not_internal(row.name)
        await self.start_queue.wait_for(row.name)
        async with self._changing:
            if row.name in self.topics:
                raise TopicExists(f"topic {row.name} exists already")
            with self.capacity.topic(row.partitions):
                await self._loader.finish_deletion(row.name)
                await asyncio.get_running_loop().run_in_executor(self.executor, put_in_place)
                await self.metadata.adopt_topic(row, groups, epoch)
                try:
                    await self.archive.take_up(row.folder)
                    if row.name not in self.topics:
                        await self._open(row)
                except GoqError as error:
                    raise outcome_unknown(error) from error  # it exists, but is not open here

    async def alter_topic(
        self,
        name: str,
        settings: Mapping[str, Any],
        partitions: int | None = None,
        replication: TopicReplication = DEFAULT_REPLICATION,
        unset: Collection[str] = (),
    ) -> Topic:
        """Change settings or the replication, or add partitions; messages stay where they are.

        The settings ``unset`` get their defaults, as in a new topic of this name.
        That decides on a topic in doubt: it has the settings that it shows, and those given here.
        """
        check_not_internal(name)
        await self.start_queue.wait_for(name)
        async with self._changing:
            topic = self.topic(name)
            chosen = topic.settings.restored(unset, self._defaults_of(name)).changed(settings)
            count = topic.partitions.count
            if partitions is not None:
                if check_partitions(partitions) < count:
                    raise InvalidInput(
                        f"topic {name} has {count} partitions; there can be more, not fewer",
                        field="partitions",
                    )
                count = partitions
            self.metadata.check_replication(replication, name)
            await self._alter(topic, count, chosen, replication)
            return topic

    def _defaults_of(self, name: str) -> TopicSettings:
        """Return the settings of a new topic: of a dead-letter topic, those of its source."""
        source = self.topics.get(name.removesuffix(DEAD_LETTERS_SUFFIX))
        if source is None or source.name == name:
            return self._defaults
        return dead_letter_settings(source.settings)

    async def _alter(
        self,
        topic: Topic,
        partitions: int,
        settings: TopicSettings,
        replication: TopicReplication = DEFAULT_REPLICATION,
    ) -> None:
        row = TopicRow(topic.name, partitions, settings.written(), id=topic.id)
        with self.capacity.partitions(partitions - topic.partitions.count, topic):
            await self.metadata.put_topic(row, replication)
            if topic.doubt is not None:
                known = await self.metadata.groups(topic.name)
                for group, own in topic.groups.items():
                    if known.get(group) != own:
                        await self.metadata.put_group(topic.name, group, own)
                topic.set_doubt(None)
            topic.configure(settings)
            await self._loader.open_partitions(topic, partitions)
        self.retention_manager.wake_topic(topic)
        self.compaction_manager.wake()

    async def _target(self, source: Topic, name: str, number: int) -> PublishTarget:
        """Return the target partition of copies from ``source``; create it if missing."""
        await self._started.wait()
        await self.start_queue.wait_for(name)
        topic = self.topics.get(name)
        if topic is None or number >= topic.partitions.count:
            making = asyncio.ensure_future(self._make_target(source, name, number))
            making.add_done_callback(lambda done: done.cancelled() or done.exception())
            topic = await asyncio.shield(making)  # a stopped worker leaves no half-created topic
        return topic.publisher.target(number)

    async def _make_target(self, source: Topic, name: str, number: int) -> Topic:
        async with self._changing:
            topic = self.topics.get(name)
            check_not_internal(name)
            is_grave = name == source.name + DEAD_LETTERS_SUFFIX
            count = max(number + 1, source.partitions.count if is_grave else 1)
            if topic is None:
                settings = dead_letter_settings(source.settings) if is_grave else self._defaults
                of = self.metadata.replication_of(source.name) if is_grave else DEFAULT_REPLICATION
                return await self._create(name, count, settings, of)
            if number >= topic.partitions.count:
                await self._alter(topic, count, topic.settings)
            return topic

    async def reopen_partition(self, name: str, number: int) -> None:
        """Open a partition that is offline, from the disk.

        Raises ``PartitionOffline`` if it stays offline, and ``Conflict`` in a cluster.
        """
        await self.start_queue.wait_for(name)
        topic = self.topic(name)
        topic.partitions.check(number)
        if self._is_member:
            raise Conflict("a cluster opens its replicas by itself: goq cluster status shows them")
        await topic.reopen(number)
        self.retention_manager.wake_topic(topic)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its messages."""
        check_not_internal(name)
        await self.start_queue.wait_for(name)
        async with self._changing:
            topic = self.topic(name)
            count, written = topic.partitions.count, topic.settings.written()
            await self.metadata.put_topic(TopicRow(name, count, written, True, topic.id))
            if not self._is_member:
                await self._drop(topic)

    async def _drop(self, topic: Topic) -> None:
        name = topic.name
        del self.topics[name]
        self._loader.half_deleted[name] = topic.id
        reason = TopicNotFound(f"topic {name} was deleted", field="topic")
        await topic.close(reason, is_deleted=True)
        self.finder.forget(topic.id)
        gc.unfreeze()  # so that what a start loaded of it can be collected
        await self._loader.delete(name, topic.id)

    def settings_of(self, row: TopicRow) -> TopicSettings:
        """Return the effective settings of a topic on this node."""
        return self._defaults.changed(row.settings)

    async def take_up(
        self, row: TopicRow, groups: Mapping[str, Mapping[str, str]], *, has_replicas: bool
    ) -> None:
        """Open or update a topic and its groups by the cluster metadata.

        The topic's file follows where this node has replicas of it.
        """
        async with self._changing:
            topic = self.topics.get(row.name)
            if topic is not None and topic.id != row.id:  # created since the metadata were read
                return
            if has_replicas:
                await self._loader.write_file(row, groups)
            if topic is None:
                await self._open(row)
                return
            chosen = self.settings_of(row)
            if chosen != topic.settings:
                topic.configure(chosen)
            if row.partitions > topic.partitions.count:
                topic.expect(row.partitions)
            for group in groups.keys() | topic.groups.keys():
                if group not in groups:
                    topic.forget_group(group)
                elif groups[group] != topic.groups.get(group):
                    topic.configure_group(group, groups[group])
            self.retention_manager.wake_topic(topic)
            self.compaction_manager.wake()

    async def drop(self, name: str, topic_id: int) -> None:
        """Delete the files of a topic that the cluster metadata no longer contain."""
        async with self._changing:
            topic = self.topics.get(name)
            if topic is not None and topic.id == topic_id:
                await self._drop(topic)
            else:
                await self._loader.delete(name, topic_id)

    async def remember_group(self, topic: Topic, group: str) -> None:
        """Store a group at its first use."""
        if group not in topic.groups:
            check_name(group, "group")
            with self.capacity.group(topic, group):
                await self.metadata.put_group(topic.name, group, {})
                topic.add_group(group)

    async def configure_group(self, topic: Topic, group: str, settings: Mapping[str, Any]) -> None:
        """Change settings of a group; others keep their values."""
        check_name(group, "group")
        known = topic.groups.get(group, {})
        chosen = topic.settings.for_group({**known, **flatten(settings)}).written_for_group()
        own = {name: chosen[name] for name in {*known, *flatten(settings)}}
        with self.capacity.group(topic, group):
            await self.metadata.put_group(topic.name, group, own)
            topic.configure_group(group, own)
        self.retention_manager.wake_topic(topic)

    async def delete_group(self, topic: Topic, group: str) -> None:
        """Delete a group and its progress."""
        topic.partitions.check_all_open()
        deleting = [partition.delete_group(group) for partition in topic.partitions]
        raise_failures(await asyncio.gather(*deleting, return_exceptions=True))
        try:
            await self.metadata.delete_group(topic.name, group)
        except GoqError as error:
            raise outcome_unknown(error) from error  # the progress is deleted
        topic.forget_group(group)
        self.retention_manager.wake_topic(topic)

    def _sealed(self, identity: PartitionId, log: str, segment: Segment) -> None:
        row = SegmentRow(
            identity.folder,
            identity.number,
            log,
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            self.clock.wall_us(),
        )
        self._tasks.start(self.metadata.put_segment(row))
        if log == "messages":
            self._keys.on_seal(identity, segment)
        if identity.topic in self.topics:
            self.retention_manager.wake(identity)
        self.compaction_manager.wake()

    def _partition_of(self, identity: PartitionId) -> Partition | None:
        topic = self.topics.get(identity.topic)
        is_it = topic is not None and topic.id == identity.topic_id
        return topic.partitions.get(identity.number) if topic is not None and is_it else None

    async def close(self) -> None:
        """Make everything durable, then close it."""
        await self.start_queue.close()
        if self._retention_task is not None:
            self._retention_task.cancel()
        self.archive.stop_uploads()
        self.finder.stop()
        await self.compaction_manager.stop()
        await asyncio.gather(*(topic.stop_outbox() for topic in self.topics.values()))
        async with self._changing:  # wait for the creation of a target topic
            await self._close_topics()
        await self._tasks.finish()
        self.archive.close()
        await self.metadata.close()
        self.background.close()
        self.executor.shutdown()
        self._commit_executor.shutdown()
        self._journal_executor.shutdown()
        if self.journal is not None:
            self.journal.close()

    async def _close_topics(self) -> None:
        reason = ShuttingDown("the node is stopping; try another or later")
        await asyncio.gather(*(topic.close(reason) for topic in self.topics.values()))
