"""SQLite in memory, as durable as ``SqliteMachine`` makes it on a disk.

A commit without a sync survives the end of a process, and a loss of power perhaps: then the
database goes back to any commit since the last that was synced. Copies for snapshots lie on the
node's simulated disk.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.support.cluster.replication.loop import HOME
from tests.support.storage.disk import SimulatedDisk

_KEPT_MAX = 30
_PAGE_BYTES = 4096
MAIN_NAME = "metadata.db"


class Stored:
    """What a machine has of its database."""

    def __init__(self) -> None:
        self.synced = b""
        self.commits: list[bytes] = []

    @property
    def latest(self) -> bytes:
        return self.commits[-1] if self.commits else self.synced

    def commit(self, data: bytes) -> None:
        self.commits.append(data)
        if len(self.commits) > _KEPT_MAX:
            self.synced = self.commits.pop(0)

    def sync(self, data: bytes) -> None:
        self.synced, self.commits = data, []

    def lose_power(self, random: Random) -> int:
        """Go back to any commit since the last sync; return how many are gone."""
        kept = random.randint(0, len(self.commits))
        gone = len(self.commits) - kept
        if kept:
            self.synced = self.commits[kept - 1]
        self.commits = []
        return gone


class _Main(sqlite3.Connection):
    """The database that a node lives with."""

    stored: Stored
    disk: SimulatedDisk
    is_full_sync = True

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            try:
                self.disk.take_room(_PAGE_BYTES)
            except OSError:
                raise _full() from None
        cursor = super().execute(sql, *arguments)
        if sql.startswith("PRAGMA synchronous"):
            self.is_full_sync = sql.endswith("FULL")
        elif not self.in_transaction and not sql.startswith(("SELECT", "PRAGMA")):
            self._changed()
        return cursor

    def executescript(self, script: str) -> sqlite3.Cursor:
        cursor = super().executescript(script)
        self._changed()
        return cursor

    def _changed(self) -> None:
        keep = self.stored.sync if self.is_full_sync else self.stored.commit
        keep(self.serialize())


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


class _Copy(sqlite3.Connection):
    """A snapshot in a file."""

    path: Path
    disk: SimulatedDisk
    before = b""

    def close(self) -> None:
        data = self.serialize()
        super().close()
        if data != self.before:
            file = self.disk.open(self.path)
            file.append([data])
            file.close()


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    """Open what is at a path of the machine whose process runs."""
    machine: Any = HOME.get().machine
    options["check_same_thread"] = False
    if path.name == MAIN_NAME:
        main = sqlite3.connect(":memory:", factory=_Main, **options)
        main.stored, main.disk = machine.database, machine.disk
        if machine.database.latest:
            main.deserialize(machine.database.latest)
        return main
    copy = sqlite3.connect(":memory:", factory=_Copy, **options)
    copy.path, copy.disk = path, machine.disk
    if path.name in machine.disk.names(path.parent):
        machine.counts["snapshots taken over"] += 1
        copy.before = machine.disk.read_all(path)
        copy.deserialize(copy.before)
    return copy


SIMULATED = SimpleNamespace(**{**vars(sqlite3), "connect": connect})
"""Stands in for the module ``sqlite3``."""
