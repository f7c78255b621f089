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
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.segment_manifest import LOGS
from goq.config.topic import TopicSettings
from goq.errors import CorruptData, GoqError, InvalidFrame, NotFound, TopicNotFound, Unavailable
from goq.storage.catalog.rows import ArchiveRow

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


class _Absent(NamedTuple):
    """A segment that another node has archived, and of which this node lacks some or all."""

    node: str
    which: int
    row: ArchiveRow


class _SyncState:
    """The state of the archive of one replica."""

    def __init__(self) -> None:
        self.looked_to: tuple[int, ...] | None = None
        """Where the live logs began when others were last asked."""
        self.complete_to: tuple[int, ...] | None = None
        """Where they began when all sources had given what they have."""
        self.absent: Sequence[_Absent] = ()
        self.failures: Sequence[Exception] = ()
        """Why some sources did not tell what they have."""
        self.is_due = False
        self.retry_at_s = 0.0
        self.pause_s = _PAUSE_S_MIN


class ArchiveSync:
    """Completes the archives of a node's replicas, one after the other.

    Until then it tells readers what is not gone, and only missing here.
    """

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
        self._silent: dict[str, GoqError] = {}
        """The nodes that did not answer in this round: each is waited for once."""
        archive.why_absent = self.why_absent

    async def run(self) -> None:
        """Copy what is missing, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            await self.run_once()

    async def run_once(self) -> None:
        """Ask for what is missing in all archives, then copy it: that may take long."""
        replicas = list(self._replicas)
        self._silent.clear()
        for key in self._states.keys() - {replica.key for replica in replicas}:
            del self._states[key]
        for work in (self._look, self._copy):
            for replica in replicas:
                with suppress(TopicNotFound):  # the topic is being deleted
                    await work(replica)

    def why_absent(self, identity: PartitionId, log: str, start: int, end: int) -> str:
        """Return why messages that are neither live nor archived here may be elsewhere, or "".

        Any thread may call.
        """
        key = PartitionKey(identity.topic, identity.topic_id, identity.number)
        with suppress(TopicNotFound):
            if not self._settings_of(key.topic).archive:
                return ""
        state, which = self._states.get(key), LOGS.index(log)
        if state is None or state.looked_to is None or state.looked_to[which] < end:
            return "this node has yet to ask the others for what they have archived"
        for each in state.absent:
            if each.which == which and each.row.base_offset < end and start < each.row.end_offset:
                return f"{each.node} has archived them, and this node has yet to copy them"
        return ""

    async def _look(self, replica: Replica) -> None:
        """Ask other nodes for what is missing here."""
        is_archived, open_logs = self._settings_of(replica.key.topic).archive, replica.open_logs
        if open_logs is None or not is_archived:
            return
        state, key = self._states.setdefault(replica.key, _SyncState()), replica.key
        starts = tuple(log.start_offset for log in open_logs.logs)
        if not self._has_gap_since(state.complete_to, key, starts) or (
            _now_s() < state.retry_at_s and not self._has_gap_since(state.looked_to, key, starts)
        ):
            state.looked_to = starts
            return
        absent: list[_Absent] = []
        failures: list[Exception] = []
        for which, start_offset in enumerate(starts):
            for node in self._sources(replica):
                try:
                    rows = await self._rows_of(node, key, which)
                except (GoqError, OSError) as error:
                    failures.append(error)
                    rows = [e.row for e in state.absent if (e.node, e.which) == (node, which)]
                absent += [
                    _Absent(node, which, row)
                    for row in rows
                    if self._is_missing(key, row, start_offset)
                ]
        state.absent, state.failures = absent, failures
        state.looked_to, state.is_due = starts, True

    async def _rows_of(self, node: str, key: PartitionKey, which: int) -> list[ArchiveRow]:
        """Return what a node has archived of a log, as rows of this node."""
        start, found = 0, list[ArchiveRow]()
        while rows := decode_rows(await self._ask(node, ArchiveRequest(key, which, start))):
            found += [
                row._replace(topic=key.folder, partition=key.number, log=LOGS[which])
                for row in rows
            ]
            start = rows[-1].base_offset + 1
        return found

    async def _ask(self, node: str, request: ArchiveRequest) -> bytes:
        if node in self._silent:
            raise self._silent[node]
        try:
            return await self._call(node, request)
        except Unavailable as error:
            self._silent[node] = error
            raise

    async def _copy(self, replica: Replica) -> None:
        """Copy what was found to be missing; a segment that cannot be had keeps no other here."""
        state, key = self._states.get(replica.key), replica.key
        if state is None or not state.is_due or state.looked_to is None:
            return
        failures, failed = [*state.failures], set[str]()
        for each in list(state.absent):
            is_missing = self._is_missing(key, each.row, state.looked_to[each.which])
            if each.node in failed or not is_missing:
                continue
            try:
                await self._fetch(each.node, key, each.which, each.row)
            except (CorruptData, NotFound) as error:
                failures.append(error)
                state.absent = [other for other in state.absent if other is not each]
            except (GoqError, OSError) as error:
                failures.append(error)
                failed.add(each.node)
        state.is_due = False
        state.absent = [each for each in state.absent if each.node in failed]
        if failures:
            _log.info("the archive of %s is not complete here yet: %s", key, failures[0])
            state.retry_at_s = _now_s() + state.pause_s
            state.pause_s = min(2 * state.pause_s, _PAUSE_S_MAX)
            return
        state.complete_to, state.pause_s = state.looked_to, _PAUSE_S_MIN

    def _has_gap_since(
        self, before: tuple[int, ...] | None, key: PartitionKey, starts: tuple[int, ...]
    ) -> bool:
        """Whether messages were deleted that are not archived here, since logs began at ``before``.

        Others may have them.
        """
        if before is None:
            return True
        rows = partial(self._archive.segments.rows, key.identity)
        expired_to = partial(self._archive.segments.expired_to, key.identity)
        return any(
            start > was and not is_covered(rows(log), max(was, expired_to(log)), start)
            for log, was, start in zip(LOGS, before, starts, strict=True)
        )

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
            return await self._ask(node, request)

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
