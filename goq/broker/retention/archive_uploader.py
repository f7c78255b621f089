"""Moves archived segments from this disk to an object store, and deletes them there.

A segment is moved in this order: its files are uploaded; each object is read back and compared by
its SHA-256; the :class:`StoredEntry` is written durably; the files are removed. At any moment the
files or the entry with its objects exist. What a crash interrupts is done again: the same bytes get
the same keys. While the store does not answer, files stay here, and the next try is at most a
minute away.

Keys are ``<prefix>/<node>/<topic folder>/<partition>/<log>/<base offset>.<SHA-256><suffix>``. Each
node has its own: what one deletes, no other reads. The objects of a deleted topic are listed and
deleted by their folder, also those that no entry names. A file in ``archive.deleted`` remembers the
topic until then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

from goq.errors import CorruptData, GoqError, Unavailable
from goq.storage.archive.file import SUFFIX, Interrupted, read_footer
from goq.storage.archive.object_store import StoreDisk, StoreError
from goq.storage.archive.store_cache import PIECE_BYTES, READ_RETRY_S, read_object
from goq.storage.archive.stored_entry import (
    StoredEntry,
    StoredObject,
    entry_path,
    write_entry,
)
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.column_index.file import SUFFIX as COLUMNS_SUFFIX
from goq.storage.log.segment import INDEX_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX

DELETED_DIR: Final = "archive.deleted"
SIDECARS: Final = (INDEX_SUFFIX, COLUMNS_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX)
_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 60.0
_KEY_DIGITS: Final = 16
T = TypeVar("T")
_log = logging.getLogger("goq.broker")


class ArchiveUploader:
    """The moves and deletions of a node, one at a time, in a thread that nothing else uses.

    ``waiting_bytes`` of archived segments are still here, ``failures`` counts what is tried again.
    """

    def __init__(
        self, root: Path, disk: TieredDisk, url: str | None, executor: Executor, *,
        pause_s: float = _PAUSE_S_MIN,
    ) -> None:  # fmt: skip
        """``url`` is where the segments of this node go; None: they stay here."""
        self.url = url
        self.failures = 0
        self.failure = ""
        """Why the last try failed; empty after a success."""
        self._root = root
        self._disk = disk
        self._executor = executor
        self._pause_s_min = pause_s
        self._stores: dict[str, StoreDisk] = {}
        self._failed: dict[str, StoreError] = {}
        self._waiting: dict[Path, ArchiveRow] = {}
        self._expired: dict[Path, ArchiveRow] = {}
        self._deleted_dir = root.with_name(DELETED_DIR)
        self._woken = asyncio.Event()
        self._closing = threading.Event()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of archived segments that are to be moved."""
        return sum(row.archived_bytes for row in self._waiting.values())

    def add(self, row: ArchiveRow, path: Path) -> None:
        """Move a segment with the file ``path``."""
        if self.url is not None:
            self._waiting[path] = row
            self._woken.set()

    def expire(self, row: ArchiveRow, path: Path) -> None:
        """Delete a segment that is listed no more, here and in the store."""
        self._waiting.pop(path, None)
        self._expired[path] = row
        self._woken.set()

    def check_settled(self, path: Path) -> None:
        """Raise ``Unavailable`` while an expired segment of this path is still to be deleted.

        A new file of its name would be deleted with it.
        """
        if path in self._expired:
            raise Unavailable(f"{path} has expired and is not deleted yet; try again")

    def begin_deletion(self, folder: str) -> None:
        """Remember the objects of a topic that is being deleted; blocks on the disk."""
        urls = set()
        for path in self._entries_of(folder):
            with suppress(CorruptData, FileNotFoundError):  # others name the same store
                urls.add(self._disk.entry(path).url)
        if self.url is not None:
            urls.add(self.url)
        if urls:
            self._disk.make_dir(self._deleted_dir)
            self._disk.replace(self._deleted_dir / folder, "\n".join(sorted(urls)).encode())

    def forget(self, folder: str) -> None:
        """Leave the files of a deleted topic, and delete its objects."""
        directory = self._root / folder
        for known in (self._waiting, self._expired):
            for path in [path for path in known if path.is_relative_to(directory)]:
                del known[path]
        self._woken.set()

    async def run(self) -> None:
        """Work until cancelled."""
        pause_s = self._pause_s_min
        while True:
            self._woken.clear()
            try:
                await self.run_once()
            except Interrupted:
                return
            except (GoqError, OSError) as error:
                self._tell(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                continue
            pause_s = self._pause_s_min
            if self.failure:
                _log.info("the archive's store answers again")
                self.failure = ""
            await self._woken.wait()

    async def run_once(self) -> None:
        """Do what can be done. Raises the first of the errors met, ``GoqError`` or ``OSError``.

        What fails holds up nothing else. A store that fails is asked again in the next round.
        """
        self._failed.clear()
        failures = [
            *await self._do_each(self._expired, self._delete),
            *await self._do_each(self._waiting, self._move),
            *await self._delete_topics(),
        ]
        if failures:
            raise failures[0]

    async def _do_each(
        self, known: dict[Path, ArchiveRow], work: Callable[[Path], None]
    ) -> list[Exception]:
        """Work on each segment; return the errors. Those that failed come last the next time."""
        failures: list[Exception] = []
        for path in list(known):
            if path not in known:
                continue
            try:
                await self._in_thread(partial(work, path))
            except (GoqError, OSError) as error:
                if path in known:  # its topic was not deleted meanwhile
                    failures.append(error)
                    known[path] = known.pop(path)
            else:
                known.pop(path, None)
        return failures

    async def _delete_topics(self) -> list[Exception]:
        failures: list[Exception] = []
        for folder in await self._in_thread(lambda: self._disk.local.names(self._deleted_dir)):
            try:
                await self._in_thread(partial(self._delete_topic, folder))
            except (GoqError, OSError) as error:
                failures.append(error)
        return failures

    def close(self) -> None:
        """Interrupt what is under way; the next start does it again."""
        self._closing.set()

    def _tell(self, error: Exception) -> None:
        self.failures += 1
        reason = error.detail if isinstance(error, GoqError) else str(error)
        if not self.failure:
            _log.warning(
                "the archive's store does not do what is asked, and is asked again; what it has not"
                " taken stays on this disk: %s",
                reason[:300],
            )
        self.failure = reason

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _move(self, path: Path) -> None:
        local = self._disk.local
        names = set(local.names(path.parent))
        entry_at = entry_path(path)
        is_stored = entry_at.name in names and (
            path.name not in names or self._is_stored(entry_at, path)
        )
        if not is_stored:
            if path.name not in names:
                return
            assert self.url is not None
            write_entry(local, entry_at, self._uploaded(self.url, path, names))
            self._disk.forget(entry_at)  # of a segment that was archived before in another way
        for stored in self._disk.entry(entry_at).objects:
            local.remove(_beside(path, stored.suffix))

    def _is_stored(self, entry_at: Path, path: Path) -> bool:
        """Whether an entry is of the file that is here."""
        try:
            stored = self._disk.entry(entry_at).archive
        except CorruptData:
            return False
        digest = sha256()
        for data in self._pieces(path):
            digest.update(data)
        return digest.hexdigest() == stored.sha256

    def _uploaded(self, url: str, path: Path, names: set[str]) -> StoredEntry:
        """Upload the files of a segment, read them back, and return the entry."""
        footer = read_footer(self._disk.local, path)
        suffixes = [SUFFIX, *(s for s in SIDECARS if _beside(path, s).name in names)]
        objects = []
        with self._store(url) as store:
            for suffix in suffixes:
                stored = self._upload(store, _beside(path, suffix), suffix)
                digest = sha256()
                for data in read_object(store, stored):
                    self._check()
                    digest.update(data)
                if digest.hexdigest() != stored.sha256:
                    raise CorruptData(
                        f"{store.told(stored.key)} does not hold the bytes that were sent"
                    )
                objects.append(stored)
        return StoredEntry(url, footer, tuple(objects))

    def _upload(self, store: StoreDisk, path: Path, suffix: str) -> StoredObject:
        digest = sha256()
        for data in self._pieces(path):
            digest.update(data)
        base = path.name.partition(".")[0]
        where = Path(store.prefix, path.parent.relative_to(self._root))
        key = where / f"{base}.{digest.hexdigest()[:_KEY_DIGITS]}{suffix}"
        upload = store.create(key)
        try:
            for data in self._pieces(path):
                upload.append([data])
            upload.sync()
        finally:
            upload.close()
        return StoredObject(suffix, str(key), self._disk.local.size(path), digest.hexdigest())

    def _pieces(self, path: Path) -> Iterator[memoryview]:
        local = self._disk.local
        for position in range(0, local.size(path), PIECE_BYTES):
            self._check()
            yield local.read(path, position, PIECE_BYTES)

    def _delete(self, path: Path) -> None:
        """Delete objects, then the entry and the files that are here."""
        local = self._disk.local
        names = local.names(path.parent)
        if entry_path(path).name in names:
            try:
                entry = self._disk.entry(entry_path(path))
            except CorruptData as error:
                _log.error("objects stay in the store until their topic goes: %s", error.detail)
            else:
                with self._store(entry.url) as store:
                    for stored in entry.objects:
                        store.remove(Path(stored.key))
            local.remove(entry_path(path))
            self._disk.forget(entry_path(path))
        for suffix in (SUFFIX, *SIDECARS):
            local.remove(_beside(path, suffix))

    def _delete_topic(self, folder: str) -> None:
        local, path = self._disk.local, self._deleted_dir / folder
        for url in bytes(local.read(path, 0, local.size(path))).decode().splitlines():
            self._check()
            with self._store(url) as store:
                store.remove_all(Path(store.prefix, folder))
        local.remove(path)

    def _entries_of(self, folder: str) -> list[Path]:
        local, found = self._disk.local, []
        for number in local.names(self._root / folder):
            for log in local.names(self._root / folder / number):
                directory = self._root / folder / number / log
                found += [directory / n for n in local.names(directory) if n.endswith(".stored")]
        return found

    @contextmanager
    def _store(self, url: str) -> Iterator[StoreDisk]:
        """Give a store. One that has failed in this round fails at once: nothing waits for it."""
        if url in self._failed:
            raise self._failed[url]
        if url not in self._stores:
            self._stores[url] = StoreDisk(url, retry_s=READ_RETRY_S)
        try:
            yield self._stores[url]
        except StoreError as error:
            self._failed[url] = error
            raise

    def _check(self) -> None:
        if self._closing.is_set():
            raise Interrupted


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name.partition(".")[0] + suffix)
