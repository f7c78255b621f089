"""The room on the disk under a data folder, and the reserve file that a full disk leaves.

    reserve      allocated, never read

The reserve holds ``limits.DISK_RESERVE_BYTES``, less on a small disk. It is made once less than
``limits.DISK_RESERVE_BELOW_BYTES`` is free: no disk fills faster between two checks. A file system
may also have a bound of files, its inodes. It is as full without a free one, and the reserve is
then given up as a whole, for the file that it is.

Some writes a node cannot do without: starts, deletes, settings, the Raft log, and the event of a
trim, which comes before retention deletes, or of a deleted group, which may have kept messages.
Other events too, as far as they were applied when the disk turned out to be full, with the messages
that were leased as they were written: without them the partition would have to be loaded again.
When such a write finds the disk full, a piece of the reserve is freed and the write tried again.
From then on the *reserve is given up*, and all other writes fail as on a full disk, so that they do
not take the room. Another process may take a piece; ``_PIECES`` of them are there. A node that
starts without the whole reserve, and without room for it, is in the same state. The reserve comes
back once there is room for twice its size.

A start without any of it deletes *caches*, as many as it needs: files that are made anew when they
are used, and not while the disk is full.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from goq import limits

_log = logging.getLogger("goq.disk")
FILE_NAME = "reserve"
_PIECES = 4
_SHARE_OF_DISK = 16
_LOW_SHARE_OF_DISK = 20


class SpaceState(StrEnum):
    """How much room is left."""

    OK = "ok"
    NEARLY_FULL = "nearly full"
    FULL = "full"


class _Room(NamedTuple):
    """The free room and the size of a disk, in bytes and in files; 2**63 files without a bound."""

    free_bytes: int
    total_bytes: int
    free_files: int

    @property
    def is_ample(self) -> bool:
        """Whether no reserve is needed yet."""
        return (
            self.free_bytes >= limits.DISK_RESERVE_BELOW_BYTES
            and self.free_files >= limits.DISK_RESERVE_BELOW_FILES
        )

    @property
    def lacks_files(self) -> bool:
        """Whether no more files fit."""
        return self.free_files < limits.DISK_FULL_FILES

    @property
    def is_full(self) -> bool:
        """Whether there is no room."""
        return self.free_bytes < limits.DISK_FULL_BYTES or self.lacks_files


def low_bytes_of(total_bytes: int) -> int:
    """Return the room below which a disk of a size is nearly full."""
    return min(limits.DISK_LOW_BYTES, total_bytes // _LOW_SHARE_OF_DISK)


def _room_of(directory: Path) -> _Room:
    found = os.statvfs(directory)
    free_files = found.f_favail if found.f_files else 2**63
    return _Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, free_files)


def has_no_room(directory: Path) -> bool:
    """Return whether the disk of a folder is full; False where that cannot be measured."""
    try:
        return _room_of(directory).is_full
    except OSError:
        return False


class DiskSpace:
    """The room under ``data_dir``. Thread-safe.

    ``caches`` are patterns of paths in it, of files that may be deleted at a start.

    :meth:`check` is to be called every few seconds: it restores the reserve and sets ``state``.
    """

    def __init__(self, data_dir: Path, caches: Sequence[str] = ()) -> None:
        self._caches = caches
        self.state = SpaceState.OK
        self.free_bytes = 0
        self.is_given_up = False
        """Whether only writes that a node cannot do without may use the disk."""
        self.is_full = False
        """Whether only what is vital finds room, as far as is known."""
        self._path = data_dir / FILE_NAME
        self._lock = threading.Lock()

    def begin_start(self) -> None:
        """Make room for a start on a full disk: give up the reserve, or else delete caches."""
        if self._lacks_room_to_start and not self.give_up():
            self._delete_caches()
        self.is_given_up = self.is_full = False  # recovery may write

    @property
    def _lacks_room_to_start(self) -> bool:
        room = self._measure()
        return room.free_bytes < limits.DISK_START_BYTES or not room.free_files

    def _delete_caches(self) -> None:
        """Delete caches until there is room."""
        folder, deleted = self._path.parent, 0
        for path in (found for pattern in self._caches for found in folder.glob(pattern)):
            with suppress(OSError):
                path.unlink()
                deleted += 1
            if not self._lacks_room_to_start:
                break
        if deleted:
            _log.warning("the disk of %s is full: deleted %d files of caches", folder, deleted)

    def check(self) -> SpaceState:
        """Measure the room, restore the reserve if there is room, and log a change of the state.

        Blocks on the disk. A disk that cannot be measured keeps its state.
        """
        with self._lock, suppress(OSError):
            room = self._measure()
            wanted_bytes = self._reserve_bytes(room.total_bytes)
            held_bytes = self._held_bytes()
            if room.is_ample:
                self.is_given_up = False
            elif held_bytes < wanted_bytes:
                has_room = room.free_bytes + held_bytes >= 2 * wanted_bytes and not room.is_full
                is_restored = has_room and self._restore(wanted_bytes)
                self.is_given_up = not is_restored
                room = self._measure()
            self.free_bytes = room.free_bytes
            if self.is_given_up or room.is_full:
                state = SpaceState.FULL
            elif room.free_bytes < low_bytes_of(room.total_bytes):
                state = SpaceState.NEARLY_FULL
            else:
                state = SpaceState.OK
            self.is_full = state is SpaceState.FULL
            self._set_state(state, room.free_files)
        return self.state

    def give_up(self) -> bool:
        """Free a piece of the reserve; return whether that gave room."""
        with self._lock:
            self.is_given_up = self.is_full = True
            held_bytes = self._held_bytes()
            if not held_bytes:
                return False
            room = self._measure()
            if not room.free_files:
                self._path.unlink(missing_ok=True)
                return True
            piece_bytes = max(self._reserve_bytes(room.total_bytes) // _PIECES, 1)
            os.truncate(self._path, max(held_bytes - piece_bytes, 0))
            return True

    @property
    def is_full_now(self) -> bool:
        """Whether the disk has no room at this moment, as measured."""
        return self._measure().is_full

    @property
    def lacks_files_now(self) -> bool:
        """Whether no more files fit at this moment, as measured."""
        return self._measure().lacks_files

    def _set_state(self, state: SpaceState, free_files: int) -> None:
        if state is self.state:
            return
        free_mib = self.free_bytes / limits.MIB
        say: Callable[..., None] = _log.warning if state is not SpaceState.FULL else _log.error
        if state is SpaceState.OK:
            say("the disk of %s has room again: %.0f MiB", self._path.parent, free_mib)
        else:
            files = f", {free_files} files" if free_files < limits.DISK_RESERVE_BELOW_FILES else ""
            say("the disk of %s is %s: %.1f MiB%s left", self._path.parent, state, free_mib, files)
        self.state = state

    def _measure(self) -> _Room:
        return _room_of(self._path.parent)

    @staticmethod
    def _reserve_bytes(total_bytes: int) -> int:
        return min(limits.DISK_RESERVE_BYTES, total_bytes // _SHARE_OF_DISK)

    def _held_bytes(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _restore(self, size_bytes: int) -> bool:
        """Allocate the reserve; a crash leaves it whole, in part, or not there."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                _log.warning("the disk's reserve cannot be made: %s", error)
            return False
        return True
