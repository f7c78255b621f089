"""A log that continues behind offsets without frames: they are damage, and a crash is harmless."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.errors import StorageFull
from goq.storage.log.leader_epochs import EpochEnd, epoch_end
from goq.storage.log.log import Log, LogConfig
from tests.support.broker.harness import frame
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk

PATH = Path("/data/messages")
CONFIG = LogConfig(segment_bytes=2**62, segment_age_ms=2**62, columns=True)


def _append(log: Log, *values: bytes, epoch: int = 1) -> None:
    batch = log.begin(5)
    view = frame(*values)
    batch.add(view.header, view.body, append_time_us=5, leader_epoch=epoch)
    log.write(batch)
    log.commit(batch)


def _log(disk: SimulatedDisk, frames: int) -> Log:
    log = Log.open(PATH, disk, CONFIG)
    for number in range(frames):
        _append(log, b"%d" % number)
    return log


def _read(log: Log) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the offsets of the frames, and what is damaged."""
    found = log.reader.read(0, log.end_offset)
    offsets = [view.header.base_offset for view in found.frames]
    return offsets, [(d.start_offset, d.end_offset) for d in found.damage]


@pytest.mark.parametrize("frames", [0, 3])
def test_offsets_that_were_skipped_are_damage_at_every_read_and_after_each_start(
    frames: int,
) -> None:
    disk = SimulatedDisk(Random(1))
    log = _log(disk, frames)
    log.skip(10)
    assert [(d.start_offset, d.end_offset) for d in log.damage] == [(frames, 10)]
    assert log.end_offset == 10
    _append(log, b"behind")
    for _ in range(2):
        assert _read(log) == ([*range(frames), 10], [(frames, 10)])
        log.close()
        log = Log.open(PATH, disk, CONFIG)


def test_the_end_of_an_epoch_is_found_before_and_behind_skipped_offsets() -> None:
    log = _log(SimulatedDisk(Random(1)), 3)
    log.skip(10)
    assert epoch_end(log.reader, 1, log.end_offset) == EpochEnd(1, 3)
    _append(log, b"behind", epoch=2)
    assert epoch_end(log.reader, 1, log.end_offset) == EpochEnd(1, 3)
    assert epoch_end(log.reader, 2, log.end_offset) == EpochEnd(2, 11)


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("behind", [0, 2])
def test_a_log_is_truncated_where_its_skipped_offsets_begin(behind: int, is_reopened: bool) -> None:
    disk = SimulatedDisk(Random(1))
    log = _log(disk, 3)
    log.skip(10)
    for _ in range(behind):
        _append(log, b"behind")
    if is_reopened:
        log.close()
        log = Log.open(PATH, disk, CONFIG)
    assert log.truncate(3) == 3
    assert not log.damage
    _append(log, b"other")
    log.close()
    assert _read(Log.open(PATH, disk, CONFIG)) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("frames", [0, 3])
def test_a_crash_leaves_the_log_as_it_was_or_behind_the_skipped_offsets(
    frames: int, power: bool
) -> None:
    ends = set()
    for step in range(1, 100):
        disk = SimulatedDisk(Random(step))
        log = _log(disk, frames)
        disk.crash_at = disk.operations + step
        try:
            log.skip(10)
            _append(log, b"behind")
        except SimulatedCrash:
            disk.crash(power=power)
        else:
            break
        disk.crash_at = None
        log = Log.open(PATH, disk, CONFIG)
        ends.add(log.end_offset)
        damaged = [(frames, 10)] if log.end_offset >= 10 else []
        assert _read(log)[1] == damaged
        assert _read(log)[0][:frames] == [*range(frames)]
    assert {frames, 10} <= ends <= {frames, 10, 11}


def test_a_log_whose_new_segment_got_no_frame_skips_behind_that_segment() -> None:
    for room in range(0, 4096, 64):
        disk = SimulatedDisk(Random(1))
        log = _log(disk, 3)
        disk.capacity_bytes = disk.used_bytes + room
        batch = log.begin(5, roll=True)
        view = frame(b"refused")
        batch.add(view.header, view.body, append_time_us=5, leader_epoch=1)
        with pytest.raises(StorageFull):
            log.write(batch)
        disk.capacity_bytes = None
        log.skip(10)
        _append(log, b"behind")
        begun = [each.base_offset for each in log.segments]
        log.close()
        opened = Log.open(PATH, disk, CONFIG)
        assert _read(opened) == ([0, 1, 2, 10], [(3, 10)])
        assert [each.base_offset for each in opened.segments] == begun, "the log knows its files"
        if len(begun) == 3:
            break
    assert begun == [0, 3, 10], "a segment had begun that got no frame"
