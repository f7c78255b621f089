"""A torn tail and corruption are different, wherever the bytes are cut or changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goq import limits
from goq.errors import CorruptData, StorageFailed
from goq.storage.disk import NotCached
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.time_range_reader import ReadBounds, TimeRange, read_time_range
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, Held, append, frame_of, read_all

SEGMENT = DIRECTORY / "00000000000000000000.log"
INDEX = SEGMENT.with_suffix(".index")
WATERMARK = DIRECTORY / "watermark"

FRAMES = [
    frame_of([b"one"]),
    frame_of([b"two", None, b""]),
    frame_of([b"compressed " * 30] * 3, compress=True),
    frame_of([b"five"] * 2),
    frame_of([b"last"]),
]


def filled(disk: SimulatedDisk, *, close: bool) -> Held:
    """Append FRAMES one by one and end the process, cleanly or not; return what was stored."""
    log = Log.open(DIRECTORY, disk)
    for number, frame in enumerate(FRAMES):
        append(log, [frame], time_us=START_US + number)
    stored = read_all(log)
    if close:
        log.close()
    else:
        disk.crash(power=False)
    return stored


def boundaries(stored: Held) -> list[int]:
    ends = [0]
    for frame in stored.frames.values():
        ends.append(ends[-1] + len(frame))
    return ends


def check_offers(disk: SimulatedDisk, stored: Held, end_offset: int) -> Held:
    """Open, read everything, append, open and read again; return what was served at first."""
    log = Log.open(DIRECTORY, disk)
    held = read_all(log)
    assert held.frames.items() <= stored.frames.items()
    missing = set(range(end_offset)) - offsets(held)
    assert held.damaged_offsets | damaged(log) == missing
    assert not offsets(held) & held.damaged_offsets
    assert log.end_offset == end_offset
    assert append(log, [frame_of([b"new"])]) == end_offset
    log.close()
    again = Log.open(DIRECTORY, disk)
    assert read_all(again).frames.keys() == {*held.frames, end_offset}
    assert damaged(again) == missing
    return held


def offsets(held: Held) -> set[int]:
    starts = [*held.frames]
    counts = {0: 1, 1: 3, 4: 3, 7: 2, 9: 1}
    return {o for start in starts for o in range(start, start + counts[start])}


def damaged(log: Log) -> set[int]:
    return {o for d in log.damage for o in range(d.start_offset, d.end_offset)}


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_file_cut_below_the_durable_mark_is_damage_and_stays_as_it_is(close: bool) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=close)
    ends, data = boundaries(stored), disk.read_all(SEGMENT)
    for size in range(ends[2], len(data)):
        case = disk.copy()
        case.put(SEGMENT, data[:size])
        held = check_offers(case, stored, 10)
        assert len(held.frames) == sum(end <= size for end in ends[1:])
        assert case.read_all(SEGMENT) == data[:size]


def test_a_tail_torn_above_the_durable_mark_is_cut_off_and_no_damage() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, FRAMES[:2])
    mark = disk.read_all(WATERMARK)
    append(log, FRAMES[2:])
    stored = read_all(log)
    ends, data = boundaries(stored), disk.read_all(SEGMENT)
    for size in range(ends[2], len(data) + 1):
        case = disk.copy()
        case.put(WATERMARK, mark)
        case.put(SEGMENT, data[:size])
        whole = max(end for end in ends if end <= size)
        opened = Log.open(DIRECTORY, case)
        held = read_all(opened)
        assert len(held.frames) == ends.index(whole)
        assert held.frames.items() <= stored.frames.items()
        assert opened.damage == held.damage == []
        assert opened.truncated_bytes == size - whole
        assert len(case.read_all(SEGMENT)) == whole
        end_offset = opened.end_offset
        assert append(opened, [FRAMES[0]]) == end_offset


def test_segments_behind_a_torn_tail_go_with_it_if_they_were_never_durable() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, FRAMES[:1])
    mark = disk.read_all(WATERMARK)
    for frame in FRAMES[1:4]:
        append(log, [frame])
        log.roll()
    lost = sum(segment.size_bytes for segment in log.segments[1:])
    disk.put(WATERMARK, mark)
    disk.put(SEGMENT, disk.read_all(SEGMENT)[: len(FRAMES[0])])
    opened = Log.open(DIRECTORY, disk)
    assert (opened.end_offset, opened.damage) == (1, [])
    assert opened.truncated_bytes == lost
    assert [path for path in disk.paths() if path.suffix == ".log"] == [SEGMENT]
    assert append(opened, [frame_of([b"new"])]) == 1
    assert read_all(Log.open(DIRECTORY, disk)).frames.keys() == {0, 1}


@pytest.mark.parametrize("junk", [bytes(700), b"\xff" * 700, FRAMES[0] * 7], ids=len)
def test_junk_behind_the_durable_mark_is_cut_off(junk: bytes) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=False)
    disk.put(SEGMENT, disk.read_all(SEGMENT) + junk)
    log = Log.open(DIRECTORY, disk)
    assert read_all(log) == stored
    assert log.truncated_bytes == len(junk)


def flips(data: bytes, bits: tuple[int, ...]) -> Iterator[bytes]:
    for position in range(len(data)):
        for bit in bits:
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            yield bytes(changed)


def check_flips(bits: tuple[int, ...], *, close: bool) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=close)
    for changed in flips(disk.read_all(SEGMENT), bits):
        case = disk.copy()
        case.put(SEGMENT, changed)
        held = check_offers(case, stored, 10)
        assert len(held.frames) == len(FRAMES) - 1


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_flipped_bit_in_a_segment_costs_its_frame_and_is_reported(close: bool) -> None:
    check_flips((0,), close=close)


@pytest.mark.long
@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_any_flipped_bit_in_a_segment_costs_its_frame_and_is_reported(close: bool) -> None:
    check_flips(tuple(range(8)), close=close)


def test_the_log_of_the_node_tells_damage_and_a_torn_tail_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "goq.storage")
    disk = SimulatedDisk()
    ends = boundaries(filled(disk, close=False))
    disk.flip(SEGMENT, ends[2] - 1, 1)
    disk.put(SEGMENT, disk.read_all(SEGMENT) + b"half")
    again = Log.open(DIRECTORY, disk)
    reason = again.damage[0].reason
    assert caplog.messages == [
        f"damaged: {SEGMENT}: bytes {ends[1]} to {ends[2]} (offsets 1 to 3): {reason}",
        f"{DIRECTORY}: 4 bytes from offset 10 on are torn, and were not synced when the node ended:"
        " they are cut off",
    ]
    read_all(again)
    assert len(caplog.messages) == 2


def test_the_log_of_the_node_tells_damage_that_is_found_by_a_read_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for _ in range(20):
        append(log, [FRAMES[0]])
    frame_bytes = log.active.size_bytes // 20
    for number in range(20):
        disk.flip(SEGMENT, (number + 1) * frame_bytes - 1, 1)
    assert caplog.messages == []
    for _ in range(2):
        assert len(read_all(log).damaged_offsets) == 20
    told = [text for text in caplog.messages if "offsets" in text]
    assert [f"offsets {n} to {n})" in text for n, text in enumerate(told)] == 16 * [True]
    assert caplog.messages[16:] == [
        f"damaged: more in {DIRECTORY} is not written here; goq doctor --verify names all"
    ]


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_the_recovery_point_of_another_log_cuts_nothing_off(
    close: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=close)
    other = Log.open(DIRECTORY.with_name("other"), disk)
    append(other, [frame_of([b"of another length" * 9])])
    other.close()
    disk.put(WATERMARK, disk.read_all(other.directory / "watermark"))
    for _ in range(2):  # it is the log's own again after the first start
        opened = Log.open(DIRECTORY, disk)
        assert read_all(opened) == stored
        assert (opened.damage, opened.truncated_bytes) == ([], 0)
        disk.crash(power=False)
    assert [text for text in caplog.messages if "another log" in text] == [
        f"{WATERMARK} is of another log: the whole log is checked, and nothing cut off"
    ]


def test_damage_in_a_frame_that_was_never_durable_is_cut_off() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, FRAMES[:2])
    mark, kept = disk.read_all(WATERMARK), len(disk.read_all(SEGMENT))
    append(log, FRAMES[2:])
    for changed in flips(disk.read_all(SEGMENT), (3,)):
        if changed[:kept] != disk.read_all(SEGMENT)[:kept]:
            continue
        case = disk.copy()
        case.put(WATERMARK, mark)
        case.put(SEGMENT, changed)
        opened = Log.open(DIRECTORY, case)
        assert opened.truncated_bytes > 0
        assert read_all(opened).damage == opened.damage == []
        assert list(read_all(opened).frames) == [0, 1, 4, 7, 9][: len(read_all(opened).frames)]


@pytest.mark.parametrize("messages", [1, 2])
def test_a_frame_stored_as_a_value_is_never_taken_for_one_of_the_log(messages: int) -> None:
    planted = frame_of([b"planted"] * messages)
    for base_offset in range(12):
        disk = SimulatedDisk()
        log = Log.open(DIRECTORY, disk)
        append(log, [FRAMES[0]])
        other = Log.open(Path("/other"), disk, base_offset=base_offset)
        append(other, [planted])
        inner = disk.read_all(Path(f"/other/{base_offset:020d}.log"))
        outer = append(log, [frame_of([inner])])
        append(log, FRAMES[1:])
        stored, position = read_all(log), len(FRAMES[0])
        log.close()
        data = bytearray(disk.read_all(SEGMENT))
        data[position + 20] ^= 1  # in the outer frame's header
        disk.put(SEGMENT, bytes(data))
        held = read_all(Log.open(DIRECTORY, disk))
        assert held.damaged_offsets == {outer}
        assert held.frames == {o: f for o, f in stored.frames.items() if o != outer}


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_changed_index_never_changes_an_answer(
    close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 100)
    disk = SimulatedDisk()
    stored = filled(disk, close=close)
    for changed in flips(disk.read_all(INDEX), (0, 7)):
        case = disk.copy()
        case.put(INDEX, changed)
        check_equals(case, stored)


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_changed_watermark_never_changes_an_answer(close: bool) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=close)
    for changed in flips(disk.read_all(WATERMARK), (0, 7)):
        case = disk.copy()
        case.put(WATERMARK, changed)
        check_equals(case, stored)


def check_equals(disk: SimulatedDisk, stored: Held) -> None:
    log = Log.open(DIRECTORY, disk)
    assert read_all(log) == stored
    assert log.damage == []
    assert log.truncated_bytes == 0
    for number, offset in enumerate(stored.frames):
        assert log.reader.offset_for_time(START_US + number, 10) == offset
    assert append(log, [FRAMES[0]]) == 10


def test_an_older_slot_of_the_watermark_may_speak_of_a_segment_deleted_since() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for frame in FRAMES:
        append(log, [frame])
    log.remove(log.detach_before(9))
    stored = read_all(log)
    for slot in (0, 512):
        case = disk.copy()
        data = bytearray(case.read_all(WATERMARK))
        data[slot] ^= 1
        case.put(WATERMARK, bytes(data))
        opened = Log.open(DIRECTORY, case)
        assert read_all(opened) == stored
        assert opened.damage == []
        assert (opened.start_offset, opened.end_offset) == (9, 10)


# Whole files: missing, stale, empty, strange


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> tuple[SimulatedDisk, Held]:
    """A closed log of five segments with a frame each, and a sixth that is empty."""
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 100)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for number, frame in enumerate(FRAMES):
        append(log, [frame], time_us=START_US + number)
    log.roll()
    stored = read_all(log)
    log.close()
    return disk, stored


def path_of(offset: int) -> Path:
    return DIRECTORY / f"{offset:020d}.log"


def test_every_index_may_be_missing(segments: tuple[SimulatedDisk, Held]) -> None:
    disk, stored = segments
    for path in disk.paths():
        if path.suffix == ".index":
            disk.delete(path)
    check_equals(disk, stored)


def test_an_index_of_another_segment_is_not_believed(segments: tuple[SimulatedDisk, Held]) -> None:
    disk, stored = segments
    for path in disk.paths():
        if path.suffix == ".index":
            disk.put(path, disk.read_all(path_of(1).with_suffix(".index")))
    check_equals(disk, stored)


def test_an_index_of_another_log_is_not_believed_though_all_sizes_are_the_same() -> None:
    disk = SimulatedDisk()
    own, foreign = DIRECTORY, DIRECTORY.with_name("events")
    for directory, first_us in ((own, START_US), (foreign, START_US + 10**9)):
        log = Log.open(directory, disk)
        for number in range(20):
            append(log, [frame_of([bytes([number]) * 1000])], time_us=first_us + number)
        log.roll()
        append(log, [FRAMES[0]], time_us=first_us + 20)
        log.close()
    for path in disk.paths():
        if path.parent == foreign and path.suffix == ".index":
            disk.put(own / path.name, disk.read_all(path))
    log = Log.open(own, disk)
    times = TimeRange(START_US + 5, START_US + 8)
    found = read_time_range(log.reader, times, 0, log.end_offset, ReadBounds())
    assert [view.header.base_offset for view in found.frames] == [5, 6, 7]
    assert log.reader.offset_for_time(START_US + 20, log.end_offset) == 20


def test_an_index_that_lags_behind_is_made_anew() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, FRAMES[:2])
    log.close()
    stale = disk.read_all(INDEX)
    log = Log.open(DIRECTORY, disk)
    for number, frame in enumerate(FRAMES[2:], start=2):
        append(log, [frame], time_us=START_US + number)
    stored = read_all(log)
    log.close()
    disk.put(INDEX, stale)
    log = Log.open(DIRECTORY, disk)
    assert read_all(log) == stored
    assert log.reader.offset_for_time(START_US + 3, 10) == 7


def test_an_index_made_anew_by_reading_keeps_times_in_order() -> None:
    """The clock went back: the second segment's own times are below the first's."""
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for frame, time_us in zip(FRAMES, (200, 150, 160, 210, 220), strict=True):
        append(log, [frame], time_us=time_us)
    log.close()
    for offset in (1, 4):
        disk.delete(path_of(offset).with_suffix(".index"))
    log = Log.open(DIRECTORY, disk)
    read_all(log)
    assert [log.reader.offset_for_time(t, 10) for t in (150, 180, 200, 201, 300)] == [
        0,
        0,
        0,
        7,
        10,
    ]


def test_a_full_disk_does_not_keep_an_index_from_being_made_anew(
    segments: tuple[SimulatedDisk, Held],
) -> None:
    disk, stored = segments
    disk.delete(path_of(4).with_suffix(".index"))
    disk.capacity_bytes = disk.used_bytes
    log = Log.open(DIRECTORY, disk)
    assert read_all(log) == stored
    assert log.reader.offset_for_time(START_US + 2, 10) == 4


def test_reading_without_waiting_does_not_make_an_index(
    segments: tuple[SimulatedDisk, Held],
) -> None:
    disk, stored = segments
    log = Log.open(DIRECTORY, disk)
    with pytest.raises(NotCached):
        log.reader.read(1, 10, wait=False)
    log.reader.read(1, 10)
    assert log.reader.read(1, 10, wait=False).frames[0].buffer == stored.frames[1]


def test_a_missing_segment_in_the_middle_is_reported_and_passed_over(
    segments: tuple[SimulatedDisk, Held],
) -> None:
    disk, stored = segments
    disk.delete(path_of(4))
    log = Log.open(DIRECTORY, disk)
    held = read_all(log)
    assert held.frames == {o: f for o, f in stored.frames.items() if o != 4}
    assert held.damaged_offsets == damaged(log) == {4, 5, 6}
    assert append(log, [FRAMES[0]]) == 10


def test_a_missing_segment_is_also_found_without_a_watermark(
    segments: tuple[SimulatedDisk, Held],
) -> None:
    disk, stored = segments
    disk.delete(path_of(4))
    disk.delete(WATERMARK)
    log = Log.open(DIRECTORY, disk)
    assert damaged(log) == {4, 5, 6}
    assert read_all(log).frames == {o: f for o, f in stored.frames.items() if o != 4}
    assert append(log, [FRAMES[0]]) == 10


@pytest.mark.parametrize("kept", range(6))
def test_missing_newest_segments_are_reported_and_their_offsets_not_given_again(
    segments: tuple[SimulatedDisk, Held], kept: int
) -> None:
    disk, stored = segments
    bases = [0, 1, 4, 7, 9, 10]
    for base in bases[kept:]:
        disk.delete(path_of(base))
    log = Log.open(DIRECTORY, disk)
    assert read_all(log).frames == {o: f for o, f in stored.frames.items() if o in bases[:kept]}
    missing = set(range(bases[kept], 10)) if kept else set()
    assert damaged(log) == missing
    assert append(log, [FRAMES[0]]) == 10


def test_all_segments_may_be_missing_after_a_kill() -> None:
    disk = SimulatedDisk()
    filled(disk, close=False)
    disk.delete(SEGMENT)
    log = Log.open(DIRECTORY, disk)
    assert damaged(log) == set(range(10))
    assert append(log, [FRAMES[0]]) == 10


@pytest.mark.parametrize("base", [0, 1, 4, 7, 9])
def test_an_emptied_segment_is_reported(segments: tuple[SimulatedDisk, Held], base: int) -> None:
    disk, stored = segments
    disk.put(path_of(base), b"")
    log = Log.open(DIRECTORY, disk)
    held = read_all(log)
    assert held.frames == {o: f for o, f in stored.frames.items() if o != base}
    assert set(range(10)) - offsets(held) == damaged(log)
    assert append(log, [FRAMES[0]]) == 10


def test_a_segment_deleted_under_a_running_node_is_reported(
    segments: tuple[SimulatedDisk, Held],
) -> None:
    disk, stored = segments
    log = Log.open(DIRECTORY, disk)
    disk.delete(path_of(4))
    held = read_all(log)
    assert held.damaged_offsets == damaged(log) == {4, 5, 6}
    assert len(held.frames) == len(stored.frames) - 1
    with pytest.raises(CorruptData):
        log.reader.append_time_us(5)


def test_files_of_other_names_are_left_alone(segments: tuple[SimulatedDisk, Held]) -> None:
    disk, stored = segments
    digits = "\N{ARABIC-INDIC DIGIT FIVE}" * 20
    names = ["notes.txt", "5.log", f"{digits}.log", "\N{SUPERSCRIPT TWO}.log", "9" * 20 + ".log",
             ".log", "0" * 20 + ".log.bak", "0" * 20 + ".index.new", "1" * 21 + ".log",
             "watermark.new"]  # fmt: skip
    for name in names:
        disk.put(DIRECTORY / name, b"junk")
    check_equals(disk, stored)
    assert all(disk.read_all(DIRECTORY / name) == b"junk" for name in names)


def test_a_segment_that_overlaps_the_one_before_is_refused() -> None:
    disk = SimulatedDisk()
    filled(disk, close=False)
    disk.put(path_of(4), disk.read_all(SEGMENT))
    with pytest.raises(StorageFailed, match="begins before offset"):
        Log.open(DIRECTORY, disk)


# The watermark's loss


@pytest.mark.parametrize("lose", [lambda d: d.delete(WATERMARK), lambda d: d.put(WATERMARK, b"x")])
def test_without_a_watermark_nothing_is_cut_off(lose: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk()
    stored = filled(disk, close=False)
    data = disk.read_all(SEGMENT)
    lose(disk)
    check_equals(disk.copy(), stored)
    disk.put(SEGMENT, data[:-1])
    log = Log.open(DIRECTORY, disk)
    assert {9} <= damaged(log)
    assert disk.read_all(SEGMENT) == data[:-1]
    assert append(log, [FRAMES[0]]) > 10


def test_a_crash_while_a_lost_watermark_is_made_good_cuts_nothing_off_either() -> None:
    disk = SimulatedDisk()
    filled(disk, close=False)
    data = bytearray(disk.read_all(SEGMENT))
    data[-1] ^= 1
    disk.put(SEGMENT, bytes(data))
    disk.delete(WATERMARK)
    for operation in range(1, 12):
        case = disk.copy()
        case.crash_at = operation
        with contextlib.suppress(SimulatedCrash):
            Log.open(DIRECTORY, case)
        case.crash(power=operation % 2 == 0)
        log = Log.open(DIRECTORY, case)
        read_all(log)
        assert 9 in damaged(log)
        assert case.read_all(SEGMENT) == data
