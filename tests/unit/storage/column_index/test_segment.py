"""What a log says of its messages' columns, against plain lists, whatever ends the process."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import numpy as np
import pytest

from goq import limits
from goq.config.topic import Fsync
from goq.errors import InvalidFrame, StorageFailed
from goq.frame.encoder import Columns, encode_frame
from goq.frame.slice import remove_all_rows, remove_rows
from goq.frame.view import FrameView
from goq.storage.column_index.block import (
    HEADER_BYTES,
    NO_FRAME,
    BlockRange,
    SegmentPosition,
    pack_block,
)
from goq.storage.column_index.rows import ColumnsBuilder, read_frames, rows_of
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.columns import START_MS, Row, expected, part_of, random_frame, said_by
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of, read_all

CONFIG = LogConfig(columns=True)
START = SegmentPosition(0, 0)


@pytest.fixture(autouse=True)
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 3000)
    monkeypatch.setattr(limits, "COLUMNS_BLOCK_BYTES", 700)


def frames_in(log: Log) -> list[tuple[int, bytes, int]]:
    views = [FrameView.parse(frame) for frame in read_all(log).frames.values()]
    return [(v.header.base_offset, bytes(v.buffer), v.header.append_time_us) for v in views]


def test_a_plain_frame_says_nothing() -> None:
    view = FrameView.parse(frame_of([b"one", None]))
    assert rows_of(view) is None
    assert read_frames([view]) == (None, None)


def test_dedup_ids_of_zeros_are_none() -> None:
    ids = [bytes(16), bytes(15) + b"\1", bytes(16)]
    frame = encode_frame(Columns([b""] * 3, dedup_ids=ids))
    _, found = read_frames([FrameView.parse(frame)])
    assert found is not None
    assert found.offsets.tolist() == [1]
    assert found.ids.tobytes() == ids[1]
    frame = encode_frame(Columns([b""], dedup_ids=ids[:1]))
    assert read_frames([FrameView.parse(frame)]) == (None, None)


def test_rows_numbered_before_they_are_added_are_the_same() -> None:
    tenants = [["a", "b", None], ["c", "a", "a"], [None, None, "d"]]
    plain, numbered = ColumnsBuilder(), ColumnsBuilder()
    for number, names in enumerate(tenants):
        frame = encode_frame(Columns([b""] * 3, tenants=names))
        view = FrameView.parse(frame)
        rows = rows_of(FrameView(view.header._replace(base_offset=3 * number), view.buffer))
        assert rows is not None
        plain.add(rows, None)
        numbered.add(numbered.numbered(rows), None)
    wanted, found = plain.rows(), numbered.rows()
    assert found.tenant_names == wanted.tenant_names == ["a", "b", "c", "d"]
    assert found.tenants.tolist() == wanted.tenants.tolist() == [0, 1, -1, 2, 0, 0, -1, -1, 3]
    assert numbered.size_bytes == plain.size_bytes


@pytest.mark.parametrize(
    ("columns", "bytes_a_row"),
    [
        (Columns([b""] * 64, tenants=["a"] * 64), 4),
        (Columns([b""] * 64, lanes=[3] * 64), 2),
        (Columns([b""] * 64, deliver_at_ms=[START_MS] * 64), 8),
    ],
    ids=["tenants", "lanes", "delivery times"],
)
def test_a_block_has_the_columns_that_its_rows_have_and_no_others(
    columns: Columns, bytes_a_row: int
) -> None:
    builder = ColumnsBuilder()
    builder.add(rows_of(FrameView.parse(encode_frame(columns))), None)
    block, data = pack_block(builder, BlockRange(START, SegmentPosition(1_000, 64), NO_FRAME))
    once = 16 + 8 * block.tenants + 8 * bool(block.names_bytes)  # a run, and padded names
    assert block.body_bytes <= 64 * bytes_a_row + once
    assert len(data) == HEADER_BYTES + block.body_bytes


def test_removed_messages_have_no_rows_but_their_dedup_ids() -> None:
    columns = Columns(
        [b"x"] * 3,
        lanes=[5, 6, 7],
        tenants=["a", "b", "c"],
        dedup_ids=[bytes(15) + bytes([number]) for number in (1, 2, 3)],
    )
    whole = FrameView.parse(encode_frame(columns))
    compacted = FrameView.parse(remove_rows(whole, [0, 2]))
    rows, ids = read_frames([compacted])
    assert rows is not None
    assert ids is not None
    assert (rows.offsets.tolist(), rows.lanes.tolist()) == ([1], [6])
    assert [rows.tenant_names[number] for number in rows.tenants] == ["b"]
    assert ids.offsets.tolist() == [0, 1, 2], "they are not to be published again"
    for nothing in (remove_all_rows(whole, keep_dedup_ids=False), remove_rows(whole, [0, 1, 2])):
        assert read_frames([FrameView.parse(nothing)])[0] is None
    behind = whole.header._replace(base_offset=3).pack() + bytes(whole.body)
    rows, _ = read_frames([compacted, FrameView.parse(behind)])
    assert rows is not None
    assert (rows.offsets.tolist(), rows.lanes.tolist()) == ([1, 3, 4, 5], [6, 5, 6, 7])


def test_a_name_that_a_frame_has_twice_is_one_tenant() -> None:
    frame = encode_frame(Columns([b""] * 3, tenants=["ab", "cd", None])).replace(b"abcd", b"abab")
    rows = rows_of(FrameView.parse(frame))
    assert rows is not None
    assert (rows.tenants.tolist(), rows.tenant_names) == ([0, 0, -1], ["ab"])


def test_a_tenant_that_its_frame_does_not_name_is_an_error() -> None:
    frame = encode_frame(Columns([b""] * 3, tenants=["ab", "cd", None]))
    numbers = bytes([0, 0, 1, 0, 0xFF, 0xFF])
    assert frame.count(numbers) == 1
    for number, is_named in ((1, True), (2, False), (3, False), (0xFFFE, False)):
        changed = numbers[:2] + number.to_bytes(2, "little") + numbers[4:]
        view = FrameView.parse(frame.replace(numbers, changed))
        if is_named:
            assert rows_of(view) is not None
        else:
            with pytest.raises(InvalidFrame):
                rows_of(view)


def test_a_message_whose_time_has_come_when_it_is_appended_is_not_delayed() -> None:
    times = [START_MS - 1, START_MS, START_MS + 1]
    log = Log.open(DIRECTORY, SimulatedDisk(), CONFIG)
    append(log, [encode_frame(Columns([b""] * 3, deliver_at_ms=times))], time_us=START_US + 999)
    assert [row.deliver_at_ms for row in said_by(log).rows] == [0, 0, START_MS + 1]


@pytest.mark.parametrize("seed", range(30))
def test_a_log_says_of_any_range_what_its_frames_say(seed: int) -> None:
    random, disk = Random(seed), SimulatedDisk(Random(seed))
    config = LogConfig(columns=True, segment_bytes=random.choice([1, 2000, 10**6]))
    log = Log.open(DIRECTORY, disk, config)
    for number in range(random.randint(1, 40)):
        frames = [random_frame(random) for _ in range(random.randint(1, 4))]
        append(log, frames, time_us=START_US + number * 100)
        if random.random() < 0.1:
            log.close()
            log = Log.open(DIRECTORY, disk, config)
    everything = expected(frames_in(log))
    for _ in range(20):
        start, end = sorted(random.choices(range(-3, log.end_offset + 3), k=2))
        assert said_by(log, start, end) == part_of(everything, start, end)
        low, high = sorted(random.choices([-9, 1, START_MS, START_MS + 1, START_MS + 10**6], k=2))
        due_rows = [row for row in everything.rows if low <= row.deliver_at_ms <= high]
        assert said_by(log, due=(low, high)).rows == [r for r in due_rows if r.deliver_at_ms]
        assert said_by(log, due=(low, None)).rows == [
            row for row in everything.rows if row.deliver_at_ms >= max(1, low)
        ]


class Case:
    """A log with columns; after anything it says what the frames in it say."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.config = LogConfig(
            segment_bytes=self.random.choice([300, 5000, 50_000]),
            fsync=self.random.choice([Fsync.ALWAYS, Fsync.NEVER]),
            columns=True,
        )
        self.now_us = START_US
        self.log = Log.open(DIRECTORY, self.disk, self.config)

    def run(self, length: int) -> None:
        steps = [self.append] * 6 + [self.crash_soon] * 2
        steps += [self.roll, self.trim, self.truncate, self.reopen, self.crash]
        for _ in range(length):
            try:
                self.random.choice(steps)()
                if self.random.random() < 0.5:
                    assert said_by(self.log) == expected(frames_in(self.log))
            except SimulatedCrash:
                self.recover()
        self.crash()
        self.reopen()
        assert said_by(self.log) == expected(frames_in(self.log))

    def append(self) -> None:
        self.now_us += self.random.randint(0, 2000)
        frames = [random_frame(self.random) for _ in range(self.random.randint(1, 3))]
        append(self.log, frames, time_us=self.now_us)

    def crash_soon(self) -> None:
        self.disk.crash_at = self.disk.operations + self.random.randint(1, 14)

    def roll(self) -> None:
        self.log.roll()

    def trim(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.log.remove(self.log.detach_before(offset))

    def truncate(self) -> None:
        self.log.truncate(self.random.randint(self.log.start_offset, self.log.end_offset))

    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(DIRECTORY, self.disk, self.config)

    def crash(self) -> None:
        self.recover()

    def recover(self) -> None:
        while True:
            self.disk.crash(power=self.random.random() < 0.5)
            if self.random.random() < 0.2:
                self.disk.crash_at = self.disk.operations + self.random.randint(1, 6)
            try:
                self.log = Log.open(DIRECTORY, self.disk, self.config)
                assert said_by(self.log) == expected(frames_in(self.log))
                break
            except SimulatedCrash:
                continue
        self.disk.crash_at = None
        assert self.log.damage == []


def live(seed: int, length: int) -> None:
    try:
        Case(seed).run(length)
    except Exception as error:
        raise AssertionError(f"seed {seed}, {length} steps") from error


def test_columns_are_those_of_the_frames_whatever_ends_the_process() -> None:
    for seed in range(25):
        live(seed, 50)


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 6000, 1000))
def test_columns_are_those_of_the_frames_in_many_longer_lives(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 1000):
        live(seed, 100)


