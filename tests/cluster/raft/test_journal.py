"""The journal: what was synced is there again or its loss is told; what was not may end torn."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from goq.cluster.raft import codec
from goq.cluster.raft.log.journal import FILE_NAME, SYNCED_NAME, Journal
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import CorruptData, StorageFailed, StorageFull
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk

FOLDER = Path("/raft")
MEMBERS = ["n1=a:1", "n2=b:2"]


def command(number: int) -> bytes:
    return bytes((codec.REGULAR,)) + codec.encode_proposal(Proposal(1, 7, number, f"c{number}"))


def open_journal(disk: SimulatedDisk) -> Journal:
    return Journal.open(disk, FOLDER, MEMBERS)


def add(journal: Journal, count: int, term: int = 1) -> None:
    for _ in range(count):
        index = journal.last.index + 1
        journal.add(command(index), index, term)


def contents(journal: Journal) -> tuple[object, ...]:
    vote = (journal.getCurrentTerm(), journal.getVotedForNodeId())
    return list(journal[:]), vote, journal.members()


def torn(disk: SimulatedDisk) -> tuple[bytes, int, list[tuple[object, ...]]]:
    """Return a journal's file, of which a part is known as synced, and what may be read of it."""
    journal = open_journal(disk)
    journal.set_term(1, "n2")
    add(journal, 3)
    journal.sync()
    synced_bytes, note = journal.size_bytes, disk.read_all(FOLDER / SYNCED_NAME)
    readings = [contents(journal)]
    for step in range(3):
        add(journal, 1) if step < 2 else journal.set_term(2, None)
        journal.sync()
        readings.append(contents(journal))
    journal.close()
    disk.put(FOLDER / SYNCED_NAME, note)  # as a power cut may leave it
    return disk.read_all(FOLDER / FILE_NAME), synced_bytes, readings


def test_a_journal_is_read_again_as_it_was_left() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    journal.set_term(3, "n1")
    add(journal, 5, term=3)
    journal.sync()
    before = contents(journal)
    disk.crash(power=True)
    assert contents(open_journal(disk)) == before


def test_what_was_not_synced_was_never_promised() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    add(journal, 1)
    journal.sync()
    add(journal, 4)
    disk.crash(power=True)
    assert open_journal(disk).last.index == 2


def test_a_journal_cut_at_any_byte_tells_damage_from_a_torn_end() -> None:
    disk = SimulatedDisk(Random(1))
    data, synced_bytes, readings = torn(disk)
    seen = []
    for size in range(len(data) + 1):
        disk.put(FOLDER / FILE_NAME, data[:size])
        if size < synced_bytes:
            with pytest.raises(CorruptData):
                open_journal(disk.copy())
        else:
            reading = contents(open_journal(disk.copy()))
            assert reading in readings
            if not seen or reading != seen[-1]:
                seen.append(reading)
    assert seen == readings


def test_a_journal_with_any_bit_flipped_tells_damage_from_a_torn_end() -> None:
    disk = SimulatedDisk(Random(1))
    data, synced_bytes, readings = torn(disk)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        disk.put(FOLDER / FILE_NAME, bytes(flipped))
        if bit // 8 < synced_bytes:
            with pytest.raises(CorruptData):
                open_journal(disk.copy())
        else:
            assert contents(open_journal(disk.copy())) in readings[:-1]


def test_a_torn_end_is_cut_off_before_anything_follows_it() -> None:
    disk = SimulatedDisk(Random(1))
    data, _, readings = torn(disk)
    disk.put(FOLDER / FILE_NAME, data[:-5])
    journal = open_journal(disk)
    add(journal, 1)
    journal.sync()
    disk.crash(power=True)
    assert list(open_journal(disk)[:-1]) == readings[-2][0]


