"""The lock of a data directory: one process at a time uses it, and one that knows its format.

The file ``FORMAT`` has the version of the format in decimal. A folder without it is new, or older
than the file: it has format 1. What changes the format so that an earlier goq must not write to the
folder raises the version, and writes it durably before anything else. Format 2 has the journal: an
earlier goq would not complete the logs from it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from goq.errors import CorruptData, DataDirLocked, UnsupportedFormat

FILE_NAME = "LOCK"
FORMAT_NAME: Final = "FORMAT"
DATA_FORMAT: Final = 2
_OTHERS: Final = 0o077
RESTORING: Final = b"restoring\n"
"""The content of ``FORMAT`` while a restore fills a folder: no node starts on half of it."""
RESTORED_NAME: Final = "RESTORED"
"""A file that a restore leaves: a cluster may begin with the topics of the folder."""


class DataDirLock:
    """Locks a data directory for this process; the system releases it when the process ends.

    The directory itself is locked, too: removing the file lets no second process in. Other users
    lose their rights to it: they could put other files in the place of goq's.
    """

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._dir_fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock_dir()
        except BlockingIOError:
            number = os.read(self._fd, 32).decode(errors="replace").strip()
            holder = f"process {number}" if number else "another process"
            self.release()
            raise DataDirLocked(
                f"{data_dir} is in use by {holder}; stop it, or use another --data-dir"
            ) from None
        try:
            check_format(data_dir)
        except BaseException:
            self.release()
            raise
        with suppress(OSError):  # a file system without rights
            self._make_private()
        self.has_current_format = False
        """Whether the folder says that it has the format of this goq; not if the disk was full."""
        with suppress(OSError):  # a full disk; the lock holds without the texts
            _write_format(data_dir)
            self.has_current_format = True
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _lock_dir(self) -> None:
        try:
            fcntl.flock(self._dir_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a network file system that locks files only

    def _make_private(self) -> None:
        """Keep others out of a directory of this user that is empty or goq's: it may be any."""
        found = os.fstat(self._dir_fd)
        names = set(os.listdir(self._dir_fd))
        is_own = FORMAT_NAME in names or names <= {FILE_NAME}
        if found.st_uid == os.geteuid() and found.st_mode & _OTHERS and is_own:
            os.fchmod(self._dir_fd, stat.S_IMODE(found.st_mode) & ~_OTHERS)

    def release(self) -> None:
        """Release the directory."""
        os.close(self._fd)
        os.close(self._dir_fd)


def check_format(data_dir: Path) -> None:
    """Raise ``UnsupportedFormat`` if a folder has a later format than this goq knows."""
    try:
        text = (data_dir / FORMAT_NAME).read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        return
    if text == RESTORING.decode().strip():
        raise UnsupportedFormat(
            f"the restore into {data_dir} was not finished: remove the folder, and run goq restore"
            " again"
        )
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise CorruptData(
            f"{data_dir / FORMAT_NAME} is damaged: the format of a folder is a number, and not"
            f" {text[:20]!r}. If this goq wrote the folder, put {DATA_FORMAT} there"
        )
    if int(text) > DATA_FORMAT:
        raise UnsupportedFormat(
            f"{data_dir} has format {text[:20]!r}, and this goq knows {DATA_FORMAT}: start the"
            " version of goq that wrote it, or a later one"
        )


def _write_format(data_dir: Path) -> None:
    """Write the version durably, unless the folder has it."""
    path, text = data_dir / FORMAT_NAME, b"%d\n" % DATA_FORMAT
    with suppress(FileNotFoundError):
        if path.read_bytes() == text:
            return
    new = path.with_name(f"{FORMAT_NAME}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.rename(path)
    fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
