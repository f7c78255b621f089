"""Repair of replicas with bad frames, from other replicas.

Damage is found when a log is opened or read, and by a slow scrub of all sealed segments, because
nobody reads a follower's log. A replica that the cluster counts as damaged, and that knows of no
damage, is scanned whole: the damage was found in an earlier run.

A node reports damage in its heartbeats. So another node leads the partition, and the replica, which
then follows or is idle, is repaired. What no replica has stays quarantined. That is logged once,
and the replica then counts as whole as it can be: otherwise no node could lead any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.frame_source import (
    CopiedRange,
    FramesMerged,
    FrameSource,
    RepairCall,
    RepairDeferred,
)
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse, answer_repair
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.cluster.replication.segment_manifest import LOGS
from goq.errors import GoqError, InvalidFrame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.reader import segment_number
from goq.storage.log.repair import (
    Gap,
    compacted_end_offset,
    find_gaps,
    known_damage,
    repair_segment,
    replace_range,
    scan_segment,
)
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.cluster")
_PAUSE_MS_MIN = 500
_PAUSE_MS_MAX = 30_000


class _RepairState:
    """The state of one replica's repair, besides what its logs say."""

    def __init__(self) -> None:
        self.is_whole = False
        self.retry_at_ms = 0
        self.pause_ms = _PAUSE_MS_MIN
        self.task: asyncio.Task[None] | None = None


class DamageReport(NamedTuple):
    """Past and present damage of a topic's replicas on a node.

    ``damaged_gaps`` are ranges of bad bytes known now. ``lost_gaps`` are those of them that no
    other replica has. ``repaired_frames`` have been restored since the node started.
    """

    topic: str
    damaged_gaps: int
    lost_gaps: int
    repaired_frames: int


