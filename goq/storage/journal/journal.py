"""The journal of a node: a redo log of what was appended to any log and is not synced there yet.

A commit appends to the segments without a sync, then writes one record of all that to the journal
and syncs only the journal. After a power cut :mod:`goq.storage.journal.redo` gives the segments
what they lost. The segments stay the truth: what the journal holds is always in them too, in the
memory of the system at least, so a killed process and every reader need no journal.

Invariants:

- A record is synced before its commit returns. Order within a log is order in the journal.
- A piece is free again only when the segments have all it holds, synced, and the recovery points
  say so, synced. Pieces become free in order. Without a free piece there is no room, and callers
  sync their segments themselves.
- A failed write or sync ends its piece, and the logs of its record until they are opened again.
  Other logs go on in another piece, under a new id: so the failed record never counts later.
- Damage costs the records that it hits, and is told. It keeps no log from opening.

Any thread may commit. One of the waiting threads writes for all of them. Pieces are made and handed
back in a thread of their own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from goq import limits
from goq.errors import StorageFailed
from goq.storage.disk import Disk, is_temporary
from goq.storage.journal.piece import SUFFIX, JournalPiece, PieceHeader, scan_piece
from goq.storage.journal.record import HEADER_BYTES, EncodedEntry, encode_record
from goq.storage.journal.recovery import RecoveredJournal, recover
from goq.storage.journal.redo import MarkedEntry, redo_log
from goq.storage.log.recovery_point import NO_MARK, JournalMark

_log = logging.getLogger("goq.storage")
JOURNAL_DIR = "journal"
_RETRY_US = 1_000_000


class JournalClock(Protocol):
    """The time, as ``goq.clock.Clock`` tells it."""

    def wall_us(self) -> int:
        """Return microseconds since the Unix epoch."""

    def uptime_us(self) -> int:
        """Return microseconds since the boot of the machine."""


class JournaledLog(Protocol):
    """The file of an open log that commits through the journal."""

    @property
    def synced_mark(self) -> JournalMark:
        """The mark up to which segments and recovery point have everything, synced."""

    def sync_journaled(self) -> None:
        """Sync these for what was committed through the journal. Raises ``OSError``."""


class _Commit:
    __slots__ = ("entries", "error", "is_done", "mark", "size_bytes")

    def __init__(self, entries: Sequence[EncodedEntry]) -> None:
        self.entries = entries
        self.size_bytes = sum([each.size_bytes for each in entries])
        self.is_done = False
        self.mark: JournalMark | None = None
        self.error: StorageFailed | None = None


class NodeJournal:
    """The journal in ``directory`` of the logs below ``root``; see :meth:`open`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        root: Path,
        executor: Executor,
        clock: JournalClock,
        found: RecoveredJournal,
    ) -> None:
        self.problems = found.problems
        """Damage that the start found, in words for users."""
        self.root = root
        self._disk = disk
        self._directory = directory
        self._executor = executor
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Commit] = deque()
        self._is_writing = False
        self._current: JournalPiece | None = None
        self._free = deque(piece for piece in found.pieces if not piece.marks)
        self._full = deque(piece for piece in found.pieces if piece.marks)  # oldest first
        self._names = {piece.path.name for piece in found.pieces}
        """The file names of all pieces, also of the one that moves to another place just now."""
        self._is_making_room = False
        self._retry_us = 0
        self._is_short = False
        self._id, self._number = found.last_mark
        self._redo_lock = threading.Lock()
        self._logs: dict[str, JournaledLog] = {}
        self._settled = found.settled  # of logs that are not open

    @classmethod
    def open(
        cls, disk: Disk, directory: Path, root: Path, executor: Executor, clock: JournalClock
    ) -> NodeJournal:
        """Open the journal, and complete all logs from it; blocks on the disk.

        A log that cannot be completed now is completed when it is opened. Raises ``OSError``.
        """
        disk.make_dir(directory)
        found = recover(disk, directory, root, clock.wall_us)
        journal = cls(disk, directory, root, executor, clock, found)
        try:
            journal._free_full()
        except OSError as error:
            _log.error("the journal keeps what is not in the segments yet: %s", error)
        return journal

    @property
    def last_mark(self) -> JournalMark:
        """The mark of the last record."""
        return JournalMark(self._id, self._number)

    @property
    def is_busy(self) -> bool:
        """Whether a record is being written."""
        return self._is_writing

    # Commits

    def has_room_for(self, entry_bytes: int) -> bool:
        """Return whether a record of such entries fits now. If not, room is made."""
        current = self._current
        if current is not None and current.has_room_for(HEADER_BYTES + entry_bytes):
            return True
        if self._free:
            return True
        self._make_room_soon()
        return False

    def commit(self, entries: Sequence[EncodedEntry]) -> JournalMark | None:
        """Write and sync a record of entries; None if there is no room for it now.

        Raises ``StorageFailed`` when the disk fails: the outcome is unknown.
        """
        commit = _Commit(entries)
        with self._lock:
            self._waiting.append(commit)
            together = self._wait_for_turn(commit)
        while together:
            self._write(together)
            with self._lock:
                self._is_writing = False
                if self._waiting or together != [commit]:  # other threads wait
                    self._changed.notify_all()
                together = self._wait_for_turn(commit)
        if commit.error is not None:
            raise commit.error
        return commit.mark

    def _wait_for_turn(self, commit: _Commit) -> list[_Commit]:
        """Return what this thread is to write now; nothing once its own commit is done."""
        while self._is_writing and not commit.is_done:
            self._changed.wait()
        if commit.is_done:
            return []
        self._is_writing = True
        return self._take()

    def _take(self) -> list[_Commit]:
        """Take the commits that share the next record."""
        waiting, together, size_bytes = self._waiting, list[_Commit](), 0
        while waiting and size_bytes + waiting[0].size_bytes <= limits.JOURNAL_RECORD_BYTES_MAX:
            size_bytes += waiting[0].size_bytes
            together.append(waiting.popleft())
        return together or [waiting.popleft()]

    def _write(self, together: Sequence[_Commit]) -> None:
        entries = [entry for commit in together for entry in commit.entries]
        mark: JournalMark | None = None
        error: StorageFailed | None = None
        try:
            mark = self._append(entries)
        except Exception as raised:  # after a bug too, no thread may wait for ever
            reason = raised.strerror if isinstance(raised, OSError) else None
            error = StorageFailed(f"the disk failed under {self._directory}: {reason or raised!r}")
            error.__cause__ = raised
            _log.error("%s", error.detail)
        for commit in together:
            commit.mark, commit.error, commit.is_done = mark, error, True

    def _append(self, entries: Sequence[EncodedEntry]) -> JournalMark | None:
        mark = JournalMark(self._id, self._number + 1)
        record = encode_record(mark.number, mark.journal_id, entries)
        piece = self._piece_for(len(record))
        if piece is None:
            return None
        end_position = piece.end_position
        try:
            if piece is self._current:
                piece.append(record)
            else:
                piece.begin(self._header(mark.number, is_free=False), record)
        except OSError as error:
            if is_temporary(error) and piece.end_position == end_position:
                return None  # the disk does not have the record, so its number is free
            self._number += 1
            self._use(piece, mark, entries)
            self._end_piece()
            raise
        self._number += 1
        self._use(piece, mark, entries)
        if not self._free and 2 * piece.end_position > piece.size_bytes:
            self._make_room_soon()
        return mark

    def _piece_for(self, record_bytes: int) -> JournalPiece | None:
        """Return the piece that a record fits: the current one, or a free one."""
        for piece in (self._current, self._free[0] if self._free else None):
            if piece is not None and piece.has_room_for(record_bytes):
                return piece
        return None

    def _use(self, piece: JournalPiece, mark: JournalMark, entries: Sequence[EncodedEntry]) -> None:
        if piece is not self._current:
            self._free.popleft()
            if self._current is not None:
                self._full.append(self._current)
            self._current = piece
        for entry in entries:
            piece.marks[entry.path] = mark

    def _end_piece(self) -> None:
        """Write no more to the current piece; what comes later is of another journal."""
        assert self._current is not None
        self._full.append(self._current)
        self._current = None
        self._id, self._number = max(self._clock.wall_us(), self._id + 1), 0

    def _header(self, number: int, *, is_free: bool) -> PieceHeader:
        return PieceHeader(is_free, self._id, number, len(self._names))

    # Room

    def _make_room_soon(self) -> None:
        if self._is_making_room or self._clock.uptime_us() < self._retry_us:
            return
        self._is_making_room = True
        self._executor.submit(self._make_room)

    def _make_room(self) -> None:
        """Free the pieces whose records the segments have, or make another one."""
        try:
            self._free_full()
            if not self._free and len(self._names) < limits.JOURNAL_PIECES_MAX:
                self._add_piece()
        except (OSError, StorageFailed) as error:
            self._retry_us = self._clock.uptime_us() + _RETRY_US
            if not self._is_short:  # said once, not with each try
                _log.warning("the journal has no room: %s; logs sync their own files", error)
            self._is_short = True
        else:
            self._is_short = False
        finally:
            self._is_making_room = False

    def _add_piece(self) -> None:
        count = len(self._names)
        size_bytes = min(limits.JOURNAL_PIECE_BYTES_MIN << count, limits.JOURNAL_PIECE_BYTES_MAX)
        header = self._header(self._number + 1, is_free=True)
        numbered = (f"{number:04d}{SUFFIX}" for number in range(count + 1))
        name = next(name for name in numbered if name not in self._names)
        piece = JournalPiece.create(self._disk, self._directory / name, size_bytes, header)
        self._names.add(name)
        self._free.append(piece)

    def _free_full(self) -> None:
        while self._full:
            piece = self._full[0]
            for path, mark in piece.marks.items():
                self._settle(path, mark)
                if self._is_nearly_full():
                    self._add_piece()
            piece.free(self._header(self._number + 1, is_free=True))
            self._free.append(self._full.popleft())
        held = self._current.marks if self._current is not None else {}
        with self._redo_lock:
            self._settled = {path: mark for path, mark in self._settled.items() if path in held}

    def _is_nearly_full(self) -> bool:
        """Return whether the current piece fills up before another one is free.

        A piece with records of a thousand logs takes as many syncs to free. Without room meanwhile
        each of these logs would sync its own file for each batch.
        """
        piece = self._current
        return (
            piece is not None
            and not self._free
            and 4 * piece.end_position > 3 * piece.size_bytes
            and len(self._names) < limits.JOURNAL_PIECES_MAX
        )

    def _settle(self, path: str, mark: JournalMark) -> None:
        """Have the segments of a log hold everything up to a record, synced."""
        log = self._logs.get(path)
        if log is not None:
            if log.synced_mark < mark:
                log.sync_journaled()
        elif self._settled.get(path, NO_MARK) < mark:
            with self._redo_lock:
                self._redo(path)

    # Logs

    def path_of(self, directory: Path) -> str:
        """Return the path of a log in the journal."""
        return directory.relative_to(self.root).as_posix()

    def complete(self, directory: Path) -> None:
        """Complete a log that is about to be opened. Raises ``OSError``."""
        path = self.path_of(directory)
        with self._redo_lock:
            self._logs.pop(path, None)
            self._redo(path)

    def attach(self, directory: Path, log: JournaledLog) -> None:
        """Record that a log is open: it is asked to sync before its records are given up."""
        self._logs[self.path_of(directory)] = log

    def detach(self, directory: Path, log: JournaledLog) -> None:
        """Record that a log was closed."""
        path = self.path_of(directory)
        with self._redo_lock:
            if self._logs.get(path) is log:
                self._settled[path] = log.synced_mark
                del self._logs[path]

    def _redo(self, path: str) -> None:
        """Complete a log from the pieces that have records of it."""
        current = self._current
        pieces = [*self._full, *([current] if current is not None else [])]
        if not any(self._settled.get(path, NO_MARK) < p.marks.get(path, NO_MARK) for p in pieces):
            return
        entries: list[MarkedEntry] = []
        for piece in pieces:
            if path not in piece.marks:
                continue
            for record in scan_piece(self._disk, piece.path).records:
                mark = JournalMark(record.journal_id, record.number)
                entries += [(mark, each) for each in record.entries() if each.path == path]
        redo_log(self._disk, self.root / path, entries, self.last_mark)
        self._settled[path] = max(p.marks.get(path, NO_MARK) for p in pieces)

    def close(self) -> None:
        """Free all pieces, once all logs are closed; call it when the executor is shut down."""
        if self._current is not None:
            self._full.append(self._current)
            self._current = None
        try:
            self._free_full()
        except OSError as error:
            _log.warning("the journal keeps what is not in the segments yet: %s", error)
        for piece in (*self._free, *self._full):
            piece.close()
