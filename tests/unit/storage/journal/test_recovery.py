"""A start with the journal of a node that was killed, cut off from power, or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.clock import ManualClock
from goq.storage.disk import RealDisk
from goq.storage.journal.journal import NodeJournal
from goq.storage.journal.piece import HEADER_BYTES, scan_pieces
from goq.storage.log.log import Log, LogConfig
from goq.storage.scanner import PAGE_BYTES
from tests.support.storage.bad_sectors import BadSectors
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.journals import (
    EVENTS,
    FRAME,
    JOURNAL,
    lose_unsynced,
    open_journal,
    open_log,
    warm_up,
)
from tests.support.storage.logs import append, frame_of, read_all


def test_a_torn_last_record_was_never_acknowledged() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    warm_up(log)
    append(log, [FRAME])
    held = read_all(log).frames
    batch = log.begin(0)
    append(log, [FRAME])
    (piece,) = (p for p in scan_pieces(disk, JOURNAL) if p.records)
    end = HEADER_BYTES + sum(record.size_bytes for record in piece.records)
    disk.flip(piece.path, end - 1, 1)
    lose_unsynced(disk, log.active.path)
    journal = open_journal(disk)
    again = open_log(disk, journal)
    assert journal.problems == []
    assert read_all(again).frames == held
    assert again.end_offset == batch.start_offset


def test_a_bad_record_before_a_sound_one_is_told_until_a_user_has_looked() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log, other = open_log(disk, journal), open_log(disk, journal, EVENTS)
    warm_up(log)
    first = log.end_offset
    append(log, [FRAME])
    append(other, [FRAME])
    append(log, [FRAME])
    held = read_all(other).frames
    (piece,) = (p for p in scan_pieces(disk, JOURNAL) if p.records)
    disk.flip(piece.path, HEADER_BYTES + 60, 4)
    lose_unsynced(disk, log.active.path, other.active.path)
    journal = open_journal(disk, 2)
    again = open_log(disk, journal)
    assert "are damaged" in journal.problems[0]
    assert read_all(open_log(disk, journal, EVENTS)).frames == held
    found = read_all(again)
    assert found.damaged_offsets == {first, first + 1, first + 2}
    assert first + 3 in found.frames
    append(again, [FRAME])
    again.close()
    journal.close()
    (told,) = open_journal(disk, 3).problems
    assert told == journal.problems[0]
    for path in disk.paths():
        if path.suffix == ".damaged":
            disk.remove(path)
    assert open_journal(disk, 4).problems == []


def test_a_bad_journal_keeps_no_log_from_opening_whose_segments_are_whole() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    warm_up(log)
    append(log, [FRAME])
    held = read_all(log).frames
    for piece in scan_pieces(disk, JOURNAL):
        disk.put(piece.path, bytes([7]) * len(disk.read_all(piece.path)))
    journal = open_journal(disk, 2)
    again = open_log(disk, journal)
    assert len(journal.problems) == 1
    assert read_all(again).frames == held
    append(again, [FRAME])
    held = read_all(again).frames
    lose_unsynced(disk, again.active.path)
    assert read_all(open_log(disk, open_journal(disk, 3))).frames == held


@pytest.mark.parametrize("page", [0, 1, 2], ids=["header", "record", "last record"])
def test_a_page_of_the_journal_that_cannot_be_read_is_told_and_keeps_nothing_from_opening(
    page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MIN", 4 * PAGE_BYTES)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MAX", 4 * PAGE_BYTES)
    bad, disk, root = BadSectors(monkeypatch), RealDisk(), tmp_path / "topics"

    def opened(start: int) -> tuple[NodeJournal, Log]:
        place = (tmp_path / "journal", root, InlineExecutor(), ManualClock(start))
        journal = NodeJournal.open(disk, *place)
        return journal, Log.open(root / "orders/0/messages", disk, LogConfig(), journal=journal)

    disk.make_dir(root)
    _, log = opened(1)
    warm_up(log)
    append(log, [FRAME])
    for _ in range(8):
        append(log, [frame_of([bytes(1000)])])
    (piece,) = (p for p in scan_pieces(disk, tmp_path / "journal") if p.records)
    assert 2 < sum(record.size_bytes for record in piece.records) / PAGE_BYTES < 3
    held = read_all(log).frames
    bad.pages.add((piece.path, page))
    journal, again = opened(2)
    assert len(journal.problems) == 1
    assert read_all(again).frames == held
    assert append(again, [FRAME]) == log.end_offset
    again.close()


def test_a_file_of_the_journal_that_is_gone_is_told() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    for _ in range(60):
        append(log, [FRAME])
    pieces = scan_pieces(disk, JOURNAL)
    assert len(pieces) > 1
    disk.remove(pieces[0].path)
    assert "missing" in open_journal(disk, 2).problems[0]


def test_a_stopped_node_has_nothing_left_to_complete() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    log.close()
    journal.close()
    assert [piece.records for piece in scan_pieces(disk, JOURNAL)] == [[]]
    again = open_log(disk, open_journal(disk))
    assert again.scanned_bytes == 0


def test_a_journal_of_another_life_of_the_folder_does_not_count() -> None:
    """Its numbers begin anew, lower than the marks that the logs have."""
    disk = SimulatedDisk()
    journal = open_journal(disk, now_us=1000)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    log.close()
    journal.close()
    disk.remove_dir(JOURNAL)
    log = open_log(disk, open_journal(disk, now_us=5))  # the clock was set back too
    warm_up(log)
    append(log, [FRAME])
    held = read_all(log).frames
    lose_unsynced(disk, log.active.path)
    assert read_all(open_log(disk, open_journal(disk))).frames == held
