"""An append-only log of frames: segments in a directory, one of them growing.

Appending has three steps, so that the disk's time is nobody else's: :meth:`Log.begin` and the
batch's ``add`` place frames (memory only), :meth:`Log.write` writes and syncs them (any one
thread), :meth:`Log.commit` makes them visible (memory only). One batch is under way at a time.
A write that fails leaves the log as it was; a sync that fails ends it, because what the disk then
holds is not known: no retry, no acknowledgement, until the log is opened again.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from goq import limits
from goq.errors import LogFailed, StorageFull
from goq.settings import Fsync
from goq.storage.batch import Batch
from goq.storage.damage import Damage
from goq.storage.files import Disk, File
from goq.storage.index import IndexEntry
from goq.storage.reader import LogReader
from goq.storage.recovery import Recovered, recover
from goq.storage.segment import Segment
from goq.storage.watermark import Checkpoint, Durable


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a topic may choose about a log."""

    segment_bytes: int = 64 * limits.MIB
    segment_age_ms: int = 86_400_000
    fsync: Fsync = Fsync.ALWAYS


class Log:
    """The frames of one partition, or of its events, in order."""

    def __init__(self, directory: Path, disk: Disk, config: LogConfig, found: Recovered) -> None:
        self.directory = directory
        self.config = config
        self.segments = found.segments
        self.truncated_bytes = found.truncated_bytes
        self.scanned_bytes = found.scanned_bytes
        self.failed: str | None = None
        self._disk = disk
        self._watermark = found.watermark
        self._file: File = disk.open(self.active.path)
        self._bytes_since_checkpoint = 0
        self._rolled: Segment | None = None  # begun on the disk, but its first write failed
        self._reader = LogReader(disk, self.segments, found.damage)

    @classmethod
    def open(
        cls, directory: Path, disk: Disk, config: LogConfig | None = None, *, base_offset: int = 0
    ) -> Log:
        """Recover the log in ``directory``, or begin one there at ``base_offset``."""
        found = recover(disk, directory, base_offset=base_offset)
        return cls(directory, disk, config or LogConfig(), found)

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    @property
    def start_offset(self) -> int:
        """The first offset still held."""
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next message gets."""
        return self.active.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def damage(self) -> list[Damage]:
        """Quarantined ranges found so far."""
        return self._reader.damage

    @property
    def reader(self) -> LogReader:
        """The reading half."""
        return self._reader

    def begin(self, now_us: int, *, roll: bool = False) -> Batch:
        """Return an empty batch behind the last committed one.

        It begins a new segment when the active one is full or old enough, or with ``roll``.
        """
        if self.failed:
            raise LogFailed(self.failed)
        active, config = self.active, self.config
        if self._rolled is not None:
            return Batch(self._rolled, segment_bytes=config.segment_bytes)
        if active.size_bytes and (
            roll or active.size_bytes >= config.segment_bytes or self._is_old(now_us)
        ):
            return self._begin_rolled()
        return Batch(active, segment_bytes=config.segment_bytes)

    def _begin_rolled(self) -> Batch:
        segment = Segment(self.directory, self.end_offset)
        segment.time_us = self.active.time_us
        return Batch(segment, segment_bytes=self.config.segment_bytes, rolls_from=self.active)

    def _is_old(self, now_us: int) -> bool:
        first_us = self.active.read_first_time(self._disk)
        return first_us is not None and now_us - first_us >= self.config.segment_age_ms * 1000

    def write(self, batch: Batch) -> None:
        """Write a batch and make it as durable as the log's setting says.

        Raises ``StorageFull`` with the log unchanged when there is no room, ``LogFailed`` when
        the disk failed.
        """
        try:
            if batch.rolls_from is not None:
                self._roll(batch)
            self._file.append(batch.buffers)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(
                    f"no room on the disk of {self.directory}: {error.strerror}; free some space,"
                    " then send again",
                    retry_after_ms=1000,
                ) from error
            raise self._fail(error) from error
        if self.config.fsync is Fsync.ALWAYS:
            self._sync(Durable(batch.segment.base_offset, batch.end_position, batch.end_offset))
        self._bytes_since_checkpoint += batch.size_bytes
        if self._bytes_since_checkpoint >= limits.CHECKPOINT_INTERVAL_BYTES:
            self._checkpoint(batch.segment, batch.start_position, batch.start_offset)

    def _roll(self, batch: Batch) -> None:
        """Seal the active segment, all of it durable, and begin the batch's."""
        sealed = batch.rolls_from
        assert sealed is not None
        self._sync(Durable(sealed.base_offset, sealed.size_bytes, sealed.end_offset))
        self._save_index(sealed, sealed.size_bytes, sealed.end_offset)
        file = self._disk.open(batch.segment.path)
        self._file.close()
        self._file = file
        batch.segment.load_index(self._disk, time_before_us=sealed.time_us)
        place = (batch.segment.base_offset, 0, batch.start_offset)
        self._watermark.durable = Durable(*place)
        self._watermark.take_checkpoint(Checkpoint(*place, sealed.time_us))
        self._bytes_since_checkpoint = 0
        self._rolled = batch.segment

    def _sync(self, durable: Durable) -> None:
        try:
            self._file.sync()
            self._watermark.advance(durable)
        except OSError as error:
            raise self._fail(error) from error

    def _fail(self, error: OSError) -> LogFailed:
        self.failed = (
            f"the disk failed under {self.directory}: {error.strerror or error};"
            " nothing more is accepted here until the node is restarted"
        )
        return LogFailed(self.failed)

    def _checkpoint(self, segment: Segment, position: int, offset: int) -> None:
        try:
            self._save_index(segment, position, offset)
            place = (segment.base_offset, position, offset)
            self._watermark.take_checkpoint(Checkpoint(*place, segment.time_us))
        except OSError as error:
            raise self._fail(error) from error
        self._bytes_since_checkpoint = 0

    def _save_index(self, segment: Segment, position: int, offset: int) -> None:
        assert segment.index is not None
        end = IndexEntry(offset, position, segment.time_us)
        self._disk.replace(segment.index_path, segment.index.pack(end))

    def commit(self, batch: Batch) -> Segment | None:
        """Make a written batch visible; return the segment that it sealed, if it rolled."""
        segment, sealed = batch.segment, None
        if segment is not self.active:
            sealed, self._rolled = self.active, None
            self.segments.append(segment)
        assert segment.index is not None
        for entry in batch.entries:
            segment.index.add(entry)
        segment.size_bytes = batch.end_position
        segment.end_offset = batch.end_offset
        segment.time_us = batch.time_us
        if segment.first_time_us is None:
            segment.first_time_us = batch.first_time_us
        return sealed

    def roll(self) -> Segment | None:
        """Seal the active segment without a write, so that retention can reach an idle log.

        Blocks on the disk; return the sealed segment, None if the active one is empty.
        """
        if not self.active.size_bytes or self._rolled or self.failed:
            return None
        batch = self._begin_rolled()
        try:
            self._roll(batch)
        except OSError as error:
            raise self._fail(error) from error
        return self.commit(batch)

    def sync(self) -> None:
        """Make everything committed durable, whatever the setting; blocks on the disk."""
        if not self.failed:
            active = self.active
            self._sync(Durable(active.base_offset, active.size_bytes, active.end_offset))

    def detach_before(self, offset: int) -> list[Segment]:
        """Take the sealed segments that end at or before ``offset`` out of the log (memory only).

        Hand them to :meth:`remove` to delete their files; until then opening finds them again.
        """
        count = 0
        while count < len(self.segments) - 1 and self.segments[count].end_offset <= offset:
            count += 1
        detached = self.segments[:count]
        del self.segments[:count]
        return detached

    def remove(self, detached: list[Segment]) -> None:
        """Delete the files of detached segments, oldest first; blocks on the disk."""
        for segment in detached:
            segment.remove(self._disk)

    def truncate(self, offset: int) -> int:
        """Cut the log at the frame that holds ``offset``; return the new end offset.

        The durable mark goes back first: a crash midway leaves a longer log, never one that
        looks damaged.
        """
        if offset >= self.end_offset:
            return self.end_offset
        segment, position, end_offset = self._reader.place_of(max(offset, self.start_offset))
        index = segment.load_index(self._disk)
        place = (segment.base_offset, position, end_offset)
        self._watermark.durable = Durable(*place)
        self._watermark.take_checkpoint(Checkpoint(*place, index.before_offset(end_offset).time_us))
        while self.active is not segment:
            self.segments.pop().remove(self._disk)
        self._file.close()
        self._file = self._disk.open(segment.path)
        self._file.truncate(position)
        segment.size_bytes = position
        segment.end_offset = end_offset
        segment.index = segment.index_up_to(self._disk, position, time_before_us=0)
        segment.time_us = segment.index.last().time_us
        self._checkpoint(segment, position, end_offset)
        return end_offset

    def close(self) -> None:
        """Sync, take a checkpoint so that opening again scans nothing, and release the files."""
        try:
            if not self.failed:
                self.sync()
                self._checkpoint(self.active, self.active.size_bytes, self.end_offset)
        finally:
            self._file.close()
            self._watermark.close()
