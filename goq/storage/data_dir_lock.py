"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from goq.errors import DataDirLocked

FILE_NAME = "LOCK"


class DataDirLock:
    """Locks a data directory for this process; the system releases it when the process ends."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / FILE_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirLocked(
                f"{data_dir} is in use by process {holder}; stop it, or use another --data-dir"
            ) from None
        with suppress(OSError):  # a full disk; the lock holds without the text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the directory."""
        os.close(self._fd)
