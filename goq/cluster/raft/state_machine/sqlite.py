"""Base for a state machine in a SQLite database, which applies each proposal once.

    raft_state(id, applied_index, flushes)                 one row
    raft_proposers(proposer, last_index)                   proposers, newest last
    raft_requests(proposer, sequence, result)              applied proposals, and their results

The caller adds its own tables. A command changes them in one transaction with its index and its
result. Commits are not synced one by one, as the log has the commands anyway. After a power cut the
database may lack some commands, but never holds part of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from goq import limits
from goq.cluster.raft.state_machine.state_machine import Proposal, Refused, StateMachineFailed
from goq.errors import CorruptData, GoqError, StorageFull

T = TypeVar("T")
Apply = Callable[[sqlite3.Connection, Proposal], Any]
"""Changes the caller's tables; returns a result of plain data, or :class:`Refused`.

The result must follow from the tables and the proposal alone. The function must not begin or end
transactions. Any exception but ``sqlite3.OperationalError``, ``OSError`` and ``MemoryError`` is
turned into ``Refused``, and its changes are undone.
"""

OnApplied = Callable[[sqlite3.Connection], None]
"""Writes into the caller's tables what goes with each change of the applied index."""

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


class _RememberedResult(msgspec.Struct, frozen=True, array_like=True):
    refused: Refused | None
    result: Any

    @property
    def value(self) -> Any:
        return self.result if self.refused is None else self.refused


_remembered = msgspec.msgpack.Decoder(_RememberedResult)


def _failure(error: sqlite3.Error) -> StateMachineFailed | StorageFull:
    if error.sqlite_errorcode in _FULL:
        return StorageFull("no space left on the disk of the cluster's database; free some space")
    return StateMachineFailed(f"the cluster's database failed: {error}")


def _encode_result(result: Any) -> bytes:
    known = (
        _RememberedResult(result, None)
        if isinstance(result, Refused)
        else _RememberedResult(None, result)
    )
    return msgspec.msgpack.encode(known)


