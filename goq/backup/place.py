"""A place of backups: a folder with objects and manifests.

    objects/<SHA-256 of its bytes>      a file of a log or of the archive
    manifests/<time>.backup             one backup
    lock                                one writer, or any number of readers

An object gets its name when all its bytes are durable. A manifest is written last, atomically, when
the names of all objects are durable. So
a backup that was cut short leaves no manifest, and the objects that it leaves serve the next one.
A removal deletes manifests first: a removal that was cut short leaves no manifest without objects.

In an object store there is no lock. Backups at the same time do no harm: uploads have names of
their own, and the same bytes get the same name. A removal leaves objects that are younger than a
day, which a backup under way may need. One that is older may become part of a backup just now. So a
removal puts its mark, ``prunes/<random>``, then lists the manifests, then deletes. A backup puts
its manifest, then looks for marks, then for all its objects. Whichever is later sees the other one:
the removal spares the objects, or the backup takes its manifest back and fails.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import secrets
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from goq.backup.manifest import BackupManifest, decode_manifest, encode_manifest
from goq.clock import SystemClock
from goq.errors import Conflict, CorruptData, NotFound, UnsupportedFormat, UsageError
from goq.storage.archive.object_store import SCHEME, StoreDisk
from goq.storage.disk import Disk
from goq.units import format_time_us

TEMPORARY_NAME: Final = "object.new"
YOUNG_S: Final = 24 * 3600.0
MARK_S_MAX: Final = 600.0
"""For how long a removal counts as under way after its last mark; it may have been killed.

It renews its mark ten times as often, and ends once it has not for half of that.
"""
CLOCK_SKEW_US_MAX: Final = 10_000_000
"""How far the clocks of the nodes with one place may differ."""
_UPLOAD_NAME = re.compile(r"object\.new\.[0-9a-f]{16}", re.ASCII)
_MANIFEST_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z\.backup", re.ASCII)
_OBJECT_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SUFFIX: Final = ".backup"
_MARK: Final = b"prune\n"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


class FoundManifest(NamedTuple):
    """A manifest by name; ``manifest`` is None if it cannot be used, and ``damage`` says why."""

    name: str
    manifest: BackupManifest | None
    damage: str = ""
    is_of_later_goq: bool = False


class UploadFile(Protocol):
    """A file of a place that is being written."""

    size_bytes: int

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Append bytes."""

    def start_writeback(self) -> None:
        """Have what was appended be written in the background."""

    def sync(self) -> None:
        """Make all bytes durable; nothing is appended afterwards."""

    def close(self) -> None:
        """Release the file."""


class PlaceDisk(Protocol):
    """The operations of :class:`Disk` that a place needs."""

    def create(self, path: Path) -> UploadFile:
        """Open a new file. Its name is durable with :meth:`sync_names`."""

    def read(self, path: Path, position: int, size_bytes: int) -> memoryview:
        """Return bytes of a file."""

    def size(self, path: Path) -> int:
        """Return the size of a file."""

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file this content, durably and atomically."""

    def set_name(self, path: Path, target: Path) -> None:
        """Rename a synced file, durably with :meth:`sync_names`; one of that name is replaced."""

    def sync_names(self, directory: Path) -> None:
        """Make the names in a directory durable."""

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory, none if it does not exist."""

    def make_dir(self, directory: Path) -> None:
        """Create a directory."""


class LocalDisk(Disk, PlaceDisk, Protocol):
    """The disk of this machine, for the files of a node and of a place."""


def is_url(text: Path | str) -> bool:
    """Whether a place is in an object store. Raises ``UsageError`` for stores that are unknown."""
    if not isinstance(text, str) or "://" not in text:
        return False
    if not text.startswith(SCHEME):
        raise UsageError(f"{text[:80]!r} is not a folder, and not s3://bucket/prefix")
    return True


def open_place(disk: LocalDisk, where: Path | str) -> BackupPlace:
    """Return the place in a folder, or at a URL. Raises ``UsageError``."""
    if not is_url(where):
        return BackupPlace(disk, Path(where))
    store = StoreDisk(str(where))
    return BackupPlace(disk, Path(store.prefix), store)


