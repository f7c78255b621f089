"""The writer of archive files: whole, named once they are durable, and taken over if they are."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.broker.retention.archive_writer import ArchiveWriter
from goq.errors import CorruptData
from goq.storage.archive.file import (
    Interrupted,
    archive_path,
    check_archive,
    read_footer,
)
from goq.storage.archive.manifest import archive_row
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import INDEX_SUFFIX, Segment
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import append, frame_of

SOURCE = Path("/log")
FOLDER = Path("/archive/t/0/messages")
PATH = FOLDER / f"{0:020}.log.zst"
PART = PATH.with_name(PATH.name + ".part")
NOW_US = 7_000


def sealed(disk: SimulatedDisk, seed: int = 7) -> Segment:
    log, chance = Log.open(SOURCE, disk, LogConfig()), Random(seed)
    for _ in range(10):
        append(log, [frame_of([chance.randbytes(300)] * 2)])
    log.roll()
    return log.segments[0]


def writer_on(disk: SimulatedDisk) -> ArchiveWriter:
    return ArchiveWriter(TieredDisk(disk, StoreCache(disk, Path("/cache"), 0)))


def row_of(disk: SimulatedDisk) -> ArchiveRow:
    return archive_row(("t", 0), "messages", read_footer(disk, PATH), disk.size(PATH))


def copy_of(data: bytes, disk: SimulatedDisk, row: ArchiveRow) -> None:
    writer = writer_on(disk)
    writer.begin_copy(PART)
    for start in range(0, len(data), 1000):
        writer.append_copy(PART, data[start : start + 1000])
    writer.finish_copy(PART, PATH, row)


def test_a_file_says_what_its_segment_was_and_has_its_index_beside_it() -> None:
    disk = SimulatedDisk()
    segment = sealed(disk)
    footer = writer_on(disk).write(FOLDER, segment, NOW_US)
    assert footer == read_footer(disk, PATH) == check_archive(disk, PATH)
    assert (footer.base_offset, footer.end_offset) == (0, 20)
    assert (footer.size_bytes, footer.archived_at_us) == (segment.size_bytes, NOW_US)
    assert footer.first_time_us == segment.first_time_us
    assert footer.last_time_us == segment.time_us
    index = archive_path(FOLDER, segment.path.with_suffix(INDEX_SUFFIX))
    assert disk.read_all(index) == disk.read_all(segment.path.with_suffix(INDEX_SUFFIX))


def test_a_segment_whose_times_are_lost_ends_now_so_that_no_search_by_time_passes_it_over() -> None:
    disk = SimulatedDisk()
    segment = sealed(disk)
    segment.has_lost_times = True
    assert writer_on(disk).write(FOLDER, segment, NOW_US).last_time_us == NOW_US


def test_a_finished_file_is_taken_over_and_not_written_again() -> None:
    disk = SimulatedDisk()
    segment = sealed(disk)
    first = writer_on(disk).write(FOLDER, segment, NOW_US)
    before = disk.operations
    again = writer_on(disk).write(FOLDER, segment, NOW_US + 5)
    assert again.archived_at_us == NOW_US + 5
    assert again.crc32c == first.crc32c
    assert read_footer(disk, PATH).archived_at_us == NOW_US
    assert disk.operations - before <= 1  # the folder, and no write


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_finished_file_that_is_damaged_is_written_anew(position: int) -> None:
    disk = SimulatedDisk()
    segment = sealed(disk)
    writer_on(disk).write(FOLDER, segment, NOW_US)
    data = bytearray(disk.read_all(PATH))
    data[position] ^= 4
    disk.put(PATH, bytes(data))
    writer_on(disk).write(FOLDER, segment, NOW_US)
    assert check_archive(disk, PATH).end_offset == segment.end_offset


def test_a_file_of_other_bytes_with_the_same_bounds_is_not_taken_over() -> None:
    other_disk, disk = SimulatedDisk(), SimulatedDisk()
    writer_on(other_disk).write(FOLDER, sealed(other_disk, seed=8), NOW_US)
    segment = sealed(disk)
    disk.make_dir(FOLDER)
    disk.put(PATH, other_disk.read_all(PATH))
    footer = writer_on(disk).write(FOLDER, segment, NOW_US)
    assert footer.crc32c != read_footer(other_disk, PATH).crc32c
    assert check_archive(disk, PATH) == footer


def test_after_close_a_segment_is_not_written_and_leaves_nothing() -> None:
    disk = SimulatedDisk()
    segment = sealed(disk)
    writer = writer_on(disk)
    writer.close()
    with pytest.raises(Interrupted):
        writer.write(FOLDER, segment, NOW_US)
    assert not [name for name in disk.names(FOLDER) if ".log.zst" in name]


def test_wherever_the_process_ends_no_file_has_its_name_but_a_whole_one() -> None:
    first = SimulatedDisk()
    sealed(first)
    crashes, is_whole = 0, False
    while not is_whole:
        disk = first.copy()
        disk.crash_at = disk.operations + crashes + 1
        try:
            writer_on(disk).write(FOLDER, Log.open(SOURCE, disk).segments[0], NOW_US)
            is_whole = True
        except SimulatedCrash:
            crashes += 1
        disk.crash(power=True)
        if PATH.name in disk.names(FOLDER):
            check_archive(disk, PATH)
        else:
            assert not is_whole
        footer = writer_on(disk).write(FOLDER, Log.open(SOURCE, disk).segments[0], NOW_US)
        assert check_archive(disk, PATH).crc32c == footer.crc32c
    assert crashes > 5


def test_a_copy_has_the_bytes_of_its_source_and_its_name_when_it_is_finished() -> None:
    source, disk = SimulatedDisk(), SimulatedDisk()
    writer_on(source).write(FOLDER, sealed(source), NOW_US)
    writer = writer_on(disk)
    writer.begin_copy(PART)
    writer.append_copy(PART, source.read_all(PATH))
    assert disk.names(FOLDER) == [PART.name]
    writer.finish_copy(PART, PATH, row_of(source))
    assert disk.names(FOLDER) == [PATH.name]
    disk.crash(power=True)
    assert disk.read_all(PATH) == source.read_all(PATH)


def test_a_copy_begins_anew_after_an_interrupted_one() -> None:
    source, disk = SimulatedDisk(), SimulatedDisk()
    writer_on(source).write(FOLDER, sealed(source), NOW_US)
    writer_on(disk).begin_copy(PART)
    writer_on(disk).append_copy(PART, b"of an earlier copy")
    copy_of(source.read_all(PATH), disk, row_of(source))
    assert disk.read_all(PATH) == source.read_all(PATH)


def test_a_copy_of_another_time_is_the_same_file() -> None:
    source, disk = SimulatedDisk(), SimulatedDisk()
    writer_on(source).write(FOLDER, sealed(source), NOW_US)
    copy_of(source.read_all(PATH), disk, row_of(source)._replace(archived_at_us=1))
    assert disk.names(FOLDER) == [PATH.name]


def test_a_copy_that_differs_from_the_manifest_is_removed() -> None:
    source, other, disk = SimulatedDisk(), SimulatedDisk(), SimulatedDisk()
    writer_on(source).write(FOLDER, sealed(source), NOW_US)
    writer_on(other).write(FOLDER, sealed(other, seed=8), NOW_US)
    with pytest.raises(CorruptData, match="differs from the manifest of the other node"):
        copy_of(other.read_all(PATH), disk, row_of(source))
    assert disk.names(FOLDER) == []


def test_a_copy_that_is_damaged_gets_no_name() -> None:
    source, disk = SimulatedDisk(), SimulatedDisk()
    writer_on(source).write(FOLDER, sealed(source), NOW_US)
    data = bytearray(source.read_all(PATH))
    data[50] ^= 1
    with pytest.raises(CorruptData):
        copy_of(bytes(data), disk, row_of(source))
    assert PATH.name not in disk.names(FOLDER)
