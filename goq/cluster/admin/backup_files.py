"""The files of the leaders for a backup of the cluster: plans of logs, and reads of segments.

A leader plans a log up to its high watermark. What is below it never changes: a segment that is
deleted or compacted meanwhile is missed by name, and the backup is planned again. The archive of a
log is what the leader and the other replicas have of it together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.access.token_record import TokenRecord
from goq.backup.cluster_source import RemoteFile, RemoteLog
from goq.backup.object_writer import stamp_of
from goq.backup.planned_files import FileStamp, PlannedTopic
from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.cluster.metadata.state import MetadataState, active_topics
from goq.cluster.replication.archive_sync import (
    ArchiveCall,
    ArchiveRequest,
    decode_rows,
    is_covered,
)
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.cluster.replication.segment_manifest import LOGS
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import CorruptData, GoqError, InvalidFrame, NotFound, NotLeader
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment

_log = logging.getLogger("goq.cluster")
PLAN: Final = CALL_PREFIX + "backup-plan"
READ: Final = CALL_PREFIX + "backup-read"
_WAIT_MS: Final = 10_000
_PIECE_BYTES: Final = limits.MIB

Call = Callable[[str, str, bytes, int], Awaitable[bytes]]
"""Calls a node by id, with a path, a body, and how long it may wait; raises ``GoqError``."""


class PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks the leader of an epoch for the segments of the log ``which``: 0 messages, 1 events."""

    key: PartitionKey
    leader_epoch: int
    which: int


class SegmentEntry(msgspec.Struct, frozen=True, array_like=True):
    """A segment, or its part below the high watermark."""

    base_offset: int
    generation: int
    size_bytes: int
    inode: int
    changed_ns: int


