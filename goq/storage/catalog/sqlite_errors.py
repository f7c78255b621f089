"""Errors of SQLite: those of a disk or process in trouble, apart from those of a damaged file.

The first may pass, and say nothing about the file, which is not given up because of them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from goq.errors import StorageFailed, StorageFull
from goq.storage.disk_space import has_no_room

_REFUSED = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
)


def primary_code(error: BaseException) -> int:
    """Return the primary result code of an error, 0 if it is none of SQLite's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def refused_access(path: Path, error: Exception) -> StorageFailed | StorageFull | None:
    """Return the error of a file that the system does not read or write; None for damage.

    SQLite calls it an I/O error, too, if the disk has no room for the file beside its database.
    """
    if primary_code(error) not in _REFUSED:
        return None
    if has_no_room(path.parent):
        return StorageFull(
            f"{path} cannot be read or written, as its disk is full: {error}; free some space, then"
            " try again"
        )
    return StorageFailed(
        f"{path} cannot be read or written: {error}; the file itself may be sound: check the disk,"
        " the rights to the folder and the limit of open files, then try again"
    )
