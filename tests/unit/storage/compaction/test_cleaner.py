"""Compaction against a naive one over a list, and with the process or the power gone anywhere.

Whatever happens: every message that must stay is there, at its offset, once, as it was published;
what is gone is gone for good; nothing damaged is served and no crash is taken for damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.errors import StorageFailed
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import parse_header
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import CleanerCheckpoint, read_checkpoint
from goq.storage.compaction.cleaner import (
    OffsetMap,
    build_offset_map,
    cleaning_due_us,
    is_mostly_dirty,
)
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from goq.storage.verification import verify_log
from tests.support.effort import first_of
from tests.support.storage.compaction import (
    CONFIG,
    SECRET,
    TOMBSTONE_AGE_US,
    Case,
    Put,
    check_files,
    check_nothing_comes_back,
    filled,
    naive,
    nothing,
    pass_over,
    served,
)
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, read_all


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32),
    st.lists(
        st.sampled_from(["publish"] * 6 + ["compact", "compact", "roll", "reopen"]), max_size=60
    ),
)
def test_compaction_leaves_what_a_naive_one_leaves(seed: int, steps: list[str]) -> None:
    case = Case(seed)
    for step in steps:
        getattr(case, step)()
        if step != "publish":
            case.check()
    case.check()
    assert not verify_log(case.disk, DIRECTORY).damage


@pytest.mark.parametrize("power", first_of([True, False], quick=1), ids=["power", "kill"])
@pytest.mark.parametrize("passes", first_of([2, 1], quick=1))
def test_a_crash_at_any_operation_loses_nothing_that_must_stay(passes: int, power: bool) -> None:
    crashes = 0
    for number in range(1, 10_000):
        case = filled(passes * 1000)
        if passes == 2:
            case.compact()
            for _ in range(20):
                case.publish()
            case.log.roll()
        before = dict(case.present)
        case.disk.crash_at = case.disk.operations + number
        try:
            pass_over(case.disk, case.log, case.progress, case.now_us)
        except SimulatedCrash:
            crashes += 1
        else:
            break
        case.disk.crash(power=power)
        case.log = Log.open(DIRECTORY, case.disk, CONFIG)
        found = served(case.log)
        start, sealed_end = case.progress.compacted_to, case.log.active.base_offset
        until_us = case.now_us - TOMBSTONE_AGE_US
        must_stay = naive(before, sealed_end, start, case.log.end_offset, until_us)
        assert len(must_stay) < len(before)
        assert must_stay.items() <= found.items() <= before.items()
        check_nothing_comes_back(before, found)
        check_files(case)
        case.progress = read_checkpoint(case.disk, DIRECTORY)
        pass_over(case.disk, case.log, case.progress, case.now_us)
        assert served(case.log) == must_stay
        check_files(case)
    assert crashes > 20


@pytest.mark.parametrize("operation", ["open", "append", "sync", "rename"])
def test_a_disk_that_fails_leaves_the_log_as_it_was(operation: str) -> None:
    case = filled(3)
    case.log.sync()
    failing = {"open", "append", "sync"} if operation == "open" else {operation}
    case.disk.fault = lambda done, path: 5 if done in failing and (".1.log" in path.name) else None
    with pytest.raises(OSError, match="error"):
        pass_over(case.disk, case.log, case.progress, case.now_us)
    case.disk.fault = lambda _operation, _path: None
    case.check()
    case.publish()
    case.check()
    case.reopen()
    case.check()


def test_damaged_bytes_stay_as_they_are_and_are_still_reported() -> None:
    case = filled(5)
    segment = case.log.segments[0]
    data = bytearray(case.disk.read_all(segment.path))
    places = [0]
    while places[-1] < len(data):
        places.append(places[-1] + parse_header(bytes(data), places[-1]).frame_bytes)
    for place in (places[1], places[4] + 70):  # one header, one body
        data[place] ^= 0xFF
    case.disk.put(segment.path, bytes(data))
    case.log.close()
    case.log = Log.open(DIRECTORY, case.disk, CONFIG)
    before = {(d.start_offset, d.end_offset) for d in read_all(case.log).damage}
    assert len(before) == 2
    pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)
    assert case.log.segments[0].generation == 1
    held = read_all(case.log)
    assert {(d.start_offset, d.end_offset) for d in held.damage} == before
    kept = case.disk.read_all(case.log.segments[0].path)
    assert bytes(data[places[1] : places[2]]) in kept
    assert bytes(data[places[4] : places[5]]) in kept


def test_others_may_go_on_between_the_frames_of_a_pass() -> None:
    case = filled(3)
    segment = case.log.segments[0]
    frames = len(list(case.log.reader.read(0, segment.end_offset, messages_max=10**6).frames))
    newest = OffsetMap(0, secret=SECRET, keys_max=1000)
    pauses: list[None] = []
    build_offset_map(case.log.reader, newest, case.log.end_offset, nothing)
    terms = CleanerParameters(newest, case.now_us, 0, lambda: pauses.append(None))
    plan = plan_rewrite(case.disk, segment, terms)
    assert plan.removed_count
    assert len(pauses) == frames > 3
    rewrite_segment(case.disk, segment, plan, terms, time_before_us=0)
    assert len(pauses) > frames


def test_the_last_batches_of_a_producer_keep_their_headers() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1 << 20, columns=True))
    for number in range(30):
        mark = ProducerMark(7 + number % 2, 1, number)
        append(log, [encode_frame(Columns([b"v"], [b"k"]), producer=mark)])
    append(log, [encode_frame(Columns([b"v"], [b"k"]))])
    log.roll()
    pass_over(disk, log, CleanerCheckpoint(), START_US)
    headers = [parse_header(frame) for _, frame in sorted(read_all(log).frames.items())]
    remembered = [h.first_sequence for h in headers if h.producer_id]
    assert remembered == list(range(30 - 2 * limits.PRODUCER_BATCHES_REMEMBERED, 30))
    assert headers[0].message_count == 20
    assert sum(h.message_count for h in headers) == 31


def test_times_find_what_they_found_before() -> None:
    case = filled(11)
    end = case.log.end_offset
    pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)
    present = served(case.log)
    for time_us in range(START_US, case.now_us + 2):
        found = case.log.reader.offset_for_time(time_us, end)
        after = [o for o, put in present.items() if put.time_us >= time_us]
        assert all(offset >= found for offset in after)
        before = [o for o, put in present.items() if put.time_us < time_us]
        assert all(offset < found for offset in before)


def test_a_reader_in_the_middle_of_a_segment_goes_on_in_its_new_generation() -> None:
    case = filled(13)
    end = case.log.end_offset
    reader = case.log.reader
    first = reader.read(0, end, messages_max=3)
    taken, rows = list(first.frames), iter(reader.rows(0, end))
    some = next(rows)
    pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)
    offset = first.next_offset
    while offset < end:
        reading = reader.read(offset, end, messages_max=5)
        assert not reading.damage
        taken += reading.frames
        offset = reading.next_offset
    assert taken[-1].header.end_offset == end
    offsets = some.offsets.tolist() + [o for found in rows for o in found.offsets.tolist()]
    assert offsets == sorted(set(offsets))
    delayed = {o for o, put in served(case.log).items() if put.due_ms}
    assert delayed <= set(offsets)


def test_a_segment_that_retention_took_meanwhile_is_not_put_back() -> None:
    case = filled(17)
    segment = case.log.segments[0]
    new = Segment(segment.path.parent, segment.base_offset, 1)
    case.log.detach_before(segment.end_offset)
    assert not case.log.replace_segments([segment], new)
    assert new not in case.log.segments
    assert not case.log.replace_segments([case.log.active], new)


def test_a_pass_is_due_when_half_is_unseen_or_a_tombstones_time_is_over() -> None:
    segments = [Segment(Path("/d"), base) for base in (0, 10, 20)]
    for segment, size in zip(segments, (500, 500, 100), strict=True):
        segment.size_bytes, segment.end_offset = size, segment.base_offset + 10
    assert is_mostly_dirty(segments, CleanerCheckpoint(10))
    assert not is_mostly_dirty(segments, CleanerCheckpoint(11))
    assert not is_mostly_dirty(segments, CleanerCheckpoint(20))
    assert not is_mostly_dirty(segments[:1], CleanerCheckpoint())


def test_a_pass_is_due_for_a_known_tombstone_and_for_what_no_pass_has_read() -> None:
    assert cleaning_due_us(CleanerCheckpoint(20), 5, None, 9) is None
    assert cleaning_due_us(CleanerCheckpoint(20, 7), 5, None, 9) == 12
    assert cleaning_due_us(CleanerCheckpoint(20), 5, 3, 9) == 12
    assert cleaning_due_us(CleanerCheckpoint(20, 6), 5, 3, 9) == 11
    assert cleaning_due_us(CleanerCheckpoint(20, 6), 5, 1, 9) == 10


@pytest.mark.parametrize("keys_max", [1, 9, 10])
def test_a_map_holds_as_many_keys_as_it_may_and_no_more(keys_max: int) -> None:
    newest = OffsetMap(100, secret=SECRET, keys_max=keys_max)
    keys = [b"%d" % (number // 2) for number in range(20)]
    view = FrameView.parse(encode_frame(Columns([b""] * 20, keys)))
    view.header = view.header._replace(base_offset=100)
    assert newest.add(view) == (keys_max >= 10)
    assert len(newest) == keys_max
    assert newest.end == 100 + 2 * keys_max


def test_an_older_slot_of_the_watermark_speaks_of_places_of_the_old_generation() -> None:
    case = filled(19)
    log, disk = case.log, case.disk
    while len(log.segments) < 3:
        case.publish()
    pass_over(disk, log, CleanerCheckpoint(), case.now_us)
    expected = served(log)
    mark = log.file._recovery_point
    segment = log.segments[0]
    assert segment.generation
    place = (segment.base_offset, segment.size_bytes + 8, segment.end_offset - 1)
    mark.durable = mark.durable._replace(segment=place[0], position=place[1], offset=place[2])
    mark.take_checkpoint(mark.checkpoint._replace(segment=place[0], position=64, offset=1))
    disk.crash(power=False)
    case.log = Log.open(DIRECTORY, disk, CONFIG)
    assert served(case.log) == expected
    assert not case.log.damage


def test_a_log_that_failed_is_not_compacted() -> None:
    case = filled(23)
    case.disk.fault = lambda done, _path: 5 if done == "sync" else None
    with pytest.raises(StorageFailed):
        pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)


class BusyDisk(SimulatedDisk):
    """A disk on which something happens just before one of its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left = -1
        self.meanwhile: Callable[[], object] = nothing

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        self.reads_left -= 1
        if self.reads_left == 0:
            self.meanwhile()
        return super().read(path, position, size_bytes, wait=wait)