def test_a_crash_at_any_operation_leaves_the_columns_of_what_is_kept() -> None:
    def work(disk: SimulatedDisk) -> None:
        random = Random(7)
        log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=4000))
        for _ in range(12):
            append(log, [random_frame(random) for _ in range(3)])
        log.remove(log.detach_before(log.segments[1].base_offset))
        log.truncate(log.end_offset - 30)
        append(log, [random_frame(random)])
        said_by(log)
        log.close()

    whole = SimulatedDisk()
    work(whole)
    for operation in range(1, whole.operations + 1):
        for power in (False, True):
            disk = SimulatedDisk(Random(operation))
            disk.crash_at = operation
            with pytest.raises(SimulatedCrash):
                work(disk)
            disk.crash(power=power)
            log = Log.open(DIRECTORY, disk, CONFIG)
            assert said_by(log) == expected(frames_in(log))
            append(log, [random_frame(Random(operation))])
            assert said_by(log) == expected(frames_in(log))


def test_a_log_that_was_closed_reads_no_frame_to_know_its_columns() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    random = Random(1)
    for _ in range(50):
        append(log, [random_frame(random), frame_of([bytes(9000)])])
    said = said_by(log)
    log.close()
    log = Log.open(DIRECTORY, disk, CONFIG)
    before = disk.bytes_read
    assert said_by(log) == said
    assert disk.bytes_read - before < log.size_bytes / 10


