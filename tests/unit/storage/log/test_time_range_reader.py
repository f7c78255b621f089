"""Reading by time against a filter over a list, whatever the clock and the files went through."""

from __future__ import annotations

import threading
from array import array
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.config.topic import Fsync
from goq.frame.header import HEADER_BYTES, FrameHeader, parse_header
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.reader import LogReader, ReadResult
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import TIME_US_MAX, TIME_US_MIN, IndexEntry, SparseIndex
from goq.storage.log.time_range_reader import ReadBounds, TimeRange, read_time_range
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of

YEAR_US = 365 * 86_400_000_000
FRAME = frame_of([bytes(100)] * 10)
SINGLE = frame_of([b"one"])


def read_range(
    reader: LogReader, times: TimeRange, offset: int, end: int, bounds: ReadBounds | None = None
) -> ReadResult:
    """Read piece after piece until there is no more."""
    whole = ReadResult(next_offset=offset)
    while True:
        piece = read_time_range(reader, times, whole.next_offset, end, bounds or ReadBounds())
        whole.frames += piece.frames
        whole.damage += [d for d in piece.damage if d not in whole.damage]
        assert piece.next_offset > whole.next_offset or piece.next_offset >= end
        whole.next_offset = piece.next_offset
        if whole.next_offset >= end:
            return whole


def offsets(reading: ReadResult) -> list[int]:
    return [view.header.base_offset for view in reading.frames]


class Life:
    """A log and the list of all its frames: base offset, count and append time."""

    def __init__(self, seed: int, config: LogConfig) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.config = config
        self.now_us = START_US
        self.frames: list[tuple[int, int, int]] = []
        self.lost: set[int] = set()
        self.log = Log.open(DIRECTORY, self.disk, config)

    def append(self) -> None:
        self.now_us += self.random.choice([0, 0, 1, 1, 5, 1000, -3, -2000, YEAR_US, -YEAR_US])
        batch = self.log.begin(self.now_us, roll=self.random.random() < 0.1)
        for _ in range(self.random.randint(1, 5)):
            self.now_us += self.random.choice([0, 0, 1, -1])
            count = self.random.randint(1, 4)
            header, body = _parts(self.random, count)
            if not batch.has_room_for(header.frame_bytes):
                break
            offset = batch.add(header, body, append_time_us=self.now_us, leader_epoch=1)
            self.frames.append((offset, count, self.now_us))
        self.log.write(batch)
        self.log.commit(batch)

    def damage(self) -> None:
        """Let a body rot: that frame is lost, and no other."""
        if self.frames:
            offset = self.random.choice(self.frames)[0]
            if offset not in self.lost:
                segment, position, _ = self.log.reader.locate(offset)
                data = bytearray(self.disk.read_all(segment.path))
                data[position + HEADER_BYTES] ^= 1
                self.disk.put(segment.path, bytes(data))
                self.lost.add(offset)
                self.reopen()

    def truncate(self) -> None:
        if self.lost:
            return  # what is damaged cannot be cut at
        start, end = self.log.start_offset, self.log.end_offset
        end = self.log.truncate(self.random.randint(max(start, end - 20), end))
        self.frames = [frame for frame in self.frames if frame[0] < end]

    def retain(self) -> None:
        keep = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.log.remove(self.log.detach_before(keep))
        self.frames = [f for f in self.frames if f[0] >= self.log.start_offset]

    def reopen(self) -> None:
        self.log.close()
        self.lose_indexes()
        self.log = Log.open(DIRECTORY, self.disk, self.config)

    def crash(self) -> None:
        if self.lost:
            return  # what was written last is cut off where it is damaged
        self.disk.crash(power=self.random.random() < 0.5)
        self.lose_indexes()
        self.log = Log.open(DIRECTORY, self.disk, self.config)

    def lose_indexes(self) -> None:
        for path in self.disk.paths():
            if path.suffix == ".index" and self.random.random() < 0.3:
                self.disk.delete(path)

    def check(self) -> None:
        for _ in range(3):
            times = self.some_range()
            start = self.random.randint(0, self.log.end_offset)
            end = self.random.randint(start, self.log.end_offset)
            bounds = ReadBounds(
                self.random.choice([1, 3, 10_000]),
                self.random.choice([1, 500, limits.MIB]),
                self.random.choice([1, 700, limits.MIB]),
            )
            expected = [
                o
                for o, n, t in self.frames
                if t in times and o < end and o + n > start and start < end
            ]
            reading = read_range(self.log.reader, times, start, end, bounds)
            assert offsets(reading) == [o for o in expected if o not in self.lost]
            assert {d.start_offset for d in reading.damage} <= self.lost

    def some_range(self) -> TimeRange:
        known = [time_us for _, _, time_us in self.frames] or [START_US]
        ends = [self.random.choice(known) + self.random.choice([-1, 0, 0, 1]) for _ in range(2)]
        if self.random.random() < 0.2:
            ends[self.random.randint(0, 1)] = self.random.choice([-(2**70), 2**70, 0])
        return TimeRange(min(ends), max(ends))