def busy_case() -> tuple[BusyDisk, Case]:
    """Return a log of some large segments, about to be compacted when the disk is read."""
    case, disk = Case(29), BusyDisk()
    case.disk = disk
    case.log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=60_000, columns=True))
    for number in range(60):
        key, due_ms = b"key-%d" % (number % 5), START_US // 1000 + 10 + number
        columns = Columns([bytes(3000)], [key], deliver_at_ms=[due_ms])
        append(case.log, [encode_frame(columns)])
        case.present[number] = Put(key, bytes(3000), START_US, due_ms)
    case.log.roll()
    disk.meanwhile = lambda: pass_over(disk, case.log, CleanerCheckpoint(), case.now_us)
    return disk, case


@pytest.mark.parametrize("what", ["frames", "rows", "ids", "times", "verify"])
def test_compaction_between_any_two_reads_takes_nothing_from_a_reader(what: str) -> None:
    must_stay = set(range(55, 60))
    has_met_it = 0
    for number in range(1, 1000):
        disk, case = busy_case()
        case.reopen()
        for segment in case.log.segments:  # who loads one keeps a pass waiting
            segment.load_index(disk)
        disk.reads_left = number
        reader = case.log.reader
        if what == "frames":
            offsets = {o for frame in read_all(case.log).frames.values() for o in kept_in(frame)}
        elif what == "rows":
            found = [o for rows in reader.rows(0, 60) for o in rows.offsets.tolist()]
            assert found == sorted(set(found))
            offsets = set(found)
        elif what == "ids":
            assert not list(reader.dedup_rows(0, 60))
            offsets = must_stay
        elif what == "times":
            assert reader.offset_for_time(START_US, 60) == 0
            assert reader.append_time_us(57) == START_US
            offsets = must_stay
        else:
            report = verify_log(disk, DIRECTORY)
            assert (report.messages, report.damage) == (60, [])
            offsets = must_stay
        assert must_stay <= offsets
        if disk.reads_left > 0:
            break
        has_met_it += any(s.generation for s in case.log.segments)
    assert has_met_it


