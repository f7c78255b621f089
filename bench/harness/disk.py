"""The machine's own rate: write and fdatasync in a loop, with nothing around them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def append_rate(folder: Path, size_bytes: int, count: int) -> float:
    """Return how many appends of so many bytes a second a growing file takes, each synced."""
    piece = os.urandom(size_bytes)
    path = folder / "disk"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        os.write(file, piece)
        os.fdatasync(file)
        began_s = time.perf_counter()
        for _ in range(count):
            os.write(file, piece)
            os.fdatasync(file)
        return count / (time.perf_counter() - began_s)
    finally:
        os.close(file)
        path.unlink()
