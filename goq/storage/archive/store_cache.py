"""Objects of a store that were read lately, as files within a bound of bytes.

A file is named by the SHA-256 of its object, which is checked when it arrives. Wrong bytes are
fetched once more; then they count as damage, and are read like those of a damaged file: each frame
has its own checks. A minute later the next reader fetches the object again: the store, or what lies
between, may have erred. A missing object is asked for by each reader. A store that does not answer
is no damage: readers get ``ArchiveUnreachable``, and for some seconds no further request waits for
it.

The cache is emptied by each start, because it vouches only for bytes that it has seen arrive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from goq import limits
from goq.errors import ArchiveUnreachable, StorageFull
from goq.storage.archive.object_store import StoreDisk
from goq.storage.archive.stored_entry import StoredObject
from goq.storage.disk import Disk, is_full

CACHE_DIR: Final = "archive.cache"
PIECE_BYTES: Final = 4 * limits.MIB
READ_RETRY_S: Final = 5.0
_DOWN_S: Final = 5.0
_TRIES: Final = 2
_DAMAGED_S: Final = 60.0
_log = logging.getLogger("goq.storage")

OpenStore = Callable[[str], StoreDisk]


def open_store(url: str) -> StoreDisk:
    """Return a store for readers, with an early error if it does not answer."""
    return StoreDisk(url, retry_s=READ_RETRY_S)


def read_object(store: StoreDisk, stored: StoredObject) -> Iterator[memoryview]:
    """Yield the bytes of an object in pieces, fewer than expected if it is cut short.

    Raises ``FileNotFoundError`` for a missing one, and ``OSError``.
    """
    key, position = Path(stored.key), 0
    while position < stored.size_bytes:
        wanted = min(PIECE_BYTES, stored.size_bytes - position)
        try:
            data = store.read(key, position, wanted)
        except FileNotFoundError:
            raise
        except OSError as error:
            if _is_cut(store, key, position, error):
                return
            raise
        yield data
        position += len(data)
        if len(data) < wanted:
            return


def _is_cut(store: StoreDisk, key: Path, position: int, error: OSError) -> bool:
    """Whether a read failed because the object ends before it."""
    try:
        return store.size(key) <= position
    except FileNotFoundError:  # the answer has no text: its bucket may be missing
        raise error from None


class StoreCache:
    """The cache in a folder. Thread-safe; :meth:`fetch` blocks.

    ``failures`` counts requests that the store did not answer, ``damaged`` objects with wrong
    bytes.
    """

    def __init__(
        self, disk: Disk, directory: Path, bytes_max: int, *, stores: OpenStore = open_store
    ) -> None:
        self.size_bytes = 0
        self.failures = 0
        self.damaged = 0
        self.was_used = False
        self._disk = disk
        self._directory = directory
        self._bytes_max = bytes_max
        self._open_store = stores
        self._stores: dict[str, StoreDisk] = {}
        self._files: OrderedDict[str, int] = OrderedDict()
        self._damaged_until_s: dict[str, float] = {}
        self._fetching: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._down: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Remove what an earlier run has left; blocks on the disk."""
        for name in self._disk.names(self._directory):
            self._disk.remove(self._directory / name)

    def fetch(self, url: str, stored: StoredObject) -> Path:
        """Return the file of an object, which stays until others need its room.

        Raises ``FileNotFoundError`` if the store has no such object, ``ArchiveUnreachable``, and
        ``StorageFull``.
        """
        digest = stored.sha256
        self.was_used = True
        with self._lock:
            if self._touch(digest):
                return self._directory / digest
            turn = self._fetching.setdefault(digest, threading.Lock())
        with turn:  # it is dropped with the last thread that waits for it
            with self._lock:
                if self._touch(digest):
                    return self._directory / digest
            self._check_up(url)
            self._fetch_missing(url, stored)
        return self._directory / digest

    def has(self, stored: StoredObject) -> bool:
        """Whether an object can be read without the store."""
        return stored.sha256 in self._files

    def forget_missing(self, stored: StoredObject) -> None:
        """Have the next reader fetch an object anew if its file is gone.

        Someone has emptied the folder, or room was made just when the object came back.
        """
        with self._lock:
            try:
                self._disk.size(self._directory / stored.sha256)
            except FileNotFoundError:
                self.size_bytes -= self._files.pop(stored.sha256, 0)

    def is_damaged(self, stored: StoredObject) -> bool:
        """Whether the bytes of an object that arrived last were wrong."""
        return stored.sha256 in self._damaged_until_s

    def _touch(self, digest: str) -> bool:
        if digest not in self._files:
            return False
        if time.monotonic() >= self._damaged_until_s.get(digest, inf):
            self.size_bytes -= self._files.pop(digest)
            return False
        self._files.move_to_end(digest)
        return True

    def _check_up(self, url: str) -> None:
        until_s, reason = self._down.get(url, (0.0, ""))
        if time.monotonic() < until_s:
            raise _unreachable(url, reason)

    def _fetch_missing(self, url: str, stored: StoredObject) -> None:
        path = self._directory / stored.sha256
        self._make_room(stored.size_bytes)
        try:
            self._disk.make_dir(self._directory)
            self._download(self._store(url), stored, path)
        except BaseException as error:
            with self._lock:
                self.size_bytes -= stored.size_bytes
            with suppress(FileNotFoundError):
                self._disk.remove(path)
            if isinstance(error, FileNotFoundError) or not isinstance(error, OSError):
                raise
            if is_full(error):
                raise StorageFull(f"there is no room to read {stored.key} of {url}") from None
            self.failures += 1
            reason = error.strerror or str(error)
            self._down[url] = time.monotonic() + _DOWN_S, reason
            raise _unreachable(url, reason) from None
        with self._lock:
            self._files[stored.sha256] = stored.size_bytes

    def _download(self, store: StoreDisk, stored: StoredObject, path: Path) -> None:
        for _ in range(_TRIES):
            digest = sha256()
            file = self._disk.open(path)
            try:
                file.truncate(0)
                for data in read_object(store, stored):
                    digest.update(data)
                    file.append([data])
            finally:
                file.close()
            if digest.hexdigest() == stored.sha256:
                self._damaged_until_s.pop(stored.sha256, None)
                return
        self.damaged += 1
        self._damaged_until_s[stored.sha256] = time.monotonic() + _DAMAGED_S
        _log.error(
            "%s is damaged: its bytes are not those that were stored", store.told(stored.key)
        )

    def _make_room(self, size_bytes: int) -> None:
        dropped = []
        with self._lock:
            while self._files and self.size_bytes + size_bytes > self._bytes_max:
                digest, freed_bytes = self._files.popitem(last=False)
                self.size_bytes -= freed_bytes
                dropped.append(digest)
            self.size_bytes += size_bytes
        for digest in dropped:
            self._disk.remove(self._directory / digest)

    def _store(self, url: str) -> StoreDisk:
        with self._lock:
            if url not in self._stores:
                self._stores[url] = self._open_store(url)
            return self._stores[url]


def _unreachable(url: str, reason: str) -> ArchiveUnreachable:
    return ArchiveUnreachable(
        f"archived messages are in {url}, which does not answer: {reason[:200]}; nothing is lost,"
        " try again",
        retry_after_ms=int(_DOWN_S * 1000),
    )