def test_a_sealed_segment_has_its_columns_in_memory_only_once_they_are_read() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for tenant in "ab":
        append(log, [encode_frame(Columns([b""], tenants=[tenant]))])
        log.roll()
    append(log, [encode_frame(Columns([b""], tenants=["c"]))])
    for _ in range(2):
        assert [segment.columns is None for segment in log.segments] == [True, True, False]
        assert all(segment.has_columns for segment in log.segments)
        found = [rows.tenant_names for rows in log.reader.rows(0, log.end_offset)]
        assert found == [["a"], ["b"], ["c"]]
        assert not any(segment.columns is None for segment in log.segments)
        log.close()
        log = Log.open(DIRECTORY, disk, CONFIG)
    assert log.truncate(1) == 1
    append(log, [encode_frame(Columns([b""], tenants=["d"]))])
    assert [rows.tenant_names for rows in log.reader.rows(0, 2)] == [["a"], ["d"]]


def test_columns_of_a_plain_segment_are_one_small_header_however_often_it_is_opened() -> None:
    disk = SimulatedDisk()
    for _ in range(5):
        log = Log.open(DIRECTORY, disk, CONFIG)
        for _ in range(10):
            append(log, [frame_of([bytes(500)])])
        log.close()
    columns = [path for path in disk.paths() if path.suffix == ".columns"]
    assert [len(disk.read_all(path)) for path in columns] == [104]
    log = Log.open(DIRECTORY, disk, CONFIG)
    before = disk.bytes_read
    assert said_by(log) == ([], [])
    assert disk.bytes_read == before


