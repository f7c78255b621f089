"""Looking up keys says what reading every message says, whatever becomes of the log and files.

The twin is a dict from hashes to offsets, made by reading every message.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.config.topic import Fsync
from goq.errors import ShuttingDown, StorageFull
from goq.frame.encoder import Columns, encode_frame
from goq.frame.hashes import key_hash
from goq.frame.header import HEADER_BYTES, parse_header, stamp
from goq.frame.slice import remove_rows
from goq.frame.view import FrameView
from goq.index_cache import IndexCache
from goq.storage.key_index import file as keyfile
from goq.storage.key_index.active_keys import ActiveKeys
from goq.storage.key_index.extract import DEFAULT_LIMITS, ScanLimits
from goq.storage.key_index.file import KeyTable
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import KeyLookup
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import KEYS_SUFFIX, Segment
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.keys import (
    TIME_MAX,
    TIME_MIN,
    all_lookups,
    check,
    expected,
    index_of,
    keyed_frame,
    look_up,
    no_pause,
    with_key_hashes,
)
from tests.support.storage.logs import DIRECTORY, START_US, append

TINY = LogConfig(segment_bytes=2000)


@pytest.fixture(autouse=True)
def small_pages_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "PAGE_ENTRIES", 3)
    monkeypatch.setattr(keyfile, "PAGE_BYTES", 3 * 12 + 4)
    monkeypatch.setattr(limits, "KEYS_PART_ENTRIES", 20)


def with_sound_crc(frame: bytes | bytearray, **fields: int) -> bytes:
    """Return a changed frame as one that was damaged before its CRC was made."""
    view = FrameView.parse(bytes(frame))
    header = view.header._replace(body_crc32c=crc32c(view.body), **fields)
    return bytes(header.pack()) + bytes(view.body)


def key_files(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.paths() if path.suffix == KEYS_SUFFIX]


def filled(seed: int, disk: SimulatedDisk, *, segment_bytes: int = 2000, batches: int = 25) -> Log:
    random = Random(seed)
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=segment_bytes))
    for number in range(batches):
        frames = [keyed_frame(random) for _ in range(random.randint(1, 4))]
        append(log, frames, time_us=START_US + number * 100)
    return log


def sealed_with_file(
    disk: SimulatedDisk, *, limit: ScanLimits = DEFAULT_LIMITS
) -> tuple[Log, Path, bytes]:
    """Return a log of two segments, the first one's file and what it holds."""
    log = Log.open(DIRECTORY, disk)
    random = Random(5)
    append(log, [keyed_frame(random, count=6) for _ in range(6)])
    log.roll()
    append(log, [keyed_frame(random, count=3)])
    check(index_of(log, disk, limit=limit), log)
    [path] = key_files(disk)
    return log, path, disk.read_all(path)


@pytest.mark.parametrize("seed", range(40))
def test_lookups_say_of_any_range_what_reading_says(seed: int) -> None:
    random, disk = Random(seed), SimulatedDisk(Random(seed))
    log = filled(seed, disk, segment_bytes=random.choice([1, 2000, 10**6]))
    index = index_of(log, disk)
    check(index, log)
    held = expected(log)
    for table, hashed in all_lookups():
        start, end = sorted(random.choices(range(-2, log.end_offset + 3), k=2))
        within = [o for o in held.get((table, hashed), []) if start <= o < end]
        assert look_up(index, table, hashed, start, end) == within[::-1]
    assert len(key_files(disk)) == len(log.segments) - 1
    check(index_of(log, disk), log)


