"""The repair of one replica: its damaged segments, with frames of other replicas."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.repair.frame_source import (
    CopiedRange,
    FramesMerged,
    FrameSource,
    RepairDeferred,
)
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


class ReplicaRepair:
    """Fills the damaged gaps of replicas, segment by segment."""

    def __init__(self, replicas: ReplicaManager, source: FrameSource) -> None:
        self._replicas = replicas
        self._source = source
        self._in_thread = replicas.in_thread
        self.repaired: Counter[str] = Counter()
        """The frames restored since the node started, by topic."""

    async def run(self, replica: Replica) -> None:
        """Repair all known damage. Raises ``RepairDeferred``, ``GoqError`` or ``OSError``."""
        while damages := repairable_damage(replica):
            open_logs = replica.open_logs
            if open_logs is None or replica.as_leader is not None:
                raise RepairDeferred("its assignment changed meanwhile")
            which, damage = damages[0]
            await self._repair_segment(replica, which, open_logs.logs[which], damage)
            if (which, damage) in repairable_damage(replica):
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
        self.repaired[replica.key.topic] += sum(map(len, found.values()))
        for gap, frames in found.items():
            _log.warning(
                "repaired offsets %d to %d in the %s of %s, from another replica",
                gap.start_offset,
                frames[-1].header.end_offset - 1,
                LOGS[which],
                name_of(replica),
            )

    def _mark_unrecoverable(self, replica: Replica, which: int, gap: Gap) -> None:
        replica.lost_gaps.add(which, gap)
        _log.error(
            "offsets %d to %d in the %s of %s are damaged here and no other replica has them: they"
            " stay quarantined; restore the segment from a backup if there is one",
            gap.start_offset,
            gap.end_offset - 1,
            LOGS[which],
            name_of(replica),
        )


def repairable_damage(replica: Replica) -> list[tuple[int, Damage]]:
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


def name_of(replica: Replica) -> str:
    """Return a replica's partition, in words for the log."""
    return f"partition {replica.key.number} of {replica.key.topic}"
