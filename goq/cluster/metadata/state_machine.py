"""State machine of the cluster's metadata, stored in ``metadata.db`` on each node.

The file is separate from ``node.db``: a Raft snapshot replaces it as a whole, while this node's own
data, such as its segments and its start count, must survive that.

The tables change in one transaction with the applied index and with the memory of proposals, which
``SqliteStateMachine`` keeps. The state is also in memory, as immutable values.

SQLite does not check what it reads. So the tables hold the digest of the state too. A state that
has another one decides on nothing: no start uses it, and no node gets a snapshot of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from goq.cluster.metadata import tables
from goq.cluster.metadata.apply import apply_bytes
from goq.cluster.metadata.digest import DIGEST_BYTES, next_digest, state_digest
from goq.cluster.metadata.divergence import DivergedPartitions, diverged_partitions
from goq.cluster.metadata.features import has_digests
from goq.cluster.metadata.results import Accepted, Rejected, Result
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.codec import COMMAND_VERSION
from goq.cluster.raft.state_machine import state_machine as raft
from goq.cluster.raft.state_machine.sqlite import SqliteStateMachine
from goq.errors import CorruptData
from goq.storage.catalog.sqlite_errors import refused_access

FILE_NAME = "metadata.db"
_UNREADABLE = (msgspec.MsgspecError, TypeError)
"""Errors of damaged rows: text that is no JSON, or NULL in the place of text."""
_DAMAGED = "its rows are not those that were written: a bad disk, or another program"
_ADVICE = (
    "remove this node from the cluster, and join it again with an empty folder: the other nodes"
    " have the data. The only node of a cluster is restored from a backup"
)


class MetadataStateMachine:
    """The replicated metadata; see ``StateMachine`` in ``goq.cluster.raft``, whose rules hold here.

    One thread applies. Any thread may read ``state``: the value behind a reference never changes.
    """

    def __init__(self, folder: Path, give_up_reserve: Callable[[], bool] = lambda: False) -> None:
        """Open or create the database in ``folder``.

        Raises ``CorruptData`` for a damaged one, ``StorageFailed`` or ``StorageFull`` if the disk
        keeps it from it.

        ``give_up_reserve`` makes room on a full disk, and returns whether it did.
        """
        self._index = 0
        self._new_state: MetadataState | None = None
        self._digest = self._new_digest = 0
        self.diverged: DivergedPartitions | None
        self._must_forget = False
        path = folder / FILE_NAME
        try:
            self._machine = SqliteStateMachine(
                path,
                tables.create_tables,
                self._apply_command,
                give_up_reserve=give_up_reserve,
                on_applied=lambda db: tables.save_digest(db, _packed(self._new_digest)),
            )
            try:
                self.state = self._load()
                self.diverged = tables.load_diverged(self._machine.connection) or None
                self._digest = self._new_digest = state_digest(self.state)
                if tables.load_digest(self._machine.connection) not in (
                    None,
                    _packed(self._digest),
                ):
                    raise raft.StateMachineFailed(_DAMAGED)
            except BaseException:
                self._machine.close()
                raise
        except (sqlite3.DatabaseError, raft.StateMachineFailed) as error:
            raise refused_access(path, error) or CorruptData(
                f"{path} cannot be used: {error}; {_ADVICE}"
            ) from error

    @property
    def applied_index(self) -> int:
        """The index of the last command in the database."""
        return self._machine.applied_index

    @property
    def feature_level(self) -> int:
        """The level of features that all nodes know."""
        return self.state.features.level

    @property
    def digest(self) -> bytes | None:
        """The digest of the state; None until all nodes compute it."""
        if not has_digests(self.state):
            return None
        return _packed(self._digest)

    def apply(self, request: raft.Proposal, index: int) -> Any:
        """Apply a proposal once; return what :func:`decode_result` reads.

        A rejection by a handler is a result like any other, with its own code; ``raft.Refused`` is
        only for proposals refused before they reach a handler. Raises ``StorageFull`` or
        ``StateMachineFailed`` when the disk does not accept the change: then nothing was changed.
        """
        self._index, self._new_state, self._new_digest = index, None, self._digest
        must_forget = self._must_forget
        answer = self._machine.apply(request, index)
        if must_forget:
            self._must_forget = False
        state, self._digest = self._new_state or self.state, self._new_digest
        if index > state.version:  # a rejected or repeated proposal has an index, too
            state = replace(state, version=index)
        self.state = state
        return answer

    def flush(self, index: int) -> None:
        """Return once everything up to ``index`` survives power loss.

        The version stays: nobody is told of a flush, and who waits for a version would wait on.
        """
        self._new_digest = self._digest
        self._machine.flush(index)

    def snapshot(self, path: Path) -> None:
        """Copy everything into a new file. Raises ``CorruptData`` if the tables are damaged."""
        self._machine.snapshot(path, self._check_copy)

    def _check_copy(self, copy: sqlite3.Connection) -> None:
        try:
            is_sound = state_digest(tables.load_state(copy, 0)) == self._digest
        except _UNREADABLE:
            is_sound = False
        if not is_sound:
            raise CorruptData(f"the cluster's metadata cannot be copied: {_DAMAGED}; {_ADVICE}")

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        """Replace the state by that of a snapshot, atomically.

        After a divergence, ``diverged`` are the partitions that differed, perhaps none, until
        :meth:`forget_diverged`. Otherwise it is None.
        """
        before = self.state if is_diverged else None

        def record_differences(copy: sqlite3.Connection) -> None:
            tables.create_tables(copy)
            true = tables.load_state(copy, 0)
            known = self.diverged or ()  # of an earlier divergence, not recovered yet
            self._must_forget = False
            found = () if before is None else diverged_partitions(before, true)
            tables.save_diverged(copy, tuple(sorted({*known, *found})))

        self._machine.restore_changed(path, record_differences)
        if is_diverged:
            self.diverged = tables.load_diverged(self._machine.connection)
        state = self._load()
        self._digest = self._new_digest = state_digest(state)
        self.state = state

    def forget_diverged(self) -> None:
        """Forget the partitions in ``diverged``; any thread may call this.

        The record goes with the next command: only the thread that applies writes. A crash before
        that repeats a recovery, which does no harm.
        """
        self.diverged, self._must_forget = None, True

    def close(self) -> None:
        """Close the database; ``state`` stays readable."""
        self._machine.close()

    def _apply_command(self, db: sqlite3.Connection, request: raft.Proposal) -> Any:
        if self._must_forget:
            tables.save_diverged(db, ())
        if request.version != COMMAND_VERSION or not isinstance(request.command, bytes):
            unknown = f"this version of goq does not know proposals of version {request.version}"
            return msgspec.to_builtins(Rejected("unknown_command", unknown))
        state, result = apply_bytes(self.state, request.command, self._index)
        if isinstance(result, Accepted):
            tables.save_state(db, self.state, state)
            self._new_state = state
            self._new_digest = next_digest(self._digest, self.state, state)
        return msgspec.to_builtins(result)

    def _load(self) -> MetadataState:
        try:
            return tables.load_state(self._machine.connection, self.applied_index)
        except (sqlite3.Error, *_UNREADABLE) as error:
            raise raft.StateMachineFailed(
                f"the cluster's metadata cannot be read: {error}"
            ) from error


def decode_result(answer: Any) -> Result:
    """Return the result in an answer of :meth:`MetadataStateMachine.apply`, on any node."""
    if isinstance(answer, raft.Refused):
        return Rejected(answer.code, answer.detail)
    result: Result = msgspec.convert(answer, Accepted | Rejected)
    return result


def _packed(digest: int) -> bytes:
    return digest.to_bytes(DIGEST_BYTES, "big")
