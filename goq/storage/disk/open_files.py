"""The open files of a node: one LRU of descriptors with one bound, for all of its logs.

A file object keeps its place here, not a descriptor. An evicted file is opened again when it is
used. Any thread may call, and a descriptor is closed only when its last user has dropped it.

A descriptor with unsynced writes is evicted last, and synced before: Linux reports a failed
writeback to descriptors that are open at that time. If this sync fails, the next use of the file
fails with its error. At the system's limit of open files, all idle descriptors are closed and the
file is opened again.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from itertools import islice
from pathlib import Path

from goq import limits

_log = logging.getLogger("goq.storage")
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""The errors of the system's limits of open files."""
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
    """At most ``files_max`` descriptors, and more only while all others have writes in progress.

    Files are known by their paths as text, which is looked up faster than a ``Path``.
    """

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = files_max or open_files_max()
        self._open: dict[str, Descriptor] = {}  # the least recently used first
        self._failed_syncs: dict[str, OSError] = {}
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

    def reader(self, path: str, *, wait: bool = True) -> Descriptor:
        """Return a descriptor to read with; without ``wait`` nothing is synced for room."""
        with self._lock:
            found = self._open.pop(path, None)
            if found is not None:
                self._open[path] = found
                return found
        return self._add(path, os.O_RDONLY, wait=wait)

    def create(self, path: str) -> tuple[Descriptor, os.stat_result]:
        """Open a file for writing, anew; create it if it is missing. Return it and its status."""
        opened = self._add(path, os.O_RDWR | os.O_CREAT, wait=True)
        return opened, os.fstat(opened.fd)

    def use(self, path: str, file_id: _FileId, *, writes: bool) -> Descriptor:
        """Return a descriptor to write or sync with; :meth:`release` it afterwards.

        With ``writes`` it counts as unsynced from now on. Raises ``OSError`` if the name belongs to
        another file by now, or if the file failed to be synced.
        """
        while True:
            with self._lock:
                failure = self._failed_syncs.get(path) if self._failed_syncs else None
                if failure is not None:  # final, also for lack of space (NFS, a thin volume)
                    raise OSError(errno.EIO, f"an earlier sync failed: {failure}", path)
                found = self._open.pop(path, None)
                if found is not None:
                    self._open[path] = found
                if found is not None and found.is_writable:
                    found.users += 1
                    if writes:
                        found.writes += 1
                        found.is_unsynced = True
                    return found
            opened = self._add(path, os.O_RDWR, wait=True)
            status = os.fstat(opened.fd)
            if (status.st_dev, status.st_ino) != file_id:
                self.forget(path)
                raise OSError(errno.ESTALE, "another file has its name", path)

    def note_sync(self, synced: Descriptor, writes: int) -> None:
        """Count a descriptor as synced, unless another thread writes, or has since ``writes``."""
        with self._lock:
            if synced.writes == writes and synced.users == 1:
                synced.is_unsynced = False

    def release(self, used: Descriptor) -> None:
        """End a use."""
        with self._lock:
            used.users -= 1

    def forget(self, path: str) -> None:
        """Drop the descriptor of a file that was closed, renamed, replaced or removed.

        Called after the change of the name, so that no other thread opens the old file again.
        """
        with self._lock:
            self._open.pop(path, None)
            self._failed_syncs.pop(path, None)

    def _add(self, path: str, flags: int, *, wait: bool) -> Descriptor:
        opened = Descriptor(self.open_fd(path, flags), is_writable=bool(flags & os.O_RDWR))
        with self._lock:
            known = self._open.get(path)
            is_known = known is not None and known.is_writable >= opened.is_writable
            if known is not None and is_known and not flags & os.O_CREAT:
                return known  # another thread was faster
            self._open.pop(path, None)
            self._open[path] = opened
        self._make_room(path, wait=wait)
        return opened

    def open_fd(self, path: str | Path, flags: int) -> int:
        """Open a file as ``os.open`` does; the caller closes the descriptor.

        At the system's limit idle descriptors of this LRU are closed first.
        """
        for tries_left in reversed(range(_OPEN_TRIES)):
            try:
                return os.open(path, flags | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
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

    def _make_room(self, kept: str, *, wait: bool) -> None:
        if len(self._open) > self.files_max:
            self._evict(self.files_max, kept)
            while wait and len(self._open) > self.files_max and self._sync_one():
                self._evict(self.files_max, kept)

    def _evict(self, files_max: int, kept: str | None = None) -> None:
        """Close clean descriptors, the least recently used first."""
        with self._lock:
            excess = len(self._open) - files_max
            clean = (
                path
                for path, opened in self._open.items()
                if not opened.is_unsynced and not opened.users and path != kept
            )
            evicted = [self._open.pop(path) for path in list(islice(clean, max(excess, 0)))]
        evicted.clear()  # closes them, without the lock

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
