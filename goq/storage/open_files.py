"""The open descriptors of data files: one LRU for all logs of a node, with one bound.

A file object keeps its place in the LRU, not a descriptor. An evicted file is opened again when it
is used. Any thread may call, and a descriptor is closed only when its last user has dropped it.

A descriptor with unsynced writes is evicted last, and synced before: Linux reports a failed
writeback to descriptors that are open at that time. If this sync fails, the next use of the file
fails with its error.

At the system's limit of open files, all idle descriptors are closed and the file is opened again.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from collections import OrderedDict
from pathlib import Path

from goq import limits

_log = logging.getLogger("goq.storage")
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_OPEN_TRIES = 8
_SHORTAGE_S = 10.0
_FileId = tuple[int, int]


class Descriptor:
    """An open descriptor; ``users`` are the writes in progress, ``writes`` counts all of them."""

    __slots__ = ("fd", "is_unsynced", "is_writable", "users", "writes")

    def __init__(self, fd: int, *, is_writable: bool) -> None:
        self.fd = fd
        self.is_writable = is_writable
        self.is_unsynced = False
        self.users = 0
        self.writes = 0

    def __del__(self) -> None:
        os.close(self.fd)


class OpenFiles:
    """At most ``files_max`` descriptors, and more only while all others have writes in progress."""

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = files_max or open_files_max()
        self._open: OrderedDict[Path, Descriptor] = OrderedDict()
        self._failed_syncs: dict[Path, OSError] = {}
        self._lock = threading.Lock()
        self._short_s = -_SHORTAGE_S

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_short(self) -> bool:
        """Whether the system's limit of open files was reached a moment ago."""
        return time.monotonic() - self._short_s < _SHORTAGE_S

    def shortages(self) -> list[str]:
        """Return that descriptors are short, in words for users; nothing while they are not."""
        return (
            ["free file descriptors: the limit of open files is reached"] if self.is_short else []
        )

    def reader(self, path: Path, *, wait: bool = True) -> Descriptor:
        """Return a descriptor to read with; without ``wait`` nothing is synced for room."""
        with self._lock:
            found = self._open.get(path)
            if found is not None:
                self._open.move_to_end(path)
                return found
        return self._add(path, os.O_RDONLY, wait=wait)

    def create(self, path: Path) -> tuple[Descriptor, os.stat_result]:
        """Open a file for writing, anew; create it if it is missing. Return it and its status."""
        opened = self._add(path, os.O_RDWR | os.O_CREAT)
        return opened, os.fstat(opened.fd)

    def use(self, path: Path, file_id: _FileId, *, writes: bool) -> Descriptor:
        """Return a descriptor to write or sync with; :meth:`release` it afterwards.

        With ``writes`` it counts as unsynced from now on. Raises ``OSError`` if the name belongs to
        another file by now, or if the file failed to be synced.
        """
        while True:
            with self._lock:
                failure = self._failed_syncs.get(path)
                if failure is not None:
                    raise OSError(failure.errno, f"an earlier sync failed: {failure}", str(path))
                found = self._open.get(path)
                if found is not None and found.is_writable:
                    self._open.move_to_end(path)
                    found.users += 1
                    if writes:
                        found.writes += 1
                        found.is_unsynced = True
                    return found
            opened = self._add(path, os.O_RDWR)
            status = os.fstat(opened.fd)
            if (status.st_dev, status.st_ino) != file_id:
                self.forget(path)
                raise OSError(errno.ESTALE, "another file has its name", str(path))

    def release(self, used: Descriptor) -> None:
        """End a use."""
        with self._lock:
            used.users -= 1

    def forget(self, path: Path) -> None:
        """Drop the descriptor of a file that was closed, renamed, replaced or removed.

        Called after the change of the name, so that no other thread opens the old file again.
        """
        with self._lock:
            self._open.pop(path, None)
            self._failed_syncs.pop(path, None)

    def _add(self, path: Path, flags: int, *, wait: bool = True) -> Descriptor:
        opened = Descriptor(self.open_fd(path, flags), is_writable=bool(flags & os.O_RDWR))
        with self._lock:
            known = self._open.get(path)
            is_known = known is not None and known.is_writable >= opened.is_writable
            if known is not None and is_known and not flags & os.O_CREAT:
                return known  # another thread was faster
            self._open[path] = opened
            self._open.move_to_end(path)
        self._make_room(path, wait=wait)
        return opened

    def open_fd(self, path: Path, flags: int) -> int:
        """Open a file as ``os.open`` does; the caller closes the descriptor.

        At the system's limit idle descriptors of this LRU are closed first.
        """
        for tries_left in reversed(range(_OPEN_TRIES)):
            try:
                return os.open(path, flags | os.O_CLOEXEC, 0o640)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._note_shortage(error)
                self._evict(0)
                if not tries_left:
                    raise
        raise AssertionError

    def _note_shortage(self, error: OSError) -> None:
        if not self.is_short:
            _log.error(
                "the limit of open files is reached: %s; raise it (ulimit -n, LimitNOFILE), or"
                " use fewer connections",
                error.strerror,
            )
        self._short_s = time.monotonic()

    def _make_room(self, kept: Path, *, wait: bool) -> None:
        if len(self._open) > self.files_max:
            self._evict(self.files_max, kept)
            while wait and len(self._open) > self.files_max and self._sync_one():
                self._evict(self.files_max, kept)

    def _evict(self, files_max: int, kept: Path | None = None) -> None:
        """Close clean descriptors, the least recently used first."""
        evicted: list[Descriptor] = []  # closed without the lock
        with self._lock:
            for path in list(self._open):
                if len(self._open) <= files_max:
                    break
                opened = self._open[path]
                if path != kept and not opened.is_unsynced and not opened.users:
                    evicted.append(self._open.pop(path))

    def _sync_one(self) -> bool:
        """Sync the least recently used descriptor with unsynced writes; False if there is none."""
        with self._lock:
            unsynced = (
                (path, each)
                for path, each in self._open.items()
                if each.is_unsynced and not each.users
            )
            path, opened = next(unsynced, (None, None))
            if path is None or opened is None:
                return False
            writes = opened.writes
        try:
            os.fdatasync(opened.fd)
        except OSError as error:
            with self._lock:
                if self._open.get(path) is opened:
                    self._failed_syncs[path] = error
        with self._lock:
            if opened.writes == writes and not opened.users:
                opened.is_unsynced = False
        return True


def open_files_max() -> int:
    """Return the bound of descriptors for data files: a share of what the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(limits.OPEN_FILES_MIN, min(limits.OPEN_FILES_MAX, soft // limits.OPEN_FILES_SHARE))


def connections_max() -> int:
    """Return how many connections leave enough descriptors for files and for other nodes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = soft - open_files_max() - min(limits.OPEN_FILES_SPARE, soft // 2)
    return max(1, min(limits.CONNECTIONS_MAX, left))
