"""The file that a log appends to, and the recovery point that says what of it is durable.

Both change together, under one lock. So the journal may sync them at any time, on any thread, while
the log's writer rolls or truncates.

A failed sync ends the file: the content of the disk is then unknown, and nothing more is written.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

from goq.errors import StorageFailed
from goq.storage.compaction.checkpoint import forget_checkpoint
from goq.storage.disk import Disk, File, is_temporary
from goq.storage.log.recovery_point import Checkpoint, DurableEnd, JournalMark, RecoveryPoint
from goq.storage.log.segment import Segment, WriteBatch
from goq.storage.log.sparse_index import IndexEntry


class ActiveFile:
    """The file of the active segment of the log in ``directory``."""

    def __init__(
        self, directory: Path, disk: Disk, path: Path, recovery_point: RecoveryPoint
    ) -> None:
        self.failed: str | None = None
        """Why nothing more is written; None while it can be."""
        self.is_unsynced = False
        """Whether it has frames that neither a sync nor the journal covers."""
        self.last_mark = recovery_point.journal_mark
        """The last record of the journal with frames of it."""
        self.bytes_since_checkpoint = 0
        self.lock = threading.RLock()
        """Held while the file is another one, or the recovery point changes."""
        self._directory = directory
        self._disk = disk
        self._recovery_point = recovery_point
        self._written_end = recovery_point.durable  # of complete batches, synced or not
        self._file: File = disk.open(path)
        self._is_closed = False

    @property
    def synced_mark(self) -> JournalMark:
        """The mark up to which segments and recovery point have everything, synced."""
        return self._recovery_point.synced_mark

    def append(self, batch: WriteBatch) -> None:
        """Write a batch, without a sync. Raises ``OSError``."""
        if self._file.size_bytes != batch.start_position:
            raise OSError(errno.EIO, "the file does not end where the log does")
        self._file.append(batch.buffers, is_vital=batch.is_vital)
        place = (batch.segment.base_offset, batch.end_position, batch.end_offset)
        self._written_end = DurableEnd(*place)

    def sync(self, durable: DurableEnd) -> None:
        """Sync the file, and record the durable end. Raises ``StorageFailed``."""
        with self.lock:
            try:
                self._file.sync()
                self._recovery_point.journal_mark = self.last_mark
                self._recovery_point.advance(durable)
            except OSError as error:
                raise self.fail(error) from error
        self.is_unsynced = False

    def sync_journaled(self) -> None:
        """Make what was committed through the journal durable without it. Raises ``OSError``.

        First the segment, then the recovery point: when the journal gives up the records, bad bytes
        in their frames are damage, and no torn tail. Any thread may call.
        """
        with self.lock:
            if self.failed:
                raise OSError(errno.EIO, self.failed)
            if self._is_closed:  # which synced all
                return
            mark, end = self.last_mark, self._written_end
            try:
                self._file.sync()
            except OSError as error:
                self.fail(error)
                raise
            try:
                self._recovery_point.journal_mark = mark
                self._recovery_point.durable = max(self._recovery_point.durable, end)
                self._recovery_point.sync()
            except OSError as error:
                if not is_temporary(error):
                    self.fail(error)
                raise

    def take_checkpoint(self, segment: Segment, position: int, offset: int) -> None:
        """Move the start of recovery to a durable position. Without resources it stays."""
        if segment.columns is not None:
            segment.columns.flush()
        try:
            segment.save_index(self._disk, IndexEntry(offset, position, segment.time_us))
            place = (segment.base_offset, position, offset)
            with self.lock:
                self._recovery_point.take_checkpoint(Checkpoint(*place, segment.time_us))
        except OSError as error:
            if is_temporary(error):
                return
            raise self.fail(error) from error
        self.bytes_since_checkpoint = 0

    def is_checkpointed(self, active: Segment) -> bool:
        """Return whether the recovery point and the index on the disk cover all of the log."""
        place = (active.base_offset, active.size_bytes, active.end_offset)
        point = self._recovery_point
        if point.checkpoint != (*place, active.time_us) or point.durable != place:
            return False
        try:
            return self._disk.size(active.index_path) > 0
        except OSError:
            return False

    def roll(self, segment: Segment, time_before_us: int) -> None:
        """Go on in the file of a new segment; the file before is durable.

        Raises ``OSError`` with nothing changed, or ``StorageFailed``.
        """
        file = self._disk.open(segment.path)
        with self.lock:
            self._file.close()
            self._file = file
            try:
                place = (segment.base_offset, 0, segment.base_offset)
                self._recovery_point.durable = DurableEnd(*place)
                self._recovery_point.take_checkpoint(Checkpoint(*place, time_before_us))
            except OSError as error:
                raise self.fail(error) from error
        self.bytes_since_checkpoint = 0

    def truncate(
        self, segment: Segment, end: DurableEnd, time_us: int, dropped: Sequence[Segment]
    ) -> None:
        """Cut ``segment`` at the new end of the log, and delete the segments after it.

        The durable end moves back first, so a crash midway leaves a longer log. Raises
        ``StorageFailed``. The caller holds the lock.
        """
        try:
            forget_checkpoint(self._disk, self._directory, end.offset)
            self._recovery_point.durable = self._written_end = end
            self._recovery_point.take_checkpoint(Checkpoint(*end, time_us))
            for after in reversed(dropped):
                after.remove(self._disk)
            segment.remove_sidecars(self._disk)
            self._file.close()
            self._file = self._disk.open(segment.path)
            self._file.truncate(end.position)
            if (columns := segment.used_columns()) is not None:
                columns.truncate(end.position)
        except OSError as error:
            raise self.fail(error) from error

    def fail(self, error: OSError) -> StorageFailed:
        """End the file, and return the error for what was under way."""
        self.failed = (
            f"the disk failed under {self._directory}: {error.strerror or error};"
            " it accepts no more writes until it is opened again"
        )
        return StorageFailed(self.failed)

    def close(self) -> None:
        """Release the files. What is not synced by then stays so."""
        with self.lock:
            self._is_closed = True
            self._file.close()
            self._recovery_point.close()
