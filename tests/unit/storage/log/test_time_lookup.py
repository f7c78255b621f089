"""How far a log reached at a moment, against a list of its frames, on clocks that step."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from goq import limits
from goq.errors import CorruptData
from goq.frame.header import HEADER_BYTES
from goq.storage.log import time_lookup
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.time_lookup import end_offset_at, find_frames, read_backward, retry_deleted
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of

SMALL, LARGE = frame_of([bytes(50)] * 2), frame_of([bytes(3000)] * 4)
CONFIG = LogConfig(segment_bytes=50_000)
BYTES = 12_000_000
Frames = list[tuple[int, int]]
"""The time of each frame, and the offset behind it."""


class CountingDisk(SimulatedDisk):
    """A disk that counts what is read of it."""

    read_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.read_paths: set[Path] = set()

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        data = super().read(path, position, size_bytes, wait=wait)
        self.read_bytes += len(data)
        self.read_paths.add(path)
        return data


def wanted(frames: Frames, time_us: int) -> int:
    return max((end for appended_us, end in frames if appended_us <= time_us), default=0)


def moments(frames: Frames) -> list[int]:
    return sorted({t + step for t, _ in frames for step in (-1, 0, 1)})


def filled(
    chance: random.Random, batches: int, frame: bytes, *, dip: tuple[int, int]
) -> tuple[Log, Frames]:
    """Return a log and its frames: one clock that is set back and forth at any time.

    While it is behind, it stays so for a number of batches within ``dip``.
    """
    log = Log.open(DIRECTORY, SimulatedDisk(), CONFIG)
    frames: Frames = []
    now_us, behind = START_US, 0
    for _ in range(batches):
        now_us += chance.choice((0, 1, 50, 1000))
        if not behind and chance.random() < 0.05:
            behind = chance.randint(*dip)
            now_us -= chance.choice((10, 5_000, 100_000))
        elif behind:
            behind -= 1
            if not behind and chance.random() < 0.5:
                now_us += 200_000
        some = [frame] * chance.choice((1, 1, 3))
        first = append(log, some, time_us=now_us)
        each = (log.end_offset - first) // len(some)
        frames += [(now_us, first + each * number) for number in range(1, len(some) + 1)]
    return log, frames


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("frame", [SMALL, LARGE])
def test_a_log_reached_behind_the_last_frame_of_the_time_or_before(seed: int, frame: bytes) -> None:
    log, frames = filled(random.Random(seed), 60, frame, dip=(1, 10))
    for time_us in moments(frames):
        assert end_offset_at(log.reader, time_us) == wanted(frames, time_us)


def test_a_text_is_found_in_whichever_frames_have_it() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig())
    with_text = [0, 3, 200, 201, 299]
    for number in range(300):
        marked = [b"x" * 1500, b"wanted" if number in with_text else b"other"]
        append(log, [frame_of(marked)])
    (segment,) = log.segments
    found = find_frames(log.reader, segment, b"wanted")
    assert [place.view.header.base_offset // 2 for place in found] == with_text
    assert not list(find_frames(log.reader, segment, b"absent"))


@pytest.mark.parametrize("dip", [(1, 1), (4, 10)])
@pytest.mark.parametrize("seed", range(12))
def test_a_step_back_is_found_many_segments_further_on(seed: int, dip: tuple[int, int]) -> None:
    log, frames = filled(random.Random(seed), 90, LARGE, dip=dip)
    assert len(log.segments) > 5
    for time_us in moments(frames):
        assert end_offset_at(log.reader, time_us) == wanted(frames, time_us)


def test_one_frame_from_before_is_found_far_behind_the_moment() -> None:
    disk = CountingDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=limits.MIB))
    frames: Frames = []
    for number in range(1000):
        time_us = START_US + (50 if number == 900 else 100 * number)
        append(log, [SMALL if number == 900 else LARGE], time_us=time_us)
        frames.append((time_us, log.end_offset))
    disk.read_bytes = 0
    for time_us in (START_US + 49, START_US + 50, START_US + 99, START_US + 90_000):
        assert end_offset_at(log.reader, time_us) == wanted(frames, time_us)
    assert disk.read_bytes < limits.MIB


def test_a_clock_that_runs_forward_is_followed_to_each_frame() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), CONFIG)
    frames: Frames = []
    for number in range(600):
        append(log, [SMALL], time_us=START_US + number // 3)
        frames.append((START_US + number // 3, log.end_offset))
    for time_us in moments(frames):
        assert end_offset_at(log.reader, time_us) == wanted(frames, time_us)


def test_no_frame_is_looked_at_far_behind_the_moment_where_the_clock_ran_forward() -> None:
    disk = CountingDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=limits.MIB))
    for number in range(1000):
        append(log, [LARGE], time_us=START_US + number)
    assert log.size_bytes > BYTES
    disk.read_bytes = 0
    assert end_offset_at(log.reader, START_US + 1) == 8
    assert disk.read_bytes < limits.MIB


def test_an_index_that_is_gone_changes_nothing() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    frames: Frames = []
    for number in range(40):
        time_us = START_US + number - (30 if number > 20 else 0)
        append(log, [LARGE], time_us=time_us)
        frames.append((time_us, log.end_offset))
    log.close()
    for segment in log.segments:
        disk.remove(segment.index_path)
    again = Log.open(DIRECTORY, disk, CONFIG)
    for time_us in moments(frames):
        assert end_offset_at(again.reader, time_us) == wanted(frames, time_us)


def test_before_the_first_frame_a_log_reached_nowhere() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), CONFIG, base_offset=100)
    assert end_offset_at(log.reader, START_US) == 100
    append(log, [SMALL], time_us=START_US)
    assert [end_offset_at(log.reader, START_US + step) for step in (-1, 0, 1)] == [100, 102, 102]


def test_a_damaged_frame_has_no_time() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for number in range(3):
        append(log, [SMALL], time_us=START_US + number)
    damage_frame(disk, log, 1)
    assert [end_offset_at(log.reader, START_US + n) for n in range(4)] == [2, 2, 6, 6]
    assert [p.view.header.base_offset for p in read_backward(log.reader, 6)] == [4, 0]


def damage_frame(disk: SimulatedDisk, log: Log, number: int) -> None:
    file = disk.open(log.active.path)
    file.write_at(b"\xff" * 8, number * len(SMALL) + len(SMALL) - 16)
    file.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_log_is_read_from_its_end(seed: int) -> None:
    log, frames = filled(random.Random(seed), 60, SMALL, dip=(1, 10))
    ends = [end for _, end in frames]
    assert [p.view.header.end_offset for p in read_backward(log.reader, ends[-1])] == ends[::-1]
    for end in (0, 1, ends[0], ends[7], ends[20] + 1):
        found = [p.view.header.end_offset for p in read_backward(log.reader, end)]
        assert found == [each for each in reversed(ends) if each <= end]


def test_what_was_read_of_deleted_segments_is_read_anew() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=1))
    for number in range(3):
        append(log, [SMALL], time_us=START_US + number)
    tries = []

    def work() -> int:
        tries.append(log.start_offset)
        if len(tries) < 3:
            log.remove(log.detach_before(2 * len(tries)))
            raise FileNotFoundError
        return 7

    assert retry_deleted([log.reader], work) == 7
    assert tries == [0, 2, 4]


def test_a_segment_that_is_gone_and_was_not_deleted_is_damage() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for number in range(3):
        append(log, [SMALL], time_us=START_US + number)
    disk.remove(log.segments[0].path)
    with pytest.raises(CorruptData, match="a segment is missing"):
        list(retry_deleted([log.reader], lambda: list(read_backward(log.reader, 6))))


@pytest.fixture
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index each few frames, so that little data has many intervals."""
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 400)


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("seed", range(10))
def test_a_text_is_found_wherever_it_lies_in_the_pieces_that_are_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    piece_bytes = chance.choice((50, 97, 256))
    monkeypatch.setattr(time_lookup, "_SEARCH_BYTES", piece_bytes)
    disk, text = CountingDisk(), b"wanted"
    log = Log.open(DIRECTORY, disk, LogConfig())
    expected = []
    for number in range(150):
        times = chance.choice((0, 0, 0, 0, 1, 3))
        fill = [bytes(chance.randrange(120)), *[text] * times, bytes(chance.randrange(9))]
        append(log, [frame_of([b"".join(fill)])])
        expected += [number] if times else []
    (segment,) = log.segments
    found = find_frames(log.reader, segment, text)
    assert [place.view.header.base_offset for place in found] == expected
    disk.read_bytes = 0
    assert not list(find_frames(log.reader, segment, b"absent"))
    pieces = -(-log.size_bytes // piece_bytes)
    assert disk.read_bytes <= log.size_bytes + pieces * (len(text) - 1)


def marked(number: int) -> bytes:
    return b"even" if number % 2 == 0 else b"odd"


def log_of_marked_frames(disk: SimulatedDisk, config: LogConfig, count: int = 60) -> Log:
    """Return a log with a frame of one message at each offset, on a clock that runs forward."""
    log = Log.open(DIRECTORY, disk, config)
    for number in range(count):
        append(log, [frame_of([marked(number)])], time_us=START_US + number)
    return log


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("end", [0, 1, 30, 59, 60])
def test_only_frames_that_are_accepted_are_read_from_the_end(end: int) -> None:
    log = log_of_marked_frames(SimulatedDisk(), LogConfig(segment_bytes=1_500))
    bodies = {bytes(place.view.body) for place in read_backward(log.reader, 60)}
    seen = set()

    def accepts(body: memoryview) -> bool:
        seen.add(bytes(body))
        return b"even" in bytes(body)

    found = [p.view.header.base_offset for p in read_backward(log.reader, end, accepts)]
    assert found == [number for number in reversed(range(end)) if number % 2 == 0]
    assert seen <= bodies
    assert bool(seen) is (end > 0)
    assert not list(read_backward(log.reader, end, lambda _body: False))


@pytest.mark.usefixtures("small_intervals")
def test_a_look_back_reads_only_what_lies_before_its_end_and_as_little_as_was_asked_for() -> None:
    disk = CountingDisk()
    log = log_of_marked_frames(disk, LogConfig(segment_bytes=1_500))
    second = log.segments[1]
    disk.read_paths.clear()
    assert len(list(read_backward(log.reader, second.base_offset))) == second.base_offset
    assert disk.read_paths <= {log.segments[0].path, log.segments[0].index_path}
    for end in range(1, 60):
        disk.read_bytes = 0
        assert next(read_backward(log.reader, end)).view.header.base_offset == end - 1
        assert disk.read_bytes <= 400 + log.size_bytes // 60 + 4, "one interval"
    disk.read_bytes = 0
    assert not list(read_backward(log.reader, 60, lambda _body: False))
    assert disk.read_bytes == log.size_bytes, "what is rejected is read once"


def test_the_time_of_the_last_frame_is_known_without_a_look_at_the_disk() -> None:
    disk = CountingDisk()
    log = log_of_marked_frames(disk, LogConfig())
    disk.read_bytes = 0
    assert end_offset_at(log.reader, START_US + 59) == 60
    assert end_offset_at(log.reader, START_US + 70) == 60
    assert disk.read_bytes == 0
    assert end_offset_at(log.reader, START_US + 58) == 59


HEAD_DAMAGE = {
    "another magic": (0, b"????"),
    "no length": (4, bytes(4)),
    "no body": (4, HEADER_BYTES.to_bytes(4, "little")),
    "one byte more": (4, None),
    "beyond the end": (4, b"\xff\xff\xff\x7f"),
}


@pytest.mark.parametrize("damage", HEAD_DAMAGE)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_damaged_head_hides_no_frame_behind_it(damage: str, number: int) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig())
    for place in range(5):  # the clock is set back all the time
        append(log, [SMALL], time_us=START_US - place)
    at, data = HEAD_DAMAGE[damage]
    file = disk.open(log.active.path)
    start = number * len(SMALL) + at
    file.write_at(data or (len(SMALL) + 1).to_bytes(4, "little"), start)
    file.close()
    sound = [place for place in range(5) if place != number]
    found = read_backward(log.reader, 10, lambda _body: True)
    assert [p.view.header.base_offset // 2 for p in found] == sound[::-1]
    for step in range(5):
        ends = [2 * place + 2 for place in sound if place >= step]
        expected = 10 if not step else max(ends, default=0)  # the last of its time or before
        assert end_offset_at(log.reader, START_US - step) == expected


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_page_that_cannot_be_read_is_damage_and_any_other_failure_is_told(number: int) -> None:
    class FailingDisk(SimulatedDisk):
        is_failing = False

        def read(
            self, path: Path, position: int, size_bytes: int, *, wait: bool = True
        ) -> memoryview:
            if self.is_failing and path == log.segments[0].path and position == 0:
                raise OSError(number, "cannot read")
            return super().read(path, position, size_bytes, wait=wait)

    disk = FailingDisk()
    log = log_of_marked_frames(disk, LogConfig(segment_bytes=4_000))
    first = log.segments[0].end_offset
    disk.is_failing = True
    if number == errno.EIO:
        assert end_offset_at(log.reader, START_US + first) == first + 1
        found = [p.view.header.base_offset for p in read_backward(log.reader, 60)]
        assert found[: 60 - first] == list(reversed(range(first, 60)))
    else:
        with pytest.raises(OSError, match="cannot read"):
            end_offset_at(log.reader, START_US)


def test_what_was_read_of_two_logs_is_read_anew_if_either_lost_a_segment() -> None:
    logs = [Log.open(DIRECTORY / name, SimulatedDisk(), LogConfig(1)) for name in ("m", "e")]
    for log in logs:
        for number in range(3):
            append(log, [SMALL], time_us=START_US + number)
    tries = []

    def work() -> int:
        tries.append([log.start_offset for log in logs])
        if len(tries) <= 2:
            changed = logs[len(tries) - 1]
            changed.remove(changed.detach_before(2))
            raise FileNotFoundError
        return 7

    assert retry_deleted([log.reader for log in logs], work) == 7
    assert tries == [[0, 0], [2, 0], [2, 2]]
