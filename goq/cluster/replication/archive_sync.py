"""Background copies of archived segments that this node lacks, from other nodes.

A replica archives what it deletes itself. What was deleted before the replica existed, or while its
node was down, is only in the archives of other nodes. It is copied from there, file by file, byte
for byte. Each file is checked against its CRC before it gets its name.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from goq import limits
from goq.broker.retention.archiver import Archiver
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.segment_manifest import LOGS
from goq.config.topic import TopicSettings
from goq.errors import CorruptData, GoqError, InvalidFrame, NotFound, TopicNotFound
from goq.storage.node_db import ArchiveRow

_log = logging.getLogger("goq.cluster")
_CHECK_INTERVAL_S = 5.0
_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0


class ArchiveRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks another node about its archive of a partition's log ``which``: 0 messages, 1 events.

    Without ``is_file``: for the segments, in order, from the offset ``start`` on. With it: for the
    bytes, from ``position`` on, of the file of the segment that begins at ``start``. Both answers
    may be partial.
    """

    key: PartitionKey
    which: int
    start: int
    is_file: bool = False
    position: int = 0


ArchiveCall = Callable[[str, ArchiveRequest], Awaitable[bytes]]
"""Calls a node by name; raises ``GoqError`` if it cannot be reached or does not answer."""


