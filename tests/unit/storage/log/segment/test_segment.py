"""Batches that grow a segment, and indexes and columns that are loaded and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.log.segment import Segment, WriteBatch
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import frame_of

FOLDER = Path("/t/0/messages")


def segment_of(size_bytes: int = 0, end_offset: int = 10, time_us: int = 0) -> Segment:
    segment = Segment(FOLDER, 10)
    segment.size_bytes, segment.end_offset, segment.time_us = size_bytes, end_offset, time_us
    return segment


def add(batch: WriteBatch, count: int = 1, *, time_us: int = 5, epoch: int = 3) -> int:
    data = frame_of([b"v"] * count)
    header, body = parse_header(data), memoryview(data)[HEADER_BYTES:]
    return batch.add(header, body, append_time_us=time_us, leader_epoch=epoch)


def test_a_batch_continues_its_segment_in_bytes_offsets_and_times() -> None:
    batch = WriteBatch(segment_of(500, 12, 40), segment_bytes=10_000)
    assert (batch.start_position, batch.start_offset, batch.size_bytes) == (500, 12, 0)
    assert [add(batch, 2, time_us=30), add(batch, 3, time_us=90)] == [12, 14]
    sizes = [len(frame_of([b"v"] * count)) for count in (2, 3)]
    assert batch.size_bytes == sum(sizes)
    assert (batch.end_offset, batch.end_position) == (17, 500 + sum(sizes))
    assert (batch.first_time_us, batch.time_us) == (30, 90), "times never fall"
    first, second = batch.entries
    assert first[:3] == (14, 500 + sizes[0], 40)
    assert second[:3] == (17, 500 + sum(sizes), 90)
    assert batch.durable_end == (10, 500 + sum(sizes), 17)
    views = batch.frames()
    assert [view.header.base_offset for view in views] == [12, 14]
    assert {view.header.leader_epoch for view in views} == {3}
    assert batch.last_frame.position == 500 + sizes[0]


@pytest.mark.parametrize(
    ("segment_bytes", "size_bytes", "room"),
    [
        (1000, 0, 1000),
        (1000, 900, 100),
        (1000, 1000, 0),
        (1000, 1100, 0),
        (10**9, 0, limits.COMMIT_BATCH_BYTES_MAX),
    ],
)
def test_a_batch_takes_what_its_segment_has_room_for_and_one_frame_at_least(
    segment_bytes: int, size_bytes: int, room: int
) -> None:
    batch = WriteBatch(segment_of(size_bytes), segment_bytes=segment_bytes)
    assert batch.has_room_for(10**12)
    add(batch)
    left = room - batch.size_bytes
    assert batch.has_room_for(left + 1) is False
    assert batch.has_room_for(left) is True


class Loads(list[tuple[int, int]]):
    def __call__(self, segment: Segment, entries: int) -> None:
        self.append((segment.base_offset, entries))


def test_an_index_is_loaded_once_and_told_until_it_is_dropped() -> None:
    disk, segment, loads = SimulatedDisk(), segment_of(), Loads()
    disk.make_dir(FOLDER)
    segment.on_load = loads
    first = segment.load_index(disk)
    assert segment.load_index(disk) is first
    assert segment.has_index(disk)
    assert len(loads) == 1
    segment.unload_index()
    assert segment.index is None
    assert segment.load_index(disk) is not first
    assert len(loads) == 2


@pytest.mark.parametrize(
    ("position", "begins_at", "is_sound"),
    [(100, (10, 0), True), (99, (10, 0), False), (101, (10, 0), False), (100, (11, 0), False)],
)
def test_a_stored_index_is_used_if_it_is_of_the_whole_segment(
    position: int, begins_at: tuple[int, int], is_sound: bool
) -> None:
    disk, segment = SimulatedDisk(), segment_of(100, 20)
    disk.make_dir(FOLDER)
    index = SparseIndex()
    index.add(IndexEntry(*begins_at, 0), always=True)
    disk.put(segment.path, bytes(100))
    disk.replace(segment.index_path, index.pack(IndexEntry(20, position, 77), segment.log_id))
    assert segment.has_index(disk) is is_sound
    assert segment.time_us == (77 if is_sound else 0)
    up_to = segment.index_up_to(disk, 99, time_before_us=5)
    assert (up_to.last().time_us == 77) is ((position, begins_at) == (99, (10, 0)))


def test_columns_of_a_segment_that_does_not_grow_are_attached_when_they_are_used() -> None:
    disk, segment = SimulatedDisk(), segment_of()
    assert not segment.has_columns
    assert segment.used_columns() is None
    grown = segment.attach_columns(disk)
    assert segment.used_columns() is grown
    segment.attach_columns_later(disk)
    assert segment.has_columns
    assert segment.columns is None
    again = segment.used_columns()
    assert again is not grown
    assert segment.used_columns() is again
    segment.unload_index()
    assert segment.columns is None
    growing = segment_of()
    own = growing.attach_columns(disk)
    growing.unload_index()
    assert growing.columns is own


def test_a_rebuilt_index_gets_the_times_from_before_the_segment_once() -> None:
    disk, segment = SimulatedDisk(), segment_of()
    disk.make_dir(FOLDER)
    segment.load_index(disk)
    assert segment.has_partial_times
    segment.finish_times(disk, 500)
    assert (segment.time_us, segment.has_partial_times) == (500, False)
    segment.finish_times(disk, 900)
    assert segment.time_us == 500
    unloaded = segment_of(time_us=300)
    unloaded.has_partial_times = True
    unloaded.finish_times(disk, 200)
    assert unloaded.time_us == 300
    unloaded.finish_times(disk, 400)
    assert (unloaded.time_us, unloaded.has_partial_times) == (400, True)


def test_the_log_of_a_segment_is_removed_after_all_that_is_useless_without_it() -> None:
    disk, segment = SimulatedDisk(), segment_of()
    disk.make_dir(FOLDER)
    names = [segment.path.with_suffix(each).name for each in (".index", ".keys", ".spans", ".log")]
    removed: list[str] = []
    for name in names:
        disk.put(FOLDER / name, b"x")
    remove = disk.remove

    def note(path: Path) -> None:
        removed.append(path.name)
        remove(path)

    disk.remove = note
    segment.remove(disk)
    assert disk.names(FOLDER) == []
    assert removed[-1] == segment.path.name
