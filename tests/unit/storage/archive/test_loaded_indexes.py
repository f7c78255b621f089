"""Sparse indexes of archived segments: bounded, dropped in order of loading, and loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.storage.archive.loaded_indexes import LoadedIndexes
from goq.storage.disk import RealDisk
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from tests.support.storage.memory import memory_below

ENTRIES = 10
SIZE_BYTES = 4096 + 40 * ENTRIES


def stored_segment(folder: Path, number: int) -> Segment:
    """Return a segment whose index lies beside it."""
    segment = Segment(folder, 1000 * number)
    index = SparseIndex()
    for entry in range(ENTRIES):
        place = IndexEntry(segment.base_offset + entry, 8192 * entry, number, number, number)
        index.add(place, always=True)
    segment.size_bytes = index.last().position
    segment.index_path.write_bytes(index.pack(index.last(), segment.log_id))
    return segment


@pytest.mark.parametrize("room", [0, 200])
def test_indexes_beyond_the_bound_are_dropped_and_loaded_again(tmp_path: Path, room: int) -> None:
    disk, loaded = RealDisk(), LoadedIndexes(3 * SIZE_BYTES + room)
    segments = [stored_segment(tmp_path, number) for number in range(6)]
    for segment in segments:
        segment.on_load = loaded.on_load
    for _ in range(3):
        for number, segment in enumerate(segments):
            assert segment.load_index(disk).first().offset == 1000 * number
            assert segment.index is not None
            assert loaded.size_bytes <= 3 * SIZE_BYTES + room
    assert [segment.index is None for segment in segments] == [True] * 3 + [False] * 3
    assert len(loaded) == 3


def test_an_index_that_is_in_memory_is_not_counted_again(tmp_path: Path) -> None:
    disk, loaded = RealDisk(), LoadedIndexes()
    segment = stored_segment(tmp_path, 1)
    segment.on_load = loaded.on_load
    for _ in range(3):
        segment.load_index(disk)
        assert segment.has_index(disk)
    size_bytes = loaded.size_bytes
    assert 0 < size_bytes <= SIZE_BYTES + 100
    loaded.forget(segment)
    assert (loaded.size_bytes, len(loaded)) == (0, 0)


def test_an_index_that_is_larger_than_the_bound_is_used_and_dropped(tmp_path: Path) -> None:
    loaded = LoadedIndexes(10)
    segment = stored_segment(tmp_path, 1)
    segment.on_load = loaded.on_load
    assert segment.load_index(RealDisk()).last().time_us == 1
    assert segment.index is None
    assert segment.time_us == 1
    assert loaded.size_bytes == 0


@pytest.mark.long
def test_archived_segments_take_little_memory_until_they_are_read_and_once_they_are_unloaded(
    tmp_path: Path,
) -> None:
    disk, count = RealDisk(), 500
    with memory_below(__file__) as held_bytes:
        segments = [Segment(tmp_path, number) for number in range(count)]
        for segment in segments:
            segment.attach_columns_later(disk)
        assert held_bytes() < 1000 * count
        assert all(segment.used_columns() is segment.used_columns() for segment in segments)
        assert held_bytes() > 2000 * count
        for segment in segments:
            segment.unload_index()
        assert held_bytes() < 1000 * count


def test_a_segment_that_loads_its_index_again_counts_with_its_size_now() -> None:
    loaded = LoadedIndexes()
    first, second = Segment(Path("/a"), 0), Segment(Path("/a"), 10)
    loaded.on_load(first, 1000)
    loaded.on_load(second, 10)
    one_bytes = loaded.size_bytes
    loaded.on_load(first, 1000)
    assert (len(loaded), loaded.size_bytes) == (2, one_bytes)
    loaded.forget(first)
    loaded.forget(second)
    assert (len(loaded), loaded.size_bytes) == (0, 0)
