"""The state machine in SQLite: each request once, whatever comes twice, and nothing half."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.cluster.raft.state_machine.sqlite import SqliteStateMachine
from goq.cluster.raft.state_machine.state_machine import Proposal, Refused, StateMachineFailed
from goq.errors import CorruptData
from tests.support.cluster.raft.group import apply_kv, create_tables, kv_machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SqliteStateMachine]:
    machine = kv_machine(tmp_path)
    yield machine
    machine.close()


def request(sequence: int, *command: str, proposer: int = 7) -> Proposal:
    return Proposal(1, proposer, sequence, list(command) or ["set", f"key {sequence}", "x"])


def rows(machine: SqliteStateMachine) -> list[Any]:
    return machine.connection.execute("SELECT * FROM kv ORDER BY key").fetchall()


def test_a_command_and_its_index_are_there_together(machine: SqliteStateMachine) -> None:
    assert machine.applied_index == 0
    assert machine.apply(request(1), 5) == {"set": "key 1"}
    assert machine.applied_index == 5
    assert rows(machine) == [("key 1", "x", 1)]


def test_an_index_that_was_applied_is_not_applied_again(machine: SqliteStateMachine) -> None:
    machine.apply(request(1), 5)
    assert isinstance(machine.apply(request(2), 5), Refused)
    assert rows(machine) == [("key 1", "x", 1)]


def test_a_request_that_comes_again_gets_the_same_result_and_changes_nothing(
    machine: SqliteStateMachine,
) -> None:
    for command in (["set", "key", "x"], ["refuse", "key", "y"], ["fail", "key", "z"]):
        first = machine.apply(
            request(machine.applied_index + 1, *command), machine.applied_index + 1
        )
        again = machine.apply(request(machine.applied_index, *command), machine.applied_index + 1)
        assert first == again
        machine.flush(machine.applied_index + 1)
    assert rows(machine) == [("key", "x", 1)]


def test_a_refusal_and_an_exception_leave_the_state_as_it_was(machine: SqliteStateMachine) -> None:
    assert machine.apply(request(1, "refuse", "key", "x"), 1) == Refused(
        "conflict", "key is not to be set"
    )
    assert machine.apply(request(2, "fail", "key", "x"), 2) == Refused(
        "internal", "ValueError: key"
    )
    assert rows(machine) == []
    assert machine.applied_index == 2


def test_what_is_remembered_of_a_proposer_is_bounded_and_older_requests_are_refused(
    tmp_path: Path,
) -> None:
    machine = SqliteStateMachine(tmp_path / "few.db", create_tables, apply_kv, requests_max=10)
    for sequence in range(1, 31):
        machine.apply(request(sequence), sequence)
    (count,) = machine.connection.execute("SELECT count(*) FROM raft_requests").fetchone()
    assert count == 10
    assert machine.apply(request(21), 31) == {"set": "key 21"}
    assert machine.apply(request(20), 32) == Refused(
        "timed_out", "the request is too old to tell whether it was applied"
    )
    assert all(sets == 1 for _, _, sets in rows(machine))
    machine.close()


def test_requests_of_one_proposer_may_come_out_of_order(machine: SqliteStateMachine) -> None:
    for index, sequence in enumerate((3, 1, 2, 1, 3), 1):
        machine.apply(request(sequence), index)
    assert [sets for _, _, sets in rows(machine)] == [1, 1, 1]


def test_of_proposers_those_that_were_heard_last_are_remembered(tmp_path: Path) -> None:
    machine = SqliteStateMachine(tmp_path / "few.db", create_tables, apply_kv, proposers_max=3)
    for index, proposer in enumerate((1, 2, 3, 1, 4), 1):
        machine.apply(request(index, proposer=proposer), index)
    found = machine.connection.execute("SELECT DISTINCT proposer FROM raft_requests").fetchall()
    assert sorted(found) == [(1,), (3,), (4,)]
    machine.close()


def test_a_result_that_is_too_large_to_keep_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * limits.RAFT_RESULT_BYTES_MAX
    machine = SqliteStateMachine(tmp_path / "large.db", create_tables, lambda _db, _request: large)
    assert machine.apply(request(1), 1) == large
    assert machine.apply(request(1), 2) == Refused(
        "too_large", "applied before, with a result too large to keep"
    )
    machine.close()


def test_a_snapshot_brings_everything_and_the_memory_of_requests_too(tmp_path: Path) -> None:
    one, other = kv_machine(tmp_path / "one"), kv_machine(tmp_path / "other")
    for sequence in range(1, 101):
        one.apply(request(sequence), sequence)
    other.apply(request(1, "set", "of its own", "x", proposer=9), 3)
    one.snapshot(tmp_path / "copy")
    one.apply(request(101), 101)
    other.restore(tmp_path / "copy")
    assert other.applied_index == 100
    assert other.apply(request(50), 101) == {"set": "key 50"}
    assert [sets for _, _, sets in rows(other)] == [1] * 100
    assert other.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()
    again = kv_machine(tmp_path / "other")
    assert again.applied_index == 101
    again.close()
    one.close()


def test_a_snapshot_that_is_none_is_refused_and_the_state_stays(
    machine: SqliteStateMachine, tmp_path: Path
) -> None:
    machine.apply(request(1), 1)
    (tmp_path / "copy").write_bytes(b"not a database, and quite a bit longer than a header" * 100)
    with pytest.raises(StateMachineFailed):
        machine.restore(tmp_path / "copy")
    assert rows(machine) == [("key 1", "x", 1)]


def test_a_damaged_database_is_copied_to_nobody(tmp_path: Path) -> None:
    """Followers took the damage over, and could not start any more."""
    machine = kv_machine(tmp_path)
    db = machine.connection
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'kv'").fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    machine.close()
    with (tmp_path / "state.db").open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(bytes(page_bytes))
    machine = kv_machine(tmp_path)
    with pytest.raises(CorruptData, match="damaged here"):
        machine.snapshot(tmp_path / "copy")
    machine.close()


def test_readers_of_the_database_do_not_keep_a_snapshot_out(
    machine: SqliteStateMachine, tmp_path: Path
) -> None:
    machine.apply(request(1), 1)
    machine.snapshot(tmp_path / "copy")
    machine.apply(request(2), 2)
    reader = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    reader.execute("BEGIN")
    before = reader.execute("SELECT * FROM kv").fetchall()
    machine.restore(tmp_path / "copy")
    assert reader.execute("SELECT * FROM kv").fetchall() == before
    reader.execute("COMMIT")
    assert reader.execute("SELECT * FROM kv").fetchall() == rows(machine) == [("key 1", "x", 1)]
    reader.close()


def test_a_database_that_fails_stops_rather_than_skips(tmp_path: Path) -> None:
    machine = SqliteStateMachine(tmp_path / "state.db", lambda _db: None, apply_kv)
    with pytest.raises(StateMachineFailed, match="no such table"):
        machine.apply(request(1), 1)
    assert machine.applied_index == 0
    machine.close()
