"""A broker over a disk that tests can hold, fill and break, and what they do to it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from goq import limits
from goq.access.token_record import TokenRecord
from goq.broker.broker import Broker
from goq.broker.metadata import (
    DEFAULT_REPLICATION,
    MetadataStore,
    TopicReplication,
    TopicVersion,
)
from goq.broker.outbox.worker import RetryBackoff
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.loader import LoadedPartition, open_partition
from goq.broker.partition.partition import Partition
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import DEFAULT_PARAMETERS, Topic, TopicParameters
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.clock import ManualClock
from goq.config.topic import TopicSettings
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Message, Receipt, fenced_id_of
from goq.schedules.schedule_record import (
    ScheduleRecord,
    ScheduleRun,
    check_schedule_change,
    with_runs,
    with_schedule,
)
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicManifest, TopicRow
from goq.storage.disk import Disk, File, NotCached, RealDisk
from goq.storage.journal.journal import JOURNAL_DIR
from tests.support.broker.context import context_on
from tests.support.broker.partition_internals import event_writer
from tests.support.eventually import until

T = TypeVar("T")
_PATIENCE_S = 60.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, and let nothing hang."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, _PATIENCE_S)

    return asyncio.run(bounded())


class BrokenDisk(RealDisk):
    """The machine's filesystem with a hook before every operation.

    ``fault`` names the error that an operation (``open``, ``append``, ``sync``, ``read``,
    ``replace`` …) on a path fails with; after ``hold`` one kind of operation waits for ``release``,
    and ``holding`` is set once one does; ``cold`` is how often a read that may not wait is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[str, Path], int | None] = lambda _operation, _path: None
        self.operations: list[tuple[str, Path]] = []
        self.cold = 0
        self._gate = threading.Event()
        self._gate.set()
        self._held = ("sync", "")
        self.holding = threading.Event()

    def hold(self, part: str, *, operation: str = "sync") -> None:
        """Let operations on files whose path has ``part`` in it wait."""
        self.holding.clear()
        self._held = (operation, part)
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def fail(self, operation: str, part: str, code: int = errno.ENOSPC) -> None:
        self.fault = lambda o, path: code if o == operation and part in str(path) else None

    def heal(self) -> None:
        self.fault = lambda _operation, _path: None

    def count(self, operation: str, part: str) -> int:
        return sum(o == operation and part in str(path) for o, path in self.operations)

    def enter(self, operation: str, path: Path) -> None:
        self.operations.append((operation, path))
        code = self.fault(operation, path)
        if code is not None:
            raise OSError(code, os.strerror(code), str(path))
        held, part = self._held
        if operation == held and part in str(path) and not self._gate.is_set():
            self.holding.set()
            assert self._gate.wait(_PATIENCE_S)

    def open(self, path: Path) -> File:
        self.enter("open", path)
        return _HookedFile(self, path, super().open(path))

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        self.enter("read", path)
        if not wait and self.cold:
            self.cold -= 1
            raise NotCached
        return super().read(path, position, size_bytes, wait=wait)

    def replace(self, path: Path, data: bytes) -> None:
        self.enter("replace", path)
        super().replace(path, data)

    def rename(self, path: Path, target: Path) -> None:
        self.enter("rename", path)
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self.enter("remove", path)
        super().remove(path)

    def make_dir(self, directory: Path) -> None:
        self.enter("make_dir", directory)
        super().make_dir(directory)

    def remove_dir(self, directory: Path) -> None:
        self.enter("remove_dir", directory)
        super().remove_dir(directory)

    def move_dir(self, directory: Path, target: Path) -> None:
        self.enter("move_dir", directory)
        super().move_dir(directory, target)


