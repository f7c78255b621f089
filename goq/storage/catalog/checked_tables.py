"""Tables of SQLite whose rows have a CRC: SQLite does not check what it reads.

The column ``crc`` is the CRC32C of the table's name and of the row's other columns. It is checked
when the row is read. So a flipped bit, a row of another table and a row that another program wrote
are all found, and none of them is returned. The index of a key has no CRC, and a flipped bit there
would hide rows: a whole table is read without it, and damaged indexes are built anew at each open.

``PRAGMA user_version`` is the version of the schema. In version 0 rows had no CRC. Opening such a
database adds the columns that it lacks and takes the rows as they are, in one transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from goq.frame.checksum import crc32c
from goq.storage.catalog.sqlite_errors import primary_code

_VERSION = 1
_CRC = "crc"
_NO_CRC = -1
_SQL_TYPES = {str: "TEXT", int: "INTEGER"}
Row = dict[str, Any]


class TableSchema(NamedTuple):
    """The columns of a table, each of class ``str`` or ``int``, and its key.

    A table that is ``added`` exists from its first row on: earlier versions of goq do not have it.
    """

    columns: Mapping[str, Any]
    key: Sequence[str]
    added: bool = False


class DamagedRow(NamedTuple):
    """A row that failed its check; ``fields`` are as they were read."""

    table: str
    rowid: int
    fields: Row

    def __str__(self) -> str:
        names = {k: v for k, v in self.fields.items() if k in ("key", "topic", "name", "partition")}
        what = ", ".join(f"{k} {v}" for k, v in names.items())
        return f"a damaged row in table {self.table}: {what}"


class CommitFailed(sqlite3.OperationalError):
    """The disk failed in a commit: after a restart the transaction is there, or it is not."""


class CheckedTables:
    """The tables of one database. Errors of SQLite are raised as they are, or ``CommitFailed``."""

    def __init__(self, connection: sqlite3.Connection, tables: Mapping[str, TableSchema]) -> None:
        connection.text_factory = _text
        self._db = connection
        self._tables = tables

    def migrate(self) -> None:
        """Make the tables durable and of this version."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._mend_indexes()
        ((version,),) = self._db.execute("PRAGMA user_version").fetchall()
        has_crc = any(_CRC in self._columns(table) for table in self._tables)
        if version == _VERSION and has_crc:
            return
        if version or has_crc:
            raise sqlite3.DatabaseError(
                f"it is damaged, or of a later version of goq: its schema is {version}"
            )
        with self.transaction():
            for name, table in self._tables.items():
                if not table.added:
                    self._migrate(name, table)
            self._db.execute(f"PRAGMA user_version={_VERSION}")

    def _mend_indexes(self) -> None:
        """Build the indexes anew from the tables if SQLite's own check finds something."""
        if self.integrity_problems():
            with contextlib.suppress(sqlite3.DatabaseError):  # the tables are damaged themselves
                self._db.execute("REINDEX")

    def _migrate(self, name: str, table: TableSchema) -> None:
        present = self._columns(name)
        if not present:
            types = {**table.columns, _CRC: int}
            columns = [f"{column} {_SQL_TYPES[kind]}" for column, kind in types.items()]
            key = f"PRIMARY KEY ({', '.join(table.key)})"
            self._db.execute(f"CREATE TABLE {name} ({', '.join([*columns, key])})")
            return
        for column in [*table.columns, _CRC]:
            if column not in present:
                self._db.execute(f"ALTER TABLE {name} ADD COLUMN {column} INTEGER")
        for row in list(self._query(f"SELECT rowid AS rowid_, * FROM {name}")):
            rowid = row.pop("rowid_")
            crc = _crc(name, row) if _is_readable(row) else _NO_CRC
            self._db.execute(f"UPDATE {name} SET {_CRC} = ? WHERE rowid = ?", [crc, rowid])

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._db.execute(f"PRAGMA table_info({table})").fetchall()}

    def _query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        cursor = self._db.execute(sql, values)
        names = [column[0] for column in cursor.description]
        for row in cursor:
            yield dict(zip(names, row, strict=True))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block changes, or nothing of it; a block within one belongs to it."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        is_commit = False
        try:
            yield
            is_commit = True
            self._db.commit()
        except BaseException as error:
            self._db.rollback()
            if is_commit and primary_code(error) == sqlite3.SQLITE_IOERR:
                failed = CommitFailed(str(error))
                failed.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise failed from error
            raise

    def put(self, table: str, rows: Iterable[Mapping[str, Any]], *, keep: bool = False) -> None:
        """Insert or replace rows in a transaction; with ``keep`` leave those that exist."""
        columns, key = [*self._tables[table].columns, _CRC], ", ".join(self._tables[table].key)
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        update = "NOTHING" if keep else f"UPDATE SET {changes}"
        values = [[*map(row.get, columns[:-1]), _crc(table, row)] for row in rows]
        with self.transaction():
            if self._tables[table].added and not self._columns(table):
                self._migrate(table, self._tables[table])
            self._db.executemany(
                f"INSERT INTO {table} ({', '.join(columns)})"
                f" VALUES ({', '.join('?' * len(columns))}) ON CONFLICT ({key}) DO {update}",
                values,
            )

    def delete(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Delete rows by columns, each mapping those with these values, in a transaction."""
        with self.transaction():
            for row in rows:
                where = " AND ".join(f"{column} = ?" for column in row)
                self._db.execute(f"DELETE FROM {table} WHERE {where}", list(row.values()))

    def rows(self, table: str, **where: Any) -> list[Row]:
        """Return the sound rows with these values, by key, without their CRC."""
        found = self._read(table, where, ", ".join(self._tables[table].key))
        return [row for _, row, is_sound in found if is_sound]

    def damaged(self) -> list[DamagedRow]:
        """Return the rows that fail their check."""
        return [
            DamagedRow(table, rowid, row)
            for table in self._tables
            for rowid, row, is_sound in self._read(table, {}, "rowid")
            if not is_sound
        ]

    def drop(self, row: DamagedRow) -> None:
        """Remove a damaged row."""
        with self.transaction():
            self._db.execute(f"DELETE FROM {row.table} WHERE rowid = ?", [row.rowid])

    def integrity_problems(self) -> list[str]:
        """Return what SQLite's own check of the file finds."""
        found = [row[0] for row in self._db.execute("PRAGMA integrity_check").fetchall()]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _read(
        self, table: str, where: Mapping[str, Any], order: str
    ) -> Iterable[tuple[int, Row, bool]]:
        present = self._columns(table)
        if not present:
            return
        if unknown := present - {*self._tables[table].columns, _CRC}:
            raise sqlite3.DatabaseError(f"table {table} has unknown columns: {sorted(unknown)}")
        condition = " AND ".join(f"{column} = ?" for column in where) or "1"
        source = table if where else f"{table} NOT INDEXED"
        sql = f"SELECT rowid AS rowid_, * FROM {source} WHERE {condition} ORDER BY {order}"
        for row in self._query(sql, list(where.values())):
            rowid, crc = row.pop("rowid_"), row.pop(_CRC, None)
            has_crc = _CRC in present if crc is None else True
            yield rowid, row, not has_crc or crc == _crc(table, row)


def _crc(table: str, row: Mapping[str, Any]) -> int:
    return crc32c(msgspec.json.encode([table, sorted((k, v) for k, v in row.items() if k != _CRC)]))


def _text(data: bytes) -> str:
    """Return text of a row; bad bytes change it, so the row fails its check."""
    return data.decode(errors="replace")


def _is_readable(row: Row) -> bool:
    """Return whether the settings in a row of an earlier version can be read."""
    try:
        msgspec.json.decode(row.get("settings", "{}"), type=dict[str, str])
    except (msgspec.DecodeError, TypeError):
        return False
    return True