def decode_archive_request(data: bytes | memoryview) -> ArchiveRequest:
    """Return a request; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        request = msgspec.msgpack.decode(data, type=ArchiveRequest)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not an archive request: {error}") from None
    if request.which not in range(len(LOGS)):
        raise InvalidFrame(f"a partition has no log {request.which}")
    return request


class _SyncState:
    """The state of the archive of one replica."""

    def __init__(self) -> None:
        self.complete_to: tuple[int, ...] | None = None
        """Where the live logs began when all sources had been asked."""
        self.retry_at_s = 0.0
        self.pause_s = _PAUSE_S_MIN


class ArchiveSync:
    """Completes the archives of a node's replicas, one after the other."""

    def __init__(
        self,
        archive: Archiver,
        replicas: Iterable[Replica],
        settings_of: Callable[[str], TopicSettings],
        sources: Callable[[Replica], Sequence[str]],
        call: ArchiveCall,
        *,
        check_interval_s: float = _CHECK_INTERVAL_S,
    ) -> None:
        """``sources`` returns the nodes that may have something of a replica's partition."""
        self._archive = archive
        self._replicas = replicas
        self._settings_of = settings_of
        self._sources = sources
        self._call = call
        self._check_interval_s = check_interval_s
        self._states: dict[PartitionKey, _SyncState] = {}

    async def run(self) -> None:
        """Copy what is missing, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            replicas = list(self._replicas)
            for key in self._states.keys() - {replica.key for replica in replicas}:
                del self._states[key]
            for replica in replicas:
                with suppress(TopicNotFound):  # the topic is being deleted
                    await self._sync_replica(replica)

    async def _sync_replica(self, replica: Replica) -> None:
        is_archived, open_logs = self._settings_of(replica.key.topic).archive, replica.open_logs
        if open_logs is None or not is_archived:
            return
        state, now_s = self._states.setdefault(replica.key, _SyncState()), _now_s()
        starts = tuple(log.start_offset for log in open_logs.logs)
        if now_s < state.retry_at_s or not self._may_be_incomplete(replica.key, state, starts):
            return
        failures: list[Exception] = []
        for which, start_offset in enumerate(starts):
            failures += await self._complete(replica, which, start_offset)
        if failures:
            _log.info("the archive of %s is not complete here yet: %s", replica.key, failures[0])
            state.retry_at_s = _now_s() + state.pause_s
            state.pause_s = min(2 * state.pause_s, _PAUSE_S_MAX)
            return
        state.complete_to, state.pause_s = starts, _PAUSE_S_MIN

    def _may_be_incomplete(
        self, key: PartitionKey, state: _SyncState, starts: tuple[int, ...]
    ) -> bool:
        """Whether sources may have more.

        They cannot once all were asked, and all that was deleted since was archived here.
        """
        if state.complete_to is None:
            return True
        rows = partial(self._archive.segments.rows, key.identity)
        expired_to = partial(self._archive.segments.expired_to, key.identity)
        return any(
            start > before and not is_covered(rows(log), max(before, expired_to(log)), start)
            for log, before, start in zip(LOGS, state.complete_to, starts, strict=True)
        )

    async def _complete(
        self, replica: Replica, which: int, start_offset: int
    ) -> Sequence[Exception]:
        """Copy what any source has of a log before its live part begins; ask them all.

        Returns why some did not give all that they have.
        """
        failures: list[Exception] = []
        for node in self._sources(replica):
            try:
                await self._fetch_all(node, replica.key, which, start_offset)
            except (GoqError, OSError) as error:
                failures.append(error)
        return failures

    async def _fetch_all(self, node: str, key: PartitionKey, which: int, start_offset: int) -> None:
        """Copy what a node has. A segment that it cannot give whole keeps no other from coming."""
        start, failure = 0, None
        while rows := decode_rows(await self._call(node, ArchiveRequest(key, which, start))):
            for row in rows:
                mine = row._replace(topic=key.folder, partition=key.number, log=LOGS[which])
                if self._is_missing(key, mine, start_offset):
                    try:
                        await self._fetch(node, key, which, mine)
                    except (CorruptData, NotFound) as error:
                        failure = error
            start = rows[-1].base_offset + 1
        if failure is not None:
            raise failure

    def _is_missing(self, key: PartitionKey, row: ArchiveRow, start_offset: int) -> bool:
        """Whether a segment has something that is missing here and overlaps no whole segment.

        What is beyond the total retention is not: nodes count it differently, or a moment later.
        """
        own = self._archive.segments.rows(key.identity, row.log)
        start = max(row.base_offset, self._archive.segments.expired_to(key.identity, row.log))
        return not is_covered(own, start, min(row.end_offset, start_offset)) and not any(
            row.base_offset < each.base_offset and each.end_offset < row.end_offset for each in own
        )

    async def _fetch(self, node: str, key: PartitionKey, which: int, row: ArchiveRow) -> None:
        async def read_piece(position: int) -> bytes:
            request = ArchiveRequest(key, which, row.base_offset, True, position)
            return await self._call(node, request)

        await self._archive.copy_segment(row, read_piece)
        _log.info("fetched the archive of offsets %d to %d of %s from %s", *row[3:5], key, node)

    async def answer(self, request: ArchiveRequest) -> bytes:
        """Return what this node has of what another asks for."""
        rows = self._archive.segments.rows(request.key.identity, LOGS[request.which])
        number = bisect_left(rows, request.start, key=lambda row: row.base_offset)
        if not request.is_file:
            return msgspec.msgpack.encode(rows[number : number + limits.ARCHIVE_ROWS_MAX])
        if number == len(rows) or rows[number].base_offset != request.start:
            raise NotFound(f"no segment of the archive begins at offset {request.start}")
        row = rows[number]
        try:
            return await self._archive.read_chunk(row, request.position, limits.FETCH_BYTES_MAX)
        except FileNotFoundError:
            raise NotFound(f"{self._archive.segments.file_of(row)} is missing") from None


def decode_rows(data: bytes | memoryview) -> list[ArchiveRow]:
    """Return the archived segments that a node reports; raise ``InvalidFrame`` for other bytes."""
    try:
        return msgspec.msgpack.decode(data, type=list[ArchiveRow])
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not a list of archived segments: {error}") from None


def is_covered(rows: Sequence[ArchiveRow], start_offset: int, end_offset: int) -> bool:
    """Whether rows, ordered by offset, cover everything between two offsets."""
    for row in rows:
        if row.base_offset > start_offset:
            break
        start_offset = max(start_offset, row.end_offset)
    return start_offset >= end_offset


def _now_s() -> float:
    return asyncio.get_running_loop().time()
