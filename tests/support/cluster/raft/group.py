"""Members of a cluster on the loopback interface, each with a key-value store in SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from goq.cluster.raft.driver import RaftSettings, RaftTiming
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.sqlite import SqliteStateMachine
from goq.cluster.raft.state_machine.state_machine import Proposal, Refused
from goq.cluster.raft.transport.link import Credentials
from tests.support.node.ports import free_ports

SECRET = b"of a cluster in a test"
SCHEMA = """
CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL, sets INTEGER NOT NULL);
"""
PATIENT = RaftTiming(election_min_s=0.6, election_max_s=1.2, fallback_s=1.8)


def create_tables(db: sqlite3.Connection) -> None:
    db.executescript(SCHEMA)


def apply_kv(db: sqlite3.Connection, request: Proposal) -> Any:
    """Set a key, or refuse, or fail, as the command says."""
    operation, key, value = request.command
    if operation == "refuse":
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, 1)", (key, value))
        return Refused("conflict", f"{key} is not to be set")
    if operation == "fail":
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, 1)", (key, value))
        raise ValueError(key)
    db.execute(
        "INSERT INTO kv VALUES (?, ?, 1)"
        " ON CONFLICT DO UPDATE SET value = excluded.value, sets = sets + 1",
        (key, value),
    )
    return {"set": key}


def kv_machine(folder: Path) -> SqliteStateMachine:
    folder.mkdir(parents=True, exist_ok=True)
    return SqliteStateMachine(folder / "state.db", create_tables, apply_kv)


def member_specs(count: int) -> list[str]:
    return [f"n{n}=127.0.0.1:{port}" for n, port in enumerate(free_ports(count), 1)]


def settings_of(spec: str, others: list[str], folder: Path, timing: RaftTiming) -> RaftSettings:
    member = RaftMember(spec)
    host, _, port = member.address.rpartition(":")
    return RaftSettings(
        spec,
        (host, int(port)),
        folder / str(member.id) / "raft",
        Credentials(SECRET),
        tuple(other for other in others if other != spec),
        timing,
        disk=member.disk,
    )


class Running:
    """A member and its store."""

    def __init__(
        self, spec: str, others: list[str], folder: Path, timing: RaftTiming = PATIENT, **more: Any
    ) -> None:
        self.id = spec.partition("=")[0]
        self.spec = spec
        self.machine = kv_machine(folder / self.id)
        self.node = RaftNode(settings_of(spec, others, folder, timing), self.machine, **more)

    async def start(self) -> Running:
        await self.node.start()
        return self

    async def stop(self) -> None:
        await self.node.stop()
        self.machine.close()

    async def set(self, key: str, value: str, **more: Any) -> Any:
        return await self.node.propose(["set", key, value], 30.0, **more)

    def rows(self) -> dict[str, tuple[str, int]]:
        found = self.machine.connection.execute("SELECT key, value, sets FROM kv")
        return {key: (value, sets) for key, value, sets in found}
