"""An append-only log of frames: segments in a directory. The last segment, the active one, grows.

An append has three steps, so that disk latency blocks only the writing thread. :meth:`Log.begin`
and the batch's ``add`` place frames, in memory. :meth:`Log.write` writes and syncs them, on any
one thread. :meth:`Log.commit` makes them visible, in memory. Only one batch is in progress at a
time.

A failed write leaves the log unchanged. A failed sync closes the log for writing, because the
content of the disk is then unknown. It allows no retry and no acknowledgement until the log is
opened again.

Longer than other modules: all steps that may change the end of a log share its order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from goq import limits
from goq.config.topic import Fsync
from goq.errors import ResourcesExhausted, StorageFailed, StorageFull
from goq.storage.column_index.block import SegmentPosition
from goq.storage.disk import Disk, is_full, is_temporary
from goq.storage.journal.journal import NodeJournal
from goq.storage.journal.record import ENTRY_BYTES, EncodedEntry, encode_entry
from goq.storage.log.active_file import ActiveFile
from goq.storage.log.reader import LogReader
from goq.storage.log.recovery import RecoveredLog, recover
from goq.storage.log.recovery_point import NO_MARK, DurableEnd, JournalMark
from goq.storage.log.rewrite_history import RewriteHistory
from goq.storage.log.segment import Segment, WriteBatch
from goq.storage.log.sparse_index import IndexEntry
from goq.storage.scanner import Damage, tell_damage

_log = logging.getLogger("goq.storage")
_OFFSET_MAX = 2**63 - 1
_JOURNAL_HEAD_BYTES_MAX = ENTRY_BYTES + 1024  # with the path


class LogConfig(msgspec.Struct, frozen=True):
    """The settings of a log that a topic may choose."""

    segment_bytes: int = 64 * limits.MIB
    segment_age_ms: int = 86_400_000
    fsync: Fsync = Fsync.ALWAYS
    columns: bool = False
    """Whether each segment has a column index beside it."""


class Log:
    """The frames of one partition, or of its events, in order."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        config: LogConfig,
        found: RecoveredLog,
        journal: NodeJournal | None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.truncated_bytes = found.truncated_bytes
        self.scanned_bytes = found.scanned_bytes
        self._disk = disk
        self._rolled: Segment | None = None  # created on disk, but its first write failed
        self.reader = LogReader(disk, found.segments, found.damage)
        self.rewrites = RewriteHistory(found.segments)
        self.file = ActiveFile(directory, disk, self.active.path, found.recovery_point)
        self._journal = journal
        self._journal_path = "" if journal is None else journal.path_of(directory)
        if journal is not None:
            journal.attach(directory, self.file)

    @classmethod
    def open(
        cls,
        directory: Path,
        disk: Disk,
        config: LogConfig | None = None,
        *,
        base_offset: int = 0,
        journal: NodeJournal | None = None,
    ) -> Log:
        """Recover the log in ``directory``, or create one there at ``base_offset``.

        With a ``journal``, small batches are committed through it.

        Raises ``StorageFailed`` when the log cannot be read or its files contradict each other,
        ``StorageFull`` when there is no space for required writes, and ``ResourcesExhausted`` when
        the system has no descriptor or memory left.
        """
        try:
            mark = NO_MARK
            if journal is not None:
                journal.complete(directory)
                mark = journal.last_mark
            found = recover(disk, directory, base_offset=base_offset, journal_mark=mark)
            try:
                found.segments[-1].read_first_time(disk)  # begin() must never read the disk
                config = config or LogConfig()
                if config.columns:
                    _keep_columns(disk, found.segments)
                log = cls(directory, disk, config, found, journal)
            except BaseException:
                found.recovery_point.close()
                raise
        except OSError as error:
            if is_temporary(error):
                raise _refused(directory, error) from error
            raise StorageFailed(f"{directory} cannot be opened: {error}") from error
        _tell_findings(log)
        return log

    @property
    def segments(self) -> Sequence[Segment]:
        """The current segments in order. The sequence is replaced, never changed in place."""
        return self.reader.segments

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.reader.segments[-1]

    @property
    def start_offset(self) -> int:
        """The first offset in the log."""
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next message."""
        return self.reader.segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def failed(self) -> str | None:
        """Why the log takes no more writes until it is opened again; None while it does."""
        return self.file.failed

    @failed.setter
    def failed(self, reason: str | None) -> None:
        self.file.failed = reason

    @property
    def damage(self) -> list[Damage]:
        """Known ranges of damaged offsets."""
        return self.reader.damage

    def begin(self, now_us: int, *, roll: bool = False) -> WriteBatch:
        """Return an empty batch after the last committed one.

        The batch starts a new segment when the active one is full or old enough, or with ``roll``.
        """
        if self.file.failed:
            raise StorageFailed(self.file.failed)
        active, config = self.active, self.config
        if self._rolled is not None:
            return WriteBatch(self._rolled, segment_bytes=config.segment_bytes)
        if active.size_bytes and (
            roll or active.size_bytes >= config.segment_bytes or self._is_old(active, now_us)
        ):
            return self._begin_rolled(self.end_offset)
        return WriteBatch(active, segment_bytes=config.segment_bytes)

    def _begin_rolled(self, base_offset: int) -> WriteBatch:
        segment = Segment(self.directory, base_offset)
        segment.time_us = self.active.time_us
        if self.config.columns:
            segment.attach_columns(self._disk).open_for_append()
        return WriteBatch(segment, segment_bytes=self.config.segment_bytes, rolls_from=self.active)

    def _is_old(self, active: Segment, now_us: int) -> bool:
        first_us = active.read_first_time(self._disk)
        return first_us is not None and now_us - first_us >= self.config.segment_age_ms * 1000

    def write(self, batch: WriteBatch) -> None:
        """Write a batch, and make it as durable as the log's ``fsync`` setting requires.

        Raises ``StorageFull`` with the log unchanged when there is no space,
        ``ResourcesExhausted`` likewise without descriptors or memory, and ``StorageFailed`` when
        the disk failed.
        """
        is_journaled = self.can_journal(batch)
        entry = self.append(batch)
        if is_journaled:
            assert self._journal is not None
            try:
                mark = self._journal.commit([entry])
            except StorageFailed as error:
                self.file.failed = str(error)
                raise
            if mark is not None:
                self.on_journaled(batch, mark)
                return
        self.finish_write(batch)

    def can_journal(self, batch: WriteBatch) -> bool:
        """Return whether a batch may be committed through the journal: small, and there is room.

        Then the caller appends it, commits the entry and calls :meth:`on_journaled`; if the journal
        has no room after all, :meth:`finish_write`.
        """
        size_bytes, columns = batch.size_bytes, batch.segment.columns
        return (
            self._journal is not None
            and self.config.fsync is Fsync.ALWAYS
            and batch.rolls_from is None
            and not self.file.is_unsynced
            and size_bytes <= limits.JOURNAL_ENTRY_BYTES_MAX
            and self.file.bytes_since_checkpoint + size_bytes < limits.CHECKPOINT_INTERVAL_BYTES
            and not (columns is not None and columns.is_block_full)
            and self._journal.has_room_for(size_bytes + _JOURNAL_HEAD_BYTES_MAX)
        )

    def append(self, batch: WriteBatch) -> EncodedEntry:
        """Write a batch to the segment, without a sync; return it as an entry of the journal.

        Raises as :meth:`write`.
        """
        if self.file.failed:
            raise StorageFailed(self.file.failed)
        if self.config.columns:
            batch.read_columns()
        try:
            if batch.rolls_from is not None:
                self._roll(batch)
            self.file.append(batch)
        except OSError as error:
            if is_temporary(error):
                raise _refused(self.directory, error) from error
            raise self.file.fail(error) from error
        place = (batch.segment.base_offset, batch.start_position, batch.end_offset)
        return encode_entry(self._journal_path, *place, batch.buffers, batch.size_bytes)

    def on_journaled(self, batch: WriteBatch, mark: JournalMark) -> None:
        """Record that the journal has a batch, synced."""
        self.file.last_mark = mark
        self.file.bytes_since_checkpoint += batch.size_bytes

    def finish_write(self, batch: WriteBatch) -> None:
        """Make an appended batch as durable as the setting requires. Raises as :meth:`write`."""
        if self.config.fsync is Fsync.ALWAYS:
            self.file.sync(batch.durable_end)
        else:
            self.file.is_unsynced = True
        self.file.bytes_since_checkpoint += batch.size_bytes
        if self.file.bytes_since_checkpoint >= limits.CHECKPOINT_INTERVAL_BYTES:
            if self.config.fsync is not Fsync.ALWAYS:  # a checkpoint covers durable bytes only
                self.file.sync(batch.durable_end)
            self.file.take_checkpoint(batch.segment, batch.start_position, batch.start_offset)
        elif batch.segment.columns is not None and batch.segment.columns.is_block_full:
            batch.segment.columns.flush()
        if batch.segment.columns is not None:
            batch.rows = batch.segment.columns.number(batch.rows)

    def _roll(self, batch: WriteBatch) -> None:
        """Seal the active segment, fully durable, and create the batch's segment.

        The steps that a full disk can refuse come first, and leave the log unchanged.
        """
        sealed, segment = batch.rolls_from, batch.segment
        assert sealed is not None
        self.file.sync(DurableEnd(sealed.base_offset, sealed.size_bytes, sealed.end_offset))
        end = IndexEntry(sealed.end_offset, sealed.size_bytes, sealed.time_us)
        sealed.save_index(self._disk, end)
        self.file.roll(segment, sealed.time_us)
        segment.index = segment.index_up_to(self._disk, 0, time_before_us=sealed.time_us)
        if sealed.columns is not None:
            sealed.columns.flush()
        self._rolled = segment

    def commit(self, batch: WriteBatch) -> Segment | None:
        """Make a written batch visible; return the segment that it sealed, if it rolled."""
        segment, sealed = batch.segment, None
        if segment is not self.active:
            sealed, self._rolled = self.active, None
            if sealed.columns is not None:
                sealed.attach_columns_later(self._disk)
            sealed.end_offset = segment.base_offset
            self.reader.segments = [*self.segments, segment]
        assert segment.index is not None
        for entry in batch.entries:
            segment.index.add(entry)
        if segment.columns is not None and batch.buffers:
            end = SegmentPosition(batch.end_position, batch.end_offset)
            segment.columns.add(batch.rows, end, batch.last_frame)
        segment.size_bytes = batch.end_position
        segment.end_offset = batch.end_offset
        segment.time_us = batch.time_us
        if segment.first_time_us is None:
            segment.first_time_us = batch.first_time_us
        return sealed

    def roll(self) -> Segment | None:
        """Seal the active segment without a write, so that retention reaches an idle log.

        Blocks on the disk. Return the sealed segment, or None if the active one is empty. Raises
        ``StorageFull`` with the log unchanged, or ``StorageFailed``.
        """
        if not self.active.size_bytes or self.failed:
            return None
        batch = self.begin(0, roll=True)
        self.write(batch)
        return self.commit(batch)

    def skip(self, offset: int) -> Segment:
        """Continue in a new segment at a later offset, durably; return the sealed segment.

        The offsets between have no frames: every read reports them as damage. A crash leaves the
        log as it was before, or behind them. Blocks on the disk; raises as :meth:`write`.
        """
        if self.file.failed:
            raise StorageFailed(self.file.failed)
        if self._rolled is not None:
            self.commit(WriteBatch(self._rolled, segment_bytes=self.config.segment_bytes))
        end_offset, sealed = self.end_offset, self.active
        batch = self._begin_rolled(offset)
        self.write(batch)
        self.commit(batch)
        self.reader.note_hole(sealed, end_offset)
        return sealed

    def sync(self) -> None:
        """Make all committed frames durable, whatever the setting; blocks on the disk."""
        if self.file.failed:
            raise StorageFailed(self.file.failed)
        active = self.active
        self.file.sync(DurableEnd(active.base_offset, active.size_bytes, active.end_offset))

    def detach_before(self, offset: int) -> list[Segment]:
        """Remove the sealed segments that end at or before ``offset`` from the log, in memory only.

        Pass them to :meth:`remove` to delete their files. Until then, opening the log finds them.
        """
        count = 0
        while count < len(self.segments) - 1 and self.segments[count].end_offset <= offset:
            count += 1
        detached = list(self.segments[:count])
        self.reader.segments = self.segments[count:]
        return detached

    def replace_segments(self, segments: Sequence[Segment], new: Segment) -> bool:
        """Replace neighbours with one new segment, in memory only; False if any was detached.

        A reader of an old one continues with the new one when the old files are deleted.
        """
        sealed = list(self.segments[:-1])
        if segments[0] not in sealed:
            return False
        number = sealed.index(segments[0])
        after = number + len(segments)
        if sealed[number:after] != list(segments):
            return False
        self.rewrites.record(segments[-1])
        self.reader.segments = [*sealed[:number], new, *self.segments[after:]]
        return True

    def remove(self, detached: list[Segment]) -> None:
        """Delete the files of detached segments, oldest first; blocks on the disk."""
        for segment in detached:
            segment.remove(self._disk)

    def truncate(self, offset: int) -> int:
        """Cut the log at the frame that holds ``offset``; return the new end offset.

        Raises ``CorruptData`` for an offset in the middle of damaged bytes. Damage that starts at
        the offset is cut off. A crash midway leaves a longer log, and never one that looks damaged.
        """
        if offset >= self.end_offset:
            return self.end_offset
        with self.file.lock:
            return self._truncate(offset)

    def _truncate(self, offset: int) -> int:
        self.sync()  # the new durable end may come after bytes that were never synced; the journal
        # mark passes all records of what is cut off
        segment, position, end_offset = self.reader.locate_cut(max(offset, self.start_offset))
        number = self.segments.index(segment)
        dropped = [*self.segments[number + 1 :], *([self._rolled] if self._rolled else [])]
        time_before_us = self.reader.max_time_us_before(segment)
        index = segment.index_up_to(self._disk, position, time_before_us=time_before_us)
        end = DurableEnd(segment.base_offset, position, end_offset)
        self.file.truncate(segment, end, index.last().time_us, dropped)
        self._rolled = None
        self.reader.clear_read_ends()
        self.reader.clear_damage(end_offset, _OFFSET_MAX)
        self.reader.segments = self.segments[: number + 1]
        segment.size_bytes = position
        segment.end_offset = end_offset
        segment.index, segment.time_us = index, index.last().time_us
        if not position:
            segment.first_time_us = None
        self.file.take_checkpoint(segment, position, end_offset)
        return end_offset

    def close(self) -> None:
        """Sync, take a checkpoint so that the next open scans nothing, and release the files.

        A log without a change since its checkpoint is only released.
        """
        try:
            if not self.failed and not self.file.is_checkpointed(self.active):
                self.sync()
                self.file.take_checkpoint(self.active, self.active.size_bytes, self.end_offset)
                if self.file.synced_mark < self.file.last_mark:  # there was no room for the index
                    with suppress(OSError):
                        self.file.sync_journaled()
        finally:
            self.file.close()
            if self._journal is not None:
                self._journal.detach(self.directory, self.file)


def _keep_columns(disk: Disk, segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.attach_columns_later(disk)
    active = segments[-1].used_columns()
    assert active is not None
    active.open_for_append()


def _tell_findings(log: Log) -> None:
    """Write what recovery found to the node's log."""
    for number, damage in enumerate(log.damage, 1):
        tell_damage(damage, number)
    if log.truncated_bytes:
        _log.info(  # as after any kill in the middle of a write
            "%s: %d bytes from offset %d on are torn, and were not synced when the node ended:"
            " they are cut off",
            log.directory,
            log.truncated_bytes,
            log.end_offset,
        )


def _refused(directory: Path, error: OSError) -> StorageFull | ResourcesExhausted:
    if not is_full(error):
        return ResourcesExhausted(
            f"the system refuses what {directory} needs: {error.strerror}; use fewer connections,"
            " raise the limit of open files, or send again later",
            retry_after_ms=1000,
        )
    return StorageFull(
        f"no room on the disk of {directory}: {error.strerror}; free some space, then send again",
        retry_after_ms=1000,
    )
