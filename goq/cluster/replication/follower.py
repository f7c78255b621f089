"""A replica that follows: it appends what its leader has and truncates what its leader never had.

Its methods block on the disk and run in threads. Whatever changes a log holds ``log_lock``
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate, Position
from goq.cluster.replication.repair.lost_gaps import LostGaps
from goq.delivery.events.frame_codec import makes_room
from goq.errors import InvalidFrame, StorageFull
from goq.frame.header import Attribute, FrameHeader
from goq.frame.validation import check_body_crc
from goq.frame.view import FrameView
from goq.storage.log.leader_epochs import epoch_end, last_epoch
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap
from goq.storage.log.replicated import append_replicated
from goq.storage.log.segment import Segment

Reopen = Callable[[Log, int], Log]
"""Reopens a closed log as an empty log that begins at an offset."""

_NEVER = 2**62
_log = logging.getLogger("goq.cluster")


class SealedSegment(NamedTuple):
    """A segment of the log ``which``: 0 messages, 1 events."""

    which: int
    segment: Segment


class LogLock:
    """Held by the one that changes the logs of a replica; for the event loop alone."""

    def __init__(self) -> None:
        self._released: asyncio.Future[None] | None = None

    def try_acquire(self) -> bool:
        """Hold the lock and return True, unless something else does."""
        if self._released is not None:
            return False
        self._released = asyncio.get_running_loop().create_future()
        return True

    def release(self) -> None:
        """Release the lock, which wakes those that wait."""
        released, self._released = self._released, None
        assert released is not None
        released.set_result(None)

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work with the lock held, to its end even if the caller is cancelled."""
        while not self.try_acquire():
            assert self._released is not None
            await asyncio.wait([self._released])
        working = asyncio.ensure_future(work())
        working.add_done_callback(lambda _done: self.release())
        await asyncio.shield(working)


