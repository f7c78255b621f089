"""Making replicas with bad frames whole again, from other replicas.

Damage is known from opening a log, from reading it, from the slow look that is taken at everything
from time to time (nobody reads a follower's log), and from the one that is taken at a replica when
all nodes believe it to be damaged and this one does not know of it any more. A node
tells of it in its heartbeats; so the partition is led elsewhere, and the replica, which only
follows or is idle then, is mended. What no replica has stays quarantined: that is said once, and
the replica counts as whole as it can be, or nobody could lead any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.frame_source import (
    Ask,
    FramesMerged,
    FrameSource,
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
from goq.storage.log.segment import Segment
from goq.storage.repair import Gap, find_gaps, known_damage, repair_segment, scan_segment
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.cluster")
_PAUSE_MS_MIN = 500
_PAUSE_MS_MAX = 30_000


class _RepairState:
    """What is known of one replica's damage beside what its logs say."""

    def __init__(self) -> None:
        self.is_whole = False
        self.again_ms = 0
        self.pause_ms = _PAUSE_MS_MIN
        self.work: asyncio.Task[None] | None = None


class DamageReport(NamedTuple):
    """What is wrong with the replicas of a topic on a node, and what was.

    ``damaged_gaps`` are stretches of bad bytes that are known now, ``lost_gaps`` those of them that
    no other replica has, ``repaired_frames`` what has been put back since the node was started.
    """

    topic: str
    damaged_gaps: int
    lost_gaps: int
    repaired_frames: int


