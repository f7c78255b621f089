"""A disk of a node's own that a test can fill, where the tests may mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SIZE_MIB = 512
_STEP_BYTES = 8 * 1024 * 1024
_BALLAST = "ballast"


class SmallDisk:
    """A filesystem mounted at ``folder``; use :func:`small_disk`."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / _BALLAST
        self._folder = folder

    def fill(self, left_bytes: int) -> None:
        """Leave so much room, or what is left already if that is less."""
        with self._ballast.open("ab") as file, contextlib.suppress(OSError):  # others write, too
            while (free_bytes := self._free_bytes()) > left_bytes:
                taken_bytes = min(_STEP_BYTES, free_bytes - left_bytes)
                os.posix_fallocate(file.fileno(), file.tell(), taken_bytes)
                file.seek(0, os.SEEK_END)

    def _free_bytes(self) -> int:
        stat = os.statvfs(self._folder)
        return stat.f_bavail * stat.f_frsize

    def give_back(self) -> None:
        """Leave all the room that there was."""
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a disk at a folder until the block ends; yield None where the tests may not."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