class FollowerReplica:
    """The two logs of a partition that another node leads in ``leader_epoch``."""

    def __init__(
        self,
        key: PartitionKey,
        leader_epoch: int,
        logs: PartitionLogs,
        reopen: Reopen,
        lost_gaps: LostGaps | None = None,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self._lost_gaps = lost_gaps or LostGaps()
        self.high_watermark = LogOffsets(0, 0)
        self.sealed_segments: list[SealedSegment] = []
        """Segments sealed by :meth:`apply`; the caller records them in the manifest."""
        self.log_lock = LogLock()
        self.manifest_lock = asyncio.Lock()
        """Held while the manifest is ahead of the log, until both agree."""
        self._logs = [logs.messages, logs.events]
        for log in logs:  # segments roll where the leader's do
            log.config = replace(log.config, segment_bytes=_NEVER, segment_age_ms=_NEVER)
        self._reopen = reopen
        self._detached: list[tuple[Log, Segment]] = []
        """Segments that a log has dropped and whose files are not removed yet."""
        self._rewrites = -1
        self._is_whole_copy = logs.messages.end_offset == logs.messages.start_offset
        self._leader_starts = [log.start_offset for log in logs]
        self._epochs = [last_epoch(log.reader, log.end_offset) for log in self._logs]

    @property
    def logs(self) -> PartitionLogs:
        """The logs as they are now."""
        return PartitionLogs(*self._logs)

    @property
    def has_damage(self) -> bool:
        """Whether damage of the logs is known."""
        messages, events = self._logs
        return bool(messages.reader.damage or events.reader.damage)

    @property
    def position(self) -> Position:
        """The position to report to the leader."""
        messages, events = self._logs
        ends = LogOffsets(messages.end_offset, events.end_offset)
        return Position(
            self.key, self.leader_epoch, ends, LogOffsets(*self._epochs), self._rewrites
        )

    def truncated_logs(self, update: PartitionUpdate, frames: memoryview) -> list[int]:
        """Return the logs from which :meth:`apply` may remove sealed segments (memory only)."""
        if update.leader_epoch != self.leader_epoch:
            return []
        found: list[int] = []
        for which, log_update in enumerate((update.messages, update.events)):
            if log_update is not None:
                own, frames = frames[: log_update.frame_bytes], frames[log_update.frame_bytes :]
                if self._truncates(self._logs[which], log_update, own):
                    found.append(which)
        return found

    def _truncates(self, log: Log, update: LogUpdate, frames: memoryview) -> bool:
        if update.diverges_at is not None or self._begins_anew(log, update, frames):
            return True
        # Frames that reach back lie before the active segment only if the leader's segment does.
        if not frames or update.segment_base >= log.active.base_offset:
            return False
        return FrameView.parse(frames).header.base_offset < log.end_offset

    def _begins_anew(self, log: Log, update: LogUpdate, frames: memoryview) -> bool:
        """Whether an update makes a log begin anew.

        The leader may have copied removed rows from an earlier leader, which compacted them. Its
        rewrites do not tell. A message before them can be one that a removed tombstone deleted. So
        they follow only messages that are all copied from this leader.
        """
        if update.must_reset or update.start_offset > log.end_offset:
            return True
        if self._is_whole_copy or log is not self._logs[0] or log.end_offset == log.start_offset:
            return False
        return any(each.attributes & Attribute.REMOVED for each in _headers(frames))

    def expired_segment(self) -> SealedSegment | None:
        """Return the oldest segment if the leader has deleted it, else None."""
        for which, log in enumerate(self._logs):
            first = log.segments[0]
            if first is not log.active and first.end_offset <= self._leader_starts[which]:
                return SealedSegment(which, first)
        return None

    def delete_segment(self, which: int, segment: Segment) -> None:
        """Delete the oldest segment, unless another one has taken its place.

        After an ``OSError`` the log is without it, and :meth:`remove_detached` is to be tried.
        """
        log = self._logs[which]
        if log.segments[0] is segment and segment is not log.active:
            self._detached += [(log, each) for each in log.detach_before(segment.end_offset)]
            self.remove_detached()

    @property
    def has_detached(self) -> bool:
        """Whether files of deleted segments are left."""
        return bool(self._detached)

    def remove_detached(self) -> None:
        """Remove the files of deleted segments, as far as they are left."""
        while self._detached:
            log, segment = self._detached[0]
            if log in self._logs:  # else the log began anew, without any of its files
                log.remove([segment])
            del self._detached[0]

    def apply(self, update: PartitionUpdate, frames: memoryview) -> None:
        """Store an update; ``frames`` are those of both logs, the messages first.

        An update of another epoch is ignored: it is about a leadership that has ended. Raises
        ``InvalidFrame`` for frames that are damaged or do not continue the log, and for updates
        that would truncate what is safe. Raises what writing a log raises.
        """
        if update.leader_epoch != self.leader_epoch:
            return
        refused: StorageFull | None = None
        for which, log_update in enumerate((update.messages, update.events)):
            if log_update is not None:
                try:
                    self._apply(which, log_update, frames[: log_update.frame_bytes])
                except StorageFull as error:  # the events may be what makes room
                    refused = error
                frames = frames[log_update.frame_bytes :]
        if refused is not None:
            raise refused
        self._note_rewrites_and_safe(update)

    def note_bounds(self, update: PartitionUpdate) -> None:
        """Note the bounds of the leader's logs in an update whose frames are stored."""
        for which, log_update in enumerate((update.messages, update.events)):
            if log_update is not None:
                self._leader_starts[which] = log_update.start_offset
        self._note_rewrites_and_safe(update)

    def on_appended(self, which: int, leader_epoch: int, sealed: Segment | None) -> None:
        """Note frames that were appended to a log while :attr:`log_lock` was held."""
        if sealed is not None:
            self.sealed_segments.append(SealedSegment(which, sealed))
        self._epochs[which] = leader_epoch

    def _note_rewrites_and_safe(self, update: PartitionUpdate) -> None:
        if update.messages is not None and update.messages.diverges_at is None:
            self._rewrites = update.messages.rewrites
        self.high_watermark = LogOffsets(*map(max, self.high_watermark, update.high_watermark))

    def _apply(self, which: int, update: LogUpdate, frames: memoryview) -> None:
        log = self._logs[which]
        self._leader_starts[which] = update.start_offset
        if update.diverges_at is not None:
            self._truncate(which, update.diverges_at, update.epoch)
            return
        if self._begins_anew(log, update, frames):
            self._reset_log(which, update.start_offset)
            log = self._logs[which]
            if frames and FrameView.parse(frames).header.base_offset > log.end_offset:
                return  # the next fetch begins at the start
        if update.lost is not None:
            self._skip(which, Gap(*update.lost))
        elif frames:
            views = parse_frames(frames)
            first = views[0].header.base_offset
            if first < log.end_offset < views[0].header.end_offset:
                # Compaction has merged frames on the leader, of which this log has only some. All
                # are older than what is safe, so this replica is not in sync and may truncate.
                log.truncate(first)
                self._lost_gaps.forget_from(which, first)
                self._epochs[which] = last_epoch(log.reader, log.end_offset)
                if log.end_offset < first:
                    return
            sealed = _append(which, log, views, update.segment_base)
            self.on_appended(which, views[-1].header.leader_epoch, sealed)

    def _skip(self, which: int, gap: Gap) -> None:
        """Continue behind a gap that no replica can fill: it is damage here, too."""
        log = self._logs[which]
        if not gap.start_offset == log.end_offset < gap.end_offset:
            raise InvalidFrame(f"lost offsets {gap} cannot follow {log.end_offset}")
        sealed = log.skip(gap.end_offset)
        self.sealed_segments.append(SealedSegment(which, sealed))
        self._lost_gaps.add(which, gap)
        _log.error(
            "offsets %d to %d of %s are damaged on their leader and no other replica has them: this"
            " replica continues behind them",
            gap.start_offset,
            gap.end_offset - 1,
            log.directory,
        )

    def on_messages_repaired(self) -> None:
        """Record that messages come from another replica than the leader; hold ``log_lock``."""
        self._is_whole_copy = False

    def _truncate(self, which: int, leader_end: int, epoch: int) -> None:
        """Truncate what the leader does not have: behind the end of the last epoch of both."""
        log = self._logs[which]
        own = epoch_end(log.reader, epoch, log.end_offset)
        end = _before_damage(log, min(leader_end, own.end_offset))
        if end < self.high_watermark[which]:
            raise InvalidFrame(
                f"the leader of {self.key} asks to truncate {log.directory} at {end},"
                f" but reported that all before {self.high_watermark[which]} is safe"
            )
        if end <= log.start_offset:
            self._reset_log(which, max(end, 0))
        else:
            log.truncate(end)
            self._lost_gaps.forget_from(which, end)
        log = self._logs[which]
        self._epochs[which] = last_epoch(log.reader, log.end_offset)

    def _reset_log(self, which: int, offset: int) -> None:
        """Continue at an offset that the log does not reach, dropping all of it."""
        log = self._logs[which]
        log.close()
        self._logs[which] = self._reopen(log, offset)
        self._lost_gaps.forget_from(which, 0)
        self._epochs[which] = -1
        if which == 0:
            self._is_whole_copy = True


def _headers(frames: memoryview) -> Iterator[FrameHeader]:
    position = 0
    while position < len(frames):
        header = FrameView.parse(frames, position).header
        yield header
        position += header.frame_bytes


def _append(which: int, log: Log, views: Sequence[FrameView], segment_base: int) -> Segment | None:
    """Append frames; a full disk takes events without which no replica could make room."""
    try:
        return append_replicated(log, views, segment_base)
    except StorageFull:
        if not which or not any(map(makes_room, views)):
            raise
        return append_replicated(log, views, segment_base, is_vital=True)


def _before_damage(log: Log, offset: int) -> int:
    """Return an offset at which the log can be cut: the start of damage that holds the offset."""
    damage = log.reader.read(offset, log.end_offset, messages_max=1).damage
    return min(offset, damage[0].start_offset) if damage else offset


def parse_frames(frames: memoryview) -> list[FrameView]:
    """Return the frames in some bytes; raise ``InvalidFrame`` unless all are whole and sound."""
    views: list[FrameView] = []
    position = 0
    while position < len(frames):
        view = FrameView.parse(frames, position)
        check_body_crc(view)
        views.append(view)
        position += view.header.frame_bytes
    if not views:
        raise InvalidFrame("there are no frames")
    return views
