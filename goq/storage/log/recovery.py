"""Recovery: opening a log after a crash, a power cut or damage.

Every frame from the checkpoint on is read and checked. Bad bytes at or after the durable end were
never acknowledged: they are cut off. Bad bytes before it are damage: they stay in place, the log
continues after them, and their offsets are never given to another message.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from pathlib import Path

import msgspec

from goq import limits
from goq.errors import StorageFailed
from goq.frame.header import HEADER_BYTES
from goq.storage.compaction.checkpoint import forget_checkpoint
from goq.storage.disk import Disk, is_temporary
from goq.storage.log.recovery_point import (
    FILE_NAME,
    NO_MARK,
    Checkpoint,
    DurableEnd,
    JournalMark,
    RecoveryPoint,
    is_of_another_log,
)
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import list_segments, remove_leftovers
from goq.storage.log.sparse_index import IndexEntry
from goq.storage.scanner import BadRegion, Damage, Scanner

_log = logging.getLogger("goq.storage")


class RecoveredLog(msgspec.Struct):
    """The state of a log on disk, and what recovery changed."""

    segments: list[Segment]
    recovery_point: RecoveryPoint
    damage: list[Damage] = msgspec.field(default_factory=list)
    truncated_bytes: int = 0
    scanned_bytes: int = 0


def recover(
    disk: Disk, directory: Path, *, base_offset: int = 0, journal_mark: JournalMark = NO_MARK
) -> RecoveredLog:
    """Return the log in ``directory``, created at ``base_offset`` if there is none.

    The segments have everything up to ``journal_mark``; a new log has nothing to do with it.

    Raises ``StorageFailed`` when the files contradict each other in a way that no crash explains.
    """
    names = remove_leftovers(disk, directory)
    if not names:
        disk.make_dir(directory)
    segments = list_segments(disk, directory, names)
    if not segments:  # lost, or an interruption left the rest of a log that was being removed
        forget_checkpoint(disk, directory, 0)
    recovery_point = _load_recovery_point(disk, directory)
    end_is_known = recovery_point is not None
    if recovery_point is None:
        first = segments[0].base_offset if segments else base_offset
        recovery_point = RecoveryPoint.create(disk, directory, first)
    durable = recovery_point.durable
    try:
        if recovery_point.journal_mark > journal_mark:  # of a journal that is gone
            recovery_point.journal_mark = journal_mark
            recovery_point.sync()
        recovery_point.journal_mark = recovery_point.synced_mark = journal_mark
    except BaseException:
        recovery_point.close()
        raise
    if not end_is_known and segments:
        durable = _whole_log_end(segments[-1])
    try:
        return _Recovery(
            disk, directory, segments, recovery_point, durable, end_is_known=end_is_known
        ).run()
    except BaseException:
        recovery_point.close()
        raise


def _load_recovery_point(disk: Disk, directory: Path) -> RecoveryPoint | None:
    """Return the recovery point; one of another log is removed and counts as missing."""
    if is_of_another_log(disk, directory):
        path = directory / FILE_NAME
        _log.error("%s is of another log: the whole log is checked, and nothing cut off", path)
        disk.remove(path)
    return RecoveryPoint.load(disk, directory)


def _whole_log_end(last: Segment) -> DurableEnd:
    """Return the durable end when its file is lost: all of the log, as none may be cut off.

    The number of messages in a damaged tail is then unknown. The bound assumes frames without a
    body.
    """
    frames_max = last.size_bytes // HEADER_BYTES + 1
    offset = last.base_offset + frames_max * limits.FRAME_MESSAGES_MAX
    return DurableEnd(last.base_offset, last.size_bytes, offset)


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segments: list[Segment],
        recovery_point: RecoveryPoint,
        durable: DurableEnd,
        *,
        end_is_known: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._durable = durable
        self._end_is_known = end_is_known
        self._offset = recovery_point.checkpoint.offset
        self._time_us = recovery_point.checkpoint.time_us
        self._tail_is_damaged = False
        self._changed = not end_is_known
        self._result = RecoveredLog(segments, recovery_point)

    def run(self) -> RecoveredLog:
        result = self._result
        todo, position = self._from_checkpoint()
        for number, segment in enumerate(todo):
            after = todo[number + 1] if number + 1 < len(todo) else None
            before = todo[number - 1] if number else None
            if before is not None and not segment.size_bytes and segment.base_offset < self._offset:
                self._drop([segment])  # the log went on without it, and power was lost
                continue
            sound = self._continues_log(segment, before) and self._scan(segment, position, after)
            if not sound:
                self._drop(todo[number + 1 :])
                break
            position = 0
        self._find_missing_tail()
        if self._tail_is_damaged or not result.segments:
            self._begin_segment()
        if result.scanned_bytes or self._changed:
            self._take_checkpoint()
        return result

    def _from_checkpoint(self) -> tuple[list[Segment], int]:
        """Return the segments to check, and the position in the first of them."""
        segments, checkpoint = self._result.segments, self._result.recovery_point.checkpoint
        number = bisect_left(segments, checkpoint.segment, key=lambda s: s.base_offset)
        if number == len(segments):  # the newest segment is missing: check the one before it
            self._changed = True
            number = max(0, number - 1)
            self._offset = segments[number].base_offset if segments else checkpoint.segment
        elif self._is_rewritten(segments[number]):  # rewritten since this (older) slot
            self._offset = segments[number].base_offset
        elif segments[number].base_offset == checkpoint.segment:
            return segments[number:], checkpoint.position
        else:  # an older slot names a segment that retention has deleted since
            self._offset = segments[number].base_offset
        return segments[number:], 0

    def _continues_log(self, segment: Segment, before: Segment | None) -> bool:
        """Return whether a segment continues the log; one that was never durable is dropped."""
        if before is not None and segment.base_offset != self._offset:
            if segment.base_offset < self._offset:
                raise StorageFailed(
                    f"{segment.path} begins before offset {self._offset}, where the segment before"
                    " it ends; restore the folder from a backup or move the file away"
                )
            if segment.base_offset > self._durable.offset:
                self._drop([segment])
                return False
            self._add_damage(
                segment.path, 0, 0, segment.base_offset, "the segment before this one is missing"
            )
            before.end_offset = segment.base_offset
        return True

    def _scan(self, segment: Segment, position: int, after: Segment | None) -> bool:
        """Check a segment from ``position`` on; False where the log ends in it."""
        before_us = self._time_us if not position else self._time_before(segment)
        if position > segment.size_bytes:  # shorter than the checkpoint: scan all of it
            position, self._offset, self._time_us = 0, segment.base_offset, before_us
        segment.index = index = segment.index_up_to(self._disk, position, time_before_us=before_us)
        self._result.scanned_bytes += segment.size_bytes - position
        self._tail_is_damaged = False
        scanner = Scanner(self._disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)
        for place in scanner.frames(position, self._offset):
            if isinstance(place, BadRegion):
                if not self._is_durable(segment, place.position):
                    if scanner.has_bad_pages(place.position):
                        raise StorageFailed(
                            f"{segment.path}: the disk cannot read bytes from {place.position} on,"
                            " which may be of acknowledged messages; replace the disk and restore"
                            " the folder from a backup"
                        )
                    self._cut(segment, place.position)
                    return False
                self._quarantine(segment, place, after)
                index.add_bad_region()
            else:
                self._offset = place.view.header.end_offset
                time_us = place.view.header.append_time_us
                self._time_us = max(self._time_us, time_us)
                index.add(
                    IndexEntry(self._offset, place.end_position, self._time_us, time_us, time_us)
                )
        segment.end_offset = self._offset
        segment.time_us = self._time_us
        return True

    def _time_before(self, segment: Segment) -> int:
        """Return the running maximum before a segment, or a lower bound that is good enough."""
        number = self._result.segments.index(segment)
        before = self._result.segments[number - 1] if number else None
        return before.time_us if before is not None and before.has_index(self._disk) else 0

    def _is_rewritten(self, segment: Segment) -> bool:
        """Return whether a segment is a rewritten generation: it is durable as a whole."""
        return bool(segment.generation) and segment is not self._result.segments[-1]

    def _is_durable(self, segment: Segment, position: int) -> bool:
        if self._is_rewritten(segment):
            return True
        return (segment.base_offset, position) < (self._durable.segment, self._durable.position)

    def _cut(self, segment: Segment, position: int) -> None:
        self._changed = True
        self._result.truncated_bytes += segment.size_bytes - position
        file = self._disk.open(segment.path)
        try:
            file.truncate(position)
        finally:
            file.close()
        segment.size_bytes = position
        segment.end_offset = self._offset
        segment.time_us = self._time_us

    def _drop(self, segments: list[Segment]) -> None:
        self._changed |= bool(segments)
        for segment in reversed(segments):
            self._result.truncated_bytes += segment.size_bytes
            segment.remove(self._disk)
            self._result.segments.remove(segment)

    def _quarantine(self, segment: Segment, region: BadRegion, after: Segment | None) -> None:
        end_offset = region.end_offset
        if end_offset is None:
            self._tail_is_damaged = after is None
            end_offset = after.base_offset if after else max(self._durable.offset, self._offset)
        self._add_damage(
            segment.path, region.position, region.end_position, end_offset, region.reason
        )

    def _find_missing_tail(self) -> None:
        """Record damage where durable frames are missing because the file is too short."""
        if self._end_is_known and self._offset < self._durable.offset:
            last = self._result.segments[-1] if self._result.segments else None
            path, size = (last.path, last.size_bytes) if last else (self._directory, 0)
            self._add_damage(path, size, size, self._durable.offset, "the file was cut short")
            self._tail_is_damaged = True

    def _add_damage(
        self, path: Path, position: int, end_position: int, end_offset: int, reason: str
    ) -> None:
        self._result.damage.append(
            Damage(path, position, end_position, self._offset, end_offset, reason)
        )
        self._offset = end_offset

    def _begin_segment(self) -> None:
        self._changed = True
        segment = Segment(self._directory, self._offset)
        self._disk.open(segment.path).close()
        segment.time_us = self._time_us
        segment.index = segment.index_up_to(self._disk, 0, time_before_us=self._time_us)
        if self._result.segments:
            self._result.segments[-1].end_offset = self._offset
        self._result.segments.append(segment)

    def _take_checkpoint(self) -> None:
        active = self._result.segments[-1]
        recovery_point = self._result.recovery_point
        self._make_durable(active)
        place = (active.base_offset, active.size_bytes, self._offset)
        recovery_point.durable = DurableEnd(*place)
        end = IndexEntry(self._offset, active.size_bytes, self._time_us)
        try:
            active.save_index(self._disk, end)
        except OSError as error:
            if not is_temporary(error):  # a full disk must still allow reads and deletes
                raise
        recovery_point.take_checkpoint(Checkpoint(*place, self._time_us))

    def _make_durable(self, active: Segment) -> None:
        """Write the sound frames after the durable end once more, and sync them.

        After a failed sync the operating system may hold bytes that it takes for written and that
        no later sync would write.
        """
        durable = self._result.recovery_point.durable
        position = durable.position if durable.segment == active.base_offset else 0
        file = self._disk.open(active.path)
        try:
            while position < active.size_bytes:
                some = self._disk.read(active.path, position, limits.MIB)
                file.write_at(bytes(some), position)
                position += len(some)
            file.sync()
        finally:
            file.close()
