"""The entry of an archived segment whose files are in an object store.

``00000000000000045678.log.stored`` takes the place of the archived segment and of the files beside
it:

    goq-stored 1 <CRC32C of the rest, 8 hexadecimal digits>
    <one line of JSON: the fields of StoredEntry>

It is written once all objects are in the store, and were read back and compared. Only then are the
files removed. So an archived segment has its file, or an entry, or both; with both, the file counts
and is removed by the next round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from goq.errors import CorruptData, UsageError
from goq.frame.checksum import crc32c
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.file import Footer
from goq.storage.archive.object_store import check_url
from goq.storage.disk import Disk

SUFFIX: Final = ".log.stored"
_HEAD: Final = b"goq-stored 1 "


class StoredObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in the store: what its name ends with, its key, size and SHA-256."""

    suffix: str
    key: str
    size_bytes: int
    sha256: str


class StoredEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The objects of an archived segment at ``url``, and the footer of its file."""

    url: str
    footer: Footer
    objects: tuple[StoredObject, ...]

    @property
    def archive(self) -> StoredObject:
        """The archived segment itself; the other objects are of the files beside it."""
        return next(each for each in self.objects if each.suffix == ARCHIVE_SUFFIX)

    def object_of(self, path: Path) -> StoredObject | None:
        """Return the object of a file of the segment."""
        suffix = path.name[path.name.index(".") :]
        return next((each for each in self.objects if each.suffix == suffix), None)


def entry_path(path: Path) -> Path:
    """Return the path of the entry for a file of an archived segment."""
    return path.with_name(path.name.partition(".")[0] + SUFFIX)


def write_entry(disk: Disk, path: Path, entry: StoredEntry) -> None:
    """Write an entry, durably and atomically."""
    body = msgspec.json.encode(entry) + b"\n"
    disk.replace(path, _first_line(body) + body)


def read_entry(disk: Disk, path: Path) -> StoredEntry:
    """Return an entry. Raises ``FileNotFoundError``, ``CorruptData``, and ``OSError``."""
    data = bytes(disk.read(path, 0, disk.size(path)))
    first, _, body = data.partition(b"\n")
    if first + b"\n" != _first_line(body):
        raise CorruptData(f"{path} is damaged: its bytes do not match its checksum")
    try:
        entry = msgspec.json.decode(body, type=StoredEntry)
        check_url(entry.url)
    except (msgspec.MsgspecError, UsageError) as error:
        raise CorruptData(f"{path} is no entry of a stored segment: {error}") from None
    if not any(each.suffix == ARCHIVE_SUFFIX for each in entry.objects):
        raise CorruptData(f"{path} names no archived segment")
    return entry


def _first_line(body: bytes) -> bytes:
    return _HEAD + b"%08x\n" % crc32c(body)
