"""The metadata on disk: equal to the state in memory after every command, kill and cut."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from goq.cluster.metadata import tables
from goq.cluster.metadata.commands import CreateTopic, FenceNode, RegisterNode
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState, encode_state
from goq.cluster.metadata.state_machine import FILE_NAME, MetadataStateMachine, decode_result
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import CorruptData, StorageFailed, StorageFull
from tests.support.cluster.metadata import process
from tests.support.cluster.metadata.machines import history, request
from tests.support.paths import REPOSITORY

NODE = RegisterNode("n1", 1, "http://n1", "n1:9")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[MetadataStateMachine]:
    machine = MetadataStateMachine(tmp_path)
    yield machine
    machine.close()


def stored(folder: Path) -> MetadataState:
    """Return what a start with these files would find."""
    machine = MetadataStateMachine(folder)
    try:
        return machine.state
    finally:
        machine.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_stored_is_the_state_after_every_command(
    tmp_path: Path, machine: MetadataStateMachine, seed: int
) -> None:
    commands, states = history(f"stored {seed}", 250)
    reader = sqlite3.connect(tmp_path / FILE_NAME)
    for index, command in enumerate(commands, 1):
        machine.apply(request(command, index), index)
        assert encode_state(machine.state) == encode_state(states[index])
        assert tables.load_state(reader, machine.applied_index) == machine.state
    reader.close()


def test_a_request_that_comes_twice_gets_its_first_answer_and_changes_nothing(
    machine: MetadataStateMachine,
) -> None:
    machine.apply(request(NODE, 1), 1)
    first = machine.apply(request(CreateTopic("orders", 3, {}, 1), 2), 2)
    before = machine.state
    again = machine.apply(request(CreateTopic("orders", 3, {}, 1), 2), 3)
    assert decode_result(first) == decode_result(again) == Accepted(2, "topic orders created", 2)
    assert machine.state.topics == before.topics
    assert machine.applied_index == machine.state.version == 3
    other = machine.apply(request(CreateTopic("orders", 3, {}, 1), 3), 4)
    assert decode_result(other) == Rejected("topic_exists", "topic 'orders' already exists")
    assert machine.apply(request(CreateTopic("orders", 3, {}, 1), 3), 5) == other


def test_a_snapshot_carries_the_memory_of_requests(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = MetadataStateMachine(tmp_path / "one"), MetadataStateMachine(tmp_path / "two")
    one.apply(request(NODE, 1), 1)
    answer = one.apply(request(CreateTopic("orders", 3, {}, 1), 2), 2)
    two.apply(request(RegisterNode("n9", 1, "", ""), 1, proposer=9), 1)
    one.snapshot(tmp_path / "snapshot")
    two.restore(tmp_path / "snapshot")
    assert two.state == one.state == stored(tmp_path / "two")
    assert two.apply(request(CreateTopic("orders", 3, {}, 1), 2), 3) == answer
    one.close()
    two.close()


@pytest.mark.parametrize("command", [b"", b"\xc1", b"junk", {"type": "fence_node/1"}, None, 7])
def test_what_is_no_command_is_refused_and_takes_its_place(
    machine: MetadataStateMachine, command: Any
) -> None:
    machine.apply(request(NODE, 1), 1)
    result = decode_result(machine.apply(Proposal(1, 1, 2, command), 2))
    assert isinstance(result, Rejected)
    assert machine.state.version == machine.applied_index == 2
    assert set(machine.state.nodes) == {"n1"}


def test_a_request_of_another_version_is_refused(machine: MetadataStateMachine) -> None:
    result = decode_result(machine.apply(Proposal(2, 1, 1, request(NODE, 1).command), 1))
    assert isinstance(result, Rejected)
    assert result.code == "unknown_command"
    assert not machine.state.nodes


def test_an_index_that_was_applied_changes_nothing(machine: MetadataStateMachine) -> None:
    machine.apply(request(NODE, 1), 5)
    before = machine.state
    machine.apply(request(FenceNode("n1", 1), 2), 5)
    assert machine.state == before


def test_a_disk_that_takes_no_change_leaves_everything_as_it_was(
    tmp_path: Path, machine: MetadataStateMachine
) -> None:
    machine.apply(request(NODE, 1), 1)
    before = machine.state
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    pages = other.execute("PRAGMA page_count").fetchone()[0]
    other.close()
    machine._machine.connection.execute(f"PRAGMA max_page_count = {pages}")
    settings = {f"k{number}": "x" * 900 for number in range(100)}
    with pytest.raises(StorageFull):
        machine.apply(request(CreateTopic("orders", 1000, settings, 1), 2), 2)
    assert machine.state is before
    assert machine.applied_index == 1
    machine._machine.connection.execute("PRAGMA max_page_count = 100000")
    answer = machine.apply(request(CreateTopic("orders", 1000, settings, 1), 2), 2)
    assert isinstance(decode_result(answer), Accepted)
    assert tables.load_state(machine._machine.connection, 2) == machine.state


def damaged_by(folder: Path, change: str) -> None:
    """Change the rows in the database as a bad disk may do it."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        db.execute(change)


DAMAGE = [
    "UPDATE topics SET name = 'nrders'",
    "UPDATE topics SET deleting = 1",
    "UPDATE partitions SET leader_epoch = leader_epoch + 8 WHERE partition = 2",
    "UPDATE nodes SET disk = 'd3'",
    "DELETE FROM partitions WHERE partition = 2",
    "UPDATE state_digest SET digest = x'00'",
]


