"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from goq.errors import DataDirLocked

FILE_NAME = "LOCK"


class DataDirLock:
    """Locks a data directory for this process; the system releases it when the process ends.

    The directory itself is locked, too: removing the file lets no second process in.
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
        with suppress(OSError):  # a full disk; the lock holds without the text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _lock_dir(self) -> None:
        try:
            fcntl.flock(self._dir_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a network file system that locks files only

    def release(self) -> None:
        """Release the directory."""
        os.close(self._fd)
        os.close(self._dir_fd)