def kept_in(frame: bytes) -> Iterator[int]:
    view = FrameView.parse(frame)
    kept = view.kept(0, view.header.message_count)
    return (view.header.base_offset + row for row, is_kept in enumerate(kept) if is_kept)


def test_a_compacted_log_may_be_cut_and_grows_on() -> None:
    case = filled(31)
    pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)
    before = served(case.log)
    segment = case.log.segments[1]
    end = case.log.truncate(segment.base_offset + 1)
    assert case.log.active is segment
    assert served(case.log) == {o: put for o, put in before.items() if o < end}
    append(case.log, [encode_frame(Columns([b"more"]))])
    case.disk.crash(power=True)
    case.log = Log.open(DIRECTORY, case.disk, CONFIG)
    assert served(case.log)[end].value == b"more"
    assert not case.log.damage


@pytest.mark.parametrize("producers", [3, 4])
def test_frames_stay_for_as_many_producers_as_a_partition_remembers(
    producers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1 << 20, columns=True))
    for number in range(producers):
        append(
            log, [encode_frame(Columns([b"v"], [b"k"]), producer=ProducerMark(7 + number, 1, 0))]
        )
    append(log, [encode_frame(Columns([b"v"], [b"k"]))])
    log.roll()
    pass_over(disk, log, CleanerCheckpoint(), START_US)
    headers = [parse_header(frame) for _, frame in sorted(read_all(log).frames.items())]
    expected = [7, 8, 9, 0] if producers == 3 else [0, 8, 9, 10, 0]
    assert [h.producer_id for h in headers] == expected


def test_of_too_many_producers_the_one_that_was_silent_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 2)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1 << 20, columns=True))
    for producer, number in ((7, 0), (8, 0), (7, 1), (9, 0)):
        mark = ProducerMark(producer, 1, number)
        append(log, [encode_frame(Columns([b"v"], [b"k"]), producer=mark)])
    append(log, [encode_frame(Columns([b"v"], [b"k"]))])
    log.roll()
    pass_over(disk, log, CleanerCheckpoint(), START_US)
    headers = [parse_header(frame) for _, frame in sorted(read_all(log).frames.items())]
    assert [h.producer_id for h in headers] == [7, 0, 7, 9, 0]