def test_damage_of_the_note_of_what_was_synced_alone_loses_nothing() -> None:
    disk = SimulatedDisk(Random(1))
    _, _, readings = torn(disk)
    note = disk.read_all(FOLDER / SYNCED_NAME)
    for bit in range(8 * len(note)):
        flipped = bytearray(note)
        flipped[bit // 8] ^= 1 << bit % 8
        disk.put(FOLDER / SYNCED_NAME, bytes(flipped))
        assert contents(open_journal(disk.copy())) == readings[-1]


def test_a_journal_that_is_gone_is_not_taken_for_a_new_one() -> None:
    disk = SimulatedDisk(Random(1))
    open_journal(disk)
    disk.delete(FOLDER / FILE_NAME)
    with pytest.raises(CorruptData, match="is missing"):
        open_journal(disk)


def test_an_entry_takes_the_place_of_all_from_its_index_on() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    add(journal, 5)
    journal.sync()
    journal.add(command(99), 4, 2)
    journal.sync()
    disk.crash(power=True)
    again = open_journal(disk)
    assert [(entry.index, entry.term) for entry in again[:]] == [(1, 0), (2, 1), (3, 1), (4, 2)]
    assert again.last.command == command(99)


def test_trimming_keeps_the_rest_the_term_and_the_members_up_to_there() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    journal.set_term(4, "n2")
    add(journal, 3, term=4)
    change = bytes((codec.MEMBERSHIP,)) + codec.encode_change("add", "n3=c:3")
    journal.add(change, 5, 4)
    add(journal, 3, term=4)
    journal.trim(6)
    before = contents(journal)
    disk.crash(power=True)
    again = open_journal(disk)
    assert contents(again) == before
    assert (again.first.index, again.last.index) == (6, 8)
    assert again.members() == [*MEMBERS, "n3=c:3"]


def test_members_follow_the_entries_and_leave_with_those_that_are_cut_off() -> None:
    journal = open_journal(SimulatedDisk(Random(1)))
    add(journal, 1)
    journal.add(bytes((codec.MEMBERSHIP,)) + codec.encode_change("rem", "n2"), 3, 1)
    assert journal.members() == ["n1=a:1"]
    assert journal.members(2) == MEMBERS
    journal.add(command(3), 3, 2)
    assert journal.members() == MEMBERS


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_operation_leaves_a_journal_with_all_that_was_synced(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(random)
    journal = open_journal(disk)
    synced = contents(journal)
    first = 1
    disk.crash_at = disk.operations + random.randint(1, 60)
    with suppress(SimulatedCrash):
        while True:
            add(journal, random.randint(1, 4))
            journal.sync()
            synced = contents(journal)
            if random.random() < 0.3:
                first = max(first, journal.last.index - 3)
                journal.trim(first)
    disk.crash(power=random.random() < 0.5)
    again = open_journal(disk)
    kept = [entry for entry in synced[0] if entry.index >= again.first.index]
    assert again.first.index <= first
    assert again[: len(kept)] == kept


def test_a_full_disk_is_told_and_what_waits_is_written_once_there_is_room() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    add(journal, 3)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFull):
        journal.sync()
    disk.capacity_bytes = None
    journal.sync()
    disk.crash(power=True)
    assert open_journal(disk).last.index == 4


def test_after_a_failed_sync_the_journal_takes_nothing_more() -> None:
    disk = SimulatedDisk(Random(1))
    journal = open_journal(disk)
    add(journal, 1)
    disk.fault = lambda operation, _path: errno.EIO if operation == "sync" else None
    with pytest.raises(StorageFailed):
        journal.sync()
    disk.fault = lambda _operation, _path: None
    with pytest.raises(StorageFailed):
        add(journal, 1)
    with pytest.raises(StorageFailed):
        journal.sync()


def test_a_batch_ends_at_its_size_but_has_one_entry_at_least() -> None:
    journal = open_journal(SimulatedDisk(Random(1)))
    add(journal, 9)
    size = len(command(2))
    assert [entry.index for entry in journal.batch(2, 1)] == [2]
    assert [entry.index for entry in journal.batch(2, 2 * size)] == [2, 3]
    assert journal.batch(11, 100) == []
