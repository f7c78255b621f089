"""Checking every archived byte, for ``goq doctor --verify``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from goq.errors import CorruptData
from goq.storage.archive.file import SUFFIX, check_archive
from goq.storage.disk import Disk
from goq.storage.node_db import FILE_NAME, ArchiveRow, NodeDb

DIR_NAME = "archive"
_DEPTH = 3  # topic, partition, log


def verify_archive(disk: Disk, data_dir: Path) -> list[str]:
    """Decompress every archived segment and compare its CRC; return what is wrong.

    Also what ``node.db`` lists and is not there. Nothing is changed, and a node may be running.
    """
    rows, root = _manifest(data_dir), data_dir / DIR_NAME
    problems: list[str] = []
    found: set[Path] = set()
    for path in _files(disk, root, _DEPTH):
        found.add(path)
        try:
            check_archive(disk, path)
        except CorruptData as error:
            problems.append(error.detail)
        except FileNotFoundError:
            found.remove(path)  # deleted with its topic, unless it is listed still
    paths = {row: _path(root, row) for row in rows}
    missing = [row for row in rows if paths[row] not in found]
    still = set(_manifest(data_dir)) if missing else set()
    problems += [
        f"{paths[row]} is missing; node.db lists it: messages {row.base_offset} to"
        f" {row.end_offset - 1}"
        for row in missing
        if row in still
    ]
    return problems


def _files(disk: Disk, directory: Path, depth: int) -> Iterator[Path]:
    try:
        names = disk.names(directory)
    except NotADirectoryError:
        return
    for name in names:
        if depth:
            yield from _files(disk, directory / name, depth - 1)
        elif name.endswith(SUFFIX):
            yield directory / name


def _path(root: Path, row: ArchiveRow) -> Path:
    directory = root / row.topic / str(row.partition) / row.log
    return directory / f"{row.base_offset:020d}{SUFFIX}"


def _manifest(data_dir: Path) -> list[ArchiveRow]:
    if not (data_dir / FILE_NAME).exists():
        return []
    db = NodeDb(data_dir, read_only=True)
    try:
        deleting = {topic.name for topic in db.topics() if topic.deleting}
        return [row for row in db.archived() if row.topic not in deleting]
    finally:
        db.close()
