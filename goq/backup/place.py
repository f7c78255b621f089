"""A place of backups: a folder with objects and manifests.

    objects/<SHA-256 of its bytes>      a file of a log or of the archive
    manifests/<time>.backup             one backup
    lock                                one writer, or any number of readers

An object gets its name when all its bytes are durable. A manifest is written last, atomically. So
a backup that was cut short leaves no manifest, and the objects that it leaves serve the next one.
A removal deletes manifests first: a removal that was cut short leaves no manifest without objects.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from goq.backup.manifest import BackupManifest, decode_manifest, encode_manifest
from goq.errors import Conflict, CorruptData, NotFound, UnsupportedFormat, UsageError
from goq.storage.disk import Disk

TEMPORARY_NAME: Final = "object.new"
_MANIFEST_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z\.backup", re.ASCII)
_OBJECT_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SUFFIX: Final = ".backup"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


class FoundManifest(NamedTuple):
    """A manifest by name; ``manifest`` is None if it cannot be used, and ``damage`` says why."""

    name: str
    manifest: BackupManifest | None
    damage: str = ""
    is_of_later_goq: bool = False


def place_folder(text: str) -> Path:
    """Return the folder of a place. Raises ``UsageError`` for a URI: only folders are supported."""
    if "://" in text:
        raise UsageError(f"{text[:80]!r} is not a folder: backups are written to folders only")
    return Path(text)


class BackupPlace:
    """The backups in a folder. All calls block on the disk and raise ``OSError``."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk = disk
        self.folder = folder
        self.objects = folder / "objects"
        self.manifests = folder / "manifests"

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
        try:
            data = bytes(self.disk.read(path, 0, self.disk.size(path)))
            return FoundManifest(name, decode_manifest(data))
        except FileNotFoundError:
            raise NotFound(f"there is no backup {name} in {self.folder}") from None
        except OSError as error:
            return FoundManifest(name, None, f"{path} cannot be read: {error.strerror}")
        except CorruptData as error:
            return FoundManifest(name, None, f"{path} is damaged: {error.detail}")
        except UnsupportedFormat as error:
            return FoundManifest(name, None, f"{path} cannot be read: {error.detail}", True)

    def all(self) -> list[FoundManifest]:
        """Return all manifests, oldest first."""
        return [self.read(name) for name in self.names()]

    def newest(self) -> BackupManifest | None:
        """Return the newest sound manifest."""
        for name in reversed(self.names()):
            found = self.read(name)
            if found.manifest is not None:
                return found.manifest
        return None

    def add(self, manifest: BackupManifest) -> str:
        """Write a manifest, durably and atomically; return its name."""
        known, time_us = set(self.names()), manifest.time_us
        while (name := _name_of(time_us)) in known:
            time_us += 1
        self.disk.replace(self._path_of(name), encode_manifest(manifest))
        return name

    def remove(self, name: str) -> None:
        """Remove a manifest."""
        self.disk.remove(self._path_of(name))

    def object_names(self) -> list[str]:
        """Return the names of objects, and of one that is being written; no foreign file."""
        names = self.disk.names(self.objects)
        return [n for n in names if n == TEMPORARY_NAME or _OBJECT_NAME.fullmatch(n)]

    def temporary_names(self) -> list[str]:
        """Return the names of manifests that were being written."""
        names = self.disk.names(self.manifests)
        return [n for n in names if _MANIFEST_NAME.fullmatch(n.removesuffix(".new")) and
                n.endswith(".new")]  # fmt: skip

    def object_size(self, digest: str) -> int:
        """Return the size of an object, -1 if there is none."""
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
        """Hold the lock of the place; readers need none on a read-only filesystem.

        Raises ``Conflict`` while another process holds it, and ``NotFound`` without a place.
        """
        fd = self._open_lock(exclusive=exclusive)
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
        if not self.manifests.is_dir():  # nothing is created in a folder of something else
            raise NotFound(f"{self.folder} has no backups")
        try:
            return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if exclusive or error.errno not in _READ_ONLY:
                raise
            return None


def _name_of(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{micros:06d}Z"
