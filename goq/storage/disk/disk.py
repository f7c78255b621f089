"""The machine's filesystem as a :class:`Disk`: the files and names of a data folder.

Every write and read takes its descriptor from :class:`OpenFiles`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from goq import limits
from goq.storage.disk.open_files import NO_DESCRIPTOR, OpenFiles
from goq.storage.disk.protocol import File, NotCached
from goq.storage.disk_space import DiskSpace

_IOV_MAX = 1024
_REMOVE_TRIES = 10
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = (*_FULL, *NO_DESCRIPTOR, errno.ENOMEM, errno.EAGAIN)


def is_full(error: OSError) -> bool:
    """Return whether an operation failed for lack of space, and may succeed later."""
    return error.errno in _FULL


def is_temporary(error: OSError) -> bool:
    """Return whether an operation failed for lack of space, descriptors or memory.

    It may succeed later. The disk is not at fault.
    """
    return error.errno in _TEMPORARY


class _RealFile:
    """A file with a place in the LRU of open files."""

    def __init__(
        self, path: Path, files: OpenFiles, space: DiskSpace | None, *, is_vital: bool
    ) -> None:
        self._path = str(path)
        self._space = space
        self._is_vital = is_vital
        self._files = files
        if space is not None and space.is_given_up and not is_vital and space.lacks_files_now:
            self._check_exists(path)
        _, status = files.create(self._path)
        self._id = status.st_dev, status.st_ino
        self.size_bytes = status.st_size
        self._written_back = 0

    @staticmethod
    def _check_exists(path: Path) -> None:
        if not path.exists():
            raise OSError(errno.ENOSPC, "the disk takes no more files", str(path))

    def append(self, buffers: Sequence[bytes | memoryview], *, is_vital: bool = False) -> None:
        space, is_vital = self._space, is_vital or self._is_vital
        if space is not None and space.is_given_up and not is_vital:
            raise OSError(errno.ENOSPC, "the disk is full", self._path)
        try:
            self._append(buffers)
        except OSError as error:
            if not (is_vital and space is not None and is_full(error) and space.give_up()):
                raise
            self._append(buffers)

    def _append(self, buffers: Sequence[bytes | memoryview]) -> None:
        start = self.size_bytes
        opened = self._files.use(self._path, self._id, writes=True)
        try:
            for first in range(0, len(buffers), _IOV_MAX):
                self._append_some(opened.fd, buffers[first : first + _IOV_MAX])
        except OSError:
            os.ftruncate(opened.fd, start)
            self.size_bytes = start
            raise
        finally:
            self._files.release(opened)

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

    def start_writeback(self) -> None:
        start, end = self._written_back, self.size_bytes
        opened = self._files.use(self._path, self._id, writes=False)
        try:
            os.posix_fadvise(opened.fd, start, end - start, os.POSIX_FADV_DONTNEED)
        finally:
            self._files.release(opened)
        self._written_back = end

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        opened = self._files.use(self._path, self._id, writes=must_last)
        try:
            if os.pwrite(opened.fd, data, position) != len(data):
                raise OSError(errno.EIO, "short write", self._path)
        finally:
            self._files.release(opened)
        self.size_bytes = max(self.size_bytes, position + len(data))

    def sync(self) -> None:
        opened = self._files.use(self._path, self._id, writes=False)
        writes = opened.writes
        try:
            os.fdatasync(opened.fd)
            self._files.note_sync(opened, writes)
        finally:
            self._files.release(opened)

    def truncate(self, size_bytes: int) -> None:
        opened = self._files.use(self._path, self._id, writes=True)
        try:
            os.ftruncate(opened.fd, size_bytes)
            os.fsync(opened.fd)
            opened.is_unsynced = False
        finally:
            self._files.release(opened)
        self.size_bytes = size_bytes
        self._written_back = min(self._written_back, size_bytes)

    def close(self) -> None:
        self._files.forget(self._path)


class RealDisk:
    """The machine's filesystem. Thread-safe.

    ``space`` is the room of the data folder. Writes of a disk that ``is_vital`` may use its
    reserve, as may small files that replace others: settings and markers. Other writes fail as on
    a full disk while the reserve is given up.
    """

    def __init__(
        self,
        files: OpenFiles | None = None,
        space: DiskSpace | None = None,
        *,
        is_vital: bool = False,
    ) -> None:
        self.files = OpenFiles() if files is None else files
        self._space = space
        self._is_vital = is_vital

    def vital(self) -> RealDisk:
        """Return the same disk, whose writes may use the reserve."""
        return RealDisk(self.files, self._space, is_vital=True)

    def open(self, path: Path) -> File:
        """Open a file for appending; creates it durably, or not at all."""
        is_new = not path.exists()
        file = _RealFile(path, self.files, self._space, is_vital=self._is_vital)
        if not file.size_bytes:  # new, or left by a process that was killed before this line
            try:
                self._sync_dir(path.parent)
            except OSError:
                if is_new:  # the caller may do without it: a log goes on in its old segment
                    path.unlink(missing_ok=True)
                file.close()
                raise
        return file

    def create(self, path: Path) -> File:
        """Open a new file. Its name is durable with :meth:`sync_names`."""
        return _RealFile(path, self.files, self._space, is_vital=self._is_vital)

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return bytes of a file; see :class:`Disk`."""
        reader = self.files.reader(str(path), wait=wait)
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
                    error.filename = str(path)  # the system knows a descriptor only
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
        space = self._space
        if space is not None and space.is_given_up and not self._is_vital_file(space, path, data):
            raise OSError(errno.ENOSPC, "the disk is full", str(path))
        try:
            self._replace(path, data)
        except OSError as error:
            if space is None or not is_full(error) or not self._is_vital_file(space, path, data):
                raise
            if not space.give_up():
                raise
            self._replace(path, data)

    def _is_vital_file(self, space: DiskSpace, path: Path, data: bytes) -> bool:
        """Return whether content may use the reserve.

        Where no more files fit, a new one may not: it would be the index of a segment that rolls.
        """
        is_small = len(data) <= limits.SMALL_FILE_BYTES_MAX
        return self._is_vital or (is_small and (path.exists() or not space.lacks_files_now))

    def _replace(self, path: Path, data: bytes) -> None:
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
        self.files.forget(str(path))
        self._sync_dir(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a synced file, durably."""
        self.set_name(path, target)
        self._sync_dir(target.parent)

    def set_name(self, path: Path, target: Path) -> None:
        """Rename a synced file within its directory, durably with :meth:`sync_names`."""
        path.rename(target)
        self.files.forget(str(path))
        self.files.forget(str(target))

    def sync_names(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        self._sync_dir(directory)

    def remove(self, path: Path) -> None:
        """Remove a file, durably."""
        path.unlink(missing_ok=True)
        self.files.forget(str(path))
        self._sync_dir(path.parent)

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_dir(self, directory: Path) -> None:
        """Create a directory and its parents, durably."""
        is_new = not directory.is_dir()
        if not is_new and any(directory.iterdir()):
            return
        if is_new:
            self.make_dir(directory.parent)
            directory.mkdir(mode=0o700, exist_ok=True)
        try:
            self._sync_dir(directory.parent)  # also if an earlier process was killed before
        except PermissionError:
            if is_new:
                raise  # else an administrator made it, in a folder of theirs

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
                self.files.forget(str(path))
        if directory.is_dir():
            directory.rmdir()
            self._sync_dir(directory.parent)

    def move_dir(self, directory: Path, target: Path) -> None:
        """Rename a directory, durably and atomically."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        directory.rename(target)
        for path in files:
            self.files.forget(str(path))
        self._sync_dir(target.parent)
        self._sync_dir(directory.parent)

    def _sync_dir(self, directory: Path) -> None:
        fd = self.files.open_fd(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