@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_row_that_is_not_as_it_was_written_decides_on_nothing(
    tmp_path: Path, machine: MetadataStateMachine, change: str, is_flushed: bool
) -> None:
    """SQLite does not see it. Such a topic would be gone, or even be deleted, without a word."""
    machine.apply(request(NODE, 1), 1)
    machine.apply(request(CreateTopic("orders", 3, {}, 1), 2), 2)
    machine.apply(request(CreateTopic("orders", 3, {}, 1), 2), 3)  # repeated: the index alone moves
    if is_flushed:
        machine.flush(9)
    machine.close()
    assert set(stored(tmp_path).topics) == {"orders"}
    damaged_by(tmp_path, change)
    with pytest.raises(CorruptData, match=r"not those that were written.*restored from a backup"):
        MetadataStateMachine(tmp_path)


def test_text_that_damage_has_made_null_is_told_with_what_to_do(
    tmp_path: Path, machine: MetadataStateMachine
) -> None:
    machine.apply(request(NODE, 1), 1)
    machine.apply(request(CreateTopic("orders", 3, {}, 1), 2), 2)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.executescript(
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema"
            " SET sql = replace(sql, 'settings TEXT NOT NULL', 'settings TEXT');"
        )
    damaged_by(tmp_path, "UPDATE topics SET settings = NULL")
    with pytest.raises(CorruptData, match="cannot be copied"):
        machine.snapshot(tmp_path / "snapshot")
    with pytest.raises(CorruptData, match="join it again"):
        MetadataStateMachine(tmp_path)


def test_a_row_that_is_damaged_while_the_node_runs_is_copied_to_nobody(
    tmp_path: Path, machine: MetadataStateMachine
) -> None:
    machine.apply(request(NODE, 1), 1)
    machine.snapshot(tmp_path / "sound")
    damaged_by(tmp_path, "UPDATE nodes SET disk = 'd3'")
    with pytest.raises(CorruptData, match="not those that were written"):
        machine.snapshot(tmp_path / "damaged")


def test_a_database_to_which_an_earlier_version_has_applied_commands_is_no_damage(
    tmp_path: Path, machine: MetadataStateMachine
) -> None:
    machine.apply(request(NODE, 1), 1)
    machine.close()
    damaged_by(tmp_path, "UPDATE raft_state SET applied_index = 2")
    damaged_by(tmp_path, "UPDATE nodes SET status = 'fenced'")
    again = MetadataStateMachine(tmp_path)
    again.apply(request(RegisterNode("n2", 1, "http://n2", "n2:9"), 2), 3)
    again.close()
    assert set(stored(tmp_path).nodes) == {"n1", "n2"}
    damaged_by(tmp_path, "UPDATE nodes SET disk = 'd3'")
    with pytest.raises(CorruptData):
        stored(tmp_path)


@pytest.mark.parametrize("data", [b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_database_is_reported_with_what_to_do(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(CorruptData, match="join it again"):
        MetadataStateMachine(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == data


def test_a_file_that_the_system_does_not_open_is_no_reason_to_empty_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StorageFailed, match="check the disk") as refused:
        MetadataStateMachine(tmp_path)
    assert "join it again" not in str(refused.value)


def test_rows_that_hold_no_state_are_reported(tmp_path: Path) -> None:
    machine = MetadataStateMachine(tmp_path)
    machine.apply(request(NODE, 1), 1)
    machine.close()
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("UPDATE nodes SET status = 'somewhere'")
    other.close()
    with pytest.raises(CorruptData):
        MetadataStateMachine(tmp_path)


def test_files_copied_at_any_moment_hold_rows_and_index_of_one_command(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    commands, states = history("cut", 120)
    machine = MetadataStateMachine(folder)
    chance = random.Random(5)
    reached = set()
    for index, command in enumerate(commands, 1):
        machine.apply(request(command, index), index)
        for cut in range(2):
            copy = tmp_path / f"copy-{index}-{cut}"
            shutil.copytree(folder, copy)
            (copy / f"{FILE_NAME}-shm").unlink(missing_ok=True)
            wal = copy / f"{FILE_NAME}-wal"
            if cut and wal.exists():
                with open(wal, "r+b") as file:
                    file.truncate(chance.randrange(wal.stat().st_size + 1))
            if (copy / FILE_NAME).stat().st_size == 0:
                continue
            found = stored(copy)
            assert found == states[found.version]
            assert cut or found.version == index
            reached.add(index - found.version)
            shutil.rmtree(copy)
    assert len(reached) > 10, "the cuts took nothing away"
    machine.close()


def test_a_killed_process_leaves_rows_and_index_of_one_command(tmp_path: Path) -> None:
    count = 1500
    _, states = history("kill", count)
    chance = random.Random(11)
    seen = 0
    for _ in range(8):
        killed = subprocess.Popen(
            [sys.executable, "-m", process.__name__, str(tmp_path), "kill", str(count)],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        assert killed.stdout is not None
        told = 0
        for _ in range(chance.randrange(1, 150)):
            line = killed.stdout.readline()
            if not line:
                break
            told = int(line)
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        killed.stdout.close()
        found = stored(tmp_path)
        assert found.version >= told, "what was applied was lost with the process"
        assert found == states[found.version]
        assert found.version >= seen
        seen = found.version
    assert seen > 100