def _parts(random: Random, count: int) -> tuple[FrameHeader, memoryview]:
    frame = frame_of([bytes(random.choice([0, 10, 90, 400]))] * count)
    return parse_header(frame), memoryview(frame)[HEADER_BYTES:]


_STEPS = ["append"] * 8 + ["reopen", "crash", "truncate", "retain", "damage"]


@pytest.fixture
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 500)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 3000)


@pytest.mark.usefixtures("small_intervals")
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    seed=st.integers(0, 2**32),
    segment_bytes=st.sampled_from([1, 1000, 10_000]),
    steps=st.lists(st.sampled_from(_STEPS), max_size=40),
)
def test_a_range_is_what_a_filter_leaves(seed: int, segment_bytes: int, steps: list[str]) -> None:
    life = Life(seed, LogConfig(segment_bytes=segment_bytes))
    for step in steps:
        getattr(life, step)()
        life.check()


def test_the_first_time_is_inside_and_the_last_is_not() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk())
    for time_us in (10, 20, 20, 30):
        append(log, [SINGLE], time_us=time_us)

    def found(from_us: int, to_us: int) -> list[int]:
        return offsets(read_range(log.reader, TimeRange(from_us, to_us), 0, 4))

    assert found(20, 30) == [1, 2]
    assert found(19, 30) == found(20, 21) == [1, 2]
    assert found(21, 30) == found(20, 20) == found(30, 20) == []
    assert found(21, 31) == [3]
    assert found(-(2**80), 2**80) == [0, 1, 2, 3]
    assert found(-5, 10) == found(31, 2**80) == []


@pytest.fixture
def large() -> tuple[SimulatedDisk, Log]:
    """100 times 100 frames of 10 messages, a millisecond apart, in several segments."""
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=4 * limits.MIB))
    for number in range(100):
        append(log, [FRAME] * 100, time_us=START_US + number * 1000)
    return disk, log


def test_a_narrow_range_of_a_large_log_reads_little(large: tuple[SimulatedDisk, Log]) -> None:
    disk, log = large
    read_range(log.reader, TimeRange(), 0, log.end_offset)  # loads the indexes
    times = TimeRange(START_US + 50_000, START_US + 50_001)
    before = disk.bytes_read
    assert offsets(read_range(log.reader, times, 0, log.end_offset)) == [*range(50_000, 51_000, 10)]
    assert disk.bytes_read - before <= 100 * len(FRAME) + 5 * limits.INDEX_INTERVAL_BYTES
    before = disk.bytes_read
    for times in (TimeRange(0, START_US), TimeRange(START_US + 100_000, START_US + YEAR_US)):
        assert offsets(read_range(log.reader, times, 0, log.end_offset)) == []
    assert disk.bytes_read - before <= 4 * limits.INDEX_INTERVAL_BYTES


def test_a_clock_that_was_a_year_ahead_for_a_while_costs_nothing_afterwards() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=limits.MIB))
    for number in range(60):
        ahead_us = YEAR_US if number in (20, 40) else 0
        append(log, [FRAME] * 100, time_us=START_US + number * 1000 + ahead_us)
    read_range(log.reader, TimeRange(), 0, log.end_offset)
    for reopened in (False, True):
        for wanted, expected in (
            (TimeRange(START_US + 50_000, START_US + 51_000), 50),
            (TimeRange(START_US + YEAR_US + 40_000, START_US + 2 * YEAR_US), 40),
        ):
            before = disk.bytes_read
            found = offsets(read_range(log.reader, wanted, 0, log.end_offset))
            assert found == [*range(expected * 1000, expected * 1000 + 1000, 10)]
            if not reopened:
                assert disk.bytes_read - before <= 100 * len(FRAME) + 60_000
        log.close()
        for path in disk.paths():
            if path.suffix == ".index":
                disk.delete(path)
        log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=limits.MIB))