class PlanResponse(msgspec.Struct, frozen=True, array_like=True):
    """The segments up to the high watermark ``end_offset``."""

    end_offset: int
    segments: list[SegmentEntry]


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for bytes of a segment; the response may have fewer."""

    key: PartitionKey
    which: int
    base_offset: int
    generation: int
    position: int
    size_bytes: int


class BackupFileServer:
    """Serves the plans and segments of this node's partitions to a node that backs up."""

    def __init__(self, broker: Broker, replicas: ReplicaManager) -> None:
        self._broker = broker
        self._replicas = replicas

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {PLAN: self.handle_plan, READ: self.handle_read}

    async def handle_plan(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return the segments of a log that is led here, up to its high watermark."""
        try:
            request = msgspec.msgpack.decode(body, type=PlanRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"not a request for a plan: {error}") from None
        partition = self._led_here(request.key, request.leader_epoch)
        if request.which:
            reader, end_offset = partition.event_reader, partition.event_high_watermark
        else:
            reader, end_offset = partition.message_reader, partition.end_offset
        # commits are on this thread: the segments and the high watermark are of one moment
        segments = [
            _SegmentSize(s.path, s.base_offset, s.generation, s.size_bytes) for s in reader.segments
        ]
        is_whole = reader.segments[-1].end_offset == end_offset
        cut = partial(_cut, reader, segments, None if is_whole else end_offset)
        entries = await asyncio.get_running_loop().run_in_executor(self._broker.executor, cut)
        return [msgspec.msgpack.encode(PlanResponse(end_offset, entries))]

    async def handle_read(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return bytes of a segment, read beside the traffic. Raises ``NotFound``."""
        try:
            request = msgspec.msgpack.decode(body, type=ReadRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"not a request for bytes of a segment: {error}") from None
        name = LOGS[bool(request.which)]
        directory = self._replicas.directory(request.key) / name
        path = Segment(directory, request.base_offset, request.generation).path
        size_bytes, disk = min(request.size_bytes, _PIECE_BYTES), self._replicas.disk
        try:
            return [
                await self._broker.background.run(
                    lambda: disk.read(path, request.position, size_bytes)
                )
            ]
        except FileNotFoundError:
            raise NotFound(f"segment {request.base_offset} of the {name} of {request.key} is gone"
                           ) from None  # fmt: skip

    def _led_here(self, key: PartitionKey, leader_epoch: int) -> Partition:
        replica = self._replicas.get(key)
        leader = None if replica is None else replica.as_leader
        topic = self._broker.topics.get(key.topic)
        partition = None
        if topic is not None and topic.id == key.topic_id:
            partition = topic.partitions.get(key.number)
        if (
            leader is None
            or leader.leader_epoch != leader_epoch
            or not leader.has_session()
            or partition is None
            or not partition.is_online
        ):
            raise NotLeader(f"{key.topic}:{key.number} is not led here now", retry_after_ms=500)
        return partition


class _SegmentSize(NamedTuple):
    path: Path
    base_offset: int
    generation: int
    size_bytes: int


def _cut(
    reader: LogReader, segments: Sequence[_SegmentSize], end_offset: int | None
) -> list[SegmentEntry]:
    """Return segments up to an offset, None for all of it; blocks on the disk."""
    if end_offset is not None:
        found, position, base_offset = reader.locate(end_offset)
        paths = [segment.path for segment in segments]
        if base_offset != end_offset or found.path not in paths:
            raise NotLeader("the log changes; plan again", retry_after_ms=500)
        last = paths.index(found.path)
        segments = [*segments[:last], segments[last]._replace(size_bytes=position)]
    try:
        return [SegmentEntry(*each[1:], *stamp_of(each.path)) for each in segments]
    except FileNotFoundError:
        raise NotFound("a segment was deleted meanwhile") from None


class LeaderFiles:
    """The topics of the cluster, with the files of their leaders: the caller's side.

    ``catch_up`` returns once this node has the newest metadata.
    """

    def __init__(
        self,
        state: Callable[[], MetadataState],
        call: Call,
        archive_call: ArchiveCall,
        catch_up: Callable[[], Awaitable[None]],
        own_epoch: int,
    ) -> None:
        self._state = state
        self._call = call
        self._archive_call = archive_call
        self._catch_up = catch_up
        self._own_epoch = own_epoch

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The access tokens by name."""
        return self._state().tokens

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name."""
        return self._state().schedules

    @property
    def epoch(self) -> int:
        """A number that no leader epoch exceeds."""
        topics = self._state().topics.values()
        epochs = (partition.leader_epoch for topic in topics for partition in topic.partitions)
        return max(self._own_epoch, *epochs, 0)

    async def topics(self) -> Sequence[PlannedTopic]:
        """Return all topics by the newest metadata. Raises ``Unavailable``."""
        await self._catch_up()
        state = self._state()
        return [
            PlannedTopic(
                topic.name,
                topic.topic_id,
                len(topic.partitions),
                dict(topic.settings),
                {
                    name: dict(group.settings)
                    for name, group in state.groups.get(topic.name, {}).items()
                },
                range(len(topic.partitions)),
            )
            for topic in active_topics(state)
        ]

    async def plan_log(self, topic: PlannedTopic, number: int, which: int) -> RemoteLog:
        """Return a log as its leader has it. Raises ``NotLeader`` while there is none."""
        key = PartitionKey(topic.name, topic.id, number)
        known = self._state().topics.get(topic.name)
        if known is None or known.topic_id != topic.id or known.deleting:
            raise NotFound(f"topic {topic.name} was deleted meanwhile")
        leader, epoch = known.partitions[number].leader, known.partitions[number].leader_epoch
        if leader is None:
            raise NotLeader(f"{topic.name}:{number} has no leader; see goq cluster status")
        request = PlanRequest(key, epoch, which)
        answer = await self._call(leader, PLAN, msgspec.msgpack.encode(request), _WAIT_MS)
        try:
            plan = msgspec.msgpack.decode(answer, type=PlanResponse)
        except msgspec.MsgspecError as error:
            raise CorruptData(f"{leader} sent no plan: {error}") from None
        files = [
            RemoteFile(
                each.base_offset,
                each.size_bytes,
                each.generation,
                FileStamp(each.inode, each.changed_ns),
                partial(self._read, leader, key, which, each),
            )
            for each in plan.segments
        ]
        others = [node for node in known.partitions[number].holders if node != leader]
        archived = partial(self._archived, leader, others, key, which)
        return RemoteLog(plan.end_offset, files, archived)

    async def _read(
        self,
        leader: str,
        key: PartitionKey,
        which: int,
        segment: SegmentEntry,
        position: int,
        size_bytes: int,
    ) -> bytes:
        request = ReadRequest(
            key, which, segment.base_offset, segment.generation, position, size_bytes
        )
        return await self._call(leader, READ, msgspec.msgpack.encode(request), _WAIT_MS)

    async def _archived(
        self, leader: str, others: Sequence[str], key: PartitionKey, which: int
    ) -> list[RemoteFile]:
        """Return the archived segments of a log; their stamp is when they were archived there.

        A new leader may still lack what other replicas archived. One that does not answer is left
        out: a node that is down must not keep the cluster from being backed up.
        """
        found = [(leader, row) for row in await self._archive_rows(leader, key, which)]
        for node in others:
            try:
                rows = await self._archive_rows(node, key, which)
            except GoqError as error:
                _log.warning(
                    "the backup lacks what only %s has archived of %s: %s", node, key, error
                )
                continue
            found = add_lacking(found, node, rows)
        return [
            RemoteFile(
                row.base_offset,
                row.archived_bytes,
                0,
                FileStamp(0, row.archived_at_us),
                partial(self._read_archived, node, key, which, row.base_offset),
            )
            for node, row in found
        ]

    async def _archive_rows(self, node: str, key: PartitionKey, which: int) -> list[ArchiveRow]:
        found: list[ArchiveRow] = []
        start = 0
        while rows := decode_rows(
            await self._archive_call(node, ArchiveRequest(key, which, start))
        ):
            found += rows
            start = rows[-1].base_offset + 1
        return found

    async def _read_archived(
        self, node: str, key: PartitionKey, which: int, start: int, position: int, size_bytes: int
    ) -> bytes:
        data = await self._archive_call(node, ArchiveRequest(key, which, start, True, position))
        return data[:size_bytes]


def add_lacking(
    known: Sequence[tuple[str, ArchiveRow]], node: str, rows: Sequence[ArchiveRow]
) -> list[tuple[str, ArchiveRow]]:
    """Return archived segments by offset, with what a node has and those known do not cover.

    No two begin at the same offset: a longer one takes the place of its beginning.
    """
    found = {row.base_offset: (holder, row) for holder, row in known}
    for row in rows:
        own = [each for _, each in sorted(found.values(), key=lambda each: each[1].base_offset)]
        if is_covered(own, row.base_offset, row.end_offset):
            continue
        same = found.get(row.base_offset)
        if same is None or same[1].end_offset < row.end_offset:
            found[row.base_offset] = (node, row)
    return [found[base_offset] for base_offset in sorted(found)]
