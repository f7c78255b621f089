"""The journal of a node: what it holds survives a power cut, whatever the segments have lost."""

from __future__ import annotations

import errno
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq import limits
from goq.clock import ManualClock
from goq.config.topic import Fsync
from goq.errors import StorageFailed
from goq.storage.disk import RealDisk
from goq.storage.journal.journal import NodeJournal
from goq.storage.journal.piece import (
    HEADER_BYTES,
    JournalPiece,
    PieceHeader,
    ScannedPiece,
    journal_damage,
    scan_pieces,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.recovery_point import FILE_NAME, DurableEnd, read_durable_end
from goq.storage.verification import verify_log
from tests.support.effort import first_of
from tests.support.storage.disk import InlineExecutor, SimulatedCrash, SimulatedDisk
from tests.support.storage.journals import (
    EVENTS,
    FRAME,
    JOURNAL,
    ORDERS,
    ROOT,
    lose_unsynced,
    open_journal,
    open_log,
    syncs_of,
    warm_up,
)
from tests.support.storage.logs import append, frame_of, read_all


def test_a_small_batch_syncs_the_journal_alone() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    warm_up(log)
    synced = syncs_of(disk)
    append(log, [FRAME])
    assert [path.parent for path in synced] == [JOURNAL]


def test_a_large_batch_syncs_its_segment_alone() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    warm_up(log)
    synced = syncs_of(disk)
    append(log, [frame_of([bytes(limits.JOURNAL_ENTRY_BYTES_MAX)])])
    assert log.active.path in synced
    assert JOURNAL not in {path.parent for path in synced}


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL])
def test_a_topic_without_a_sync_before_the_answer_uses_no_journal(fsync: Fsync) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    warm_up(open_log(disk, journal, EVENTS))
    log = Log.open(ORDERS, disk, LogConfig(fsync=fsync), journal=journal)
    synced = syncs_of(disk)
    append(log, [FRAME])
    assert synced == []


def test_frames_of_before_a_stricter_setting_are_synced_with_the_first_frame_after_it() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    warm_up(open_log(disk, journal, EVENTS))
    log = Log.open(ORDERS, disk, LogConfig(fsync=Fsync.NEVER), journal=journal)
    append(log, [FRAME])
    log.config = LogConfig(fsync=Fsync.ALWAYS)
    append(log, [FRAME])
    lose_unsynced(disk, log.active.path, ORDERS / FILE_NAME)
    again = open_log(disk, open_journal(disk))
    assert sorted(read_all(again).frames) == [0, 3]
    assert again.damage == []


def test_segments_that_lost_everything_are_completed() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    logs = [open_log(disk, journal), open_log(disk, journal, EVENTS)]
    warm_up(logs[0])
    for number in range(12):
        append(logs[number % 2], [FRAME] * (1 + number % 3))
    before = [read_all(log).frames for log in logs]
    lose_unsynced(disk, *(log.active.path for log in logs))
    assert len(disk.read_all(logs[1].active.path)) < sum(map(len, before[1].values()))
    assert any(piece.records for piece in scan_pieces(disk, JOURNAL))
    journal = open_journal(disk)
    assert not any(piece.records for piece in scan_pieces(disk, JOURNAL))  # once is enough
    again = [open_log(disk, journal), open_log(disk, journal, EVENTS)]
    assert [read_all(log).frames for log in again] == before
    assert [log.damage for log in again] == [[], []]


def test_a_piece_is_used_again_only_when_the_segments_have_what_it_held() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log, quiet = open_log(disk, journal), open_log(disk, journal, EVENTS)
    warm_up(log)
    append(quiet, [FRAME])
    for _ in range(200):
        append(log, [FRAME])
        lost = disk.copy()
        for each in (log, quiet):
            stable = disk._inode(each.active.path).stable
            lost.put(each.active.path, bytes(stable))
        again = open_journal(lost)
        assert read_all(open_log(lost, again)).frames == read_all(log).frames
        assert read_all(open_log(lost, again, EVENTS)).frames == read_all(quiet).frames
    assert len(scan_pieces(disk, JOURNAL)) == 2