class BackupPlace:
    """The backups in a folder, or in a store. All calls block and raise ``OSError``.

    ``local_disk`` is the disk of this machine.
    """

    def __init__(self, disk: LocalDisk, folder: Path, store: StoreDisk | None = None) -> None:
        self.local_disk = disk
        self.store = store
        self.disk: PlaceDisk = disk if store is None else store
        self.folder = folder
        self.where = str(folder) if store is None else store.url
        self._sizes: dict[str, int] | None = None
        self.objects = folder / "objects"
        self.manifests = folder / "manifests"
        self._marks = folder / "prunes"

    def told(self, path: Path) -> str:
        """Return a path as users know it."""
        if self.store is None:
            return str(path)
        return f"{self.where}/{path.relative_to(self.folder)}"

    @property
    def is_there(self) -> bool:
        """Whether there is a place, perhaps without backups."""
        if self.store is not None:
            return bool(self.store.names(self.manifests))
        return self.manifests.is_dir()

    def create(self) -> None:
        """Create the folders of the place, unless they exist."""
        self.disk.make_dir(self.objects)
        self.disk.make_dir(self.manifests)

    def names(self) -> list[str]:
        """Return the names of the backups, oldest first."""
        names = self.disk.names(self.manifests)
        return [n.removesuffix(_SUFFIX) for n in names if _MANIFEST_NAME.fullmatch(n)]

    def read(self, name: str) -> FoundManifest:
        """Return a manifest, or its damage. Raises ``NotFound``."""
        path = self._path_of(name)
        where = self.told(path)
        try:
            data = bytes(self.disk.read(path, 0, self.disk.size(path)))
            return FoundManifest(name, decode_manifest(data))
        except FileNotFoundError:
            raise NotFound(f"there is no backup {name} in {self.where}") from None
        except OSError as error:
            return FoundManifest(name, None, f"{where} cannot be read: {error.strerror}")
        except CorruptData as error:
            return FoundManifest(name, None, f"{where} is damaged: {error.detail}")
        except UnsupportedFormat as error:
            return FoundManifest(name, None, f"{where} cannot be read: {error.detail}", True)

    def all(self) -> list[FoundManifest]:
        """Return all manifests, oldest first."""
        return [self.read(name) for name in self.names()]

    def newest(self, until_us: int | None = None) -> BackupManifest | None:
        """Return the newest sound manifest, of no later time than that."""
        names = self.names()
        if until_us is not None:
            names = [name for name in names if name <= _name_of(until_us)]
        for name in reversed(names):
            found = self.read(name)
            if found.manifest is not None:
                return found.manifest
        return None

    def add(self, manifest: BackupManifest) -> str:
        """Write a manifest, durably and atomically; return its name.

        Raises ``Conflict`` if a store lacks an object of it, or some of its bytes.
        """
        self._check_objects(manifest)
        self.disk.sync_names(self.objects)
        known, time_us = set(self.names()), manifest.time_us
        while (name := _name_of(time_us)) in known:
            time_us += 1
        self.disk.replace(self._path_of(name), encode_manifest(manifest))
        try:
            self._check_unmarked(name)
            self._check_objects(manifest)
        except Conflict:
            self.remove(name)
            raise
        return name

    def _check_objects(self, manifest: BackupManifest) -> None:
        """Raise ``Conflict`` if a store lacks an object, or some of its bytes."""
        if self.store is None:
            return
        self._sizes = None
        files = [f for f in manifest.files if f.digest]
        gone = [f for f in files if self.object_size(f.digest) != f.size_bytes]
        if gone:
            raise Conflict(f"{len(gone)} objects were removed from {self.where} meanwhile, as"
                           " by a prune, or are shorter there than they were sent; back up"
                           " again")  # fmt: skip

    def _check_unmarked(self, name: str) -> None:
        """Raise ``Conflict`` if a removal may not know a manifest, by the clock of the store."""
        if self.store is None:
            return
        _, written_s = self.store.changes(self.manifests)[self._path_of(name).name]
        marks = [marked_s for _, marked_s in self.store.changes(self._marks).values()]
        until_s = max(marks, default=-math.inf) + MARK_S_MAX
        if until_s > written_s:
            until = format_time_us(int(until_s) * 1_000_000)
            raise Conflict(f"a prune of {self.where} is under way, or was killed; back up again"
                           f" when it is done, or after {until} if it was killed")  # fmt: skip

    @contextmanager
    def marked(self) -> Generator[Callable[[], None]]:
        """Tell backups to a store of a removal; what is returned goes before each deletion.

        It raises ``Conflict`` if backups may have taken this removal for a killed one meanwhile.
        """
        if self.store is None:
            yield lambda: None
            return
        store, mark = self.store, self._marks / secrets.token_hex(8)
        clock = SystemClock()
        marked_us = clock.uptime_us()
        store.replace(mark, _MARK)

        def renew() -> None:
            nonlocal marked_us
            now_us = clock.uptime_us()
            since_s = (now_us - marked_us) / 1e6
            if since_s > MARK_S_MAX / 2:
                raise Conflict(f"this prune of {self.where} stood still for {since_s:.0f} s, and"
                               " backups may need by now what it was to remove; prune again"
                               )  # fmt: skip
            if since_s > MARK_S_MAX / 10:
                store.replace(mark, _MARK)
                marked_us = now_us

        try:
            yield renew
        finally:
            store.remove(mark)

    def remove(self, name: str) -> None:
        """Remove a manifest."""
        self.disk.remove(self._path_of(name))

    def removable_names(self, kept: Collection[str], now_s: float) -> list[str]:
        """Return the names of objects that are not kept, and of unfinished ones; no foreign file.

        In a store, only of those that no backup under way can need.
        """
        if self.store is None:
            names = self.disk.names(self.objects)
        else:
            changes = self.store.changes(self.objects)
            names = [n for n, (_, changed_s) in changes.items() if changed_s < now_s - YOUNG_S]
        unfinished = (n for n in names if n == TEMPORARY_NAME or _UPLOAD_NAME.fullmatch(n))
        return [*unfinished, *(n for n in names if _OBJECT_NAME.fullmatch(n) and n not in kept)]

    def new_object(self) -> Path:
        """Return the path for an object that is being written."""
        if self.store is not None:
            return self.objects / f"{TEMPORARY_NAME}.{secrets.token_hex(8)}"
        path = self.objects / TEMPORARY_NAME
        if os.path.lexists(path):  # a link leads nowhere else
            self.disk.remove(path)
        return path

    def name_object(self, path: Path, digest: str, size_bytes: int) -> None:
        """Give a finished object its name, durably before the next manifest.

        Also if there is one of that name: it may be damaged, or not durable after a kill.
        """
        self.disk.set_name(path, self.objects / digest)
        if self._sizes is not None:
            self._sizes[digest] = size_bytes

    def temporary_names(self) -> list[str]:
        """Return the names of manifests that were being written."""
        names = self.disk.names(self.manifests)
        return [n for n in names if _MANIFEST_NAME.fullmatch(n.removesuffix(".new")) and
                n.endswith(".new")]  # fmt: skip

    def object_size(self, digest: str) -> int:
        """Return the size of an object, -1 if there is none."""
        if self.store is not None:
            if self._sizes is None:
                changes = self.store.changes(self.objects)
                self._sizes = {name: size for name, (size, _) in changes.items()}
            return self._sizes.get(digest, -1)
        try:
            return self.disk.size(self.objects / digest)
        except FileNotFoundError:
            return -1

    def _path_of(self, name: str) -> Path:
        if not _MANIFEST_NAME.fullmatch(name + _SUFFIX):
            raise NotFound(f"{name[:80]!r} is not the name of a backup; see: goq backup list")
        return self.manifests / (name + _SUFFIX)

    @contextmanager
    def locked(self, *, exclusive: bool) -> Generator[None]:
        """Hold the lock of the place; there is none in a store, or on a read-only filesystem.

        Raises ``Conflict`` while another process holds it, and ``NotFound`` without a place.
        """
        if not self.is_there and not (exclusive and self.store is not None):
            raise NotFound(f"{self.where} has no backups")  # and nothing is created there
        fd = None if self.store is not None else self._open_lock(exclusive=exclusive)
        if fd is None:
            yield
            return
        try:
            try:
                fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"{self.folder} is in use by another backup, prune or restore; try"
                               " again when it is done") from None  # fmt: skip
            yield
        finally:
            os.close(fd)

    def _open_lock(self, *, exclusive: bool) -> int | None:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(self.folder / "lock", flags, 0o600)
        except OSError as error:
            if exclusive or error.errno not in _READ_ONLY:
                raise
            return None


def _name_of(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{micros:06d}Z"
