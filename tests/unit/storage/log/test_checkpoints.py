"""How much of a log a start reads again, and which batches may go through the node's journal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.config.topic import Fsync
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.recovery_point import NO_MARK
from goq.storage.log.segment import WriteBatch
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of, read_all

FRAME = frame_of([b"value"])
INTERVAL = 5 * len(FRAME)


class ReadingDisk(SimulatedDisk):
    """A disk that counts the bytes that are read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = Counter[Path]()

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        data = super().read(path, position, size_bytes, wait=wait)
        self.read_bytes[path] += len(data)
        return data


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.NEVER])
@pytest.mark.parametrize("roll_at", [None, 3, 8])
def test_a_start_reads_again_what_was_written_since_the_last_checkpoint(
    fsync: Fsync, roll_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", INTERVAL)
    disk, config = SimulatedDisk(), LogConfig(fsync=fsync)
    log = Log.open(DIRECTORY, disk, config)
    unread = since = 0
    for number in range(14):
        if number == roll_at:
            log.roll()
            unread = since = 0
        append(log, [FRAME])
        unread += len(FRAME)
        since += len(FRAME)
        if since >= INTERVAL:  # the checkpoint is before the batch that called for it
            unread, since = len(FRAME), 0
        killed = disk.copy()
        killed.crash(power=False)
        opened = Log.open(DIRECTORY, killed, config)
        assert opened.scanned_bytes == unread, number
        assert read_all(opened) == read_all(log)
    log.close()
    assert Log.open(DIRECTORY, disk, config).scanned_bytes == 0


class Journal:
    """A journal with some room, that takes no commit."""

    last_mark = NO_MARK

    def __init__(self, room: int = 2**40) -> None:
        self.room = room
        self.asked: list[int] = []

    def path_of(self, _directory: Path) -> str:
        return "t"

    def attach(self, _directory: Path, _log: object) -> None:
        pass

    def complete(self, _directory: Path) -> None:
        pass

    def has_room_for(self, size_bytes: int) -> bool:
        self.asked.append(size_bytes)
        return size_bytes <= self.room


def journaled(journal: Any, **config: Any) -> Log:
    disk = SimulatedDisk()
    Log.open(DIRECTORY, disk).close()
    return Log.open(DIRECTORY, disk, LogConfig(**config), journal=journal)


def batch_of(log: Log, frames: int) -> WriteBatch:
    batch = log.begin(START_US)
    for _ in range(frames):
        body = memoryview(FRAME)[HEADER_BYTES:]
        batch.add(parse_header(FRAME), body, append_time_us=START_US, leader_epoch=1)
    return batch


def test_a_batch_goes_through_the_journal_if_it_is_small_and_no_checkpoint_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_ENTRY_BYTES_MAX", 3 * len(FRAME))
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", INTERVAL)
    log = journaled(Journal())
    assert [log.can_journal(batch_of(log, frames)) for frames in (1, 3, 4)] == [True, True, False]
    for written, fits in ((0, 3), (1, 3), (2, 2), (3, 1), (4, 0)):
        found = [frames for frames in range(4) if log.can_journal(batch_of(log, frames)) and frames]
        assert found == list(range(1, fits + 1)), written
        log.on_journaled(batch_of(log, 1), (1, 1))


def test_a_batch_goes_past_a_journal_without_room_and_is_asked_for_with_what_an_entry_adds() -> (
    None
):
    journal = Journal()
    log = journaled(journal)
    assert log.can_journal(batch_of(log, 2))
    (needed,) = journal.asked
    assert needed > 2 * len(FRAME)
    for room, has_room in ((needed, True), (needed - 1, False)):
        assert journaled(Journal(room)).can_journal(batch_of(log, 2)) is has_room


def test_what_is_not_synced_at_each_write_or_begins_a_segment_goes_past_the_journal() -> None:
    assert not (log := journaled(Journal(), fsync=Fsync.NEVER)).can_journal(batch_of(log, 1))
    rolling = journaled(Journal(), segment_bytes=1)
    first = batch_of(rolling, 1)
    assert rolling.can_journal(first)
    rolling.append(first)
    rolling.finish_write(first)
    rolling.commit(first)
    assert not rolling.can_journal(batch_of(rolling, 1))


def test_after_a_write_that_was_not_synced_the_journal_waits_for_a_sync() -> None:
    log = journaled(Journal(), fsync=Fsync.NEVER)
    append(log, [FRAME])
    log.config = LogConfig(fsync=Fsync.ALWAYS)
    assert not log.can_journal(batch_of(log, 1)), "a power cut may take what is before it"
    log.sync()
    assert log.can_journal(batch_of(log, 1))


def test_the_columns_of_a_sealed_segment_need_not_be_made_again() -> None:
    disk, config = ReadingDisk(), LogConfig(columns=True)
    log = Log.open(DIRECTORY, disk, config)
    for _ in range(3):
        append(log, [FRAME])
    log.roll()
    append(log, [FRAME])
    before = [rows.offsets.tolist() for rows in log.reader.rows(0, 4)]
    disk.crash(power=False)
    opened = Log.open(DIRECTORY, disk, config)
    disk.read_bytes.clear()
    assert [rows.offsets.tolist() for rows in opened.reader.rows(0, 3)] == before[:1]
    assert disk.read_bytes[opened.segments[0].path] <= HEADER_BYTES, "its last frame is checked"