class Case:
    """A log and an index that is kept through everything that happens to the log."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        fsync = self.random.choice([Fsync.ALWAYS, Fsync.NEVER])
        size_bytes = self.random.choice([300, 2000, 50_000])
        self.config = LogConfig(segment_bytes=size_bytes, fsync=fsync)
        self.memory = IndexCache(self.random.choice([0, 3000, 10**6]))
        self.now_us = START_US
        self.open()

    def open(self) -> None:
        try:
            self.log = Log.open(DIRECTORY, self.disk, self.config)
        except StorageFull:  # the end was damaged, and a new segment has no room
            self.disk.capacity_bytes = None
            self.log = Log.open(DIRECTORY, self.disk, self.config)
        self.index = index_of(self.log, self.disk, self.memory)

    def append(self) -> None:
        self.now_us += self.random.randint(-50, 2000)
        frames = [keyed_frame(self.random) for _ in range(self.random.randint(1, 5))]
        append(self.log, frames, time_us=self.now_us)

    def roll(self) -> None:
        self.log.roll()

    def trim(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.log.remove(self.log.detach_before(offset))

    def truncate(self) -> None:
        self.log.truncate(self.random.randint(self.log.start_offset, self.log.end_offset))

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def crash(self) -> None:
        self.disk.crash(power=self.random.random() < 0.5)
        self.open()

    def crash_soon(self) -> None:
        self.disk.crash_at = self.disk.operations + self.random.randint(1, 10)

    def make(self) -> None:
        for segment in self.log.segments[:-1]:
            self.index.build(segment, no_pause)

    def a_file(self) -> Path | None:
        files = key_files(self.disk)
        return self.random.choice(files) if files else None

    def delete(self) -> None:
        if path := self.a_file():
            self.disk.delete(path)

    def empty(self) -> None:
        if path := self.a_file():
            self.disk.put(path, b"")

    def cut(self) -> None:
        if path := self.a_file():
            data = self.disk.read_all(path)
            self.disk.put(path, data[: self.random.randint(0, len(data))])

    def flip(self) -> None:
        if (path := self.a_file()) and (data := bytearray(self.disk.read_all(path))):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            self.disk.put(path, bytes(data))

    def swap(self) -> None:
        one, other = self.a_file(), self.a_file()
        if one and other:
            first, second = self.disk.read_all(one), self.disk.read_all(other)
            self.disk.put(one, second)
            self.disk.put(other, first)

    def fill(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + self.random.randint(0, 300)

    def look(self) -> None:
        check(self.index, self.log)


STEPS = [name for name, step in vars(Case).items() if callable(step) and "_file" not in name]
STEPS = sorted({*STEPS} - {"__init__", "open"})


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from([*STEPS, *["append"] * 6, *["look"] * 3]), max_size=30),
)
def test_an_index_says_what_the_log_holds_whatever_happens(seed: int, steps: list[str]) -> None:
    case = Case(seed)
    for step in steps:
        try:
            getattr(case, step)()
        except SimulatedCrash:
            case.crash()
        except StorageFull:
            pass
        if step != "fill":
            case.disk.capacity_bytes = None
    case.disk.crash_at = None
    check(case.index, case.log)
    case.crash()
    check(case.index, case.log)


@pytest.mark.parametrize("kind", ["cut", "flip", "zero"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_that_is_damaged_at_any_byte_is_noticed_and_made_anew(kind: str, step: int) -> None:
    disk = SimulatedDisk()
    log, path, data = sealed_with_file(disk)
    held = expected(log)
    for position in range(0, len(data), step):
        damaged = bytearray(data)
        if kind == "cut":
            del damaged[position:]
        elif kind == "flip":
            damaged[position] ^= 0x10
        else:
            damaged[position:] = bytes(len(data) - position)
        disk.put(path, bytes(damaged))
        check(index_of(log, disk), log, held)
        check(index_of(log, disk), log, held)


@pytest.mark.parametrize("position_of", ["warm", "cold"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_that_is_damaged_under_an_index_in_use_is_noticed(
    position_of: str, step: int
) -> None:
    disk = SimulatedDisk()
    log, path, data = sealed_with_file(disk)
    memory = IndexCache(10**6 if position_of == "warm" else 0)
    index = index_of(log, disk, memory)
    held = expected(log)
    for position in range(0, len(data), step):
        check(index, log, held)
        now = bytearray(disk.read_all(path))
        now[position] ^= 0x01
        disk.put(path, bytes(now))
        check(index, log, held)


def test_the_file_of_a_sealed_segment_that_was_cut_and_grew_to_the_same_size_is_not_used() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    frames = [encode_frame(Columns([b"v"], keys=[key])) for key in (b"a", b"b", b"c")]
    append(log, frames[:2])
    log.roll()
    append(log, frames[:1])
    index = index_of(log, disk)
    check(index, log)
    log.truncate(1)
    append(log, frames[2:])
    log.roll()
    append(log, frames[:1])
    check(index_of(log, disk), log)
    check(index, log)
    assert look_up(index, KeyTable.KEYS, key_hash(b"c")) == [1]


def test_keys_of_the_same_hash_are_all_candidates() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, TINY)
    frame = encode_frame(Columns([b""] * 3, keys=[b"a", b"b", b"c"]))
    append(log, [with_key_hashes(frame, [7, 2**64 - 1, 7])])
    log.roll()
    append(log, [with_key_hashes(frame, [7, 0, 2**64 - 1])])
    index = index_of(log, disk)
    assert look_up(index, KeyTable.KEYS, 7) == [3, 2, 0]
    assert look_up(index, KeyTable.KEYS, 2**64 - 1) == [5, 1]
    assert look_up(index, KeyTable.KEYS, 0) == [4]
    assert look_up(index, KeyTable.KEYS, 8) == []


@pytest.mark.parametrize("compress", [True, False])
def test_no_key_is_not_the_empty_key(compress: bool) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    keys = [None, b"", None, b"k"] * 20
    append(log, [encode_frame(Columns([b"value"] * 80, keys=keys), compress=compress)])
    index = index_of(log, disk)
    for _ in range(2):
        assert look_up(index, KeyTable.KEYS, key_hash(b"")) == list(range(1, 80, 4))[::-1]
        log.roll()


@pytest.mark.parametrize("compress", [True, False])
def test_what_compaction_leaves_of_a_batch_is_found(compress: bool) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    keys = [b"a", b"b", None, b"", b"a", b"c"]
    columns = Columns([b"value"] * 6, keys=keys, dedup_ids=[bytes([n]) * 16 for n in range(1, 7)])
    frame = remove_rows(FrameView.parse(encode_frame(columns, compress=compress)), [0, 2])
    append(log, [frame])
    index = index_of(log, disk)
    for _ in range(2):
        for key, offsets in ((b"a", [4]), (b"b", [1]), (b"", [3]), (b"c", [5])):
            assert look_up(index, KeyTable.KEYS, key_hash(key)) == offsets
        dedup_hash = int.from_bytes(bytes([2]) * 8, "little")
        assert look_up(index, KeyTable.DEDUP_IDS, dedup_hash) == [1]
        log.roll()


@pytest.mark.parametrize("removed", [[], [1]])
def test_a_frame_whose_payload_cannot_be_read_is_found_by_the_hashes_before_it(
    removed: list[int],
) -> None:
    """Whether its messages with the hash 0 have a key, nobody can say; removed ones have none."""
    keys = [b"a", b"b", None, b"c"]
    view = FrameView.parse(encode_frame(Columns([b"value"] * 4, keys=keys), compress=True))
    frame = bytearray(remove_rows(view, removed) if removed else view.buffer)
    frame[-12:] = bytes(12)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [with_sound_crc(frame), encode_frame(Columns([b"value"], keys=[b"a"]))])
    index = index_of(log, disk)
    for key, offsets in ((b"a", [4, 0]), (b"b", [] if removed else [1]), (b"", [2])):
        assert look_up(index, KeyTable.KEYS, key_hash(key)) == offsets


def test_a_frame_that_is_shorter_than_it_says_hides_only_its_own_keys() -> None:
    columns = Columns([b"value"], keys=[b"a"], dedup_ids=[b"1" * 16])
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    append(log, [with_sound_crc(encode_frame(columns), message_count=100), encode_frame(columns)])
    index = index_of(log, disk)
    assert look_up(index, KeyTable.KEYS, key_hash(b"a")) == [100]
    assert look_up(index, KeyTable.DEDUP_IDS, int.from_bytes(b"1" * 8, "little")) == [100]


@pytest.mark.parametrize("distance", [2**32 - 2, 2**32 - 1, 2**32, 2**33, 2**62])
def test_offsets_of_a_segment_may_lie_as_far_from_each_other_as_they_like(distance: int) -> None:
    disk = SimulatedDisk()
    disk.make_dir(DIRECTORY)
    frame = encode_frame(Columns([b""], keys=[b"a"]))
    frames = [
        stamp(parse_header(frame), base_offset=o, append_time_us=1, leader_epoch=1).pack()
        + frame[HEADER_BYTES:]
        for o in (0, distance, distance + 1)
    ]
    segment = Segment(DIRECTORY, 0)
    disk.put(segment.path, b"".join(frames))
    segment.size_bytes, segment.end_offset = 3 * len(frame), distance + 2
    index = KeyIndex(disk, LogReader(disk, [segment], []), IndexCache(), has_active=False)
    for end, found in ((2**63 - 1, 3), (distance + 1, 2), (distance, 1), (0, 0)):
        offsets = [0, distance, distance + 1][:found]
        assert look_up(index, KeyTable.KEYS, key_hash(b"a"), end=end) == offsets[::-1]


def test_a_key_of_very_many_messages_is_found_from_any_place_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    keys = [b"hot", b"hot", b"hot", b"cold"] * 60
    monkeypatch.setattr(limits, "KEYS_PART_ENTRIES", 10**6)
    append(log, [encode_frame(Columns([b""] * 240, keys=keys))])
    log.roll()
    index = index_of(log, disk)
    hot = [offset for offset in range(240) if offset % 4 != 3]
    for end in range(242):
        within = [offset for offset in hot if offset < end]
        assert look_up(index, KeyTable.KEYS, key_hash(b"hot"), end=end) == within[::-1]
    hashed, read = key_hash(b"hot"), disk.bytes_read
    lookup = KeyLookup(KeyTable.KEYS, hashed, 0, 10, TIME_MIN, TIME_MAX)
    assert next(index.offsets(lookup, no_pause)) == 9
    assert disk.bytes_read - read < 15 * keyfile.PAGE_BYTES  # a bisection, not all pages


def test_a_lookup_reads_hardly_more_than_a_page_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_PART_ENTRIES", 10**6)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    keys: list[bytes | None] = [b"%d" % number for number in range(500)]
    append(log, [encode_frame(Columns([b""] * 500, keys=keys))])
    log.roll()
    index = index_of(log, disk)
    look_up(index, KeyTable.KEYS, key_hash(b"1"))
    read = disk.bytes_read
    assert look_up(index, KeyTable.KEYS, key_hash(b"77")) == [77]
    assert disk.bytes_read - read <= 3 * keyfile.PAGE_BYTES + 64


@pytest.mark.parametrize("part_entries", [1, 2, 19, 20, 21, 36, 37])
def test_a_part_holds_so_many_entries_and_no_more(
    part_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_PART_ENTRIES", part_entries)
    disk = SimulatedDisk()
    limit = ScanLimits(extract_bytes=1)
    log, _, _ = sealed_with_file(disk, limit=limit)
    index = index_of(log, disk, limit=limit)
    parts = index._of(log.segments[0]).parts(no_pause)
    most = max(sum(part.counts) for part in parts)
    assert most <= max(part_entries, 12)  # a frame of 6 messages is never divided
    check(index, log)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 10, 1000])
def test_what_memory_has_no_room_for_is_read_each_time(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_ACTIVE_ENTRIES_MAX", room)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    index = index_of(log, disk, limit=ScanLimits(extract_bytes=1, offsets_max=2))
    random = Random(room)
    for _ in range(10):
        append(log, [keyed_frame(random) for _ in range(3)])
        check(index, log)


def test_a_file_of_many_pages_that_is_sound_is_not_made_anew() -> None:
    disk = SimulatedDisk()
    log, path, data = sealed_with_file(disk)
    before = disk.operations
    check(index_of(log, disk), log)
    assert disk.operations == before
    assert disk.read_all(path) == data


def test_memory_for_the_growing_segment_is_counted_and_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "KEYS_ACTIVE_ENTRIES_MAX", 10)
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    index = ActiveKeys(disk, log.active, ScanLimits(extract_bytes=1))
    empty = index.memory_bytes
    held = []
    for _ in range(12):
        append(log, [encode_frame(Columns([b"v", b"w"], keys=[b"a", b"b"]))])
        index.catch_up(log.active.size_bytes, no_pause)
        held.append(index.memory_bytes - empty)
    assert held == [16 * min(2 * frames, 10) for frames in range(1, 13)]


def test_a_lookup_reads_of_the_growing_segment_only_what_is_new() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    index = index_of(log, disk)
    append(log, [encode_frame(Columns([bytes(100_000)], keys=[b"a"]))])
    assert look_up(index, KeyTable.KEYS, key_hash(b"a")) == [0]
    append(log, [encode_frame(Columns([b"v"], keys=[b"a"]))])
    read = disk.bytes_read
    assert look_up(index, KeyTable.KEYS, key_hash(b"a")) == [1, 0]
    assert disk.bytes_read - read < 1000


def test_room_that_lacks_for_the_file_costs_time_only() -> None:
    disk = SimulatedDisk()
    log = filled(1, disk, batches=8)
    held = expected(log)
    for room in range(0, 3000, 61):
        disk.capacity_bytes = disk.used_bytes + room
        check(index_of(log, disk), log, held)
        disk.capacity_bytes = None
        for path in key_files(disk):
            disk.delete(path)
    check(index_of(log, disk), log)
    assert len(key_files(disk)) == len(log.segments) - 1


@pytest.mark.parametrize("operation", ["open", "append", "truncate"])
def test_a_disk_that_fails_for_the_file_costs_time_only(operation: str) -> None:
    disk = SimulatedDisk()
    log, path, _ = sealed_with_file(disk)
    disk.put(path, b"not a file of keys")

    def fault(asked: str, at: Path) -> int | None:
        return errno.EIO if asked == operation and at.suffix == KEYS_SUFFIX else None

    disk.fault = fault
    index = index_of(log, disk)
    check(index, log)
    index.build(log.segments[0], no_pause)
    disk.fault = lambda _operation, _path: None
    check(index, log)
    assert disk.read_all(path)[:4] == keyfile.MAGIC


@pytest.mark.parametrize("seed", range(20))
def test_damaged_frames_hide_themselves_only(seed: int) -> None:
    random, disk = Random(seed), SimulatedDisk()
    log = filled(seed, disk)
    segment = random.choice(log.segments)
    data = bytearray(disk.read_all(segment.path))
    for _ in range(random.randint(1, 3)):
        data[random.randrange(len(data))] ^= 0xFF
    disk.put(segment.path, bytes(data))
    check(index_of(log, disk), log)
    held = expected(log)
    index = index_of(log, disk)
    log.roll()
    for table, hashed in all_lookups():  # with the file made
        assert look_up(index, table, hashed) == held.get((table, hashed), [])[::-1]


def test_what_was_damaged_after_its_keys_were_stored_is_still_a_candidate() -> None:
    disk = SimulatedDisk()
    log, _, _ = sealed_with_file(disk)
    before = expected(log)
    data = bytearray(disk.read_all(log.segments[0].path))
    data[200] ^= 1
    disk.put(log.segments[0].path, bytes(data))
    index = index_of(log, disk)
    for table, hashed in all_lookups():
        assert look_up(index, table, hashed) == before.get((table, hashed), [])[::-1]


def test_a_segment_that_is_deleted_under_a_lookup_is_passed_over() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for _ in range(4):
        append(log, [encode_frame(Columns([b"v"], keys=[b"a"]))])
        log.roll()
    index = index_of(log, disk)
    lookup = KeyLookup(KeyTable.KEYS, key_hash(b"a"), 0, 10, TIME_MIN, TIME_MAX)
    found = index.offsets(lookup, no_pause)
    assert next(found) == 3
    log.remove(log.detach_before(2))
    assert list(found) == [2]
    index.build(log.segments[0], no_pause)
    assert sorted(key_files(disk)) == [s.path.with_suffix(KEYS_SUFFIX) for s in log.segments[:-1]]


def test_no_file_is_left_of_a_segment_that_is_deleted_while_it_is_made() -> None:
    disk = SimulatedDisk()
    log, path, _ = sealed_with_file(disk)
    disk.delete(path)
    index = index_of(log, disk)
    segment = log.segments[0]
    detached = list[object]()

    def detach() -> None:
        if not detached:
            detached.extend(log.detach_before(segment.end_offset))

    index.build(segment, detach)
    assert detached
    assert key_files(disk) == []


def test_nothing_is_kept_of_segments_that_were_deleted_though_nobody_looks_anything_up() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    index, made = index_of(log, disk), list[weakref.ref[Segment]]()
    for _ in range(20):
        append(log, [encode_frame(Columns([b"v"], keys=[b"a"]))])
        log.roll()
        index.build(log.segments[-2], no_pause)
        made.append(weakref.ref(log.segments[-2]))
        log.remove(log.detach_before(log.segments[-2].base_offset))
    assert sum(each() is not None for each in made) <= 3


def test_making_ends_when_it_is_to_pause_and_is_told_to_end() -> None:
    disk = SimulatedDisk()
    log, path, data = sealed_with_file(disk)
    disk.delete(path)
    index = index_of(log, disk)

    def stop() -> None:
        raise ShuttingDown("the node is stopping")

    with pytest.raises(ShuttingDown):
        index.build(log.segments[0], stop)
    index.build(log.segments[0], no_pause)
    assert disk.read_all(path) == data


def test_times_outside_of_those_wanted_are_left_out_by_the_part() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=1))
    for number in range(5):
        frame = encode_frame(Columns([b"v"], keys=[b"a"]))
        append(log, [frame], time_us=START_US + number)
    index = index_of(log, disk)
    hashed = key_hash(b"a")

    def between(from_us: int, to_us: int) -> Iterator[int]:
        lookup = KeyLookup(KeyTable.KEYS, hashed, 0, 4, START_US + from_us, START_US + to_us)
        return index.offsets(lookup, no_pause)

    assert list(between(1, 3)) == [2, 1]
    assert list(between(0, 9)) == [3, 2, 1, 0]
    assert list(between(3, 3)) == []


def test_memory_for_lookups_has_a_bound() -> None:
    memory = IndexCache(100)
    memory.put("a", "A", 60)
    memory.put("b", "B", 40)
    assert (memory.get("a"), memory.get("b"), memory.size_bytes) == ("A", "B", 100)
    memory.get("a")
    memory.put("c", "C", 1)
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == ("A", None, "C")
    memory.put("a", "A", 99)
    assert memory.size_bytes == 100
    memory.put("d", "D", 101)
    assert (len(memory), memory.size_bytes) == (0, 0)
    memory.drop("nothing")


def test_a_small_memory_is_enough() -> None:
    disk = SimulatedDisk()
    log = filled(3, disk)
    memory = IndexCache(0)
    check(index_of(log, disk, memory), log)
    assert memory.size_bytes == 0
