"""Reads by offset and by time against a list of frames: bounds, clocks that step, lost files."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import NamedTuple

import pytest

from goq import limits
from goq.errors import CorruptData
from goq.storage.disk import NotCached
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.reader import LogReader, estimate_chunk_bytes, segment_number
from goq.storage.log.segment import Segment
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of


class Stored(NamedTuple):
    offset: int
    end_offset: int
    size_bytes: int
    time_us: int


def filled(chance: random.Random, disk: SimulatedDisk, count: int) -> tuple[Log, list[Stored]]:
    """Return a log of small segments, and its frames: their sizes vary and the clock steps."""
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=600))
    stored, now_us = [], START_US
    for _ in range(count):
        now_us += chance.choice((-300, 0, 1, 50, 100))
        frame = frame_of([bytes(chance.randrange(200))] * chance.randint(1, 4))
        offset = append(log, [frame], time_us=now_us)
        stored.append(Stored(offset, log.end_offset, len(frame), now_us))
    return log, stored


def wanted(
    stored: list[Stored], offset: int, end_offset: int, messages_max: int, bytes_max: int
) -> list[int]:
    """Return where the frames begin that a read should give, by the words of its docstring."""
    found, messages, size_bytes = list[int](), 0, 0
    for each in stored:
        is_asked_for = offset < end_offset and offset < each.end_offset and each.offset < end_offset
        if is_asked_for and messages < messages_max:
            if found and size_bytes + each.size_bytes > bytes_max:
                break
            found.append(each.offset)
            messages += each.end_offset - each.offset
            size_bytes += each.size_bytes
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_read_gives_what_its_bounds_allow_and_at_least_one_frame(seed: int) -> None:
    chance = random.Random(seed)
    log, stored = filled(chance, SimulatedDisk(), 25)
    sums = list(accumulate(each.size_bytes for each in stored))
    for _ in range(300):
        offset, end = chance.randint(-3, log.end_offset), chance.randint(0, log.end_offset)
        messages_max = chance.choice((1, 2, 3, 10, 1000))
        first, last = sorted(chance.choices(range(len(sums)), k=2))
        bytes_max = sums[last] - sums[first] + chance.choice((-1, 0, 1))
        reading = log.reader.read(offset, end, messages_max=messages_max, bytes_max=bytes_max)
        expected = wanted(stored, offset, end, messages_max, bytes_max)
        assert [view.header.base_offset for view in reading.frames] == expected
        assert reading.damage == []
        last_end = reading.frames[-1].header.end_offset if reading.frames else max(0, offset)
        assert reading.next_offset == last_end


@pytest.mark.parametrize("seed", range(12))
def test_times_are_found_whichever_indexes_are_lost(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimulatedDisk()
    log, stored = filled(chance, disk, 30)
    log.close()
    assert len(log.segments) > 5
    for segment in log.segments:
        if chance.random() < 0.6:
            disk.remove(segment.index_path)
    reopened = Log.open(DIRECTORY, disk)
    reader = reopened.reader
    checks = [*range(len(reader.segments))]
    chance.shuffle(checks)
    for number in checks:
        segment = reader.segments[number]
        before = [each.time_us for each in stored if each.offset < segment.base_offset]
        up_to = [each.time_us for each in stored if each.offset < segment.end_offset]
        assert reader.max_time_us_before(segment) == max(before, default=0)
        assert reader.max_time_us_at_end(segment) == max(up_to)
        is_active = segment is reader.segments[-1]
        for offset in (segment.base_offset, segment.end_offset - 1):
            assert reader.sealed_time_us(offset) == (None if is_active else max(up_to))
    end = reopened.end_offset
    for time_us in {each.time_us + step for each in stored for step in (-1, 0, 1)}:
        later = [each.offset for each in stored if each.time_us >= time_us]
        assert reader.offset_for_time(time_us, end) == min(later, default=end)
        assert reader.offset_for_time(time_us, 3) == min(3, *later, end)


def test_each_message_has_the_time_of_its_frame_and_what_is_not_there_has_none() -> None:
    disk = SimulatedDisk()
    log, stored = filled(random.Random(1), disk, 12)
    for each in stored:
        for offset in range(each.offset, each.end_offset):
            assert log.reader.append_time_us(offset) == each.time_us
    with pytest.raises(CorruptData, match="not in the log"):
        log.reader.append_time_us(log.end_offset)
    disk.flip(log.segments[0].path, stored[0].size_bytes - 1, 1)
    with pytest.raises(CorruptData, match="damaged"):
        log.reader.append_time_us(0)
    assert log.reader.append_time_us(stored[1].offset) == stored[1].time_us


def test_each_message_is_located_with_its_frame_and_the_end_behind_the_last() -> None:
    log, stored = filled(random.Random(2), SimulatedDisk(), 12)
    for segment in log.segments:
        position = 0
        for each in stored:
            if segment.base_offset <= each.offset < segment.end_offset:
                for offset in range(each.offset, each.end_offset):
                    assert log.reader.locate(offset) == (segment, position, each.offset)
                position += each.size_bytes
    active = log.active
    end = (active, active.size_bytes, active.end_offset)
    assert log.reader.locate(log.end_offset) == end
    assert log.reader.locate_cut(log.end_offset) == end


def test_a_cut_can_be_made_where_damage_begins_and_nowhere_within_it() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    frame = frame_of([b"value"] * 2)
    for _ in range(3):
        append(log, [frame])
    disk.flip(log.active.path, 2 * len(frame) - 1, 1)
    assert log.reader.locate_cut(2) == (log.active, len(frame), 2)
    for offset in (2, 3):
        with pytest.raises(CorruptData):
            log.reader.locate(offset)
    with pytest.raises(CorruptData):
        log.reader.locate_cut(3)
    assert log.reader.locate_cut(1) == (log.active, 0, 0)


def test_a_read_goes_on_behind_segments_that_are_elsewhere() -> None:
    disk = SimulatedDisk()
    log, stored = filled(random.Random(3), disk, 20)
    first, second, *others = log.segments
    reader = LogReader(disk, [first, *others], [])
    reading = reader.read(0, log.end_offset)
    here = [e.offset for e in stored if not second.base_offset <= e.offset < second.end_offset]
    assert [view.header.base_offset for view in reading.frames] == here
    assert reading.next_offset == log.end_offset
    alone = LogReader(disk, [first], [])
    assert alone.read(0, log.end_offset).next_offset == first.end_offset


def test_what_is_readable_as_a_whole_is_sound_and_a_damaged_frame_is_not() -> None:
    disk = SimulatedDisk()
    log, stored = filled(random.Random(4), disk, 12)
    bad = stored[5]
    for each in log.segments:
        if each.base_offset <= bad.offset < each.end_offset:
            _, position, _ = log.reader.locate(bad.offset)
            disk.flip(each.path, position + bad.size_bytes - 1, 1)
    assert log.reader.is_sound(0, bad.offset)
    assert log.reader.is_sound(bad.end_offset, log.end_offset)
    assert not log.reader.is_sound(0, log.end_offset)
    assert not log.reader.is_sound(bad.offset, bad.end_offset)
    assert not log.reader.is_sound(bad.end_offset, log.end_offset + 1)


def test_a_read_that_must_not_wait_goes_on_where_one_ended_and_nowhere_else() -> None:
    disk = SimulatedDisk()
    log, stored = filled(random.Random(5), disk, 6)
    log.close()
    reader = Log.open(DIRECTORY, disk).reader
    number = next(n for n, s in enumerate(reader.segments) if s.message_count > 3)
    segment = reader.segments[number]
    segment.index = None
    inside = [e.offset for e in stored if segment.base_offset < e.offset < segment.end_offset]
    with pytest.raises(NotCached):
        reader.read(inside[0], log.end_offset, wait=False)
    reader.read(segment.base_offset, inside[0])
    segment.index = None
    assert reader.read(inside[0], inside[0] + 1, wait=False).frames
    reader.clear_read_ends()
    with pytest.raises(NotCached):
        reader.read(inside[0], log.end_offset, wait=False)


def test_what_is_missing_is_told_once_whatever_is_known_of_it_before() -> None:
    log, _ = filled(random.Random(6), SimulatedDisk(), 3)
    reader = log.reader
    reader.note_missing(100, 110)
    assert [(d.start_offset, d.end_offset) for d in reader.damage] == [(100, 110)]
    (missing,) = reader.damage
    assert (missing.position, missing.end_position) == (0, 0), "a whole file"
    for part in ((100, 110), (102, 108)):
        reader.note_missing(*part)
    assert len(reader.damage) == 1
    reader.note_missing(120, 130)
    assert len(reader.damage) == 2
    reader.clear_damage(0, 110)
    assert [(d.start_offset, d.end_offset) for d in reader.damage] == [(120, 130)]


@pytest.mark.parametrize(
    ("offset", "number"), [(-1, 0), (0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (99, 2)]
)
def test_an_offset_is_in_the_last_segment_that_begins_by_then(offset: int, number: int) -> None:
    segments = [Segment(DIRECTORY, base) for base in (0, 10, 20)]
    assert segment_number(segments, offset) == number


@pytest.mark.parametrize(
    ("count", "size_bytes", "messages", "expected"),
    [
        (0, 0, 10, 2 * limits.INDEX_INTERVAL_BYTES),
        (100, 1_000, 1, 2 * limits.INDEX_INTERVAL_BYTES),
        (100, 100_000, 20, 20 * 1001 + limits.INDEX_INTERVAL_BYTES),
        (100, 100_000, 10**9, limits.MIB),
    ],
)
def test_as_much_is_read_at_once_as_so_many_messages_take(
    count: int, size_bytes: int, messages: int, expected: int
) -> None:
    segment = Segment(DIRECTORY, 50)
    segment.end_offset, segment.size_bytes = 50 + count, size_bytes
    assert estimate_chunk_bytes(segment, messages) == expected


@pytest.mark.parametrize("is_over", [False, True])
def test_a_read_that_must_not_wait_leaves_a_large_frame_to_a_thread(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    log, stored = filled(random.Random(7), SimulatedDisk(), 3)
    one = max(stored, key=lambda each: each.size_bytes)
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 1)
    monkeypatch.setattr(limits, "READ_AT_ONCE_BYTES", one.size_bytes - is_over)
    end = min(one.end_offset, one.offset + 1)
    if is_over:
        with pytest.raises(NotCached):
            log.reader.read(one.offset, end, messages_max=1, wait=False)
    else:
        assert log.reader.read(one.offset, end, messages_max=1, wait=False).frames
    assert log.reader.read(one.offset, end, messages_max=1).frames
