"""The manifest of the archive as the files say it: what ``node.db`` lists is made good by it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from goq.errors import CorruptData
from goq.storage.archive.file import PART_SUFFIX, SUFFIX, Footer, read_footer
from goq.storage.disk import Disk
from goq.storage.node_db import ArchiveRow

LOG_NAMES = ("messages", "events")
ArchiveKey = tuple[str, int, str, int]
"""Topic, partition, log and base offset."""
_log = logging.getLogger("goq.storage")


def row_of(partition: tuple[str, int], log: str, footer: Footer, archived_bytes: int) -> ArchiveRow:
    """Return the row of a file from what it says of itself; ``partition`` is topic and number."""
    return ArchiveRow(
        *partition,
        log,
        footer.base_offset,
        footer.end_offset,
        footer.size_bytes,
        archived_bytes,
        footer.first_time_us,
        footer.last_time_us,
        footer.archived_at_us,
        footer.crc32c,
    )


def unlisted(
    disk: Disk, root: Path, topics: Collection[str], known: Mapping[ArchiveKey, ArchiveRow]
) -> Iterator[ArchiveRow]:
    """Yield the rows that ``known`` lacks, and remove files that were never finished.

    A topic that is not among ``topics`` is left alone, with a warning.
    """
    for topic in disk.names(root):
        if topic not in topics:
            _log.warning("%s is the archive of no topic; nothing reads it", root / topic)
            continue
        for number in disk.names(root / topic):
            if number.isascii() and number.isdecimal():
                for log in LOG_NAMES:
                    yield from _unlisted(disk, root, (topic, int(number)), log, known)


def _unlisted(
    disk: Disk,
    root: Path,
    partition: tuple[str, int],
    log: str,
    known: Mapping[ArchiveKey, ArchiveRow],
) -> Iterator[ArchiveRow]:
    directory = root / partition[0] / str(partition[1]) / log
    for name in disk.names(directory):
        path, base = directory / name, name.removesuffix(SUFFIX)
        if name.endswith(PART_SUFFIX):
            disk.remove(path)
        elif name.endswith(SUFFIX) and base.isascii() and base.isdecimal():
            row, size_bytes = known.get((*partition, log, int(base))), disk.size(path)
            if row is not None and row.archived_bytes == size_bytes:
                continue
            try:
                yield row_of(partition, log, read_footer(disk, path), size_bytes)
            except CorruptData as error:
                _log.warning("%s", error.detail)