def use_all_pieces_again(log: Log) -> None:
    for _ in range(100):
        append(log, [FRAME])


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("first_path", [ORDERS, EVENTS])
def test_a_bad_frame_that_the_journal_gave_up_costs_itself_alone(
    power: bool, first_path: Path
) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal, first_path)
    warm_up(log)
    for _ in range(10):
        append(log, [FRAME])
    held = read_all(log).frames
    frame_bytes = log.active.size_bytes // len(held)
    use_all_pieces_again(open_log(disk, journal, ORDERS if first_path == EVENTS else EVENTS))
    disk.flip(log.active.path, 2 * frame_bytes + 70, 1)
    disk.crash(power=power)
    (told,) = verify_log(disk, first_path).damage
    again = open_log(disk, open_journal(disk), first_path)
    assert again.truncated_bytes == 0
    assert [(d.start_offset, d.end_offset) for d in again.damage] == [(6, 9)]
    assert (told.start_offset, told.end_offset) == (6, 9)
    assert read_all(again).frames == {at: held[at] for at in held if at != 6}
    assert again.end_offset == 30


def test_a_frame_before_a_large_batch_is_durable_when_the_journal_gives_it_up() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    frame_bytes = log.active.size_bytes
    append(log, [FRAME])
    append(log, [frame_of([bytes(limits.JOURNAL_ENTRY_BYTES_MAX)])])  # syncs the segment
    use_all_pieces_again(open_log(disk, journal, EVENTS))
    disk.flip(log.active.path, frame_bytes + 70, 1)
    lose_unsynced(disk, ORDERS / FILE_NAME)
    again = open_log(disk, open_journal(disk))
    assert sorted(read_all(again).frames) == [0, 6]
    assert [(d.start_offset, d.end_offset) for d in again.damage] == [(3, 6)]


def test_a_segment_that_the_journal_gave_up_and_that_is_emptied_is_told() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal, EVENTS)
    warm_up(log)
    append(log, [FRAME])
    use_all_pieces_again(open_log(disk, journal))
    disk.put(log.active.path, b"")
    disk.crash(power=False)
    assert [(d.start_offset, d.end_offset) for d in verify_log(disk, EVENTS).damage] == [(0, 3)]
    again = open_log(disk, open_journal(disk), EVENTS)
    assert [(d.start_offset, d.end_offset) for d in again.damage] == [(0, 3)]
    assert again.end_offset == 3


@pytest.mark.parametrize("power", first_of([True, False], quick=1))
def test_no_crash_while_a_piece_is_given_up_makes_damage_look_like_a_torn_tail(power: bool) -> None:
    number, is_done = 0, False
    while not is_done:
        number += 1
        disk = SimulatedDisk(Random(number))
        journal = open_journal(disk)
        log, other = open_log(disk, journal), open_log(disk, journal, EVENTS)
        warm_up(log)
        for _ in range(3):
            append(log, [FRAME])
        held = read_all(log).frames
        frame_bytes = log.active.size_bytes // len(held)
        disk.crash_at = disk.operations + number
        try:
            use_all_pieces_again(other)
            is_done = True
        except (SimulatedCrash, StorageFailed):
            pass
        disk.crash(power=power)
        disk.flip(log.active.path, frame_bytes + 70, 1)
        again = open_log(disk, open_journal(disk))
        found = read_all(again)
        assert again.end_offset == 9
        assert {0, 6} <= set(found.frames)
        assert 3 in found.frames or found.damaged_offsets == {3, 4, 5}


def test_a_log_that_is_cut_stays_cut_whatever_the_journal_syncs_later() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    append(log, [FRAME])
    log.truncate(3)
    log.file.sync_journaled()
    disk.crash(power=True)
    again = open_log(disk, open_journal(disk))
    assert again.damage == []
    assert again.end_offset == 3