def test_segments_in_which_nothing_is_due_are_not_read() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    for day in range(20):
        due_ms = START_MS + day * 86_400_000 + 1
        append(log, [encode_frame(Columns([b""] * 50, deliver_at_ms=[due_ms] * 50))])
    said_by(log)
    before = disk.bytes_read
    assert said_by(log, due=(START_MS + 2, START_MS + 86_400_000)).rows == []
    assert disk.bytes_read == before
    some = said_by(log, due=(START_MS + 86_400_001, START_MS + 86_400_001)).rows
    assert some == [Row(50 + i, -1, None, START_MS + 86_400_001) for i in range(50)]
    assert disk.bytes_read - before < 1000


def test_the_newest_dedup_ids_come_first_and_the_rest_is_not_read() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    for _ in range(10):
        append(log, [encode_frame(Columns([b""] * 50, dedup_ids=[b"x" * 16] * 50))])
    said_by(log)
    before = disk.bytes_read
    found = [next(rows) for rows in [log.reader.dedup_rows(0, 460)]]
    assert found[0].offsets.tolist() == list(range(450, 460))
    assert disk.bytes_read - before < 1500


def test_trimming_deletes_the_columns_with_their_segments() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    for _ in range(4):
        append(log, [encode_frame(Columns([b""], lanes=[1]))])
    log.remove(log.detach_before(2))
    left = [path.name for path in disk.paths() if path.suffix in (".columns", ".log")]
    assert left == ["0" * 19 + "2.columns", "0" * 19 + "2.log", "0" * 19 + "3.log"]
    assert [row.offset for row in said_by(log).rows] == [2, 3]


def test_a_reading_goes_on_while_segments_are_deleted_under_it() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    for _ in range(4):
        append(log, [encode_frame(Columns([b""], lanes=[1]))])
    log.close()
    log = Log.open(DIRECTORY, disk, CONFIG)
    reading = log.reader.rows(0, 4)
    assert next(reading).offsets.tolist() == [0]
    log.remove(log.detach_before(3))
    assert [rows.offsets.tolist() for rows in reading] == [[3]]
    assert not any(path.suffix == ".columns" and "3" not in path.name for path in disk.paths())


def test_a_log_without_columns_keeps_no_file_of_them() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [encode_frame(Columns([b""], lanes=[1]))])
    log.roll()
    log.close()
    assert not [path for path in disk.paths() if path.suffix == ".columns"]
    log = Log.open(DIRECTORY, disk, CONFIG)  # and from now on it does
    assert said_by(log).rows == [Row(0, 1, None, 0)]
    log.close()
    assert [path for path in disk.paths() if path.suffix == ".columns"]


def test_readers_in_other_threads_see_all_that_was_committed(tmp_path: Path) -> None:
    config = LogConfig(columns=True, segment_bytes=20_000, fsync=Fsync.NEVER)
    log = Log.open(tmp_path / "messages", RealDisk(), config)
    committed, failures, stopped = [0], list[BaseException](), threading.Event()
    frame = encode_frame(
        Columns([b"some bytes"] * 7, lanes=range(7), dedup_ids=[b"%016d" % i for i in range(7)])
    )

    def read() -> None:
        try:
            while not stopped.is_set():
                end = committed[0]
                rows = [some.offsets for some in log.reader.rows(0, end)]
                dedup = [some.offsets for some in log.reader.dedup_rows(0, end)][::-1]
                for found in (rows, dedup):
                    offsets = np.concatenate([np.zeros(0, np.int64), *found])
                    assert np.array_equal(offsets, np.arange(end))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(800):
        append(log, [frame], time_us=START_US + number)
        committed[0] = log.end_offset
    stopped.set()
    for reader in readers:
        reader.join()
    log.close()
    assert failures == []
    assert len(log.segments) > 3


def test_a_batch_that_was_not_committed_says_nothing() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    append(log, [encode_frame(Columns([b""], lanes=[1]))])
    disk.fault = lambda operation, _path: 5 if operation == "sync" else None
    with pytest.raises(StorageFailed):
        append(log, [encode_frame(Columns([b""], lanes=[2]))])
    assert said_by(log).rows == [Row(0, 1, None, 0)]


def test_a_builder_keeps_offsets_as_runs() -> None:
    builder = ColumnsBuilder()
    for base in (0, 3, 6, 100):
        frame = encode_frame(Columns([b""] * 3, lanes=[0, 1, 2]))
        view = FrameView.parse(frame)
        view.header = view.header._replace(base_offset=base)
        builder.add(rows_of(view), None)
    assert (builder.runs.starts.tolist(), builder.runs.counts.tolist()) == ([0, 100], [9, 3])
    assert builder.rows().offsets.tolist() == [*range(9), 100, 101, 102]
