"""The archive as a disk: reads archived segments as if they were not compressed.

A read of ``00000000000000045678.log`` in an archive folder is served from its ``.log.zst``. All
other files are those of the underlying disk. Whole chunks are decompressed, one at a time, and the
latest are cached within a bound.

The unreadable part of a damaged or missing archive reads as the end of the file. A scan then finds
and reports the damage as in any segment, by the CRCs of the frames. A file that the node's user may
not read is no damage: readers get ``ArchiveUnreachable``, as they do while a store does not answer.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from goq import limits
from goq.errors import ArchiveUnreachable, CorruptData, describe_os_error
from goq.storage.archive.file import SUFFIX, Footer, read_chunk
from goq.storage.archive.tiered_disk import footer_of, is_damaged
from goq.storage.disk import Disk, File, NotCached
from goq.storage.log.segment import SUFFIX as LOG_SUFFIX

_RETRY_MS: Final = 10_000


class ArchiveDisk:
    """Reads the archive under ``root``. Thread-safe.

    It refuses writes to archived segments, and allows writes to the files beside them.
    """

    def __init__(
        self,
        disk: Disk,
        root: Path,
        *,
        cache_bytes_max: int | None = None,
        footers_max: int | None = None,
    ) -> None:
        self._disk = disk
        self._root = root
        self._cache_bytes_max = (
            limits.ARCHIVE_CACHE_BYTES if cache_bytes_max is None else cache_bytes_max
        )
        self._footers_max = limits.ARCHIVE_CACHE_FOOTERS if footers_max is None else footers_max
        self._chunks: OrderedDict[tuple[Path, int], memoryview] = OrderedDict()
        self._footers: OrderedDict[Path, Footer] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._decompressing = threading.Lock()

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return bytes of a file; see :class:`~goq.storage.disk.Disk`.

        Raises ``ArchiveUnreachable`` too.
        """
        try:
            return self._read(path, position, size_bytes, wait=wait)
        except PermissionError as error:
            raise _not_allowed(error, path) from error

    def _read(self, path: Path, position: int, size_bytes: int, *, wait: bool) -> memoryview:
        if not self._is_archived(path):
            return self._disk.read(path, position, size_bytes, wait=wait)
        parts: list[memoryview] = []
        while size_bytes > 0:
            number, start = divmod(position, limits.ARCHIVE_CHUNK_BYTES)
            chunk = self._chunk(path, number, wait=wait)
            part = chunk[start : start + size_bytes]
            parts.append(part)
            position += len(part)
            size_bytes -= len(part)
            if len(part) == 0 or start + len(part) < limits.ARCHIVE_CHUNK_BYTES:
                break
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def size(self, path: Path) -> int:
        """Return a file's uncompressed length in bytes. Raises ``ArchiveUnreachable`` too."""
        try:
            return (
                self._footer(path).size_bytes if self._is_archived(path) else self._disk.size(path)
            )
        except PermissionError as error:
            raise _not_allowed(error, path) from error

    def invalidate(self, directory: Path) -> None:
        """Drop cached data of the files in a folder, after a change or a deletion."""
        with self._lock:
            for path in [p for p in self._footers if p.is_relative_to(directory)]:
                del self._footers[path]
            for key in [k for k in self._chunks if k[0].is_relative_to(directory)]:
                self._cached_bytes -= len(self._chunks.pop(key))

    def open(self, path: Path) -> File:
        """Open a file beside a segment."""
        return self._disk.open(self._writable(path))

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file beside a segment new content."""
        self._disk.replace(self._writable(path), data)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file beside a segment."""
        self._disk.rename(self._writable(path), self._writable(target))

    def remove(self, path: Path) -> None:
        """Remove a file beside a segment."""
        self._disk.remove(self._writable(path))

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory; segments have the names of their archive files."""
        return self._disk.names(directory)

    def make_dir(self, directory: Path) -> None:
        """Create a directory."""
        self._disk.make_dir(directory)

    def remove_dir(self, directory: Path) -> None:
        """Refuse, because the archive is read-only here."""
        raise PermissionError(errno.EROFS, "the archive is read only", str(directory))

    def move_dir(self, directory: Path, target: Path) -> None:
        """Refuse, because the archive is read-only here."""
        raise PermissionError(errno.EROFS, "the archive is read only", str(directory))

    def _is_archived(self, path: Path) -> bool:
        return path.suffix == LOG_SUFFIX and path.is_relative_to(self._root)

    @property
    def cached_bytes(self) -> int:
        """The memory of the cached chunks and footers, approximately."""
        return self._cached_bytes + len(self._footers) * limits.KIB

    def _writable(self, path: Path) -> Path:
        if self._is_archived(path):
            raise PermissionError(errno.EROFS, "archived segments are read only", str(path))
        return path

    def _footer(self, path: Path) -> Footer:
        with self._lock:
            footer = self._footers.get(path)
        if footer is None:
            try:
                footer = footer_of(self._disk, path.with_suffix(SUFFIX))
            except CorruptData as error:
                raise OSError(errno.EIO, error.detail, str(path)) from None
            with self._lock:
                self._footers[path] = footer
                if len(self._footers) > self._footers_max:
                    self._footers.popitem(last=False)
        return footer

    def _chunk(self, path: Path, number: int, *, wait: bool) -> memoryview:
        found = self._cached(path, number)
        if found is not None:
            return found
        if not wait:
            raise NotCached
        with self._decompressing:
            found = self._cached(path, number)
            return self._decompressed(path, number) if found is None else found

    def _cached(self, path: Path, number: int) -> memoryview | None:
        with self._lock:
            found = self._chunks.get((path, number))
            if found is not None:
                self._chunks.move_to_end((path, number))
            return found

    def _decompressed(self, path: Path, number: int) -> memoryview:
        stored = path.with_suffix(SUFFIX)
        try:
            footer = footer_of(self._disk, stored)
        except CorruptData:
            return memoryview(b"")
        if number >= len(footer.chunks):
            return memoryview(b"")
        size_bytes = min(limits.ARCHIVE_CHUNK_BYTES, footer.size_bytes)
        self._make_room(size_bytes)
        found = memoryview(read_chunk(self._disk, stored, footer, number))
        if is_damaged(self._disk, stored):
            return found
        with self._lock:
            self._chunks[path, number] = found
            self._cached_bytes += len(found)
        return found

    def _make_room(self, size_bytes: int) -> None:
        with self._lock:
            while self._chunks and self._cached_bytes + size_bytes > self._cache_bytes_max:
                _, dropped = self._chunks.popitem(last=False)
                self._cached_bytes -= len(dropped)


def _not_allowed(error: PermissionError, path: Path) -> ArchiveUnreachable:
    return ArchiveUnreachable(
        f"an archived segment cannot be read: {describe_os_error(error, path)}",
        retry_after_ms=_RETRY_MS,
    )