def test_the_journal_writes_nothing_to_a_log_that_was_closed() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    log.close()
    append(open_log(disk, journal), [FRAME])
    synced = syncs_of(disk)
    log.file.sync_journaled()
    assert synced == []


def test_a_log_that_a_full_disk_closes_without_a_checkpoint_has_its_durable_end_synced() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    disk.fault = lambda op, _path: errno.ENOSPC if op == "replace" else None
    log.close()
    disk.fault = lambda _op, _path: None
    journal.close()
    lose_unsynced(disk, log.active.path, ORDERS / FILE_NAME)
    assert read_durable_end(disk, ORDERS) == DurableEnd(0, len(FRAME), 3)


def test_a_log_whose_recovery_point_finds_no_room_goes_on() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    mark = log.file.synced_mark
    disk.fault = lambda op, path: (
        errno.ENOSPC if op == "write_at" and path.name == FILE_NAME else None
    )
    with pytest.raises(OSError, match="No space"):
        log.file.sync_journaled()
    assert log.file.synced_mark == mark  # the journal keeps the records
    disk.fault = lambda _op, _path: None
    append(log, [FRAME])
    log.file.sync_journaled()
    assert log.file.synced_mark == journal.last_mark


def test_a_log_that_was_closed_is_kept_by_no_journal() -> None:
    """A node opens and closes logs for months."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    log.close()
    closed = weakref.ref(log)
    del log
    gc.collect()
    assert closed() is None


@pytest.mark.parametrize("ends", ["truncate", "delete"])
def test_what_was_cut_off_does_not_come_back(ends: str) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    first = log.end_offset
    append(log, [FRAME])
    append(log, [FRAME])
    if ends == "truncate":
        log.truncate(first)
    else:
        log.close()
        disk.remove_dir(ORDERS)
        log = open_log(disk, journal)
        first = 0
    assert log.end_offset == first
    before = read_all(log).frames
    disk.crash(power=False)
    again = open_log(disk, open_journal(disk))
    assert read_all(again).frames == before
    assert again.end_offset == first
    assert again.damage == []


def test_a_log_whose_segment_cannot_be_synced_is_completed_when_it_is_opened_again() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    held = read_all(log).frames
    disk.fault = lambda op, path: errno.EIO if op == "sync" and path == log.active.path else None
    with pytest.raises(OSError, match=r"Input/output"):
        log.file.sync_journaled()
    with pytest.raises(StorageFailed):
        log.begin(0)
    log.close()
    disk.fault = lambda _op, _path: None
    disk._inode(log.active.path).data[:] = disk._inode(log.active.path).stable  # evicted
    again = open_log(disk, journal)
    assert read_all(again).frames == held
    assert again.damage == []


def fail_syncs_of_the_journal(disk: SimulatedDisk) -> None:
    disk.fault = lambda op, path: errno.EIO if op == "sync" and path.parent == JOURNAL else None


def test_a_record_that_cannot_be_synced_ends_its_logs_and_no_others() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log, other = open_log(disk, journal), open_log(disk, journal, EVENTS)
    warm_up(log)
    append(log, [FRAME])
    append(other, [FRAME])
    held = read_all(log).frames
    fail_syncs_of_the_journal(disk)
    with pytest.raises(StorageFailed):
        append(log, [FRAME])
    disk.fault = lambda _op, _path: None
    with pytest.raises(StorageFailed):
        append(log, [FRAME])
    assert read_all(log).frames == held
    append(other, [FRAME])
    append(other, [FRAME])
    kept = read_all(other).frames
    lose_unsynced(disk, log.active.path, other.active.path)
    journal = open_journal(disk)
    assert journal.problems == []
    again = read_all(open_log(disk, journal))
    assert list(again.frames)[: len(held)] == list(held)
    assert again.damage == []
    assert read_all(open_log(disk, journal, EVENTS)).frames == kept


def test_a_failed_record_does_not_come_back_over_what_was_written_in_its_place() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    append(log, [FRAME])
    fail_syncs_of_the_journal(disk)
    with pytest.raises(StorageFailed):
        append(log, [frame_of([b"never acknowledged"] * 3)])
    disk.fault = lambda _op, _path: None
    (piece,) = (p for p in scan_pieces(disk, JOURNAL) if p.records)
    with_record = disk.read_all(piece.path)
    end = HEADER_BYTES + piece.records[0].size_bytes
    disk.put(piece.path, with_record[:end] + bytes(len(with_record) - end))  # cannot be read now
    log.close()
    disk._inode(log.active.path).data[:] = disk._inode(log.active.path).stable
    log = open_log(disk, journal)
    assert sorted(read_all(log).frames) == [0]
    append(log, [frame_of([bytes(limits.JOURNAL_ENTRY_BYTES_MAX)])])  # by a sync of the segment
    held = read_all(log).frames
    watermark = disk._inode(ORDERS / FILE_NAME)
    watermark.data[:] = watermark.stable
    disk.put(piece.path, with_record)
    disk.life += 1
    assert read_all(open_log(disk, open_journal(disk))).frames == held


def test_a_record_that_a_full_disk_does_not_sync_never_comes_back() -> None:
    """NFS and thin volumes report the lack of space at the sync, and may have written some."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    for _ in range(15):
        append(log, [FRAME])  # a large record does not fit the first piece any more
    assert log.can_journal(log.begin(0))
    disk.fault = lambda op, path: errno.ENOSPC if op == "sync" else None
    with pytest.raises(StorageFailed):
        append(log, [frame_of([bytes(2500)])])
    disk.fault = lambda _op, _path: None
    log.close()
    disk._inode(log.active.path).data[:] = disk._inode(log.active.path).stable  # evicted
    log = open_log(disk, journal)
    append(log, [FRAME])  # at the place of the lost one
    append(log, [FRAME])
    held = read_all(log).frames
    lose_unsynced(disk, log.active.path, ORDERS / FILE_NAME)  # the journal has all, after all
    again = open_log(disk, open_journal(disk))
    assert read_all(again).frames == held
    assert again.damage == []


