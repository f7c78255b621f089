"""A state machine in a SQLite database: what a cluster agrees on, on the disk of each node.

    raft_state(id, applied_index, flushes)                 one row
    raft_proposers(proposer, last_index)                   who has proposed, newest last
    raft_requests(proposer, sequence, result)              what was applied, and its result

The tables beside these are the caller's. A command changes them in one transaction with its index
and its result. Commits are not synced one by one, as the log has the commands anyway: after a
power cut the database may be some commands behind, never between two.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from goq import limits
from goq.cluster.raft.state_machine.state_machine import Proposal, Refused, StateMachineFailed
from goq.errors import GoqError, StorageFull

Apply = Callable[[sqlite3.Connection, Proposal], Any]
"""Changes the caller's tables, and returns a result of plain data or :class:`Refused`.

It must follow from the tables and the request alone, and leave transactions alone. What it raises
but ``sqlite3.Error`` is turned into ``Refused`` and undone.
"""

_TABLES = """
CREATE TABLE IF NOT EXISTS raft_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), applied_index INTEGER NOT NULL, flushes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS raft_proposers (
    proposer INTEGER PRIMARY KEY, last_index INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS raft_proposers_by_index ON raft_proposers (last_index);
CREATE TABLE IF NOT EXISTS raft_requests (
    proposer INTEGER NOT NULL, sequence INTEGER NOT NULL, result BLOB NOT NULL,
    PRIMARY KEY (proposer, sequence)
) WITHOUT ROWID;
INSERT OR IGNORE INTO raft_state VALUES (1, 0, 0);
"""
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_FLUSH = "UPDATE raft_state SET applied_index = max(applied_index, ?), flushes = 1 - flushes"


class _Known(msgspec.Struct, frozen=True, array_like=True):
    refused: Refused | None
    result: Any

    @property
    def value(self) -> Any:
        return self.result if self.refused is None else self.refused


_known = msgspec.msgpack.Decoder(_Known)


def _failure(error: sqlite3.Error) -> StateMachineFailed | StorageFull:
    if error.sqlite_errorcode in _FULL:
        return StorageFull("no room on the disk for the database of the cluster; free some space")
    return StateMachineFailed(f"the database of the cluster failed: {error}")


def _encoded(result: Any) -> bytes:
    known = _Known(result, None) if isinstance(result, Refused) else _Known(None, result)
    return msgspec.msgpack.encode(known)


class SqliteStateMachine:
    """Applies each request once, also when it comes twice; see ``StateMachine``.

    Of each proposer the last ``RAFT_REQUESTS_REMEMBERED`` requests are remembered, and anything
    older is refused; of proposers the last ``RAFT_PROPOSERS_REMEMBERED``. ``schema`` makes the
    caller's tables where they are not there yet.
    """

    def __init__(self, path: Path, schema: str, apply: Apply) -> None:
        self._apply = apply
        self._schema = schema
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(f"BEGIN; {_TABLES} {schema}; COMMIT")
        self._db.execute("PRAGMA synchronous=NORMAL")

    @property
    def connection(self) -> sqlite3.Connection:
        """The database, for reading."""
        return self._db

    @property
    def applied_index(self) -> int:
        """The index of the last command that the database contains."""
        (index,) = self._db.execute("SELECT applied_index FROM raft_state").fetchone()
        return int(index)

    def apply(self, request: Proposal, index: int) -> Any:
        """Change the database, unless this index or this request was applied before."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = self._applied(request, index)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # it has rolled back by itself after some errors
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _failure(error) from error
        return result

    def flush(self, index: int) -> None:
        """Return once the database survives power loss, having seen all up to ``index``."""
        self._db.execute("PRAGMA synchronous=FULL")
        try:
            self._db.execute(_FLUSH, (index,))
        except sqlite3.Error as error:
            raise _failure(error) from error
        finally:
            self._db.execute("PRAGMA synchronous=NORMAL")

    def snapshot(self, path: Path) -> None:
        """Copy the database into one file."""
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:
            raise StateMachineFailed(
                f"the database of the cluster was not copied: {error}"
            ) from error
        finally:
            copy.close()

    def restore(self, path: Path) -> None:
        """Replace everything by what a copy has, in one transaction."""
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            copy.backup(self._db)
        except sqlite3.Error as error:
            raise StateMachineFailed(f"a snapshot could not be taken over: {error}") from error
        finally:
            copy.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _applied(self, request: Proposal, index: int) -> Any:
        if index <= self.applied_index:
            return Refused("conflict", f"index {index} was applied before")
        self._db.execute("UPDATE raft_state SET applied_index = ?", (index,))
        key = (request.proposer, request.sequence)
        known = self._db.execute(
            "SELECT result FROM raft_requests WHERE proposer = ? AND sequence = ?", key
        ).fetchone()
        if known is not None:
            return _known.decode(known[0]).value
        if request.sequence <= self._forgotten(request.proposer):
            return Refused("timed_out", "the request is too old to tell whether it was applied")
        result = self._run(request)
        self._remember(request, index, result)
        return result

    def _run(self, request: Proposal) -> Any:
        self._db.execute("SAVEPOINT command")
        try:
            result = self._apply(self._db, request)
        except (sqlite3.OperationalError, OSError, MemoryError):
            raise
        except GoqError as error:
            result = Refused(error.code, error.detail)
        except Exception as error:
            result = Refused("internal", f"{type(error).__name__}: {error}")
        if isinstance(result, Refused):
            self._db.execute("ROLLBACK TO command")
        self._db.execute("RELEASE command")
        return result

    def _forgotten(self, proposer: int) -> int:
        (newest,) = self._db.execute(
            "SELECT max(sequence) FROM raft_requests WHERE proposer = ?", (proposer,)
        ).fetchone()
        return (newest or 0) - limits.RAFT_REQUESTS_REMEMBERED

    def _remember(self, request: Proposal, index: int, result: Any) -> None:
        data = _encoded(result)
        if len(data) > limits.RAFT_RESULT_BYTES_MAX:
            data = _encoded(Refused("too_large", "applied before, with a result too large to keep"))
        proposer, sequence, db = request.proposer, request.sequence, self._db
        db.execute("INSERT INTO raft_requests VALUES (?, ?, ?)", (proposer, sequence, data))
        db.execute(
            "DELETE FROM raft_requests WHERE proposer = ? AND sequence <= ?",
            (proposer, self._forgotten(proposer)),
        )
        db.execute("INSERT OR REPLACE INTO raft_proposers VALUES (?, ?)", (proposer, index))
        (count,) = db.execute("SELECT count(*) FROM raft_proposers").fetchone()
        if count > limits.RAFT_PROPOSERS_REMEMBERED:
            (oldest,) = db.execute(
                "SELECT proposer FROM raft_proposers ORDER BY last_index LIMIT 1"
            ).fetchone()
            db.execute("DELETE FROM raft_proposers WHERE proposer = ?", (oldest,))
            db.execute("DELETE FROM raft_requests WHERE proposer = ?", (oldest,))
