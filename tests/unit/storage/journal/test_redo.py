"""Redo after a power cut, against bytes written one by one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.storage.journal.record import JournalEntry
from goq.storage.journal.redo import MarkedEntry, redo_log
from goq.storage.log.recovery_point import (
    NO_MARK,
    DurableEnd,
    JournalMark,
    RecoveryPoint,
    read_durable_end,
    read_journal_mark,
)
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/topics/t/0/messages")


def path_of(segment: int) -> Path:
    return FOLDER / f"{segment:020d}.log"


def disk_with(*segments: int, mark: JournalMark | None = NO_MARK) -> SimulatedDisk:
    """Return a disk with empty segments, and a recovery point unless ``mark`` is None."""
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    for segment in segments:
        disk.put(path_of(segment), b"")
    if mark is not None:
        point = RecoveryPoint.create(disk, FOLDER, segments[0] if segments else 0)
        point.journal_mark = mark
        point.sync()
        point.close()
    return disk


def marked(number: int, segment: int, position: int, data: bytes, end: int = 0) -> MarkedEntry:
    return JournalMark(1, number), JournalEntry("t", segment, position, end, data)


@pytest.mark.parametrize("seed", range(15))
def test_entries_newer_than_the_mark_are_written_where_they_belong(seed: int) -> None:
    chance = Random(seed)
    mark = JournalMark(1, chance.randrange(8))
    disk = disk_with(0, 100, mark=mark)
    segments, expected = (0, 100), {0: bytearray(), 100: bytearray()}
    ends = dict.fromkeys(segments, 0)
    entries, segment, offset = list[MarkedEntry](), 0, 0
    for number in range(1, 12):
        if number == 6:
            segment, offset = 100, 100
        data = chance.randbytes(chance.randrange(1, 9))
        offset += 1
        position = ends[segment]
        ends[segment] += len(data)
        entries.append(marked(number, segment, position, data, offset))
        kept = expected[segment]
        if number > mark.number:
            kept[len(kept) :] = bytes(position - len(kept))
            kept[position:] = data
    redo_log(disk, FOLDER, entries)
    disk.crash(power=True)
    for each in segments:
        assert disk.read_all(path_of(each)) == bytes(expected[each])
    assert read_journal_mark(disk, FOLDER) == JournalMark(1, 11)
    assert read_durable_end(disk, FOLDER) == DurableEnd(100, ends[100], offset)
    redo_log(disk, FOLDER, entries)
    assert disk.read_all(path_of(100)) == bytes(expected[100])


def test_the_durable_end_never_goes_back() -> None:
    disk = disk_with(0)
    point = RecoveryPoint.load(disk, FOLDER)
    assert point is not None
    point.advance(DurableEnd(0, 50, 9))
    point.close()
    redo_log(disk, FOLDER, [marked(1, 0, 0, b"abc", 1)])
    assert read_durable_end(disk, FOLDER) == DurableEnd(0, 50, 9)
    assert disk.read_all(path_of(0))[:3] == b"abc"


def test_records_up_to_the_end_of_the_journal_do_not_count_from_then_on() -> None:
    disk = disk_with(0, mark=JournalMark(1, 4))
    redo_log(disk, FOLDER, [], JournalMark(1, 3))
    assert read_journal_mark(disk, FOLDER) == JournalMark(1, 4)
    redo_log(disk, FOLDER, [], JournalMark(1, 7))
    disk.crash(power=True)
    assert read_journal_mark(disk, FOLDER) == JournalMark(1, 7)
    assert read_durable_end(disk, FOLDER) == DurableEnd(0, 0, 0)
    redo_log(disk, FOLDER, [marked(9, 0, 0, b"abc", 1)], JournalMark(1, 8))
    assert read_journal_mark(disk, FOLDER) == JournalMark(1, 9)


def test_a_log_that_lost_its_recovery_point_is_completed_if_it_was_used() -> None:
    entries = [marked(1, 0, 2, b"cd", 1)]
    unused = disk_with(0, mark=None)
    redo_log(unused, FOLDER, entries)
    assert unused.read_all(path_of(0)) == b""
    used = disk_with(0, mark=None)
    used.put(path_of(0), b"ab")
    redo_log(used, FOLDER, entries)
    assert used.read_all(path_of(0)) == b"abcd"


def test_nothing_is_made_of_a_log_or_segment_that_is_gone() -> None:
    gone = disk_with(mark=None)
    redo_log(gone, FOLDER, [marked(1, 0, 0, b"abc", 1)], JournalMark(1, 2))
    assert gone.names(FOLDER) == []
    disk = disk_with(100)
    redo_log(disk, FOLDER, [marked(1, 0, 0, b"abc", 1), marked(2, 100, 0, b"d", 101)])
    assert disk.read_all(path_of(100)) == b"d"
    assert not [name for name in disk.names(FOLDER) if name.startswith(path_of(0).stem)]


def test_a_segment_that_was_rewritten_keeps_its_bytes() -> None:
    disk = disk_with(0)
    disk.remove(path_of(0))
    rewritten = FOLDER / f"{0:020d}.1.log"
    disk.put(rewritten, b"new")
    redo_log(disk, FOLDER, [marked(1, 0, 0, b"old old", 1)])
    assert disk.read_all(rewritten) == b"new"