class RepairManager:
    """Those of a node's replicas."""

    def __init__(self, replicas: ReplicaManager, ask: Ask) -> None:
        self._repaired: Counter[str] = Counter()
        self._name = replicas.name
        self._replicas = replicas
        self._finding = FrameSource(ask, replicas.in_thread)
        self._in_thread = replicas.in_thread
        self._now_ms = replicas.now_ms
        self._cares: dict[PartitionKey, _RepairState] = {}

    @property
    def repaired_frames(self) -> int:
        """How many frames have been put back."""
        return self._repaired.total()

    def harm(self) -> list[DamageReport]:
        """Return what is and was wrong, by topic."""
        damaged, lost = Counter[str](), Counter[str]()
        for replica in self._replicas:
            standing, topic = replica.standing, replica.key.topic
            if standing is not None:
                known = sum(len(known_damage(log)) for log in standing.logs)
                damaged[topic] += known
                lost[topic] += known - len(self._damage(replica))
        topics = sorted(damaged.keys() | self._repaired.keys())
        return [DamageReport(t, damaged[t], lost[t], self._repaired[t]) for t in topics]

    @property
    def damaged(self) -> frozenset[tuple[int, int]]:
        """The replicas with damage that may be mended, by topic id and number."""
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._replicas
            if self._damage(replica)
        )

    @property
    def repaired(self) -> frozenset[tuple[int, int]]:
        """The replicas that are believed to be damaged and are whole, as far as that can be."""
        return frozenset(
            (replica.key.topic_id, replica.key.number)
            for replica in self._replicas
            if self._is_believed_damaged(replica)
            and (care := self._cares.get(replica.key)) is not None
            and care.is_whole
            and not self._damage(replica)
        )

    def look(self) -> None:
        """Begin what is to be done now; to be called from time to time."""
        for key in self._cares.keys() - {replica.key for replica in self._replicas}:
            self._stop(self._cares.pop(key))
        now_ms = self._now_ms()
        for replica in self._replicas:
            damage, is_believed = self._damage(replica), self._is_believed_damaged(replica)
            care = self._cares.get(replica.key)
            if care is not None and care.work is not None and not care.work.done():
                continue
            if not damage and not is_believed:
                self._cares.pop(replica.key, None)
                continue
            care = self._cares.setdefault(replica.key, _RepairState())
            care.is_whole = care.is_whole and not damage
            if care.is_whole or now_ms < care.again_ms or replica.standing is None:
                continue
            if damage and replica.leading is not None:
                continue  # another is to lead first: nothing here may be written by two
            care.work = asyncio.ensure_future(self._tend(replica, care))

    async def scrub(self) -> None:
        """Look through all sealed segments slowly, again and again, until cancelled."""
        while True:
            await asyncio.sleep(limits.SCRUB_PAUSE_S)
            for replica in list(self._replicas):
                standing = replica.standing
                for log in standing.logs if standing is not None else ():
                    for segment in log.segments[:-1]:
                        await asyncio.sleep(segment.size_bytes / limits.SCRUB_BYTES_PER_S)
                        try:
                            await self._in_thread(partial(scan_segment, log, segment))
                        except OSError as error:
                            _log.warning("%s cannot be read: %s", segment.path, error)

    async def answer(self, request: RepairRequest) -> tuple[RepairResponse, list[memoryview]]:
        """Return what this node has of what another asks for."""
        replica = self._replicas.get(request.key)
        standing = None if replica is None else replica.standing
        return await asyncio.get_running_loop().run_in_executor(
            self._replicas.executor, answer_repair, request, standing, self._replicas.whole_log
        )

    async def close(self) -> None:
        """Begin nothing more, and break off what is under way."""
        works = [care.work for care in self._cares.values() if care.work is not None]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    def _stop(self, care: _RepairState) -> None:
        if care.work is not None:
            care.work.cancel()

    def _damage(self, replica: Replica) -> list[tuple[int, Damage]]:
        """Return what is damaged and not given up, by log."""
        standing = replica.standing
        if standing is None:
            return []
        return [
            (which, damage)
            for which, log in enumerate(standing.logs)
            if log.damage
            for damage in known_damage(log)
            if replica.may_be_repaired(which, damage)
        ]

    def _is_believed_damaged(self, replica: Replica) -> bool:
        return replica.part is not None and self._name in replica.part.damaged

    async def _tend(self, replica: Replica, care: _RepairState) -> None:
        try:
            if not self._damage(replica):
                await self._look_through(replica)
            await self._mend_all(replica)
        except (GoqError, OSError, RepairDeferred, FramesMerged) as error:
            _log.warning("%s is damaged and not whole again yet: %s", _name_of(replica), error)
            care.again_ms = self._now_ms() + care.pause_ms
            care.pause_ms = min(2 * care.pause_ms, _PAUSE_MS_MAX)
            return
        care.pause_ms = _PAUSE_MS_MIN
        care.is_whole = not self._damage(replica)

    async def _look_through(self, replica: Replica) -> None:
        """Read everything: what all nodes believe of the replica was found in an earlier life."""
        standing = replica.standing
        assert standing is not None
        for log in standing.logs:
            for segment in log.segments:
                await self._in_thread(partial(scan_segment, log, segment))

    async def _mend_all(self, replica: Replica) -> None:
        while damages := self._damage(replica):
            standing = replica.standing
            if standing is None or replica.leading is not None:
                raise RepairDeferred("it changed its part meanwhile")
            which, damage = damages[0]
            await self._mend(replica, which, standing.logs[which], damage)
            if (which, damage) in self._damage(replica):
                raise RepairDeferred(str(damage))

    async def _mend(self, replica: Replica, which: int, log: Log, damage: Damage) -> None:
        """Mend the segment that some damage lies in, as far as others have what is missing."""
        segments = log.segments
        segment = segments[segment_number(segments, damage.start_offset)]
        found, lost = await self._find_all(replica, which, log, segment)
        if found and which == 0 and self._replicas.is_compacted(replica.key):
            await self._take_over(replica, log, segment)
            return
        if found:
            async with replica.changing:
                standing = replica.standing
                if standing is None or standing.logs[which] is not log:
                    raise RepairDeferred("it changed its part meanwhile")
                await self._in_thread(partial(_write, replica, which, log, segment, found))
                await self._replicas.listed(replica.key, standing.logs)
            self._tell_mended(replica, which, found)
        for gap in lost:
            self._give_up(replica, which, gap)
        if lost:
            replica.given_up.add((which, Gap(damage.start_offset, damage.end_offset)))
        else:
            log.reader.clear_damage(damage.start_offset, damage.end_offset)

    async def _take_over(self, replica: Replica, log: Log, segment: Segment) -> None:
        """Have all segments up to a damaged one as another replica has them; that one the last.

        Where compaction has been at work the logs are not the same, only what a reader makes of
        them: a frame of another replica may lack what made void a message that this one has, or
        this one what made void a message in that. Behind what was written anew here, or is damaged,
        both have everything. Until the last is there the damage is, and whatever was begun is begun
        again.
        """
        if segment is log.active:
            async with replica.changing:
                await self._in_thread(partial(_seal, replica, log, segment))
        segments = log.segments
        end_offset = max(segment.end_offset, log.rewrites.end_offset_since(-1))
        others = [s for s in segments[:-1] if s is not segment and s.base_offset < end_offset]
        whole = [Gap(s.base_offset, s.end_offset) for s in (*others, segment)]
        failures: list[str] = []
        for node in replica.others:
            try:
                for gap in whole:
                    await self._replace(replica, node, log, gap)
                return
            except (GoqError, OSError, RepairDeferred, FramesMerged) as error:
                failures.append(f"{node}: {error}")
        raise RepairDeferred("; ".join(failures) or "it changed its part meanwhile")

    async def _replace(self, replica: Replica, node: str, log: Log, gap: Gap) -> None:
        """Have a whole segment of the messages as another replica has it."""
        frames = await self._finding.find_at(node, replica, 0, log, gap)
        if frames is None:
            raise RepairDeferred(f"it has nothing of offsets {gap}")
        async with replica.changing:
            segment = next((s for s in log.segments if s.base_offset == gap.start_offset), None)
            standing = replica.standing
            if segment is None or standing is None or standing.logs[0] is not log:
                raise RepairDeferred("it changed its part meanwhile")
            await self._in_thread(partial(_write, replica, 0, log, segment, {gap: frames}))
            await self._replicas.listed(replica.key, standing.logs)
        self._tell_mended(replica, 0, {gap: frames})

    async def _find_all(
        self, replica: Replica, which: int, log: Log, segment: Segment
    ) -> tuple[dict[Gap, list[FrameView]], list[Gap]]:
        """Return what fills a segment's gaps, and the gaps that nobody can fill."""
        gaps = await self._in_thread(partial(find_gaps, log, segment))
        assert isinstance(gaps, list)
        found: dict[Gap, list[FrameView]] = {}
        lost: list[Gap] = []
        for gap in gaps:
            try:
                frames = await self._finding.find(replica, which, log, gap)
            except FramesMerged:  # frames are never joined across the border of a segment
                whole = Gap(segment.base_offset, segment.end_offset)
                frames = await self._finding.find(replica, which, log, whole)
                if frames is not None:
                    return {whole: frames}, []
            if frames is None:
                lost.append(gap)
            else:
                found[gap] = frames
        return found, lost

    def _tell_mended(self, replica: Replica, which: int, found: dict[Gap, list[FrameView]]) -> None:
        self._repaired[replica.key.topic] += sum(map(len, found.values()))
        for gap in found:
            _log.warning(
                "repaired offsets %d to %d in the %s of %s, from another replica",
                gap.start_offset,
                gap.end_offset - 1,
                LOGS[which],
                _name_of(replica),
            )

    def _give_up(self, replica: Replica, which: int, gap: Gap) -> None:
        replica.given_up.add((which, gap))
        _log.error(
            "offsets %d to %d in the %s of %s are damaged here and no other replica has them: they"
            " stay quarantined; restore the segment from a backup if there is one",
            gap.start_offset,
            gap.end_offset - 1,
            LOGS[which],
            _name_of(replica),
        )


def _write(
    replica: Replica, which: int, log: Log, segment: Segment, found: dict[Gap, list[FrameView]]
) -> None:
    """Put frames in place; in a thread, with the replica's logs kept open meanwhile."""
    following = replica.following
    if following is None:
        _write_alone(log, segment, found)
        return
    with following.changing:
        if following.logs[which] is not log:
            raise InvalidFrame("the log was begun anew meanwhile")
        _write_alone(log, segment, found)


def _seal(replica: Replica, log: Log, segment: Segment) -> None:
    """Let the messages go on in another segment, if that is the active one."""
    following = replica.following
    with following.changing if following is not None else nullcontext():
        if segment is log.active and (following is None or following.logs.messages is log):
            log.roll()


def _write_alone(log: Log, segment: Segment, found: dict[Gap, list[FrameView]]) -> None:
    if segment not in log.segments:
        raise InvalidFrame("the segment is gone meanwhile")
    if segment is log.active:
        log.roll()
    repair_segment(log, segment, found)


def _name_of(replica: Replica) -> str:
    return f"partition {replica.key.number} of {replica.key.topic}"
