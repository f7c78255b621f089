"""The disk: the only module that opens, writes, syncs, renames or removes data files.

Storage takes a :class:`Disk` as a parameter, so that tests can pass a disk that loses unsynced
bytes, fills up, or fails. The docstring of each call states its durability. The rest of storage
relies on exactly that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from goq.storage.open_files import Descriptor, OpenFiles

_IOV_MAX = 1024
_REMOVE_TRIES = 10


class NotCached(Exception):
    """The bytes are on disk but not in memory, and a read would block."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def is_full(error: OSError) -> bool:
    """Return whether an operation failed for lack of space, and may succeed later."""
    return error.errno in _FULL


def is_temporary(error: OSError) -> bool:
    """Return whether an operation failed for lack of space, descriptors or memory.

    It may succeed later. The disk is not at fault.
    """
    return error.errno in (*_FULL, *_EXHAUSTED)


class File(Protocol):
    """A file open for writing."""

    size_bytes: int

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Append; after a failure the end is unchanged, or the file is unusable."""
        ...

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        """Overwrite bytes in place; without ``must_last`` no later sync tells of their loss."""
        ...

    def sync(self) -> None:
        """Make all earlier writes survive a power cut. A failure is final."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, durably."""
        ...

    def close(self) -> None:
        """Release the file; makes nothing durable."""
        ...


class Disk(Protocol):
    """The filesystem operations that storage needs."""

    def open(self, path: Path) -> File:
        """Open a file for appending; the name of a new file is durable on return."""
        ...

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return up to ``size_bytes``, fewer only at the end of the file.

        ``wait=False`` raises :class:`NotCached` instead of waiting for the device.
        """
        ...

    def size(self, path: Path) -> int:
        """Return a file's length in bytes."""
        ...

    def replace(self, path: Path, data: bytes) -> None:
        """Give ``path`` this content, durably and atomically."""
        ...

    def rename(self, path: Path, target: Path) -> None:
        """Rename a synced file within its directory, durably and atomically.

        A file with the target name is replaced.
        """
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, durably; a missing file is not an error."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory, none if it does not exist."""
        ...

    def make_dir(self, directory: Path) -> None:
        """Create a directory and its parents, durably."""
        ...

    def remove_dir(self, directory: Path) -> None:
        """Remove a directory with everything in it."""
        ...

    def move_dir(self, directory: Path, target: Path) -> None:
        """Rename a directory in which no file is open, durably and atomically.

        Both are on one filesystem, and ``target`` does not exist.
        """
        ...


class _RealFile:
    """A file with a place in the LRU of open files."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self._path = path
        self._files = files
        _, status = files.create(path)
        self._id = status.st_dev, status.st_ino
        self.size_bytes = status.st_size

    @contextmanager
    def _opened(self, *, writes: bool = True) -> Iterator[Descriptor]:
        used = self._files.use(self._path, self._id, writes=writes)
        try:
            yield used
        finally:
            self._files.release(used)

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        start = self.size_bytes
        with self._opened() as opened:
            try:
                for first in range(0, len(buffers), _IOV_MAX):
                    self._append_some(opened.fd, buffers[first : first + _IOV_MAX])
            except OSError:
                os.ftruncate(opened.fd, start)
                self.size_bytes = start
                raise

    def _append_some(self, fd: int, buffers: Sequence[bytes | memoryview]) -> None:
        expected = sum(map(len, buffers))
        written = os.pwritev(fd, buffers, self.size_bytes)
        self.size_bytes += written
        if written < expected:  # a nearly full disk, or a signal: write the rest in a loop
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                written = os.pwrite(fd, rest, self.size_bytes)
                self.size_bytes += written
                rest = rest[written:]

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        with self._opened(writes=must_last) as opened:
            if os.pwrite(opened.fd, data, position) != len(data):
                raise OSError(errno.EIO, "short write", str(self._path))
        self.size_bytes = max(self.size_bytes, position + len(data))

    def sync(self) -> None:
        with self._opened(writes=False) as opened:
            os.fdatasync(opened.fd)
            opened.is_unsynced = False

    def truncate(self, size_bytes: int) -> None:
        with self._opened() as opened:
            os.ftruncate(opened.fd, size_bytes)
            os.fsync(opened.fd)
            opened.is_unsynced = False
        self.size_bytes = size_bytes

    def close(self) -> None:
        self._files.forget(self._path)


class RealDisk:
    """The machine's filesystem. Thread-safe."""

    def __init__(self, files: OpenFiles | None = None) -> None:
        self.files = OpenFiles() if files is None else files

    def open(self, path: Path) -> File:
        """Open a file for appending; creates it durably."""
        file = _RealFile(path, self.files)
        if not file.size_bytes:  # new, or left by a process that was killed before this line
            try:
                self._sync_dir(path.parent)
            except OSError:
                file.close()
                raise
        return file

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return bytes of a file; see :class:`Disk`."""
        reader = self.files.reader(path, wait=wait)
        size_bytes = max(0, min(size_bytes, os.fstat(reader.fd).st_size - position))
        view = np.empty(size_bytes, np.uint8).data  # not zeroed before it is filled
        done = 0
        while done < size_bytes:
            try:
                flags = 0 if wait else os.RWF_NOWAIT
                count = os.preadv(reader.fd, [view[done:]], position + done, flags)
            except BlockingIOError:
                raise NotCached from None
            except OSError as error:
                if wait or error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                wait = True  # this filesystem has no RWF_NOWAIT: read as usual
                continue
            if count == 0:
                break
            done += count
        return view[:done].toreadonly()

    def size(self, path: Path) -> int:
        """Return a file's length in bytes."""
        return path.stat().st_size

    def replace(self, path: Path, data: bytes) -> None:
        """Give ``path`` new content, durably and atomically."""
        temporary = path.with_name(path.name + ".new")
        try:
            fd = self.files.open_fd(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # it would use the last space of a full disk
            raise
        self.files.forget(path)
        self._sync_dir(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a synced file, durably."""
        path.rename(target)
        self.files.forget(path)
        self.files.forget(target)
        self._sync_dir(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, durably."""
        path.unlink(missing_ok=True)
        self.files.forget(path)
        self._sync_dir(path.parent)

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_dir(self, directory: Path) -> None:
        """Create a directory and its parents, durably."""
        if directory.is_dir() and any(directory.iterdir()):
            return
        if not directory.is_dir():
            self.make_dir(directory.parent)
            directory.mkdir(mode=0o750, exist_ok=True)
        self._sync_dir(directory.parent)  # also if an earlier process was killed before this line

    def remove_dir(self, directory: Path) -> None:
        """Remove a directory with everything in it.

        Another thread may still create a file there, such as an index that it builds. Then the
        directory is emptied again.
        """
        for _ in range(_REMOVE_TRIES):
            try:
                self._remove_dir(directory)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
        self._remove_dir(directory)

    def _remove_dir(self, directory: Path) -> None:
        for name in self.names(directory):
            path = directory / name
            if path.is_dir() and not path.is_symlink():
                self._remove_dir(path)
            else:
                path.unlink(missing_ok=True)
                self.files.forget(path)
        if directory.is_dir():
            directory.rmdir()
            self._sync_dir(directory.parent)

    def move_dir(self, directory: Path, target: Path) -> None:
        """Rename a directory, durably and atomically."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        directory.rename(target)
        for path in files:
            self.files.forget(path)
        self._sync_dir(target.parent)
        self._sync_dir(directory.parent)

    def _sync_dir(self, directory: Path) -> None:
        fd = self.files.open_fd(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