def test_looking_through_much_in_vain_ends_with_a_place_to_go_on_from() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk())
    for number in range(100):  # a clock that goes to and fro: every stretch may hold the range
        append(log, [FRAME], time_us=START_US + number % 2 * 1000)
    cost = limits.FRAME_SCAN_COST_BYTES
    bounds = ReadBounds(scanned_bytes_max=10 * (len(FRAME) + cost) + 4 * cost)
    piece = read_time_range(log.reader, TimeRange(START_US + 1, START_US + 2), 0, 1000, bounds)
    assert (piece.frames, piece.next_offset) == ([], 100)
    assert read_range(log.reader, TimeRange(START_US + 1, START_US + 2), 0, 1000).frames == []


def segment_path(offset: int) -> Path:
    return DIRECTORY / f"{offset:020d}.log"


@pytest.mark.parametrize("part", ["header", "body"])
@pytest.mark.parametrize("index", ["kept", "made anew"])
def test_damage_in_a_range_is_reported_and_the_rest_given(part: str, index: str) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for number in range(2000):
        append(log, [FRAME], time_us=START_US + number * 1000)
    log.close()
    path = segment_path(0)
    data = bytearray(disk.read_all(path))
    data[1000 * len(FRAME) + (20 if part == "header" else len(FRAME) - 20)] ^= 1
    disk.put(path, bytes(data))
    if index == "made anew":
        disk.delete(path.with_suffix(".index"))
    log = Log.open(DIRECTORY, disk)
    around = TimeRange(START_US + 990_000, START_US + 1_010_000)
    reading = read_range(log.reader, around, 0, log.end_offset)
    assert offsets(reading) == [o for o in range(9900, 10_100, 10) if o != 10_000]
    assert [(d.start_offset, d.end_offset) for d in reading.damage] == [(10_000, 10_010)]
    exactly = TimeRange(START_US + 1_000_000, START_US + 1_000_001)
    reading = read_range(log.reader, exactly, 0, log.end_offset)
    assert (reading.frames, len(reading.damage)) == ([], 1)
    far = TimeRange(START_US, START_US + 500_000)
    assert read_range(log.reader, far, 0, log.end_offset).damage == []


@pytest.mark.parametrize("end", ["killed", "closed", "index lost"])
def test_damage_counts_as_having_the_times_around_it(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 1)  # every frame is a stretch
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for number in range(10):
        append(log, [FRAME], time_us=START_US + number * 10)
    if end == "killed":
        disk.crash(power=False)
    else:
        log.close()
    path = segment_path(0)
    data = bytearray(disk.read_all(path))
    data[6 * len(FRAME) - 20] ^= 1
    disk.put(path, bytes(data))
    if end == "index lost":
        disk.delete(path.with_suffix(".index"))
    log = Log.open(DIRECTORY, disk)
    for from_us, to_us, damaged in ((50, 51, 1), (20, 40, 0), (70, 80, 0), (30, 55, 1)):
        times = TimeRange(START_US + from_us, START_US + to_us)
        reading = read_range(log.reader, times, 0, 100)
        assert offsets(reading) == [
            n * 10 for n in range(10) if from_us <= n * 10 < to_us and n != 5
        ]
        assert len(reading.damage) == damaged


def test_segments_deleted_while_a_range_is_read_are_passed_over(tmp_path: Path) -> None:
    log = Log.open(tmp_path, RealDisk(), LogConfig(segment_bytes=10 * len(FRAME)))
    for number in range(100):
        append(log, [FRAME], time_us=START_US + number)
    bounds = ReadBounds(messages_max=50)
    piece = read_time_range(log.reader, TimeRange(), 0, 1000, bounds)
    assert piece.next_offset == 50
    log.remove(log.detach_before(500))
    start = log.start_offset
    assert 50 < start <= 500
    rest = read_range(log.reader, TimeRange(), piece.next_offset, 1000)
    assert offsets(rest) == [*range(start, 1000, 10)]
    log.close()


