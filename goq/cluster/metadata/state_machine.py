"""The cluster's metadata on the disk of each node: ``metadata.db``, changed by Raft.

A file of its own beside ``node.db``: a snapshot of the cluster replaces it as a whole, and what is
true of this node alone, as its segments and its starts, must outlive that.

The tables change in one transaction with the applied index and with the memory of requests, which
``SqliteStateMachine`` keeps. The state is also in memory, as values that never change.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from goq.cluster.metadata import tables
from goq.cluster.metadata.apply import apply_bytes
from goq.cluster.metadata.results import Accepted, Rejected, Result
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.codec import COMMAND_VERSION
from goq.cluster.raft.state_machine import state_machine as raft
from goq.cluster.raft.state_machine.sqlite import SqliteStateMachine
from goq.errors import CorruptData

FILE_NAME = "metadata.db"
Listener = Callable[[MetadataState], None]
_log = logging.getLogger("goq.cluster")


class MetadataStateMachine:
    """A state machine for Raft: see ``goq.cluster.raft.StateMachine``, whose rules hold here.

    One thread applies. ``state`` may be read on any thread: a reference that stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        """Open, or begin, what is in ``folder``; raise ``CorruptData`` if that cannot be read."""
        self._index = 0
        self._changed: MetadataState | None = None
        self._listeners: list[Listener] = []
        path = folder / FILE_NAME
        try:
            self._machine = SqliteStateMachine(path, tables.SCHEMA, self._change)
            try:
                self.state = self._loaded()
            except BaseException:
                self._machine.close()
                raise
        except (sqlite3.DatabaseError, raft.StateMachineFailed) as error:
            raise CorruptData(
                f"{path} cannot be used: {error}; remove this node from the cluster, and let it"
                " join again with an empty folder: the others have what was in it"
            ) from error

    @property
    def applied_index(self) -> int:
        """The index of the last command that the database contains."""
        return self._machine.applied_index

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` with the state after each command and after a snapshot was taken over.

        On the thread that applies; what it raises is logged and harms nobody.
        """
        self._listeners.append(listener)

    def apply(self, request: raft.Proposal, index: int) -> Any:
        """Apply a request unless it was; return what :func:`decode_result` reads.

        A refusal by the metadata's rules is an answer like any other, with a code of its own;
        ``raft.Refused`` is only what a request was refused for before it came to them. Raises
        ``StorageFull`` or ``MachineFailed`` when the disk does not take the change: then nothing
        was changed.
        """
        self._index, self._changed = index, None
        answer = self._machine.apply(request, index)
        state = self._changed or self.state
        if index > state.version:  # also a refused or repeated request takes its place
            state = replace(state, version=index)
        self._publish(state)
        return answer

    def flush(self, index: int) -> None:
        """Return once all up to ``index`` survives power loss."""
        self._machine.flush(index)
        if index > self.state.version:
            self.state = replace(self.state, version=index)

    def snapshot(self, path: Path) -> None:
        """Copy everything into a new file."""
        self._machine.snapshot(path)

    def restore(self, path: Path) -> None:
        """Become what a snapshot holds, at once."""
        self._machine.restore(path)
        self._publish(self._loaded())

    def close(self) -> None:
        """Close the database; ``state`` stays readable."""
        self._machine.close()

    def _change(self, db: sqlite3.Connection, request: raft.Proposal) -> Any:
        if request.version != COMMAND_VERSION or not isinstance(request.command, bytes):
            unknown = f"this version of goq does not read requests of version {request.version}"
            return msgspec.to_builtins(Rejected("unknown_command", unknown))
        state, result = apply_bytes(self.state, request.command, self._index)
        if isinstance(result, Accepted):
            tables.save_state(db, self.state, state)
            self._changed = state
        return msgspec.to_builtins(result)

    def _loaded(self) -> MetadataState:
        try:
            return tables.load_state(self._machine.connection, self.applied_index)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise raft.StateMachineFailed(
                f"the cluster's metadata cannot be read: {error}"
            ) from error

    def _publish(self, state: MetadataState) -> None:
        self.state = state
        for listener in self._listeners:
            try:
                listener(state)
            except Exception:
                _log.exception("a listener to the cluster's metadata failed")


def decode_result(answer: Any) -> Result:
    """Return what an answer of :meth:`MetadataStateMachine.apply` says."""
    if isinstance(answer, raft.Refused):
        return Rejected(answer.code, answer.detail)
    result: Result = msgspec.convert(answer, Accepted | Rejected)
    return result