class _LateExecutor(InlineExecutor):
    """A thread that does its work when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(partial(work, *args, **kwargs))
        return Future()

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def test_the_journal_has_room_while_it_gives_up_the_records_of_many_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MIN", 16_000)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MAX", 16_000)
    thread, disk = _LateExecutor(), SimulatedDisk()
    journal = NodeJournal.open(disk, JOURNAL, ROOT, thread, ManualClock(1))
    busy = open_log(disk, journal)
    wide = [open_log(disk, journal, ROOT / f"wide/{number}/messages") for number in range(10)]
    busy.can_journal(busy.begin(0))
    for log in itertools.cycle(wide):
        if thread.waiting and journal._full:
            break
        thread.run()
        append(log, [FRAME])
    segments = {log.active.path for log in wide}
    synced: list[Path] = []

    def write_meanwhile(operation: str, path: Path) -> None:
        if operation == "sync":
            synced.append(path)
            if path in segments and len(segments) > 5:
                segments.remove(path)
                before = len(synced)
                for _ in range(10):
                    append(busy, [FRAME])
                assert {each.parent for each in synced[before:]} == {JOURNAL}

    disk.fault = write_meanwhile
    thread.run()
    assert len(segments) == 5
    assert len(list(disk.names(JOURNAL))) == limits.JOURNAL_PIECES_MAX


def test_without_room_in_the_journal_segments_are_synced() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    log = open_log(disk, journal)
    warm_up(log)
    disk.capacity_bytes = disk.used_bytes + 20 * len(FRAME)
    for _ in range(15):
        append(log, [FRAME])
    held = read_all(log).frames
    disk.crash(power=True)
    disk.capacity_bytes = None
    assert read_all(open_log(disk, open_journal(disk))).frames == held


def test_a_journal_without_room_says_so_once_until_it_has_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, clock = SimulatedDisk(), ManualClock(1)
    journal = NodeJournal.open(disk, JOURNAL, ROOT, InlineExecutor(), clock)
    log = open_log(disk, journal)
    for outages, room_bytes in ((1, 0), (2, 20 * len(FRAME))):
        disk.capacity_bytes = disk.used_bytes + room_bytes
        for _ in range(15):
            journal.has_room_for(len(FRAME))
            if room_bytes:
                append(log, [FRAME])
            clock.advance_ms(2000)
        assert caplog.text.count("the journal has no room") == outages
        disk.capacity_bytes = None
        journal.has_room_for(len(FRAME))
        assert journal.has_room_for(len(FRAME))


def test_a_verification_counts_what_only_the_journal_makes_durable() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, open_journal(disk))
    warm_up(log)
    before = verify_log(disk, ORDERS).frames
    batch = log.begin(0)
    append(log, [FRAME])
    end = DurableEnd(0, log.active.size_bytes, log.end_offset)
    assert verify_log(disk, ORDERS, end).frames == before + 1
    disk.flip(log.active.path, batch.start_position + 80, 1)
    report = verify_log(disk, ORDERS, end)
    assert (report.frames, report.damage) == (before, [])  # the next start writes it anew


def test_threads_share_records_and_each_log_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    begin, is_held = JournalPiece.begin, threading.Event()

    def hold_first(piece: JournalPiece, header: PieceHeader, record: bytes) -> None:
        """Hold the first record, which one thread has to itself, until all others wait."""
        if record and not is_held.is_set():
            is_held.set()
            until_s = time.monotonic() + 30
            while len(journal._waiting) < 3 and time.monotonic() < until_s:
                time.sleep(0.001)
        begin(piece, header, record)

    monkeypatch.setattr(JournalPiece, "begin", hold_first)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MIN", 4 * limits.MIB)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MAX", 4 * limits.MIB)
    root = tmp_path / "topics"
    with ThreadPoolExecutor(1) as executor:
        journal = NodeJournal.open(disk, tmp_path / "journal", root, executor, ManualClock())
        logs = [Log.open(root / f"t{n}/0/messages", disk, journal=journal) for n in range(4)]
        start = threading.Barrier(len(logs))

        def work(number: int) -> None:
            start.wait()
            random = Random(number)
            for _ in range(100):
                append(logs[number], [FRAME] * random.randint(1, 3))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(logs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        disk_has = [bytes(disk.read(log.active.path, 0, 2**30)) for log in logs]
    ends: dict[str, int] = {}
    shared: list[int] = []
    for piece in scan_pieces(disk, tmp_path / "journal"):
        for record in piece.records:
            entries = list(record.entries())
            shared.append(len(entries))
            for entry in entries:
                assert entry.position >= ends.get(entry.path, 0)
                ends[entry.path] = entry.position + len(entry.data)
                data = disk_has[int(entry.path[1])][entry.position : ends[entry.path]]
                assert data == entry.data
    assert is_held.is_set()
    assert shared[0] == 1
    assert shared[1] in (3, 4)
    assert all(read_all(log).damage == [] for log in logs)


def test_a_gap_between_pieces_is_damage_where_they_are_of_one_journal() -> None:
    def piece(number: int, *, journal_id: int = 1, is_free: bool = False) -> ScannedPiece:
        header = PieceHeader(is_free, journal_id, number, 3)
        return ScannedPiece(Path(f"{number}.journal"), header, [], None)

    assert journal_damage([piece(1), piece(1), piece(1)]) == []
    assert journal_damage([piece(1), piece(4), piece(4)]) == [
        (Path("1.journal"), "records 1 to 3 are missing")
    ]
    assert journal_damage([piece(1), piece(4, journal_id=2), piece(4, journal_id=2)]) == []
    assert journal_damage([piece(4, journal_id=2), piece(1, journal_id=1), piece(1)]) == []
    assert journal_damage([piece(1), piece(4, is_free=True), piece(1)]) == []
    assert journal_damage([piece(1), piece(1)]) == [
        (Path("1.journal"), "1 other files of the journal are missing")
    ]
