"""Pages of files that the disk cannot read."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from goq.storage.disk import RealDisk
from goq.storage.scanner import PAGE_BYTES


class BadSectors:
    """Makes reads of chosen pages fail in the whole process, and counts the tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: set[tuple[Path, int]] = set()
        self.tries: Counter[tuple[Path, int]] = Counter()
        self._read = RealDisk.read
        monkeypatch.setattr(RealDisk, "read", self._hooked())

    def _hooked(self) -> object:
        def read(
            disk: RealDisk, path: Path, position: int, size_bytes: int, *, wait: bool = True
        ) -> memoryview:
            pages = range(position // PAGE_BYTES, -(-(position + size_bytes) // PAGE_BYTES))
            bad = [(path, page) for page in pages if (path, page) in self.pages]
            if bad:
                self.tries.update(bad)
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return self._read(disk, path, position, size_bytes, wait=wait)

        return read
