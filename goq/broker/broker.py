"""The broker of a node: the topics that are open, from start to close.

It builds the parts that work on topics, and connects them. The start recovers and opens topics
before anything expires, is compacted or is copied. The close is the other way round: what works on
topics stops first, then the topics, then the threads and files under them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from goq import limits
from goq.broker.log.commit_turn import CommitTurn
from goq.broker.log.frame_cache import FrameCache
from goq.broker.metadata import MetadataStore
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import TargetLookup
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
from goq.broker.topic.admin.capacity import Capacity
from goq.broker.topic.admin.group_admin import GroupAdmin
from goq.broker.topic.admin.open_topics import TopicListener
from goq.broker.topic.admin.start_queue import StartQueue
from goq.broker.topic.admin.topic_admin import NewTopicDefaults, TopicAdmin
from goq.broker.topic.admin.topic_loader import TopicLoader
from goq.broker.topic.audit_log import AuditLog
from goq.broker.topic.push_streams import EndLeases, PushStreams
from goq.broker.topic.topic import DEFAULT_PARAMETERS, Topic, TopicParameters
from goq.clock import Clock
from goq.config.archive import ArchiveConfig
from goq.config.topic import TopicSettings
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.errors import ShuttingDown, TopicNotFound
from goq.index_cache import IndexCache
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.catalog.rows import SegmentRow, TopicRow
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.segment import Segment

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
        return_lease: Callable[[str, str, LeasedBatch], None] | None = None,
        end_leases: EndLeases | None = None,
        topic_parameters: TopicParameters = DEFAULT_PARAMETERS,
        snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS,
        journal_dir: Path | None = None,
        start_partitions: int = limits.START_PARTITIONS,
        archive_config: ArchiveConfig | None = None,
        node_id: str = "",
        is_disk_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_member`` is true in a cluster: the cluster metadata define the topics, and the
        replica manager opens the partitions that this node leads. ``remote_target`` finds
        partitions that other nodes lead, and ``return_lease`` has them release a lease, of a
        topic and a group, that reached no consumer; ``end_leases`` has them end those whose
        connection closed. With a ``journal_dir`` small writes of all logs share the journal there.
        :meth:`start` opens topics with ``start_partitions`` partitions,
        and leaves the others to the ``start_queue``. ``is_disk_full`` returns whether the disk
        takes only what is vital."""
        self.topics: dict[str, Topic] = {}
        self.start_queue = StartQueue(self._open, start_partitions)
        self.capacity = Capacity(
            self.topics,
            default_partitions=partitions,
            is_member=is_member,
            start_queue=self.start_queue,
        )
        self.streams = PushStreams(end_leases)
        self._started = asyncio.Event()
        self.topic_admin = TopicAdmin(
            self.topics,
            self.topic,
            metadata,
            self.capacity,
            self.start_queue,
            self._started,
            defaults=NewTopicDefaults(defaults, partitions),
            auto_create=auto_create,
            is_member=is_member,
            is_disk_full=self._refuses_new,
        )
        self.group_admin: GroupAdmin
        self.audit_log = AuditLog(self.topic_admin.audit_topic, lambda: metadata.may_audit)
        self.clock = clock
        self.metadata = metadata
        self.topics_dir = topics_dir
        self._disk = disk
        self._is_disk_full = is_disk_full
        self._defaults = defaults
        self._is_member = is_member
        self._remote_target = remote_target
        self._return_lease = return_lease
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
        self.compaction_manager = CompactionManager(
            self.topics, clock, lambda: self.retention_manager.clock.now_us()
        )
        self.write_seconds = WriteTimes()
        self.background = BackgroundReads(lambda: sum(self.write_seconds.counts))
        self._frames = FrameCache()
        self._context: PartitionContext | None = None

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
            self._is_disk_full,
        )
        self.retention_manager = RetentionManager(
            self.topics,
            self._context,
            self.metadata,
            self.archive,
            replica_start_offset=self._replica_start_offset,
            clock_path=self.topics_dir.with_name(FILE_NAME),
        )
        self.group_admin = GroupAdmin(
            self.metadata, self.capacity, self._on_topic_change, self._refuses_new
        )
        loader = TopicLoader(
            self.topics_dir,
            self.metadata,
            self._defaults,
            self._context,
            self.topic_admin.target,
            self._remote_target,
            self._return_lease,
            remember_group=self.group_admin.remember,
            parameters=self._topic_parameters,
            is_member=self._is_member,
            on_delete=self.archive.delete_topic,
        )
        self.topic_admin.start(
            loader,
            TopicListener(
                on_change=self._on_topic_change,
                on_settings=self.compaction_manager.wake,
                on_adopt=self.archive.take_up,
                on_delete=self.finder.forget,
            ),
        )
        rows = await loader.recover_rows()
        await self.archive.open({row.folder for row in rows.values()})
        first = rows.values() if self._is_member else self.start_queue.take(rows.values())
        await asyncio.gather(*(self._open(row) for row in first))
        self.start_queue.start()
        self.capacity.tell()
        self._started.set()
        self.archive.start(self._tasks)
        self._retention_task = self._tasks.start(self.retention_manager.run())
        self.compaction_manager.start(self._tasks)

    def _refuses_new(self) -> bool:
        """Whether the disk has no room for new topics and groups, which a cluster keeps itself."""
        return self._is_disk_full() and not self._is_member

    async def _open(self, row: TopicRow) -> Topic:
        return await self.topic_admin.open(row, skip_failed=True)

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
            "archive": self.archive.disk.cached_bytes + self.archive.segments.indexes.size_bytes,
            "indexes": self.indexes.size_bytes,
        }

    @property
    def epoch(self) -> int:
        """The number of starts of the node."""
        assert self._context is not None
        return self._context.epoch

    def _on_topic_change(self, topic: Topic) -> None:
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
        put = self.metadata.put_merged_segment if segment.generation else self.metadata.put_segment
        self._tasks.start(put(row))
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
        await self.topic_admin.close(ShuttingDown("the node is stopping; try another or later"))
        await self._tasks.finish()
        self.archive.close()
        await self.metadata.close()
        self.background.close()
        self.executor.shutdown()
        self._commit_executor.shutdown()
        self._journal_executor.shutdown()
        if self.journal is not None:
            self.journal.close()
