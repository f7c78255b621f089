"""Pieces of the journal and the records in them, against a list of what was written."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq.storage.journal.piece import (
    DAMAGED_SUFFIX,
    HEADER_BYTES,
    JournalPiece,
    PieceHeader,
    ScannedPiece,
    journal_damage,
    read_header,
    scan_piece,
    scan_pieces,
    told_damage,
)
from goq.storage.journal.record import (
    JournalEntry,
    JournalRecord,
    encode_entry,
    encode_record,
    parse_record,
)
from goq.storage.log.recovery_point import JournalMark
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/journal")
PATH = FOLDER / "1.journal"
SIZE_BYTES = 3_000
JOURNAL_ID = 9

entries = st.builds(
    JournalEntry,
    st.text(max_size=20),
    st.integers(0, 2**48),
    st.integers(0, 2**40),
    st.integers(0, 2**48),
    st.binary(max_size=60),
)


def encoded(number: int, given: list[JournalEntry], journal_id: int = JOURNAL_ID) -> bytes:
    return encode_record(
        number,
        journal_id,
        [
            encode_entry(
                e.path, e.segment, e.position, e.end_offset, [e.data[:7], e.data[7:]], len(e.data)
            )
            for e in given
        ],
    )


def told(record: JournalRecord) -> list[JournalEntry]:
    return [entry._replace(data=bytes(entry.data)) for entry in record.entries()]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(entries, max_size=4), st.integers(1, 2**60), st.integers(1, 2**60), st.integers(0, 9)
)
def test_a_record_is_read_as_it_was_written_and_never_in_part(
    given: list[JournalEntry], number: int, journal_id: int, at: int
) -> None:
    data = encoded(number, given, journal_id)
    around = bytes(at) + data + b"GOQR"
    record = parse_record(memoryview(around), at)
    assert record is not None
    assert (record.number, record.journal_id) == (number, journal_id)
    assert (record.size_bytes, told(record)) == (len(data), given)
    assert parse_record(memoryview(around), at + 1) is None
    whole = memoryview(data)
    assert parse_record(whole, 0) is not None
    for end in range(len(data)):
        assert parse_record(whole[:end], 0) is None
    for place in range(0, len(data), 5):
        damaged = bytearray(data)
        damaged[place] ^= 1
        assert parse_record(memoryview(damaged), 0) is None


def test_entries_tell_their_size() -> None:
    entry = encode_entry("orders/0/messages", 1, 2, 3, [b"ab", b"c"], 3)
    assert entry.path == "orders/0/messages"
    assert entry.size_bytes == sum(len(buffer) for buffer in entry.buffers)


@pytest.mark.parametrize("is_free", [True, False])
def test_a_header_is_read_as_it_was_written_or_not_at_all(is_free: bool) -> None:
    header = PieceHeader(is_free, 2**60, 7, 3)
    data = header.pack()
    assert len(data) == HEADER_BYTES
    assert read_header(data) == header
    assert read_header(data + b"more") == header
    assert read_header(data[:-1]) is None
    assert read_header(bytes(HEADER_BYTES)) is None
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        assert read_header(bytes(damaged)) is None


def new_piece(disk: SimulatedDisk, path: Path = PATH, number: int = 1) -> JournalPiece:
    disk.make_dir(FOLDER)
    return JournalPiece.create(disk, path, SIZE_BYTES, PieceHeader(True, JOURNAL_ID, number, 1))


def test_a_new_piece_is_free_has_its_size_and_survives_a_power_cut() -> None:
    disk = SimulatedDisk()
    piece = new_piece(disk)
    assert piece.size_bytes == disk.size(PATH) == SIZE_BYTES
    disk.crash(power=True)
    found = scan_piece(disk, PATH)
    assert found == ScannedPiece(PATH, PieceHeader(True, JOURNAL_ID, 1, 1), [], None)
    assert found.next_number == 1
    assert disk.names(FOLDER) == [PATH.name]


def test_a_piece_that_cannot_be_made_leaves_nothing() -> None:
    disk = SimulatedDisk()

    def fault(operation: str, path: Path) -> None:
        if operation == "sync" and path.name.startswith(PATH.name):
            raise OSError(errno.ENOSPC, "full")

    disk.fault = fault
    with pytest.raises(OSError, match="full"):
        new_piece(disk)
    assert disk.names(FOLDER) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_scan_finds_each_sound_record_and_tells_of_bad_bytes_before_one(seed: int) -> None:
    chance, disk = Random(seed), SimulatedDisk()
    piece = new_piece(disk)
    number = 5
    for use in range(2):  # the second use leaves records of the first behind its own
        first, at, written = number, HEADER_BYTES, list[tuple[int, int, JournalEntry]]()
        while number < first + (10, 4)[use]:
            entry = JournalEntry("t", number, at, 0, chance.randbytes(chance.randrange(40)))
            data = encoded(number, [entry])
            assert piece.has_room_for(len(data))
            if number == first:
                piece.begin(PieceHeader(False, JOURNAL_ID, first, 1), data)
            else:
                piece.append(data)
            written.append((at, number, entry))
            at += len(data)
            number += 1
    assert piece.has_room_for(SIZE_BYTES - at)
    assert not piece.has_room_for(SIZE_BYTES - at + 1)
    disk.crash(power=True)
    bad = chance.choice([None, 0, 1, 2, 3])
    if bad is not None:
        disk.flip(PATH, written[bad][0] + chance.randrange(24), 1)
    found = scan_piece(disk, PATH)
    expected = [(n, entry) for place, (_, n, entry) in enumerate(written) if place != bad]
    assert [(r.number, *told(r)) for r in found.records] == expected
    assert (found.damage is not None) == (bad in (0, 1, 2))  # a torn last one is none
    assert found.next_number == expected[-1][0] + 1
    assert journal_damage([found]) == ([] if found.damage is None else [(PATH, found.damage)])


def test_a_piece_that_was_freed_has_no_records_and_takes_new_ones() -> None:
    disk = SimulatedDisk()
    piece = new_piece(disk)
    piece.begin(PieceHeader(False, JOURNAL_ID, 1, 1), encoded(1, []))
    piece.marks["t"] = JournalMark(JOURNAL_ID, 1)
    piece.free(PieceHeader(True, JOURNAL_ID, 2, 1))
    assert piece.marks == {}
    assert piece.has_room_for(SIZE_BYTES - HEADER_BYTES)
    disk.crash(power=True)
    assert scan_piece(disk, PATH).records == []
    assert scan_piece(disk, PATH).next_number == 2


def test_a_piece_of_an_earlier_start_takes_no_more_if_it_has_records() -> None:
    disk = SimulatedDisk()
    new_piece(disk).close()
    marks = {"t": JournalMark(JOURNAL_ID, 4)}
    used = JournalPiece.reopen(disk, PATH, marks)
    assert used.marks == marks
    assert not used.has_room_for(1)
    free = JournalPiece.reopen(disk, PATH, {})
    assert free.marks == {}
    assert free.has_room_for(SIZE_BYTES - HEADER_BYTES)


def test_records_of_another_journal_do_not_count() -> None:
    disk = SimulatedDisk()
    piece = new_piece(disk)
    piece.begin(PieceHeader(False, JOURNAL_ID, 1, 1), encoded(1, []))
    piece.append(encoded(2, [], JOURNAL_ID - 1))
    piece.append(encoded(3, []))
    found = scan_piece(disk, PATH)
    assert [record.number for record in found.records] == [1, 3]
    assert found.damage


def test_a_damaged_header_is_told_and_its_records_do_not_count() -> None:
    disk = SimulatedDisk()
    new_piece(disk).begin(PieceHeader(False, JOURNAL_ID, 1, 1), encoded(1, []))
    disk.flip(PATH, 9, 1)
    found = scan_piece(disk, PATH)
    assert found.damage
    assert found.records == []
    assert found.header.is_free


def test_pieces_are_read_in_the_order_of_their_records() -> None:
    disk = SimulatedDisk()
    for name, number in (("2", 5), ("1", 9), ("3", 1)):
        new_piece(disk, FOLDER / f"{name}.journal", number)
    disk.put(FOLDER / "x.other", b"")
    disk.put(FOLDER / f"x{DAMAGED_SUFFIX}", b"bytes 1 to 2\xff")
    assert [piece.header.number for piece in scan_pieces(disk, FOLDER)] == [1, 5, 9]
    assert told_damage(disk, FOLDER) == ["bytes 1 to 2\ufffd"]


def scanned(
    name: str,
    number: int,
    records: int,
    *,
    journal_id: int = 1,
    pieces: int = 1,
    is_free: bool = False,
) -> ScannedPiece:
    found = [
        JournalRecord(number + place, journal_id, 1, memoryview(b""), 0) for place in range(records)
    ]
    header = PieceHeader(is_free, journal_id, number, pieces)
    return ScannedPiece(FOLDER / name, header, found, None)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([scanned("a", 1, 3), scanned("b", 4, 2)], []),
        ([scanned("a", 1, 3), scanned("b", 5, 2)], [("a", "records 4 to 4 are missing")]),
        ([scanned("a", 1, 3), scanned("b", 9, 2)], [("a", "records 4 to 8 are missing")]),
        ([scanned("a", 1, 3), scanned("b", 9, 2, journal_id=2)], []),
        ([scanned("a", 1, 3), scanned("b", 9, 2, is_free=True)], []),
        ([scanned("a", 1, 0), scanned("b", 1, 2)], []),
        ([scanned("a", 1, 3, pieces=2), scanned("b", 4, 2)], []),
        (
            [scanned("a", 1, 3, pieces=4), scanned("b", 4, 2)],
            [("b", "2 other files of the journal are missing")],
        ),
    ],
)
def test_what_is_missing_of_a_journal_is_told(
    pieces: list[ScannedPiece], expected: list[tuple[str, str]]
) -> None:
    assert journal_damage(pieces) == [(FOLDER / name, reason) for name, reason in expected]