class SqliteStateMachine:
    """Applies each proposal once, also when it arrives twice; see ``StateMachine``.

    Of each proposer the last ``requests_max`` proposals are remembered, and older ones are refused.
    The last ``proposers_max`` proposers are remembered. ``create_tables`` creates what is missing
    of the caller's tables. ``give_up_reserve`` makes room on a full disk and returns whether it
    did; a proposal is then applied after all. ``on_applied`` is called in each transaction.
    """

    def __init__(
        self,
        path: Path,
        create_tables: Callable[[sqlite3.Connection], None],
        apply: Apply,
        *,
        requests_max: int = limits.RAFT_REQUESTS_REMEMBERED,
        proposers_max: int = limits.RAFT_PROPOSERS_REMEMBERED,
        give_up_reserve: Callable[[], bool] = lambda: False,
        on_applied: OnApplied = lambda _db: None,
    ) -> None:
        self._give_up_reserve = give_up_reserve
        self._on_applied = on_applied
        self._requests_max = requests_max
        self._proposers_max = proposers_max
        self._apply = apply
        self._create_tables = create_tables
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(f"BEGIN; {_TABLES} COMMIT")
        create_tables(self._db)
        self._db.execute("PRAGMA synchronous=NORMAL")

    @property
    def connection(self) -> sqlite3.Connection:
        """The database connection, for reading."""
        return self._db

    @property
    def applied_index(self) -> int:
        """The index of the last command in the database."""
        (index,) = self._db.execute("SELECT applied_index FROM raft_state").fetchone()
        return int(index)

    feature_level = 0
    """The caller knows what the members know."""

    @property
    def digest(self) -> bytes | None:
        """None: the caller knows what its tables mean."""
        return None

    def apply(self, request: Proposal, index: int) -> Any:
        """Apply a proposal, unless this index or this proposal was applied before."""
        try:
            return self._change(lambda: self._apply_once(request, index))
        except StorageFull:
            if not self._give_up_reserve():
                raise
            return self._change(lambda: self._apply_once(request, index))

    def _change(self, work: Callable[[], T]) -> T:
        """Change the tables in one transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work()
                self._on_applied(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite rolls back by itself after some errors
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _failure(error) from error
        return result

    def flush(self, index: int) -> None:
        """Return once the database, with all commands up to ``index``, survives power loss."""
        self._db.execute("PRAGMA synchronous=FULL")
        try:
            self._change(lambda: self._db.execute(_FLUSH, (index,)))
        finally:
            self._db.execute("PRAGMA synchronous=NORMAL")

    def snapshot(
        self, path: Path, check: Callable[[sqlite3.Connection], None] = lambda _copy: None
    ) -> None:
        """Copy the database into one file, page by page; ``check`` looks at the copy.

        Raises ``CorruptData`` for a damaged one, which followers would take in place of sound ones.
        """
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict == "ok":
                check(copy)
        except sqlite3.Error as error:
            raise StateMachineFailed(f"the cluster's database was not copied: {error}") from error
        finally:
            copy.close()
        if verdict != "ok":
            raise CorruptData(
                f"the cluster's database is damaged here ({verdict}); remove this node from the"
                " cluster, and join it again with an empty folder: the other nodes have the data"
            )

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        """Replace everything by the content of a copy, in one transaction."""
        self.restore_changed(path, self._create_tables)

    def restore_changed(self, path: Path, change: Callable[[sqlite3.Connection], None]) -> None:
        """Replace everything by the content of a copy, after ``change`` has changed the copy.

        An earlier version of goq may have made the copy, so ``change`` creates missing tables.
        """
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            change(copy)
            copy.backup(self._db)
        except sqlite3.Error as error:
            raise StateMachineFailed(f"a snapshot could not be restored: {error}") from error
        finally:
            copy.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _apply_once(self, request: Proposal, index: int) -> Any:
        if index <= self.applied_index:
            return Refused("conflict", f"index {index} was applied before")
        self._db.execute("UPDATE raft_state SET applied_index = ?", (index,))
        key = (request.proposer, request.sequence)
        known = self._db.execute(
            "SELECT result FROM raft_requests WHERE proposer = ? AND sequence = ?", key
        ).fetchone()
        if known is not None:
            return _remembered.decode(known[0]).value
        if request.sequence <= self._newest_forgotten(request.proposer):
            return Refused("timed_out", "the request is too old to tell whether it was applied")
        result = self._run_command(request)
        self._remember(request, index, result)
        return result

    def _run_command(self, request: Proposal) -> Any:
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

    def _newest_forgotten(self, proposer: int) -> int:
        (newest,) = self._db.execute(
            "SELECT max(sequence) FROM raft_requests WHERE proposer = ?", (proposer,)
        ).fetchone()
        return (newest or 0) - self._requests_max

    def _remember(self, request: Proposal, index: int, result: Any) -> None:
        data = _encode_result(result)
        if len(data) > limits.RAFT_RESULT_BYTES_MAX:
            data = _encode_result(
                Refused("too_large", "applied before, with a result too large to keep")
            )
        proposer, sequence, db = request.proposer, request.sequence, self._db
        db.execute("INSERT INTO raft_requests VALUES (?, ?, ?)", (proposer, sequence, data))
        db.execute(
            "DELETE FROM raft_requests WHERE proposer = ? AND sequence <= ?",
            (proposer, self._newest_forgotten(proposer)),
        )
        db.execute("INSERT OR REPLACE INTO raft_proposers VALUES (?, ?)", (proposer, index))
        (count,) = db.execute("SELECT count(*) FROM raft_proposers").fetchone()
        if count > self._proposers_max:
            (oldest,) = db.execute(
                "SELECT proposer FROM raft_proposers ORDER BY last_index LIMIT 1"
            ).fetchone()
            db.execute("DELETE FROM raft_proposers WHERE proposer = ?", (oldest,))
            db.execute("DELETE FROM raft_requests WHERE proposer = ?", (oldest,))
