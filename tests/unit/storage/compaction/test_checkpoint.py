"""A deleted key stays deleted when frames that no pass has read come into a compacted log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from goq.frame.encoder import Columns, encode_frame
from goq.storage.compaction.checkpoint import (
    CHECKPOINT_NAME,
    CleanerCheckpoint,
    forget_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.repair import Gap, read_gap, replace_range
from goq.storage.log.replicated import append_replicated
from tests.support.effort import first_of
from tests.support.storage.compaction import TOMBSTONE_AGE_US, pass_over, served
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append

_CONFIG = LogConfig(segment_bytes=1, columns=True)  # a segment for each message
_PUTS = [
    (b"other", b"1"),
    (b"gone", b"old"),
    (b"other", b"2"),
    (b"gone", None),
    (b"other", b"3"),
    (b"last", b"4"),
]


def _whole_log(disk: SimulatedDisk) -> Log:
    """Return the log of a replica that was never compacted: a key, and later its tombstone."""
    log = Log.open(DIRECTORY, disk, _CONFIG)
    for key, value in _PUTS:
        append(log, [encode_frame(Columns([value], [key]))])
    return log


def _compacted_log(disk: SimulatedDisk) -> Log:
    """Return the same log after a pass, which leaves the tombstone: its time is not over."""
    log = _whole_log(disk)
    progress = pass_over(disk, log, CleanerCheckpoint(), START_US + 1)
    assert progress.compacted_to == 5
    assert sorted(served(log)) == [3, 4, 5]
    return log


def _copy_segments(log: Log, other: Log) -> None:
    """Replace each sealed segment with that of another replica, as a repair does."""
    for segment in log.segments[:-1]:
        gap = Gap(segment.base_offset, segment.end_offset)
        frames = read_gap(other.reader, gap, other.end_offset, 2**20).frames
        replace_range(log, [segment], frames)


def _copy_behind_a_cut(log: Log, other: Log) -> None:
    """Cut a log below its checkpoint and continue as another replica does."""
    log.truncate(1)
    for view in other.reader.read(1, other.end_offset).frames:
        append_replicated(log, [view], view.header.base_offset)


@pytest.mark.parametrize("power", first_of([True, False], quick=1), ids=["power", "kill"])
@pytest.mark.parametrize("copy", [_copy_segments, _copy_behind_a_cut])
def test_a_deleted_key_stays_deleted_wherever_a_copy_of_an_uncompacted_log_is_cut_short(
    copy: Callable[[Log, Log], None], power: bool
) -> None:
    other = _whole_log(SimulatedDisk(Random(1)))
    after_us = START_US + TOMBSTONE_AGE_US + 1
    for number in range(1, 10_000):
        disk = SimulatedDisk(Random(number))
        log = _compacted_log(disk)
        disk.crash_at = disk.operations + number
        try:
            copy(log, other)
        except SimulatedCrash:
            disk.crash(power=power)
            was_cut_short = True
            log = Log.open(DIRECTORY, disk, _CONFIG)
            _check_deleted(Log.open(DIRECTORY, copied := disk.copy(), _CONFIG), copied, after_us)
            copy(log, other)
        else:
            disk.crash_at, was_cut_short = None, False
        assert {1, 2, 3, 4, 5} <= served(log).keys()
        _check_deleted(log, disk, after_us)
        if not was_cut_short:
            break
    assert number > 10


def _check_deleted(log: Log, disk: SimulatedDisk, now_us: int) -> None:
    """Make passes until nothing more goes: of the deleted key there is nothing."""
    if log.end_offset < len(_PUTS):
        return  # a cut log that does not have the tombstone again yet
    for _ in range(2):
        pass_over(disk, log, read_checkpoint(disk, DIRECTORY), now_us)
    assert {put.key for put in served(log).values()} == {b"other", b"last"}


def test_a_folder_that_lost_its_segments_is_not_taken_for_a_cleaned_log() -> None:
    disk = SimulatedDisk(Random(1))
    _compacted_log(disk).close()
    for path in disk.paths():
        if path.name != CHECKPOINT_NAME:
            disk.delete(path)
    log = _whole_log(disk)
    _check_deleted(log, disk, START_US + TOMBSTONE_AGE_US + 1)


def test_progress_that_was_not_written_whole_counts_as_none() -> None:
    disk = SimulatedDisk()
    disk.make_dir(DIRECTORY)
    assert read_checkpoint(disk, DIRECTORY) == CleanerCheckpoint()
    write_checkpoint(disk, DIRECTORY, CleanerCheckpoint(5, 7))
    assert read_checkpoint(disk, DIRECTORY) == CleanerCheckpoint(5, 7)
    data = disk.read_all(DIRECTORY / "compacted")
    for length in range(len(data)):
        disk.put(DIRECTORY / "compacted", data[:length])
        assert read_checkpoint(disk, DIRECTORY) == CleanerCheckpoint()
    disk.put(DIRECTORY / "compacted", b"\1" + data[1:])
    assert read_checkpoint(disk, DIRECTORY) == CleanerCheckpoint()


@pytest.mark.parametrize(("offset", "stays"), [(0, False), (4, False), (5, True), (6, True)])
def test_a_checkpoint_is_forgotten_only_for_frames_below_it(offset: int, stays: bool) -> None:
    disk = SimulatedDisk()
    write_checkpoint(disk, DIRECTORY, CleanerCheckpoint(5, 7))
    forget_checkpoint(disk, DIRECTORY, offset)
    assert read_checkpoint(disk, DIRECTORY) == (
        CleanerCheckpoint(5, 7) if stays else CleanerCheckpoint()
    )


def test_a_checkpoint_that_cannot_be_read_now_is_forgotten_too() -> None:
    class UnreadableDisk(SimulatedDisk):
        def read(self, path: Path, *_: object, **_options: object) -> memoryview:
            raise OSError(f"{path} is on a bad sector")

    disk = UnreadableDisk()
    write_checkpoint(disk, DIRECTORY, CleanerCheckpoint(5, 7))
    forget_checkpoint(disk, DIRECTORY, 6)
    assert CHECKPOINT_NAME not in disk.names(DIRECTORY)
