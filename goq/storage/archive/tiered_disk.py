"""The archive's folder as if all its files were there, also those that are in an object store.

Files here are read here. A file that a :class:`StoredEntry` names is read from the cache, which
fetches it. Writes, removals and folders are those of the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Final

from goq.errors import CorruptData
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.file import Footer, read_footer
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import (
    SUFFIX,
    StoredEntry,
    StoredObject,
    entry_path,
    read_entry,
)
from goq.storage.disk import Disk, File, NotCached

_ENTRIES_MAX: Final = 4096
_READ_TRIES: Final = 3


class TieredDisk:
    """The files of an archive, here or in its store. Thread-safe."""

    def __init__(self, disk: Disk, cache: StoreCache) -> None:
        self.local = disk
        self.cache = cache
        self._entries: OrderedDict[Path, StoredEntry] = OrderedDict()
        self._lock = Lock()

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        """Return bytes of a file; see :class:`~goq.storage.disk.Disk`.

        Raises ``ArchiveUnreachable`` too, and ``CorruptData`` for a damaged entry.
        """
        try:
            return self.local.read(path, position, size_bytes, wait=wait)
        except FileNotFoundError:
            entry, stored = self._stored(path)
        if not wait and not self.cache.has(stored):
            raise NotCached
        for _ in range(_READ_TRIES):  # others may need its room before it is read
            found = self.cache.fetch(entry.url, stored)
            try:
                return self.local.read(found, position, size_bytes, wait=wait)
            except FileNotFoundError:
                self.cache.forget_missing(stored)
        raise NotCached

    def size(self, path: Path) -> int:
        """Return a file's length in bytes; asks no store."""
        try:
            return self.local.size(path)
        except FileNotFoundError:
            return self._stored(path)[1].size_bytes

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, of files in the store too, and of entries."""
        names = set(self.local.names(directory))
        for name in [name for name in names if name.endswith(SUFFIX)]:
            base = name.removesuffix(SUFFIX)
            entry = self.entry(directory / name)
            names |= {base + stored.suffix for stored in entry.objects}
        return sorted(names)

    def entry(self, path: Path) -> StoredEntry:
        """Return an entry by its path. Raises ``FileNotFoundError``, ``CorruptData``."""
        with self._lock:
            found = self._entries.get(path)
        if found is None:
            found = read_entry(self.local, path)
            with self._lock:
                self._entries[path] = found
                if len(self._entries) > _ENTRIES_MAX:
                    self._entries.popitem(last=False)
        return found

    def stored_entry(self, path: Path) -> StoredEntry | None:
        """Return the entry of a file that is not here, None for one that is.

        Raises ``FileNotFoundError``, ``CorruptData``.
        """
        try:
            self.local.size(path)
        except FileNotFoundError:
            return self._stored(path)[0]
        return None

    def forget(self, directory: Path) -> None:
        """Drop what is known of the files in a folder that was deleted or changed."""
        with self._lock:
            for path in [path for path in self._entries if path.is_relative_to(directory)]:
                del self._entries[path]

    def _stored(self, path: Path) -> tuple[StoredEntry, StoredObject]:
        try:
            entry = self.entry(entry_path(path))
            stored = entry.object_of(path)
        except CorruptData:
            if path.name.endswith(ARCHIVE_SUFFIX):
                raise
            stored = None  # what lies beside a segment can be made anew
        if stored is None:
            raise FileNotFoundError(2, "there is no such file", str(path))
        return entry, stored

    def open(self, path: Path) -> File:
        """Open a file here."""
        return self.local.open(path)

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file here new content."""
        self.local.replace(path, data)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file here."""
        self.local.rename(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file here."""
        self.local.remove(path)

    def make_dir(self, directory: Path) -> None:
        """Create a directory."""
        self.local.make_dir(directory)

    def remove_dir(self, directory: Path) -> None:
        """Remove a directory with everything in it; objects stay in the store."""
        self.local.remove_dir(directory)
        self.forget(directory)

    def move_dir(self, directory: Path, target: Path) -> None:
        """Rename a directory."""
        self.local.move_dir(directory, target)
        self.forget(directory)


def footer_of(disk: Disk, path: Path) -> Footer:
    """Return the footer of an archived segment, without its store. Raises ``CorruptData``."""
    entry = disk.stored_entry(path) if isinstance(disk, TieredDisk) else None
    return read_footer(disk, path) if entry is None else entry.footer


def is_damaged(disk: Disk, path: Path) -> bool:
    """Return whether a file was read from an object with wrong bytes, which may become right."""
    if not isinstance(disk, TieredDisk):
        return False
    entry = disk.stored_entry(path)
    stored = None if entry is None else entry.object_of(path)
    return stored is not None and disk.cache.is_damaged(stored)
