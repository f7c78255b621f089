"""Writes the files of the archive: from sealed segments, or from those of another node.

A file gets its name when it is whole, durable, and equal to its source: what a crash or an error
interrupts has no name that readers look for. A finished file that is there already is compared
again, and not written again.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec

from goq.broker.retention.archive_uploader import SIDECARS
from goq.errors import CorruptData
from goq.storage.archive.file import (
    Footer,
    Interrupted,
    archive_path,
    check_archive,
    copy_file,
    crc_of,
    read_footer,
    write_archive,
)
from goq.storage.archive.manifest import archive_row
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.segment import Segment


class ArchiveWriter:
    """Writes archive files; its methods block on the disk, and run in one thread."""

    def __init__(self, disk: TieredDisk) -> None:
        self._disk = disk
        self._closing = threading.Event()

    def close(self) -> None:
        """Interrupt the segment that is being written, and write no other."""
        self._closing.set()

    def write(self, directory: Path, segment: Segment, now_us: int) -> Footer:
        """Write the file of a sealed segment, or take over a finished one; return its footer.

        Raises ``OSError``, ``CorruptData`` and, after :meth:`close`, ``Interrupted``.
        """
        disk, path = self._disk, archive_path(directory, segment.path)
        disk.make_dir(directory)
        stored = self._find_finished(path, segment)
        if stored is not None:
            return msgspec.structs.replace(stored, archived_at_us=now_us)
        segment.load_index(disk)
        footer = Footer(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            crc32c=0,
            first_time_us=segment.read_first_time(disk) or 0,
            last_time_us=now_us if segment.has_lost_times else segment.time_us,
            archived_at_us=now_us,
            chunks=[],
        )
        names = set(disk.names(segment.path.parent))
        for source in (segment.path.with_suffix(suffix) for suffix in SIDECARS):
            if source.name in names:
                with contextlib.suppress(OSError, CorruptData):  # it can be rebuilt
                    copy_file(disk, source, archive_path(directory, source))
        return write_archive(disk, segment.path, path, footer, self._check)

    def begin_copy(self, part: Path) -> None:
        """Make room for a copy, which grows in the unfinished file ``part``."""
        self._disk.make_dir(part.parent)
        self._disk.remove(part)  # of an interrupted copy

    def append_copy(self, part: Path, data: bytes) -> None:
        """Append bytes to a copy."""
        file = self._disk.open(part)
        try:
            file.append([data])
        finally:
            file.close()

    def finish_copy(self, part: Path, path: Path, row: ArchiveRow) -> None:
        """Give a copy its name; raise ``CorruptData`` and remove it if it is not as in ``row``."""
        file = self._disk.open(part)
        try:
            file.sync()
        finally:
            file.close()
        footer = check_archive(self._disk, part)
        found = archive_row((row.topic, row.partition), row.log, footer, self._disk.size(part))
        if found._replace(archived_at_us=row.archived_at_us) != row:
            self._disk.remove(part)
            raise CorruptData(
                f"{path} was not copied: it differs from the manifest of the other node"
            )
        self._disk.rename(part, path)

    def _find_finished(self, path: Path, segment: Segment) -> Footer | None:
        """Return the footer of a finished and intact archive of this segment, if there is one."""
        expected = (segment.base_offset, segment.end_offset, segment.size_bytes)
        try:
            footer = read_footer(self._disk, path)
            if (footer.base_offset, footer.end_offset, footer.size_bytes) != expected:
                return None
            if footer.crc32c != crc_of(self._disk, segment.path, segment.size_bytes):
                return None
            return check_archive(self._disk, path)
        except (FileNotFoundError, CorruptData):
            return None

    def _check(self) -> None:
        if self._closing.is_set():
            raise Interrupted