class RepairManager:
    """Repairs the replicas of a node."""

    def __init__(self, replicas: ReplicaManager, call: RepairCall) -> None:
        self._repaired: Counter[str] = Counter()
        self._name = replicas.name
        self._replicas = replicas
        self._source = FrameSource(call, replicas.in_thread)
        self._in_thread = replicas.in_thread
        self._now_ms = replicas.now_ms
        self._states: dict[PartitionKey, _RepairState] = {}
        self._suspects: list[Replica] = []
        """The replicas that may be damaged, or count as damaged, as of the last check."""

    @property
    def repaired_frames(self) -> int:
        """The number of frames restored since the node started."""
        return self._repaired.total()

    def damage_reports(self) -> list[DamageReport]:
        """Return past and present damage, by topic."""
        damaged, lost = Counter[str](), Counter[str]()
        for replica in self._replicas:
            open_logs, topic = replica.open_logs, replica.key.topic
            if open_logs is not None:
                known = sum(len(known_damage(log)) for log in open_logs.logs)
                damaged[topic] += known
                lost[topic] += known - len(self._repairable_damage(replica))
        topics = sorted(damaged.keys() | self._repaired.keys())
        return [DamageReport(t, damaged[t], lost[t], self._repaired[t]) for t in topics]

    @property
    def damaged(self) -> frozenset[tuple[int, int]]:
        """The replicas with damage that may be repairable, by topic id and number.

        New damage is in it from the next check on.
        """
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._suspects
            if self._repairable_damage(replica)
        )

    @property
    def repaired(self) -> frozenset[tuple[int, int]]:
        """The replicas that count as damaged and are as whole as they can be."""
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._suspects
            if self._is_reported_damaged(replica)
            and (state := self._states.get(replica.key)) is not None
            and state.is_whole
            and not self._repairable_damage(replica)
        )

    def start_due_repairs(self) -> None:
        """Check all replicas, and start the repairs that are due; call it periodically."""
        for key in [key for key in self._states if self._replicas.get(key) is None]:
            self._cancel(self._states.pop(key))
        self._suspects = [
            replica
            for replica in self._replicas
            if replica.has_damage
            or self._is_reported_damaged(replica)
            or replica.key in self._states
        ]
        now_ms = self._now_ms()
        for replica in self._suspects:
            damage, is_reported = (
                self._repairable_damage(replica),
                self._is_reported_damaged(replica),
            )
            state = self._states.get(replica.key)
            if state is not None and state.task is not None and not state.task.done():
                continue
            if not damage and not is_reported:
                self._states.pop(replica.key, None)
                continue
            state = self._states.setdefault(replica.key, _RepairState())
            state.is_whole = state.is_whole and not damage
            if state.is_whole or now_ms < state.retry_at_ms or replica.open_logs is None:
                continue
            if damage and replica.as_leader is not None:
                continue  # another node must lead first: a log has only one writer
            state.task = asyncio.ensure_future(self._repair_replica(replica, state))

    async def scrub(self) -> None:
        """Scan all sealed segments slowly, again and again, until cancelled."""
        while True:
            await asyncio.sleep(limits.SCRUB_PAUSE_S)
            for replica in list(self._replicas):
                open_logs = replica.open_logs
                for log in open_logs.logs if open_logs is not None else ():
                    for segment in log.segments[:-1]:
                        await asyncio.sleep(segment.size_bytes / limits.SCRUB_BYTES_PER_S)
                        try:
                            await self._in_thread(partial(scan_segment, log, segment))
                        except OSError as error:
                            _log.warning("%s cannot be read: %s", segment.path, error)

    async def answer(self, request: RepairRequest) -> tuple[RepairResponse, list[memoryview]]:
        """Return what this node has of what another asks for."""
        replica = self._replicas.get(request.key)
        open_logs = None if replica is None else replica.open_logs
        return await asyncio.get_running_loop().run_in_executor(
            self._replicas.executor, answer_repair, request, open_logs, self._replicas.tiered_reader
        )

    async def close(self) -> None:
        """Start nothing more, and cancel what is under way."""
        tasks = [state.task for state in self._states.values() if state.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _cancel(self, state: _RepairState) -> None:
        if state.task is not None:
            state.task.cancel()

    def _repairable_damage(self, replica: Replica) -> list[tuple[int, Damage]]:
        """Return the damage that is not known to be unrecoverable, by log."""
        if not replica.has_damage:
            return []
        open_logs = replica.open_logs
        if open_logs is None:
            return []
        return [
            (which, damage)
            for which, log in enumerate(open_logs.logs)
            if log.damage
            for damage in known_damage(log)
            if replica.is_repairable(which, damage)
        ]

    def _is_reported_damaged(self, replica: Replica) -> bool:
        return replica.assignment is not None and self._name in replica.assignment.damaged

    async def _repair_replica(self, replica: Replica, state: _RepairState) -> None:
        try:
            if not self._repairable_damage(replica):
                await self._scan_all(replica)
            await self._repair_all(replica)
        except (GoqError, OSError, RepairDeferred, FramesMerged) as error:
            _log.warning("%s is damaged and not repaired yet: %s", _name_of(replica), error)
            state.retry_at_ms = self._now_ms() + state.pause_ms
            state.pause_ms = min(2 * state.pause_ms, _PAUSE_MS_MAX)
            return
        state.pause_ms = _PAUSE_MS_MIN
        state.is_whole = not self._repairable_damage(replica)

    async def _scan_all(self, replica: Replica) -> None:
        """Read everything: what the cluster knows of the replica was found in an earlier run."""
        open_logs = replica.open_logs
        assert open_logs is not None
        for log in open_logs.logs:
            for segment in log.segments:
                await self._in_thread(partial(scan_segment, log, segment))

    async def _repair_all(self, replica: Replica) -> None:
        while damages := self._repairable_damage(replica):
            open_logs = replica.open_logs
            if open_logs is None or replica.as_leader is not None:
                raise RepairDeferred("its assignment changed meanwhile")
            which, damage = damages[0]
            await self._repair_segment(replica, which, open_logs.logs[which], damage)
            if (which, damage) in self._repairable_damage(replica):
                raise RepairDeferred(str(damage))

    async def _repair_segment(self, replica: Replica, which: int, log: Log, damage: Damage) -> None:
        """Repair the segment that holds some damage, as far as other replicas have the frames."""
        segments = log.segments
        segment = segments[segment_number(segments, damage.start_offset)]
        try:
            found, lost = await self._find_frames(replica, which, log, segment)
            must_copy = bool(found) and which == 0 and self._replicas.is_compacted(replica.key)
        except FramesMerged:
            must_copy = True
        if must_copy:
            await self._copy_from_other(replica, log, segment)
            return
        if found:
            async with replica.logs_lock:
                logs = _writable_logs(replica, which, log)
                work = partial(_repair, log, segment, found)
                await self._change(replica, partial(_write, replica, which, log, work))
                await self._replicas.record_segments(replica.key, logs)
            self._on_repaired(replica, which, found)
            if lost:  # the registry of damage has no part of what the new file lacks
                number = segment_number(log.segments, segment.base_offset)
                await self._in_thread(partial(scan_segment, log, log.segments[number]))
        for gap in lost:
            self._mark_unrecoverable(replica, which, gap)
        if lost:
            replica.lost_gaps.add(which, Gap(damage.start_offset, damage.end_offset))
        else:
            log.reader.clear_damage(damage.start_offset, damage.end_offset)

    async def _copy_from_other(self, replica: Replica, log: Log, segment: Segment) -> None:
        """Replace all up to a damaged segment with what another replica has, that segment last.

        After compaction the logs of two replicas differ, and only what a reader makes of them is
        the same. A frame of the other replica may lack what voided a message here, or a frame here
        may lack what voided a message there. Behind the last segment that is damaged or lacks
        messages both have everything. A segment copied from a compacted log lacks messages too. The
        damage remains until the last segment is replaced, so an interrupted copy starts again.
        """
        end_offset = await self._in_thread(partial(compacted_end_offset, log))
        assert isinstance(end_offset, int)
        end_offset = max(end_offset, segment.end_offset, log.rewrites.end_offset_since(-1))
        if end_offset > log.active.base_offset:
            async with replica.logs_lock:
                _writable_logs(replica, 0, log)
                await self._change(replica, partial(_seal, replica, log, log.active))
        failures: list[str] = []
        for node in replica.other_nodes:
            last: CopiedRange | None = None
            try:
                async for copied in self._source.copy(node, replica, log, end_offset):
                    if copied.gap.start_offset <= segment.base_offset < copied.gap.end_offset:
                        last = copied
                    else:
                        await self._replace(replica, log, copied)
                if last is not None:
                    await self._replace(replica, log, last)
                return
            except (GoqError, OSError, RepairDeferred, FramesMerged) as error:
                failures.append(f"{node}: {error}")
        raise RepairDeferred("; ".join(failures) or "its assignment changed meanwhile")

    async def _replace(self, replica: Replica, log: Log, copied: CopiedRange) -> None:
        """Replace whole segments of the messages with what another replica has there."""
        gap, frames = copied
        async with replica.logs_lock:
            logs = _writable_logs(replica, 0, log)
            segments = [
                segment
                for segment in log.segments[:-1]
                if gap.start_offset <= segment.base_offset < gap.end_offset
            ]
            work = partial(replace_range, log, segments, frames)
            await self._change(replica, partial(_write, replica, 0, log, work))
            await self._replicas.record_segments(replica.key, logs, merged=segments[1:])
        self._on_repaired(replica, 0, {gap: frames})

    async def _change(self, replica: Replica, work: Callable[[], object]) -> None:
        """Run work that changes a log in a thread, while nothing else changes it."""
        if replica.as_follower is None:
            await self._in_thread(work)
        else:
            await replica.as_follower.log_lock.run(partial(self._in_thread, work))

    async def _find_frames(
        self, replica: Replica, which: int, log: Log, segment: Segment
    ) -> tuple[dict[Gap, list[FrameView]], list[Gap]]:
        """Return what fills a segment's gaps, and the gaps that no replica can fill."""
        gaps = await self._in_thread(partial(find_gaps, log, segment))
        assert isinstance(gaps, list)
        found: dict[Gap, list[FrameView]] = {}
        lost: list[Gap] = []
        for gap in gaps:
            frames = await self._source.find(replica, which, log, gap)
            reached = gap.start_offset
            if frames is not None:
                found[gap], reached = frames, frames[-1].header.end_offset
            if reached < gap.end_offset:
                lost.append(Gap(reached, gap.end_offset))
        return found, lost

    def _on_repaired(self, replica: Replica, which: int, found: dict[Gap, list[FrameView]]) -> None:
        self._repaired[replica.key.topic] += sum(map(len, found.values()))
        for gap, frames in found.items():
            _log.warning(
                "repaired offsets %d to %d in the %s of %s, from another replica",
                gap.start_offset,
                frames[-1].header.end_offset - 1,
                LOGS[which],
                _name_of(replica),
            )

    def _mark_unrecoverable(self, replica: Replica, which: int, gap: Gap) -> None:
        replica.lost_gaps.add(which, gap)
        _log.error(
            "offsets %d to %d in the %s of %s are damaged here and no other replica has them: they"
            " stay quarantined; restore the segment from a backup if there is one",
            gap.start_offset,
            gap.end_offset - 1,
            LOGS[which],
            _name_of(replica),
        )


def _writable_logs(replica: Replica, which: int, log: Log) -> PartitionLogs:
    """Return the logs of a replica, of which a repair may write one; it holds ``logs_lock``.

    A leader keeps the logs that it had as a follower, and how far they are compacted in memory.
    Raises ``RepairDeferred``.
    """
    open_logs = replica.open_logs
    if replica.as_leader is not None or open_logs is None or open_logs.logs[which] is not log:
        raise RepairDeferred("its assignment changed meanwhile")
    return open_logs.logs


def _write(replica: Replica, which: int, log: Log, work: Callable[[], None]) -> None:
    """Write frames into a log; runs in a thread while the replica's logs are kept open."""
    follower = replica.as_follower
    if follower is not None:
        if follower.logs[which] is not log:
            raise InvalidFrame("the log was reset meanwhile")
        if which == 0:
            follower.on_messages_repaired()
    work()


def _seal(replica: Replica, log: Log, segment: Segment) -> None:
    """Roll to a new segment if the given one is active."""
    follower = replica.as_follower
    if segment is log.active and (follower is None or follower.logs.messages is log):
        log.roll()


def _repair(log: Log, segment: Segment, found: dict[Gap, list[FrameView]]) -> None:
    if segment not in log.segments:
        raise InvalidFrame("the segment was deleted meanwhile")
    if segment is log.active:
        log.roll()
    repair_segment(log, segment, found)


def _name_of(replica: Replica) -> str:
    return f"partition {replica.key.number} of {replica.key.topic}"
