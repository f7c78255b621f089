"""The archive manifest: the archived segments listed in ``node.db``, checked against files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from goq.errors import CorruptData
from goq.storage.archive.file import PART_SUFFIX, SUFFIX, Footer, check_archive, read_footer
from goq.storage.disk import Disk
from goq.storage.node_db import FILE_NAME, LOG_NAMES, ArchiveRow, NodeDb

ARCHIVE_DIR = "archive"
ArchiveKey = tuple[str, int, str, int]
"""The topic's folder, partition, log and base offset."""
_DEPTH = 3  # topic, partition, log
_log = logging.getLogger("goq.storage")


def archive_row(
    partition: tuple[str, int], log: str, footer: Footer, archived_bytes: int
) -> ArchiveRow:
    """Return the row of a file from its footer; ``partition`` is the topic's folder and number."""
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


def find_unlisted(
    disk: Disk, root: Path, folders: Collection[str], known: Mapping[ArchiveKey, ArchiveRow]
) -> Iterator[ArchiveRow]:
    """Yield the rows that ``known`` lacks, and remove unfinished files.

    A folder that is not among ``folders`` stays untouched, with a warning.
    """
    for topic in disk.names(root):
        if topic not in folders:
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
                yield archive_row(partition, log, read_footer(disk, path), size_bytes)
            except CorruptData as error:
                _log.warning("%s", error.detail)


def verify_archive(disk: Disk, data_dir: Path) -> list[str]:
    """Decompress every archived segment and compare its CRC; return the problems found.

    Files that ``node.db`` lists and that are missing are problems too. Changes nothing, and may run
    beside a node.
    """
    rows, root = _listed_rows(data_dir), data_dir / ARCHIVE_DIR
    problems: list[str] = []
    found: set[Path] = set()
    for path in _archive_files(disk, root, _DEPTH):
        found.add(path)
        try:
            check_archive(disk, path)
        except CorruptData as error:
            problems.append(error.detail)
        except FileNotFoundError:
            found.remove(path)  # deleted with its topic, unless node.db still lists it
    paths = {row: _archive_path(root, row) for row in rows}
    missing = [row for row in rows if paths[row] not in found]
    still = set(_listed_rows(data_dir)) if missing else set()
    problems += [
        f"{paths[row]} is missing; node.db lists it: messages {row.base_offset} to"
        f" {row.end_offset - 1}"
        for row in missing
        if row in still
    ]
    return problems


def _archive_files(disk: Disk, directory: Path, depth: int) -> Iterator[Path]:
    try:
        names = disk.names(directory)
    except NotADirectoryError:
        return
    for name in names:
        if depth:
            yield from _archive_files(disk, directory / name, depth - 1)
        elif name.endswith(SUFFIX):
            yield directory / name


def _archive_path(root: Path, row: ArchiveRow) -> Path:
    directory = root / row.topic / str(row.partition) / row.log
    return directory / f"{row.base_offset:020d}{SUFFIX}"


def _listed_rows(data_dir: Path) -> list[ArchiveRow]:
    if not (data_dir / FILE_NAME).exists():
        return []
    db = NodeDb(data_dir, read_only=True)
    try:
        deleting = {topic.folder for topic in db.topics() if topic.deleting}
        return [row for row in db.archived() if row.topic not in deleting]
    finally:
        db.close()
