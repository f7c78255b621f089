"""Which files are the segments of a log, by their names, and which an interruption left."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import (
    is_listed,
    list_segments,
    remove_leftovers,
    remove_merge_markers,
)
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/t/0/messages")


def log(offset: int, generation: int = 0, suffix: str = ".log") -> str:
    return f"{offset:020d}" + (f".{generation}" if generation else "") + suffix


def merged(offset: int, generation: int, end: int, *, temporary: bool = False) -> str:
    return log(offset, generation, f".merged-{end:020d}" + ".new" * temporary)


def disk_with(*names: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    for number, name in enumerate(names, 1):
        disk.put(FOLDER / name, bytes(number))
    return disk


def listed(*names: str) -> list[tuple[int, int, int]]:
    """Return base offset, generation and size of the segments that some files are."""
    return [
        (each.base_offset, each.generation, each.size_bytes)
        for each in list_segments(disk_with(*names), FOLDER)
    ]


def test_segments_are_in_order_each_in_its_newest_generation_with_its_own_size() -> None:
    names = (log(20), log(0), log(0, 2), log(10, 1), log(0, 1), log(10))
    assert listed(*names) == [(0, 2, 3), (10, 1, 4), (20, 0, 1)]
    segments = list_segments(disk_with(*names), FOLDER)
    assert [each.end_offset for each in segments[:2]] == [10, 20]


@pytest.mark.parametrize(
    "name",
    [
        "0.log",
        "00000000000000000000.01.log",
        "00000000000000000000.0.log",
        "00000000000000000000.1234567890.log",
        "99999999999999999999.log",
        "09223372036854775808.log",
        "00000000000000000000.index",
        "00000000000000000000.log.new",
        "x00000000000000000000.log",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert listed(name) == []


def test_the_last_offset_that_there_can_be_is_the_name_of_a_segment() -> None:
    assert listed("09223372036854775807.log") == [(2**63 - 1, 0, 1)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([log(0, 1), merged(0, 1, 30), log(10), log(20), log(30)], [0, 30]),
        ([log(0, 2), merged(0, 1, 30), log(10), log(30)], [0, 30]),  # rewritten since
        ([log(0), merged(0, 1, 30), log(10), log(30)], [0, 10, 30]),  # it has no file yet
        ([log(0, 1), merged(0, 1, 20), log(10), log(20)], [0, 20]),
    ],
)
def test_a_segment_that_holds_others_counts_instead_of_them(
    names: list[str], found: list[int]
) -> None:
    assert [base for base, _, _ in listed(*names)] == found
    disk = disk_with(*names)
    left = remove_leftovers(disk, FOLDER)
    assert left == disk.names(FOLDER)
    assert not [name for name in left if "merged" in name]
    assert [each.base_offset for each in list_segments(disk, FOLDER)] == found


def test_only_what_an_interruption_left_is_removed() -> None:
    stays = [log(0, 2), log(0, 2, ".index"), log(10), log(10, 0, ".keys"), "other", log(0, 1, ".x")]
    goes = [
        log(0),
        log(0, 1),
        log(0, 1, ".index"),
        log(0, 1, ".index.new"),
        log(0, 0, ".keys"),
        log(0, 3, ".log.new"),
        log(10, 0, ".log.new"),
        merged(0, 2, 10),
        merged(0, 3, 20, temporary=True),
    ]
    disk = disk_with(*stays, *goes)
    assert remove_leftovers(disk, FOLDER) == disk.names(FOLDER) == sorted(stays)
    assert remove_leftovers(disk, FOLDER) == sorted(stays)


def test_markers_go_after_the_segments_that_they_make_superfluous() -> None:
    removed: list[str] = []
    disk = disk_with(log(0, 1), merged(0, 1, 30), log(10), log(20, 0, ".index"), log(20))
    remove = disk.remove

    def note(path: Path) -> None:
        removed.append(path.name)
        remove(path)

    disk.remove = note
    remove_leftovers(disk, FOLDER)
    assert removed[-1] == merged(0, 1, 30)
    assert sorted(removed[:-1]) == sorted([log(10), log(20), log(20, 0, ".index")])


def test_a_generation_gets_its_name_without_a_marker_of_an_earlier_merge() -> None:
    names = [merged(0, 2, 30), merged(0, 1, 20), merged(10, 2, 30), log(0, 2, ".index")]
    disk = disk_with(*names)
    remove_merge_markers(disk, Segment(FOLDER, 0, 2))
    assert disk.names(FOLDER) == sorted(names[1:])


@pytest.mark.parametrize(
    ("base", "end", "expected"),
    [
        (10, 20, True),
        (20, 30, True),
        (25, 40, True),  # was merged into the one that begins at 20
        (25, 41, False),
        (15, 18, False),  # the one before is no merged one
        (5, 10, False),
    ],
)
def test_a_segment_is_listed_by_itself_or_in_one_that_holds_it(
    base: int, end: int, expected: bool
) -> None:
    disk = disk_with()
    segments = [Segment(FOLDER, 10), Segment(FOLDER, 20, 1)]
    index = SparseIndex()
    index.add(IndexEntry(40, 0, 0), always=True)
    for segment in segments:
        segment.index = index
    assert is_listed(disk, segments, base, end) is expected


def test_a_file_that_a_running_node_replaces_meanwhile_is_looked_for_again() -> None:
    disk = disk_with(log(0), log(10))
    size = disk.size

    def rewritten(path: Path) -> int:
        if path.name == log(0):
            disk.remove(path)
            disk.put(FOLDER / log(0, 1), b"rewritten")
        return size(path)

    disk.size = rewritten
    found = list_segments(disk, FOLDER)
    assert [(each.base_offset, each.generation) for each in found] == [(0, 1), (10, 0)]

    def gone(path: Path) -> int:
        raise FileNotFoundError(path)

    disk.size = gone
    with pytest.raises(FileNotFoundError):
        list_segments(disk, FOLDER)
