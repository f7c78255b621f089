"""A disk of a node's own that a test can fill, where the tests may mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.eventually import eventually

_STEP_BYTES = 8 * 1024 * 1024
_BALLAST = "ballast"
_PREFIXES = ([], ["sudo", "-n"])


class SmallDisk:
    """A filesystem mounted at ``folder``; use :func:`small_disk`."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / _BALLAST
        self._folder = folder

    def fill(self, left_bytes: int = 0) -> None:
        """Leave so much room, or what is left already if that is less."""
        with self._ballast.open("ab") as file, contextlib.suppress(OSError):  # others write, too
            while (free_bytes := self.free_bytes()) > left_bytes:
                taken_bytes = min(_STEP_BYTES, free_bytes - left_bytes)
                os.posix_fallocate(file.fileno(), file.tell(), taken_bytes)
                file.seek(0, os.SEEK_END)

    def free_bytes(self) -> int:
        """Return how much room is left."""
        stat = os.statvfs(self._folder)
        return stat.f_bavail * stat.f_frsize

    def give_back(self) -> None:
        """Leave all the room that there was."""
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(
    folder: Path, size_mib: int, files_max: int = 1_000_000
) -> Iterator[SmallDisk | None]:
    """Mount a disk at a folder until the block ends; yield None where the tests may not."""
    folder.mkdir()
    options = f"size={size_mib}m,nr_inodes={files_max},uid={os.getuid()},gid={os.getgid()}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    prefix = next((each for each in _PREFIXES if _succeeds([*each, *mount])), None)
    if prefix is None:
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        unmount(folder, prefix)


@contextlib.contextmanager
def needed_disk(folder: Path, size_mib: int, files_max: int = 1_000_000) -> Iterator[SmallDisk]:
    """Mount a disk at a folder; skip the test where that is not allowed."""
    with small_disk(folder, size_mib, files_max) as disk:
        if disk is None:
            pytest.skip("to mount a disk needs root")
        yield disk


def unmount(folder: Path, prefix: Sequence[str] = ()) -> None:
    """Unmount a disk as soon as no process has a file or a path of it in use."""
    eventually(lambda: _succeeds([*prefix, "umount", str(folder)]))


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
