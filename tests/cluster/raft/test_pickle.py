"""The library loads pickles in many places; goq's node loads none, wherever one is put."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pysyncobj.pickle
import pytest

from goq.cluster.raft import codec
from goq.cluster.raft.log.journal import FILE_NAME, Journal
from goq.cluster.raft.log.records import Entry, pack_entry
from goq.errors import CorruptData, InvalidInput
from tests.support.cluster.raft.node import (
    FOLDER,
    ManualTime,
    Words,
    append_entries,
    elect,
    hardened,
    next_index,
    transport_of,
)
from tests.support.storage.disk import SimulatedDisk

SPRUNG: list[int] = []


def spring() -> None:
    SPRUNG.append(1)


class Trap:
    """Unpickling this leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, ()


TRAP = pickle.dumps(Trap())


@pytest.fixture(autouse=True)
def never_sprung() -> Iterator[None]:
    SPRUNG.clear()
    yield
    assert not SPRUNG


def test_the_trap_works() -> None:
    pickle.loads(TRAP)
    assert SPRUNG
    SPRUNG.clear()


@pytest.mark.parametrize("kind", [b"", b"\x00", b"\x01", b"\x02", b"\x03"])
def test_a_command_from_a_follower_is_refused_aloud(
    kind: bytes, time: ManualTime, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node = hardened("n1", ["n2"], disk)
    elect(node, time)
    before = node._SyncObj__raftLog.last
    message = {"type": "apply_command", "command": kind + TRAP, "request_id": 1}
    with caplog.at_level(logging.ERROR):
        transport_of(node).tell("n2", message)
    time.tick(node, 3)
    assert node._SyncObj__raftLog.last == before
    assert "rejected a message from n2" in caplog.text


@pytest.mark.parametrize("kind", [b"", b"\x00", b"\x01", b"\x02", b"\x03"])
def test_an_entry_from_a_leader_is_refused_aloud(
    kind: bytes, time: ManualTime, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    message = append_entries((1, 0), [(kind + TRAP, 2, 1)], term=1, commit=2)
    with caplog.at_level(logging.ERROR):
        transport_of(node).tell("n1", message)
    time.tick(node, 3)
    assert node._SyncObj__raftLog.last.index == 1
    assert node.raftLastApplied == 1
    assert "rejected a message from n1" in caplog.text


@pytest.mark.parametrize("kind", ["serialized", "transmission"])
def test_the_fields_that_carry_pickles_in_the_library_do_not_reach_it(kind: str) -> None:
    plain = append_entries((1, 0), [], term=1, commit=1)
    message = plain | {kind: "finish", "data": TRAP}
    decoded = codec.decode_message(codec.encode_message(message))
    assert decoded.keys() == plain.keys()


def test_a_command_in_the_journal_is_refused_aloud(
    time: ManualTime, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    words = Words(disk)
    journal = Journal.open(disk, FOLDER, ["n1"])
    journal.add(b"\x00" + TRAP, 2, 0)
    journal.sync()
    node = hardened("n1", [], disk, machine=words)
    with caplog.at_level(logging.WARNING):
        elect(node, time)
        time.tick(node, 3)
    assert node.raftLastApplied == 3
    assert words.words == []
    assert "the command at 2 was refused" in caplog.text


@pytest.mark.parametrize("record", [TRAP, pack_entry(Entry(b"\x02" + TRAP, 2, 0))])
def test_a_journal_that_is_or_has_a_pickle_does_not_open(
    record: bytes, disk: SimulatedDisk
) -> None:
    Journal.open(disk, FOLDER, ["n1"]).close()
    data = disk.read_all(FOLDER / FILE_NAME)
    disk.put(FOLDER / FILE_NAME, TRAP if record is TRAP else data + record)
    with pytest.raises((CorruptData, InvalidInput)):
        hardened("n1", [], disk)


def test_the_librarys_pickling_is_not_reached_in_the_life_of_a_cluster(
    time: ManualTime, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_arguments: object) -> None:
        raise AssertionError("pickling was reached")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pysyncobj.pickle, name, reached)
    node = hardened("n1", ["n2"], disk, logCompactionMinEntries=4)
    elect(node, time)
    for step in range(12):
        node.apply("x" * 100_000)
        if step == 5:
            node.add_member("n3", lambda *_: None)
        time.tick(node)
        last = node._SyncObj__raftLog.last.index
        transport_of(node).tell("n2", next_index(last + 1, term=node.raftCurrentTerm))
        time.tick(node)
    assert node.members() == ["n1", "n2", "n3"]
    assert node._SyncObj__raftLog.first.index > 1
    disk.crash(power=True)
    again = hardened("n1", ["n2"], disk)
    assert again.members() == ["n1", "n2", "n3"]
    assert again.raftLastApplied > 1
