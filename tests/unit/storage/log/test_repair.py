"""Putting frames back where a segment is damaged."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.errors import CorruptData, InvalidFrame
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.repair import (
    Gap,
    compacted_end_offset,
    find_gaps,
    known_damage,
    read_gap,
    repair_segment,
)
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk

PATH = Path("/data/messages")
_FRAMES = 6


def _disk_with_log() -> SimulatedDisk:
    """Return a disk with a log of a sealed segment, two messages a frame, and one more frame."""
    disk = SimulatedDisk(Random(1))
    log = Log.open(PATH, disk)
    for number in range(_FRAMES):
        _append(log, number)
    log.roll()
    _append(log, _FRAMES)
    log.close()
    return disk


def _append(log: Log, number: int, removed: list[int] | None = None) -> None:
    columns = Columns([b"%d" % number * 50, b"x"])
    view = FrameView.parse(encode_frame(columns, removed=removed))
    batch = log.begin(1_000 + number)
    batch.add(view.header, view.body, append_time_us=1_000 + number, leader_epoch=3)
    log.write(batch)
    log.commit(batch)


def _sealed(log: Log) -> Path:
    return log.segments[0].path


def _bytes(log: Log, disk: SimulatedDisk) -> bytes:
    return disk.read_all(_sealed(log))


def _damaged(sound: SimulatedDisk, at: float, size: int = 3) -> tuple[SimulatedDisk, Log]:
    """Return a copy of a disk with some bytes of the sealed segment overwritten."""
    disk = sound.copy()
    log = Log.open(PATH, disk)
    data = bytearray(_bytes(log, disk))
    position = int(at * len(data))
    data[position : position + size] = b"\xa5" * size
    disk.put(_sealed(log), bytes(data[: max(len(data), 0)]))
    return disk, log


def _found(sound: Log, log: Log) -> dict[Gap, list[FrameView]]:
    gaps = find_gaps(log, log.segments[0])
    return {gap: read_gap(sound.reader, gap, sound.end_offset, 2**20).frames for gap in gaps}


@pytest.mark.parametrize("tenth", range(10))
def test_a_mended_segment_has_the_bytes_that_it_had(tenth: int) -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    disk, log = _damaged(sound_disk, tenth / 10)
    assert log.reader.read(0, log.end_offset).damage
    repair_segment(log, log.segments[0], _found(sound, log))
    assert _bytes(log, disk) == _bytes(sound, sound_disk)
    assert not known_damage(log)
    assert log.reader.is_sound(0, log.end_offset)
    log.close()
    again = Log.open(PATH, disk)
    assert again.reader.is_sound(0, sound.end_offset)
    assert again.end_offset == sound.end_offset


def test_a_segment_that_was_cut_short_is_mended() -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    disk = sound_disk.copy()
    log = Log.open(PATH, disk)
    disk.put(_sealed(log), _bytes(log, disk)[:300])
    log = Log.open(PATH, disk)
    assert not log.reader.is_sound(0, log.end_offset)
    repair_segment(log, log.segments[0], _found(sound, log))
    assert _bytes(log, disk) == _bytes(sound, sound_disk)


@pytest.mark.parametrize("frames", range(1, 4))
def test_a_gap_is_filled_as_far_as_there_are_frames(frames: int) -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    size = len(_bytes(sound, sound_disk)) // _FRAMES
    disk, log = _damaged(sound_disk, 1.01 / _FRAMES, 3 * size)
    (gap,) = find_gaps(log, log.segments[0])
    views = read_gap(sound.reader, gap, sound.end_offset, 2**20).frames
    assert len(views) == 4
    repair_segment(log, log.segments[0], {gap: views[:frames]})
    rest = Gap(views[frames].header.base_offset, gap.end_offset)
    for _ in range(2):
        assert find_gaps(log, log.segments[0]) == [rest]
        reading = log.reader.read(0, log.end_offset)
        assert len(reading.frames) == _FRAMES + 1 - (4 - frames)
        assert [(d.start_offset, d.end_offset) for d in reading.damage] == [rest]
        log.close()
        log = Log.open(PATH, disk)
    repair_segment(log, log.segments[0], {rest: views[frames:]})
    assert _bytes(log, disk) == _bytes(sound, sound_disk)


def test_a_gap_for_which_there_is_nothing_stays_as_it_is() -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    disk, log = _damaged(sound_disk, 0.1)
    data = bytearray(_bytes(log, disk))
    data[-20] ^= 0xFF
    disk.put(_sealed(log), bytes(data))
    found = _found(sound, log)
    assert len(found) == 2
    first = min(found)
    repair_segment(log, log.segments[0], {first: found[first]})
    assert find_gaps(log, log.segments[0]) == [max(found)]


def test_frames_that_do_not_fill_a_gap_are_refused() -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    disk, log = _damaged(sound_disk, 0.5)
    (gap,) = find_gaps(log, log.segments[0])
    others = read_gap(sound.reader, Gap(0, 2), sound.end_offset, 2**20).frames
    before = _bytes(log, disk)
    with pytest.raises(InvalidFrame):
        repair_segment(log, log.segments[0], {gap: others})
    assert _bytes(log, disk) == before


def test_a_crash_at_any_moment_leaves_the_damaged_segment_or_the_mended_one() -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    whole = _bytes(sound, sound_disk)
    outcomes = set()
    for power in (False, True):
        for at in range(1, 100):
            disk, log = _damaged(sound_disk, 0.5)
            damaged, found = _bytes(log, disk), _found(sound, log)
            disk.crash_at = disk.operations + at
            try:
                repair_segment(log, log.segments[0], found)
            except SimulatedCrash:
                disk.crash(power=power)
            else:
                assert at > 3
                break
            again = Log.open(PATH, disk)
            assert _bytes(again, disk) in (damaged, whole)
            outcomes.add(_bytes(again, disk) == whole)
            assert again.end_offset == sound.end_offset
    assert outcomes == {True, False}


def test_a_log_may_be_cut_where_bad_bytes_begin_and_not_amidst_them() -> None:
    sound_disk = _disk_with_log()
    sound = Log.open(PATH, sound_disk)
    disk, log = _damaged(sound_disk, 0.5)
    first = find_gaps(log, log.segments[0])[0]
    assert first.end_offset - first.start_offset > 1
    with pytest.raises(CorruptData):
        log.truncate(first.start_offset + 1)
    assert log.truncate(first.start_offset) == first.start_offset
    assert not known_damage(log)
    log.close()
    again = Log.open(PATH, disk)
    assert again.end_offset == first.start_offset
    assert again.reader.is_sound(0, first.start_offset)
    assert not again.damage
    assert sound.end_offset > first.start_offset


def test_a_log_is_compacted_up_to_its_last_segment_with_removed_rows_or_damage() -> None:
    sound_disk = _disk_with_log()
    log = Log.open(PATH, sound_disk)
    assert compacted_end_offset(log) == 0
    _append(log, 7, removed=[1])
    log.roll()
    compacted = log.end_offset
    _append(log, 8)
    assert compacted_end_offset(log) == compacted
    _append(log, 9, removed=[0])
    assert compacted_end_offset(log) == log.end_offset
    _, damaged = _damaged(_disk_with_log(), 0.5)
    assert compacted_end_offset(damaged) == damaged.segments[0].end_offset