class _HookedFile:
    def __init__(self, disk: BrokenDisk, path: Path, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @size_bytes.setter
    def size_bytes(self, size_bytes: int) -> None:
        self._file.size_bytes = size_bytes

    def append(self, buffers: Sequence[bytes | memoryview], *, is_vital: bool = False) -> None:
        self._disk.enter("append", self._path)
        self._file.append(buffers)

    def start_writeback(self) -> None:
        self._file.start_writeback()

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        self._disk.enter("write_at", self._path)
        self._file.write_at(data, position, must_last=must_last)

    def sync(self) -> None:
        self._disk.enter("sync", self._path)
        self._file.sync()

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()


class MemoryMetadata:
    """A metadata store that outlives the brokers that use it, with a hook before each change.

    It numbers its topics, so their folders have just the topics' names, see ``topic_folder``; with
    ``keeps_ids`` they keep the ids that were drawn.
    """

    def __init__(self, *, keeps_ids: bool = False) -> None:
        self.created = 0
        self.keeps_ids = keeps_ids
        self.epoch = 0
        self.rows: dict[str, TopicRow] = {}
        self.group_settings: dict[tuple[str, str], dict[str, str]] = {}
        self.segment_keys: set[tuple[str, int, str, int]] = set()
        self.archive: dict[tuple[str, int, str, int], ArchiveRow] = {}
        self.before: Callable[[str], None] = lambda _change: None
        self.tokens: dict[str, TokenRecord] = {}
        self.schedules: dict[str, ScheduleRecord] = {}

    async def put_token(self, record: TokenRecord) -> None:
        self.tokens = {**self.tokens, record.id: record}

    async def put_schedule(self, record: ScheduleRecord) -> None:
        check_schedule_change(self.schedules, record)
        self.schedules = with_schedule(self.schedules, record)

    async def delete_schedule(self, name: str) -> None:
        self.schedules = {each: self.schedules[each] for each in self.schedules if each != name}

    async def record_runs(self, runs: Mapping[str, ScheduleRun]) -> None:
        self.schedules = with_runs(self.schedules, runs)

    async def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    @property
    def problems(self) -> Sequence[str]:
        return ()

    async def topics(self) -> list[TopicRow]:
        return list(self.rows.values())

    def check_replication(self, asked: TopicReplication, topic: str | None = None) -> None:
        pass

    def replication_of(self, topic: str) -> TopicReplication:
        return DEFAULT_REPLICATION

    async def create_topic(
        self, topic: TopicRow, replication: TopicReplication = DEFAULT_REPLICATION
    ) -> TopicRow:
        self.created += 1
        topic = topic if self.keeps_ids else topic._replace(id=self.created)
        await self.put_topic(topic)
        return topic

    def version_of(self, topic: str, topic_id: int) -> TopicVersion | None:
        return None

    async def put_topic(
        self,
        topic: TopicRow,
        replication: TopicReplication = DEFAULT_REPLICATION,
        since: TopicVersion | None = None,
    ) -> None:
        self.before("put_topic")
        self.rows[topic.name] = topic

    async def delete_topic(self, name: str, topic_id: int) -> None:
        self.before("delete_topic")
        if name not in self.rows or self.rows[name].id != topic_id:
            return
        del self.rows[name]
        for key in [key for key in self.group_settings if key[0] == name]:
            del self.group_settings[key]
        self.segment_keys = {key for key in self.segment_keys if key[0] != name}
        self.archive = {key: row for key, row in self.archive.items() if key[0] != name}

    async def groups(self, topic: str) -> dict[str, dict[str, str]]:
        return {name: own for (of, name), own in self.group_settings.items() if of == topic}

    async def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        self.group_settings[topic, name] = dict(settings)

    async def delete_group(self, topic: str, name: str) -> None:
        self.group_settings.pop((topic, name), None)

    async def put_segment(self, segment: SegmentRow) -> None:
        self.segment_keys.add((segment.topic, segment.partition, segment.log, segment.base_offset))

    async def put_merged_segment(self, segment: SegmentRow) -> None:
        log = segment[:3]
        self.segment_keys -= {
            key
            for key in self.segment_keys
            if key[:3] == log and segment.base_offset < key[3] < segment.end_offset
        }
        self.segment_keys.add(segment[:4])

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        self.segment_keys |= {segment[:4] for segment in segments}

    async def delete_segments(self, keys: Sequence[tuple[str, int, str, int]]) -> None:
        self.segment_keys -= set(keys)

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        self.segment_keys = {key for key in self.segment_keys if key[:3] != (topic, partition, log)}

    async def manifest_of(self, topic: str) -> TopicManifest:
        return TopicManifest()

    async def put_partitions(self, topic: str, count: int) -> None:
        return

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        self.before("put_archived")
        self.archive |= {row[:4]: row for row in rows}

    async def delete_archived(self, keys: Sequence[tuple[str, int, str, int]]) -> None:
        for key in keys:
            self.archive.pop(key, None)

    async def archived(self) -> list[ArchiveRow]:
        return list(self.archive.values())

    async def close(self) -> None:
        return


QUICK = TopicParameters(
    reopen_delay_s=0.001, reopen_delay_max_s=0.01, outbox_retry=RetryBackoff(0.001, 0.05)
)
"""Repeats what failed at once, for tests that break the disk."""


@asynccontextmanager
async def broker_on(
    path: Path,
    *,
    disk: Disk | None = None,
    metadata: MetadataStore | None = None,
    clock: ManualClock | None = None,
    partitions: int = 1,
    topic_parameters: TopicParameters = DEFAULT_PARAMETERS,
    snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS,
    journaled: bool = False,
    is_disk_full: Callable[[], bool] = lambda: False,
    **settings: str | int,
) -> AsyncIterator[Broker]:
    """Run a broker whose topics lie under ``path``; settings as people write them.

    It commits through a journal if ``journaled``, as a node does.
    """
    broker = Broker(
        path / "topics",
        metadata or MemoryMetadata(),
        disk or BrokenDisk(),
        clock or ManualClock(),
        defaults=TopicSettings().changed(
            {
                "delivery.backoff.initial": 0,
                "delivery.max_attempts": "none",
                **{k.replace("__", "."): v for k, v in settings.items()},
            }
        ),
        partitions=partitions,
        auto_create=True,
        topic_parameters=topic_parameters,
        snapshot_limits=snapshot_limits,
        journal_dir=path / JOURNAL_DIR if journaled else None,
        is_disk_full=is_disk_full,
    )
    await broker.start()
    if broker.journal is not None:
        await until(partial(broker.journal.has_room_for, limits.JOURNAL_INLINE_BYTES_MAX))
    try:
        yield broker
    finally:
        await broker.close()


quick_broker_on = partial(broker_on, topic_parameters=QUICK)


def frame(*values: bytes, mark: ProducerMark | None = None) -> FrameView:
    """Return a frame of messages."""
    columns = Columns(list(values))
    data = encode_frame(columns, producer=mark) if mark else encode_frame(columns)
    return FrameView.parse(data)


async def publish(topic: Topic, *values: bytes, partition: int = 0) -> list[int]:
    """Publish values; return their offsets."""
    placed = [RoutedMessage(partition, Message(value)) for value in values]
    stored = await topic.publisher.publish_messages(placed)
    return [s.offset for s in stored]


def options(
    count: int = 10, *, wait_ms: int = 0, visibility_ms: int | None = None, bytes_max: int = 2**23
) -> ReceiveRequest:
    return ReceiveRequest("c", count, bytes_max, wait_ms, visibility_ms)


def leased(deliveries: Sequence[LeasedBatch]) -> list[tuple[int, int, bytes]]:
    """Return the offset, attempt and value of every message handed over."""
    return [(offset, attempt, m.value or b"") for offset, attempt, m in leased_messages(deliveries)]


def leased_messages(deliveries: Sequence[LeasedBatch]) -> Iterator[tuple[int, int, Message]]:
    """Yield the offset, the attempt and the content of every message handed over."""
    for delivery in deliveries:
        seen = [view.header.base_offset for view in delivery.frames]
        assert len(set(seen)) == len(seen), "a frame is sent once"
        for start, end, attempt in delivery.spans:
            for offset in range(start, end):
                (view,) = [
                    v
                    for v in delivery.frames
                    if v.header.base_offset <= offset < v.header.end_offset
                ]
                index = offset - view.header.base_offset
                (message,) = view.messages(index, index + 1)
                yield offset, attempt, message


def receipts(deliveries: Sequence[LeasedBatch], topic_id: int = 0) -> list[Receipt]:
    own = fenced_id_of(topic_id)
    return [Receipt(d.partition, d.token, s, e, own) for d in deliveries for s, e, _ in d.spans]


async def settle_acked(
    topic: Topic, group: str, given: Sequence[Receipt]
) -> tuple[int, list[Receipt]]:
    count, failed = await topic.settler.acknowledge(group, given)
    return count, [each.receipt for each in failed]


async def settle_nacked(
    topic: Topic, group: str, given: Sequence[Receipt], delay_ms: int = 0, reason: str = ""
) -> tuple[int, list[Receipt]]:
    count, failed = await topic.settler.nack(group, given, delay_ms, reason)
    return count, [each.receipt for each in failed]


async def ack(topic: Topic, group: str, deliveries: Sequence[LeasedBatch]) -> int:
    done, lost = await settle_acked(topic, group, receipts(deliveries, topic.id))
    assert not lost
    return done


async def nack(
    topic: Topic, group: str, deliveries: Sequence[LeasedBatch], delay_ms: int = 0
) -> int:
    done, _ = await settle_nacked(topic, group, receipts(deliveries), delay_ms, "busy")
    return done


async def trim(partition: Partition, offset: int) -> None:
    """Delete the segments before an offset, and the events that speak of nothing else."""
    await partition.trimmer.trim(offset)
    for segment in await partition.trimmer.old_events():
        await partition.trimmer.trim_events(segment.end_offset)


async def quiet(partition: Partition) -> None:
    """Have everything written, and wait until nothing is on its way to the disk."""
    if event_writer(partition)._deferred and partition.is_online:
        event_writer(partition).record(())
    await until(
        lambda: not event_writer(partition).commit._busy and not partition.appender.commit._busy
    )


def reopened(directory: Path, *, disk: Disk | None = None, epoch: int = 99) -> LoadedPartition:
    """Open a partition's logs, as a node would that starts on this folder."""
    with ThreadPoolExecutor(1) as executor:
        context = context_on(disk or RealDisk(), executor=executor, epoch=epoch)
        opened = open_partition(directory, context, TopicSettings())
        opened.messages.close()
        opened.events.close()
    return opened
