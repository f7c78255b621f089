"""A disk that fills up or fails: what is promised is kept, and nothing is half done."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.config.topic import Fsync
from goq.errors import ResourcesExhausted, StorageFailed, StorageFull
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from tests.support.storage.disk import FILE_COST_BYTES, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of, read_all

FRAME = frame_of([b"a message"] * 3)


def check_unchanged_and_usable(log: Log, disk: SimulatedDisk, before: dict[int, bytes]) -> None:
    assert read_all(log).frames == before
    disk.capacity_bytes = None
    offset = append(log, [FRAME])
    assert offset == 3 * len(before)
    stored = read_all(log)
    assert len(stored.frames) == len(before) + 1
    disk.crash(power=True)
    opened = Log.open(DIRECTORY, disk)
    assert read_all(opened) == stored
    assert opened.damage == []


@pytest.mark.parametrize("segment_bytes", [10**6, 1], ids=["append", "roll"])
@pytest.mark.parametrize("room", range(0, 3 * len(FRAME), 7))
def test_a_disk_that_is_full_at_any_byte_leaves_the_log_as_it_was(
    segment_bytes: int, room: int
) -> None:
    disk = SimulatedDisk(Random(room))
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=segment_bytes))
    append(log, [FRAME])
    append(log, [FRAME])
    before = read_all(log).frames
    disk.capacity_bytes = disk.used_bytes + room
    for _ in range(3):
        with contextlib.suppress(StorageFull):
            append(log, [FRAME])
            before = read_all(log).frames
    check_unchanged_and_usable(log, disk, before)


@pytest.mark.parametrize("room", range(0, 400, 13))
def test_a_log_that_could_not_begin_a_segment_goes_on_in_the_old_one(room: int) -> None:
    """The next batch may not want a new segment any more: the clock went back, say."""
    disk = SimulatedDisk(Random(room))
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    disk.capacity_bytes = disk.used_bytes + room
    with contextlib.suppress(StorageFull):
        batch = log.begin(0, roll=True)
        log.write(batch)
        log.commit(batch)
    check_unchanged_and_usable(log, disk, read_all(log).frames)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_segment_whose_name_cannot_be_synced_is_not_begun(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path / "log", RealDisk())
    append(log, [FRAME])

    def sync_dir(_disk: RealDisk, directory: Path) -> None:
        if directory == log.directory and any(path.stem == f"{3:020d}" for path in segments()):
            raise OSError(error, os.strerror(error), str(directory))

    def segments() -> list[Path]:
        return list(log.directory.glob("*.log"))

    monkeypatch.setattr(RealDisk, "_sync_dir", sync_dir)
    with pytest.raises((StorageFull, ResourcesExhausted)):
        log.roll()
    assert segments() == [log.active.path]
    append(log, [FRAME])
    held = read_all(log)
    log.close()
    again = Log.open(tmp_path / "log", RealDisk())
    assert read_all(again) == held
    again.close()


def test_an_empty_segment_that_the_log_went_on_without_is_passed_over() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    append(log, [FRAME])
    held = read_all(log)
    disk.put(Segment(DIRECTORY, 3).path, b"")
    again = Log.open(DIRECTORY, disk)
    assert read_all(again) == held
    assert append(again, [FRAME]) == 6


def test_rolling_an_idle_log_on_a_full_disk_can_be_done_later() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFull, match="free some space") as full:
        log.roll()
    assert full.value.retry_after_ms
    disk.capacity_bytes = None
    sealed = log.roll()
    assert sealed is not None
    assert sealed.end_offset == log.active.base_offset == 3
    assert log.roll() is None


def test_without_room_for_a_checkpoint_appending_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", len(FRAME))
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    disk.capacity_bytes = disk.used_bytes + 5 * len(FRAME) + FILE_COST_BYTES
    for _ in range(5):
        append(log, [FRAME])
    stored = read_all(log)
    log.close()
    opened = Log.open(DIRECTORY, disk)
    assert read_all(opened) == stored


def test_a_full_disk_can_be_opened_and_read() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    stored = read_all(log)
    disk.crash(power=False)
    disk.capacity_bytes = disk.used_bytes
    log = Log.open(DIRECTORY, disk)
    assert read_all(log) == stored


def test_a_new_log_on_a_full_disk_says_so() -> None:
    disk = SimulatedDisk()
    disk.capacity_bytes = 0
    with pytest.raises(StorageFull):
        Log.open(DIRECTORY, disk)


def fail(disk: SimulatedDisk, operation: str, name: str = "") -> None:
    def fault(tried: str, path: Path) -> int | None:
        return errno.EIO if tried == operation and name in path.name else None

    disk.fault = fault


@pytest.mark.parametrize(
    ("operation", "name"), [("sync", ".log"), ("write_at", "watermark"), ("append", ".log")]
)
def test_a_disk_that_fails_ends_the_log_until_it_is_opened_again(operation: str, name: str) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    stored = read_all(log)
    fail(disk, operation, name)
    with pytest.raises(StorageFailed, match="until it is opened again"):
        append(log, [FRAME])
    disk.fault = lambda _operation, _path: None
    for _ in range(2):
        with pytest.raises(StorageFailed):
            log.begin(0)
    with pytest.raises(StorageFailed):
        log.sync()
    assert log.roll() is None
    assert read_all(log) == stored
    log.close()
    opened = Log.open(DIRECTORY, disk)
    assert read_all(opened).frames.items() >= stored.frames.items()
    append(opened, [FRAME])


@pytest.mark.parametrize(
    ("operation", "name"),
    [("sync", ""), ("sync", "watermark"), ("replace", ""), ("open", ""), ("write_at", "")],
)
def test_a_disk_that_fails_in_rolling_ends_the_log(operation: str, name: str) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    append(log, [FRAME])
    stored = read_all(log)
    fail(disk, operation, name)
    with pytest.raises(StorageFailed):
        append(log, [FRAME])
    with pytest.raises(StorageFailed):
        log.begin(0)
    disk.fault = lambda _operation, _path: None
    disk.crash(power=True)
    opened = Log.open(DIRECTORY, disk)
    assert read_all(opened) == stored


def test_what_a_failed_sync_left_in_memory_is_written_again_when_the_log_is_opened() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        log = Log.open(DIRECTORY, disk)
        fail(disk, "sync", ".log")
        with pytest.raises(StorageFailed):
            append(log, [FRAME] * 5)
        disk.fault = lambda _operation, _path: None
        log = Log.open(DIRECTORY, disk)
        append(log, [FRAME])
        stored = read_all(log)
        disk.crash(power=True)
        log = Log.open(DIRECTORY, disk)
        assert read_all(log) == stored
        assert log.damage == []


def test_a_log_that_cannot_be_read_says_where() -> None:
    disk = SimulatedDisk()
    Log.open(DIRECTORY, disk).close()
    fail(disk, "open")
    with pytest.raises(StorageFailed, match=str(DIRECTORY)):
        Log.open(DIRECTORY, disk)


def test_truncating_forgets_a_segment_that_was_begun_and_never_written() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    append(log, [FRAME])
    sizes = iter(range(100))
    disk.fault = lambda operation, _path: (
        errno.ENOSPC if operation == "append" and next(sizes) == 0 else None
    )
    with pytest.raises(StorageFull):
        append(log, [FRAME])
    assert log.truncate(0) == 0
    assert append(log, [FRAME]) == 0
    assert append(log, [FRAME]) == 3
    stored = read_all(log)
    log.close()
    assert read_all(Log.open(DIRECTORY, disk)) == stored


def test_a_truncated_log_takes_its_age_from_what_it_holds_now() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_age_ms=1000))
    append(log, [FRAME], time_us=0)
    log.truncate(0)
    append(log, [FRAME], time_us=5_000_000)
    append(log, [FRAME], time_us=5_000_001)
    assert len(log.segments) == 1


def test_a_segment_ends_at_its_age_and_not_before() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_age_ms=1000))
    for time_us in (0, 999_999, 1_000_000, 1_999_999):
        append(log, [FRAME], time_us=time_us)
    starts = [segment.base_offset for segment in log.segments]
    assert starts == [0, log.end_offset // 2]


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL])
def test_a_checkpoint_speaks_only_of_bytes_that_are_durable(
    fsync: Fsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 4 * len(FRAME))
    for seed in range(30):
        disk = SimulatedDisk(Random(seed))
        log = Log.open(DIRECTORY, disk, LogConfig(fsync=fsync))
        for _ in range(10):
            append(log, [FRAME])
        stored = read_all(log)
        disk.crash(power=True)
        log = Log.open(DIRECTORY, disk)
        held = read_all(log)
        assert held.frames.items() <= stored.frames.items()
        assert held.damage == log.damage == []


def test_a_log_without_changes_is_closed_without_a_write() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    log.close()
    for _ in range(2):
        log = Log.open(DIRECTORY, disk)
        before = disk.operations
        log.close()
        assert disk.operations == before
    disk.crash(power=True)
    log = Log.open(DIRECTORY, disk)
    assert (log.end_offset, log.scanned_bytes) == (3, 0)
    append(log, [FRAME])
    log.truncate(3)
    log.close()
    disk.crash(power=True)
    assert Log.open(DIRECTORY, disk).end_offset == 3


def test_an_index_that_was_lost_is_written_again_when_its_log_closes() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [FRAME])
    log.close()
    log = Log.open(DIRECTORY, disk)
    index_path = log.active.index_path
    disk.put(index_path, b"")
    log.close()
    assert disk.size(index_path) > 0
