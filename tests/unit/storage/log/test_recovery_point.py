"""The newest sound slot counts, whatever became of the other, and no bad byte counts at all."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from goq.storage.disk import RealDisk
from goq.storage.disk.open_files import OpenFiles
from goq.storage.log.recovery_point import (
    NO_MARK,
    Checkpoint,
    DurableEnd,
    JournalMark,
    RecoveryPoint,
    is_of_another_log,
    log_id_of,
    read_durable_end,
    read_journal_mark,
)
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY

PATH = DIRECTORY / "watermark"
SLOT_BYTES = 512
UNMARKED_BYTES = 68  # of a slot: the sequence, seven places and their CRC
MARKED_BYTES = UNMARKED_BYTES + 20  # and the journal mark, with the CRC of all


def durable(number: int) -> DurableEnd:
    return DurableEnd(100, 10 * number, 100 + number)


def created(disk: SimulatedDisk) -> RecoveryPoint:
    disk.make_dir(DIRECTORY)
    return RecoveryPoint.create(disk, DIRECTORY, 100)


def advanced(disk: SimulatedDisk, times: int) -> RecoveryPoint:
    """Create a recovery point and record so many durable ends, each with a mark of its number."""
    point = created(disk)
    point.take_checkpoint(Checkpoint(100, 0, 100, 7))
    for number in range(1, times + 1):
        point.journal_mark = JournalMark(5, number)
        point.advance(durable(number))
    point.close()
    return point


def found(disk: SimulatedDisk) -> tuple[DurableEnd | None, JournalMark]:
    return read_durable_end(disk, DIRECTORY), read_journal_mark(disk, DIRECTORY)


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_the_latest_that_was_recorded_is_found_in_whichever_slot_it_is(times: int) -> None:
    disk = SimulatedDisk()
    advanced(disk, times)
    assert found(disk) == (durable(times), JournalMark(5, times))
    loaded = RecoveryPoint.load(disk, DIRECTORY)
    assert loaded is not None
    assert loaded.checkpoint == Checkpoint(100, 0, 100, 7)
    assert (loaded.durable, loaded.journal_mark) == found(disk)
    loaded.advance(durable(9))  # in the other slot
    newest = slice(SLOT_BYTES * (times % 2), SLOT_BYTES * (times % 2) + MARKED_BYTES)
    data = bytearray(disk.read_all(PATH))
    data[newest] = b"\xff" * MARKED_BYTES
    disk.put(PATH, bytes(data))
    assert found(disk)[0] == durable(times)


@pytest.mark.parametrize("times", [2, 3])
def test_with_any_byte_of_the_newest_slot_changed_the_slot_before_it_counts(times: int) -> None:
    disk = SimulatedDisk()
    advanced(disk, times)
    start = SLOT_BYTES * ((times + 1) % 2)  # the checkpoint was the first in the file
    for position in range(start, start + MARKED_BYTES):
        case = disk.copy()
        case.flip(PATH, position, 0x10)
        assert found(case) == (durable(times - 1), JournalMark(5, times - 1)), position


def test_a_file_that_ends_within_a_slot_has_only_what_is_whole_of_it() -> None:
    disk = SimulatedDisk()
    advanced(disk, 1)
    data = disk.read_all(PATH)
    for size in range(len(data) + 1):
        disk.put(PATH, data[:size])
        known = found(disk)
        if size < UNMARKED_BYTES:
            assert known == (None, NO_MARK), size
            assert RecoveryPoint.load(disk, DIRECTORY) is None
        elif size >= MARKED_BYTES:
            assert known == (durable(1), JournalMark(5, 1)), size
        else:
            assert known in [(None, NO_MARK), (durable(1), NO_MARK)], size


def test_a_slot_of_an_older_version_has_no_mark() -> None:
    disk = SimulatedDisk()
    advanced(disk, 3)
    for size in (SLOT_BYTES, 0):  # the newest slot is the first one
        disk.put(PATH, disk.read_all(PATH)[:UNMARKED_BYTES] + bytes(size))
        assert found(disk) == (durable(3), NO_MARK)


def test_a_file_of_another_log_says_nothing_with_either_slot() -> None:
    disk, other = SimulatedDisk(), DIRECTORY.with_name("events")
    advanced(disk, 3)
    data = disk.read_all(PATH)
    for foreign in (data, data[:SLOT_BYTES], bytes(SLOT_BYTES) + data[SLOT_BYTES:]):
        disk.put(other / "watermark", foreign)
        assert is_of_another_log(disk, other)
        assert read_durable_end(disk, other) is None
        assert RecoveryPoint.load(disk, other) is None
    unnamed = data[:MARKED_BYTES].ljust(SLOT_BYTES, b"\0")  # as before there were ids
    disk.put(other / "watermark", unnamed + data[SLOT_BYTES:])
    assert RecoveryPoint.load(disk, other) is None


def test_a_slot_without_a_sound_log_id_counts_whatever_log_it_is_of() -> None:
    disk = SimulatedDisk()
    advanced(disk, 3)
    data = disk.read_all(PATH)
    for size in range(MARKED_BYTES, MARKED_BYTES + 12):
        disk.put(PATH, data[:size].ljust(SLOT_BYTES, b"\0"))
        assert found(disk) == (durable(3), JournalMark(5, 3))
        disk.put(PATH, data[:SLOT_BYTES])
        disk.flip(PATH, size, 1)
        assert found(disk) == (durable(3), JournalMark(5, 3))


def test_a_log_keeps_its_id_wherever_its_data_folder_is() -> None:
    ids = [log_id_of(Path(at) / "orders~1/0/messages") for at in ("/data/topics", "/mnt/b/topics")]
    assert ids[0] == ids[1]
    others = ("orders~1/0/events", "orders~1/1/messages", "orders~2/0/messages")
    assert len({*ids, *(log_id_of(Path("/data/topics") / each) for each in others)}) == 4


def test_without_a_file_nothing_is_known() -> None:
    disk = SimulatedDisk()
    assert found(disk) == (None, NO_MARK)
    assert RecoveryPoint.load(disk, DIRECTORY) is None


def test_a_new_recovery_point_says_that_nothing_is_durable() -> None:
    point = created(SimulatedDisk())
    assert point.checkpoint == Checkpoint(100, 0, 100, 0)
    assert point.durable == DurableEnd(100, 0, 100)
    assert point.journal_mark == NO_MARK


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_survives_a_power_cut_and_a_later_durable_end_a_killed_process(
    seed: int,
) -> None:
    disk = SimulatedDisk(Random(seed))
    point = created(disk)
    point.take_checkpoint(Checkpoint(100, 0, 100, 7))
    point.advance(durable(1))
    disk.crash(power=False)
    assert found(disk)[0] == durable(1)
    disk.crash(power=True)
    assert found(disk)[0] in (DurableEnd(100, 0, 100), durable(1))
    assert RecoveryPoint.load(disk, DIRECTORY) is not None


def test_a_durable_end_costs_no_sync_not_even_when_its_file_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(OpenFiles(1))
    point = RecoveryPoint.create(disk, tmp_path, 100)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    point.advance(durable(1))
    disk.open(tmp_path / "other").append([b"any"])
    assert synced == []
    point.take_checkpoint(Checkpoint(100, 0, 100, 7))
    assert len(synced) == 2  # the other file's, which gave way in turn, and its own


def test_a_closed_recovery_point_holds_no_descriptor(tmp_path: Path) -> None:
    disk = RealDisk()
    point = RecoveryPoint.create(disk, tmp_path, 100)
    point.advance(durable(1))
    assert len(disk.files) == 1
    point.close()
    assert len(disk.files) == 0