@pytest.mark.parametrize("reads", range(1, 12))
def test_segments_may_go_at_any_moment_of_a_reading(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=3 * len(FRAME)))
    for number in range(20):
        append(log, [FRAME], time_us=START_US + number)
    log.close()
    log = Log.open(DIRECTORY, disk)
    real_read, left = disk.read, [reads]

    def read(path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        left[0] -= 1
        if left[0] == 0:
            log.remove(log.detach_before(150))
        return real_read(path, position, size_bytes, wait=wait)

    monkeypatch.setattr(disk, "read", read)
    reading = read_range(log.reader, TimeRange(START_US + 2, START_US + 18), 0, 200)
    found = offsets(reading)
    assert found == sorted(set(found))
    assert set(found) <= {*range(20, 180, 10)}
    assert {*range(150, 180, 10)} <= set(found)
    assert reading.damage == []


@pytest.mark.parametrize("reads", range(1, 12))
def test_a_segment_that_another_generation_replaces_is_read_on_there(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 1)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=10 * len(FRAME)))
    for number in range(40):
        append(log, [FRAME], time_us=START_US + number % 3)
    log.close()
    log = Log.open(DIRECTORY, disk)
    other = Segment(DIRECTORY / "other", 100)
    disk.make_dir(other.path.parent)
    old = log.segments[1]
    other.size_bytes, other.end_offset = old.size_bytes, old.end_offset
    for path in (old.path, old.index_path):
        disk.put(other.path.with_suffix(path.suffix), disk.read_all(path))
    real_read, left = disk.read, [reads]

    def read(path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        left[0] -= 1
        if left[0] == 0:
            log.reader.segments = [other if s is old else s for s in log.segments]
            old.remove(disk)
        return real_read(path, position, size_bytes, wait=wait)

    monkeypatch.setattr(disk, "read", read)
    reading = read_range(log.reader, TimeRange(START_US, START_US + 2), 0, 400)
    assert offsets(reading) == [n * 10 for n in range(40) if n % 3 < 2]
    assert reading.damage == []


def test_a_gap_between_segments_is_passed_over() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=1))
    for number in range(5):
        append(log, [FRAME], time_us=START_US + number)
    log.reader.segments = [s for s in log.segments if s.base_offset not in (10, 20)]
    assert offsets(read_range(log.reader, TimeRange(), 0, 50)) == [0, 30, 40]
    assert offsets(read_range(log.reader, TimeRange(), 15, 50)) == [30, 40]


def test_ranges_are_exact_while_the_log_grows(tmp_path: Path) -> None:
    log = Log.open(tmp_path, RealDisk(), LogConfig(segment_bytes=limits.MIB, fsync=Fsync.NEVER))
    append(log, [FRAME], time_us=START_US)
    stopped, failures, readings = threading.Event(), list[str](), [0]

    def look() -> None:
        while not stopped.is_set():
            end = log.end_offset
            times = TimeRange(START_US + 3, START_US + 5)
            found = offsets(read_range(log.reader, times, 0, end))
            expected = [o for o in range(0, end, 10) if (o // 10) % 10 in (3, 4)]
            if found != expected:
                failures.append(f"{len(found)} of {len(expected)} up to {end}")
            readings[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    number = 1
    while number < 5000 or readings[0] < 20:
        append(log, [FRAME], time_us=START_US + number % 10)
        number += 1
    stopped.set()
    thread.join(30)
    assert failures == []
    log.close()


def test_a_segment_deleted_before_its_index_was_loaded_is_passed_over() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for number in range(5):
        append(log, [FRAME], time_us=START_US + number)
    log.close()
    for path in disk.paths():
        if path.suffix == ".index":
            disk.delete(path)
    log = Log.open(DIRECTORY, disk)
    stale = LogReader(disk, log.segments, [])
    log.remove(log.detach_before(20))
    stale.segments = log.segments
    assert offsets(read_range(stale, TimeRange(), 0, 50)) == [20, 30, 40]


def test_an_index_of_the_older_form_is_made_anew() -> None:
    index = SparseIndex()
    index.add(IndexEntry(0, 0, 5), always=True)
    data = bytearray(index.pack(index.last(), 0))
    assert SparseIndex.unpack(bytes(data), 0) is not None
    older = array("q", [1, 0, 0, 5]).tobytes()
    data = bytearray(older + array("Q", [crc32c(older)]).tobytes())
    assert SparseIndex.unpack(bytes(data), 0) is None


def test_a_range_without_bounds_holds_every_time_and_one_with_bounds_its_first() -> None:
    everything, one = TimeRange(), TimeRange(5, 6)
    assert all(time_us in everything for time_us in (TIME_US_MIN, 0, TIME_US_MAX))
    assert not any(time_us in everything for time_us in (TIME_US_MIN - 1, TIME_US_MAX + 1))
    assert [time_us in one for time_us in (4, 5, 6)] == [False, True, False]


def test_a_range_without_bounds_has_all_times_that_a_message_may_have() -> None:
    always = TimeRange()
    assert TIME_US_MIN in always
    assert TIME_US_MAX in always
    assert TIME_US_MIN - 1 not in always
    assert TIME_US_MAX + 1 not in always
