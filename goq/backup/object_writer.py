"""Copies of files as objects of a place, in pieces, so that a caller may pause between them.

A file that is unchanged since the last backup is not read: place, size, inode and time of change
are equal, and the object is there. Sealed segments never change. The active one only grows, so its
first bytes are the same at any later moment.

A piece is hashed in a thread of its own, while it is written and the next one is read. The system
begins at once to write it to the device. So a copy takes hardly longer than its writes.

Objects are copies, never hard links. A hard link shares the bytes with the log: damage on the disk
would be in both, and :meth:`Log.truncate` would cut both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from goq import limits
from goq.backup.manifest import BackupManifest, StoredFile, StoredLog, StoredPartition
from goq.backup.place import BackupPlace
from goq.backup.planned_files import FileStamp, PlannedFile, PlannedLog, PlannedPartition
from goq.errors import CorruptData

PIECE_BYTES: Final = limits.MIB
"""Small, because a sync of live traffic waits for the pieces before it in the device's queue."""


class FileKey(NamedTuple):
    """The place of a file in a data folder."""

    topic_folder: str
    partition: int
    log: str
    is_archived: bool
    base_offset: int
    generation: int


def stamp_of(path: Path) -> FileStamp:
    """Return the stamp of a file."""
    status = path.stat()
    return FileStamp(status.st_ino, status.st_mtime_ns)


def known_files(manifest: BackupManifest | None) -> dict[FileKey, StoredFile]:
    """Return the files of a backup by their place."""
    return {
        FileKey(
            topic.folder, partition.number, name, is_archived, file.base_offset, file.generation
        ): file
        for topic in (() if manifest is None else manifest.topics)
        for partition in topic.logs
        for name, log in partition.logs
        for is_archived, files in ((False, log.segments), (True, log.archived))
        for file in files
    }


class ObjectWriter:
    """Writes the objects of one backup. ``copied_bytes`` counts the files that it wrote.

    Close it afterwards: it has a thread.
    """

    def __init__(
        self,
        place: BackupPlace,
        known: Mapping[FileKey, StoredFile],
        stamp: Callable[[Path], FileStamp] = stamp_of,
    ) -> None:
        self.copied_bytes = 0
        self._place = place
        self._known = dict(known)
        self._stamp = stamp
        self._hashing = ThreadPoolExecutor(1, "goq-hash")

    def close(self) -> None:
        """Stop the thread."""
        self._hashing.shutdown()

    def copy_partition(
        self, planned: PlannedPartition, *, may_be_empty: bool = False
    ) -> Generator[int, None, StoredPartition]:
        """Copy the files of a partition; yield the bytes of each piece.

        Messages that retention has deleted meanwhile are left out. Raises ``FileNotFoundError`` if
        all were, unless the copy ``may_be_empty``, and for any other file that is gone: plan again.
        """
        place = (planned.topic_folder, planned.number)
        # First the events: all of them are needed, and retention deletes them last.
        events = yield from self._copy_segments(place, "events", planned.events)
        messages = yield from self._copy_messages(place, planned.messages, may_be_empty)
        return StoredPartition(
            planned.number,
            (yield from self._with_archived(place, "messages", planned.messages, messages)),
            (yield from self._with_archived(place, "events", planned.events, events)),
        )

    def _copy_segments(
        self, place: tuple[str, int], name: str, planned: PlannedLog
    ) -> Generator[int, None, list[StoredFile]]:
        segments = []
        for file in planned.files:
            key = FileKey(*place, name, False, file.base_offset, file.generation)
            segments.append((yield from self._copy(key, file)))
        return segments

    def _copy_messages(
        self, place: tuple[str, int], planned: PlannedLog, may_be_empty: bool
    ) -> Generator[int, None, list[StoredFile]]:
        """Copy what is left of the planned messages; the oldest are deleted first."""
        left = planned
        while True:
            try:
                return (yield from self._copy_segments(place, "messages", left))
            except FileNotFoundError:
                start_offset = planned.start_now()
                if start_offset <= left.files[0].base_offset:
                    raise
                kept = [each for each in left.files if each.base_offset >= start_offset]
                if not kept and not may_be_empty:
                    raise
                left = left._replace(files=kept)
                if not kept:
                    return [StoredFile(planned.end_offset, 0, "", 0, 0)]

    def _with_archived(
        self, place: tuple[str, int], name: str, planned: PlannedLog, segments: list[StoredFile]
    ) -> Generator[int, None, StoredLog]:
        archived = []
        # after the segments: retention archives a segment before it deletes it
        for file in planned.list_archived():
            key = FileKey(*place, name, True, file.base_offset, 0)
            stored = yield from self._copy_archived(key, file, planned)
            if stored is not None:
                archived.append(stored)
        return StoredLog(planned.end_offset, tuple(segments), tuple(archived))

    def _copy_archived(
        self, key: FileKey, file: PlannedFile, planned: PlannedLog
    ) -> Generator[int, None, StoredFile | None]:
        """Copy an archived segment from where it is now; None if it has expired meanwhile.

        It may move to its object store while others are copied.
        """
        while True:
            try:
                return (yield from self._copy(key, file))
            except FileNotFoundError as error:
                now = {each.base_offset: each for each in planned.list_archived()}
                found = now.get(file.base_offset)
                if found is None:
                    return None
                if (found.path, found.stamp) == (file.path, file.stamp):
                    raise CorruptData(f"what {file.path} stands for is missing: {error}") from None
                file = found

    def _copy(self, key: FileKey, planned: PlannedFile) -> Generator[int, None, StoredFile]:
        stamp = planned.stamp or self._stamp(planned.path)
        known = self._known.get(key)
        if planned.can_be_reused and known is not None and self._is_same(known, planned, stamp):
            return known
        if planned.digest and self._place.object_size(planned.digest) == planned.size_bytes:
            digest = planned.digest
        else:
            digest = (yield from self._write(planned)) if planned.size_bytes else ""
        if planned.digest not in ("", digest):
            raise CorruptData(f"the object of {planned.path} is damaged in its store")
        stored = StoredFile(
            planned.base_offset, planned.size_bytes, digest, *stamp, planned.generation
        )
        self._known[key] = stored
        return stored

    def _is_same(self, known: StoredFile, planned: PlannedFile, stamp: FileStamp) -> bool:
        is_unchanged = (known.size_bytes, known.inode, known.changed_ns) == (
            planned.size_bytes,
            *stamp,
        )
        if not is_unchanged or not known.size_bytes:
            return is_unchanged
        return self._place.object_size(known.digest) == known.size_bytes

    def _write(self, planned: PlannedFile) -> Generator[int, None, str]:
        """Copy a file to an object; return its digest."""
        digest, position, hashed = sha256(), 0, Future[None]()
        hashed.set_result(None)
        unnamed = self._place.new_object()
        file = self._place.disk.create(unnamed)
        try:
            while position < planned.size_bytes:
                wanted = min(PIECE_BYTES, planned.size_bytes - position)
                data = planned.disk.read(planned.path, position, wanted)
                if len(data) < wanted:
                    raise CorruptData(f"{planned.path} is shorter than it was: its bytes from"
                                      f" {position + len(data)} on are missing")  # fmt: skip
                hashed.result()
                hashed = self._hashing.submit(digest.update, data)
                file.append([data])
                file.start_writeback()
                position += wanted
                self.copied_bytes += wanted
                yield wanted
            file.sync()
        finally:
            file.close()
        hashed.result()
        name = digest.hexdigest()
        self._place.name_object(unnamed, name, position)
        return name
