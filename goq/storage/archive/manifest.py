"""The archive manifest: the archived segments listed in ``node.db``, checked against files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from goq.errors import CorruptData, GoqError, describe_os_error
from goq.storage.archive.file import PART_SUFFIX, SUFFIX, Footer, check_archive, read_footer
from goq.storage.archive.store_cache import OpenStore, open_store, read_object
from goq.storage.archive.stored_entry import SUFFIX as STORED_SUFFIX
from goq.storage.archive.stored_entry import read_entry
from goq.storage.catalog.rows import LOG_NAMES, ArchiveRow
from goq.storage.disk import Disk
from goq.storage.node_db import FILE_NAME, NodeDb

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
        yield from find_unlisted_of(disk, root, topic, known)


def find_unlisted_of(
    disk: Disk, root: Path, topic: str, known: Mapping[ArchiveKey, ArchiveRow]
) -> Iterator[ArchiveRow]:
    """Yield the rows of one topic, by its folder, that ``known`` lacks."""
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
        path = directory / name
        if name.endswith(PART_SUFFIX):
            disk.remove(path)
            continue
        is_stored = name.endswith(STORED_SUFFIX)
        base = name.removesuffix(STORED_SUFFIX if is_stored else SUFFIX)
        if base == name or not (base.isascii() and base.isdecimal()):
            continue
        row = known.get((*partition, log, int(base)))
        try:
            if is_stored and row is not None:
                continue
            size_bytes, footer = _stored(disk, path) if is_stored else (disk.size(path), None)
            if row is None or row.archived_bytes != size_bytes:
                yield archive_row(partition, log, footer or read_footer(disk, path), size_bytes)
        except CorruptData as error:
            _log.warning("%s", error.detail)


def _stored(disk: Disk, path: Path) -> tuple[int, Footer]:
    entry = read_entry(disk, path)
    return entry.archive.size_bytes, entry.footer


def verify_archive(disk: Disk, data_dir: Path) -> list[str]:
    """Decompress every archived segment and compare its CRC; return the problems found.

    Segments in an object store are read there and compared by their digests. Files that ``node.db``
    lists and that are missing are problems too. Changes nothing, and may run beside a node.
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
            found.remove(path)  # deleted or moved, unless node.db still lists it
        except OSError as error:
            problems.append(describe_os_error(error, path))
    store_of = cache(open_store)  # a client keeps its connections
    for path in _archive_files(disk, root, _DEPTH, STORED_SUFFIX):
        found.add(path.with_name(path.name.removesuffix(STORED_SUFFIX) + SUFFIX))
        problems += _problems_of_entry(disk, path, store_of)
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


def _problems_of_entry(disk: Disk, path: Path, store_of: OpenStore) -> list[str]:
    try:
        entry = read_entry(disk, path)
        store = store_of(entry.url)
    except FileNotFoundError:
        return []  # deleted with its topic
    except GoqError as error:
        return [error.detail]
    except OSError as error:
        return [describe_os_error(error, path)]
    problems = []
    for stored in entry.objects:
        where, digest = store.told(stored.key), sha256()
        try:
            for data in read_object(store, stored):
                digest.update(data)
        except FileNotFoundError:
            problems.append(f"{where} is missing; {path} lists it")
        except OSError as error:
            problems.append(f"{where} cannot be read: {error.strerror}")
        else:
            if digest.hexdigest() != stored.sha256:
                problems.append(f"{where} is damaged: its bytes are not those of {path}")
    return problems


def _archive_files(disk: Disk, directory: Path, depth: int, suffix: str = SUFFIX) -> Iterator[Path]:
    try:
        names = disk.names(directory)
    except NotADirectoryError:
        return
    for name in names:
        if depth:
            yield from _archive_files(disk, directory / name, depth - 1, suffix)
        elif name.endswith(suffix):
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
