"""The filesystem as storage needs it: a parameter, so that tests can pass a disk that fails.

The docstring of each call states its durability. The rest of storage relies on exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class NotCached(Exception):
    """The bytes are on disk but not in memory, and a read would block."""


class File(Protocol):
    """A file open for writing."""

    size_bytes: int

    def append(self, buffers: Sequence[bytes | memoryview], *, is_vital: bool = False) -> None:
        """Append; after a failure the end is unchanged, or the file is unusable.

        With ``is_vital`` it may use the disk's reserve, as all that a vital disk writes.
        """
        ...

    def start_writeback(self) -> None:
        """Have the system begin to write what was appended since the last call; waits for nothing.

        For files that are not read soon: it may drop their bytes from memory. Only :meth:`sync`
        makes them durable, and it has less to wait for then.
        """
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
        """Open a file for appending; the name of a new file is durable on return.

        After a failure there is no new file, unless the process or the power ends right then.
        """
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
