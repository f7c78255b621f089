"""The room on the disk under a data folder, and the reserve file that a full disk leaves.

    reserve      allocated, never read

The reserve holds ``limits.DISK_RESERVE_BYTES``, less on a small disk. It is made once less than
``limits.DISK_RESERVE_BELOW_BYTES`` is free: no disk fills faster between two checks.

Some writes a node cannot do without: starts, deletes, settings, the Raft log, and the event of a
trim, which comes before retention deletes, or of a deleted group, which may have kept messages.
Other events too, as far as they were applied when the disk turned out to be full, with the messages
that were leased as they were written: without them the partition would have to be loaded again.
When such a write finds the disk full, a piece of the reserve is freed and the write tried again.
From then on the *reserve is given up*, and all other writes fail as on a full disk, so that they do
not take the room. Another process may take a piece; ``_PIECES`` of them are there. A node that
starts without the whole reserve, and without room for it, is in the same state. The reserve comes
back once there is room for twice its size.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

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


def low_bytes_of(total_bytes: int) -> int:
    """Return the room below which a disk of a size is nearly full."""
    return min(limits.DISK_LOW_BYTES, total_bytes // _LOW_SHARE_OF_DISK)


class DiskSpace:
    """The room under ``data_dir``. Thread-safe.

    :meth:`check` is to be called every few seconds: it restores the reserve and sets ``state``.
    """

    def __init__(self, data_dir: Path) -> None:
        self.state = SpaceState.OK
        self.free_bytes = 0
        self.is_given_up = False
        """Whether only writes that a node cannot do without may use the disk."""
        self.is_full = False
        """Whether only what is vital finds room, as far as is known."""
        self._path = data_dir / FILE_NAME
        self._lock = threading.Lock()

    def begin_start(self) -> None:
        """Make room for a start: give up the reserve if the disk is full."""
        free_bytes, _ = self._measure()
        if free_bytes < limits.DISK_START_BYTES:
            self.give_up()
        self.is_given_up = self.is_full = False  # recovery may write

    def check(self) -> SpaceState:
        """Measure the room, restore the reserve if there is room, and log a change of the state.

        Blocks on the disk. A disk that cannot be measured keeps its state.
        """
        with self._lock, suppress(OSError):
            free_bytes, total_bytes = self._measure()
            wanted_bytes = self._reserve_bytes(total_bytes)
            held_bytes = self._held_bytes()
            if free_bytes >= limits.DISK_RESERVE_BELOW_BYTES:
                self.is_given_up = False
            elif held_bytes < wanted_bytes:
                has_room = free_bytes + held_bytes >= 2 * wanted_bytes
                is_restored = has_room and self._restore(wanted_bytes)
                self.is_given_up = not is_restored
                free_bytes, _ = self._measure()
            self.free_bytes = free_bytes
            low_bytes = low_bytes_of(total_bytes)
            if self.is_given_up or free_bytes < limits.DISK_FULL_BYTES:
                state = SpaceState.FULL
            elif free_bytes < low_bytes:
                state = SpaceState.NEARLY_FULL
            else:
                state = SpaceState.OK
            self.is_full = state is SpaceState.FULL
            self._set_state(state)
        return self.state

    def give_up(self) -> bool:
        """Free a piece of the reserve; return whether that gave room."""
        with self._lock:
            self.is_given_up = self.is_full = True
            held_bytes = self._held_bytes()
            if not held_bytes:
                return False
            _, total_bytes = self._measure()
            piece_bytes = max(self._reserve_bytes(total_bytes) // _PIECES, 1)
            os.truncate(self._path, max(held_bytes - piece_bytes, 0))
            return True

    @property
    def is_full_now(self) -> bool:
        """Whether the disk has no room at this moment, as measured."""
        return self._measure()[0] < limits.DISK_FULL_BYTES

    def _set_state(self, state: SpaceState) -> None:
        if state is self.state:
            return
        free_mib = self.free_bytes / limits.MIB
        say: Callable[..., None] = _log.warning if state is not SpaceState.FULL else _log.error
        if state is SpaceState.OK:
            say("the disk of %s has room again: %.0f MiB", self._path.parent, free_mib)
        else:
            say("the disk of %s is %s: %.1f MiB left", self._path.parent, state, free_mib)
        self.state = state

    def _measure(self) -> tuple[int, int]:
        """Return the free room and the size of the disk."""
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

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
