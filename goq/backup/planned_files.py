"""The files of a partition as one moment has them: which bytes of which file belong to a backup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from goq.model import topic_folder
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.object_store import StoreDisk
from goq.storage.archive.store_cache import open_store
from goq.storage.archive.stored_entry import SUFFIX as STORED_SUFFIX
from goq.storage.archive.stored_entry import entry_path, read_entry
from goq.storage.disk import Disk


class FileStamp(NamedTuple):
    """Inode and time of change of a file."""

    inode: int
    changed_ns: int


class FileReader(Protocol):
    """A reader of planned files: a disk, or another node."""

    def read(self, path: Path, position: int, size_bytes: int) -> memoryview:
        """Return bytes of a file, fewer at its end. Raises ``FileNotFoundError``, ``OSError``."""


class PlannedFile(NamedTuple):
    """The first ``size_bytes`` of a file, as ``disk`` has them.

    Without ``stamp``, the file lies on this machine and is asked for it when it is copied.
    """

    path: Path
    base_offset: int
    size_bytes: int
    disk: FileReader
    generation: int = 0
    can_be_reused: bool = True
    """Whether the object of an earlier backup serves, if the file is unchanged since."""
    stamp: FileStamp | None = None
    digest: str = ""
    """The SHA-256 of the file in hexadecimal digits, if it is known."""


class PlannedLog(NamedTuple):
    """A log up to ``end_offset``.

    ``list_archived`` blocks. Call it once the segments are copied: retention archives a segment
    before it deletes it. ``start_now`` blocks too, and returns where the log begins by now; that
    of a stopped node does not move.
    """

    end_offset: int
    files: Sequence[PlannedFile]
    list_archived: Callable[[], Sequence[PlannedFile]]
    start_now: Callable[[], int] = lambda: 0


class PlannedPartition(NamedTuple):
    """The logs of a partition."""

    topic_folder: str
    number: int
    messages: PlannedLog
    events: PlannedLog


class PlannedTopic(NamedTuple):
    """A topic, with the numbers of the partitions to copy."""

    name: str
    id: int
    partitions: int
    settings: dict[str, str]
    groups: dict[str, dict[str, str]]
    numbers: Sequence[int]

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.name, self.id)


def list_archived_files(disk: Disk, directory: Path) -> list[PlannedFile]:
    """Return the archived segments of a log, here or in their store; blocks on the disk."""
    found: list[PlannedFile] = []
    for name in disk.names(directory):
        if name.endswith(STORED_SUFFIX):
            with suppress(FileNotFoundError):  # it has expired
                found.append(_stored_file(disk, directory / name))
            continue
        offset, path = name.removesuffix(ARCHIVE_SUFFIX), directory / name
        if not (name.endswith(ARCHIVE_SUFFIX) and offset.isdecimal()):
            continue
        try:
            found.append(PlannedFile(path, int(offset), disk.size(path), disk))
        except FileNotFoundError:
            with suppress(FileNotFoundError):  # it has expired, else it was moved to the store
                found.append(_stored_file(disk, entry_path(path)))
    is_new = {file.base_offset: file for file in found}  # once, if it is here and in the store
    return [is_new[offset] for offset in sorted(is_new)]


def _stored_file(disk: Disk, path: Path) -> PlannedFile:
    entry = read_entry(disk, path)
    stored, footer = entry.archive, entry.footer
    return PlannedFile(
        path,
        footer.base_offset,
        stored.size_bytes,
        _StoredReader(open_store(entry.url), Path(stored.key)),
        stamp=FileStamp(0, footer.archived_at_us),
        digest=stored.sha256,
    )


class _StoredReader(NamedTuple):
    """Reads an archived segment in its store."""

    store: StoreDisk
    key: Path

    def read(self, _path: Path, position: int, size_bytes: int) -> memoryview:
        return self.store.read(self.key, position, size_bytes)
