"""Small neighbours become one segment, and each offset is in one, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from goq.errors import CorruptData
from goq.frame.encoder import Columns, encode_frame
from goq.storage.compaction.cleaner import CleanerCheckpoint
from goq.storage.compaction.segment_merger import merge_segments, mergeable, remove_merged
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import is_listed
from goq.storage.verification import verify_log
from tests.support.storage.compaction import (
    CONFIG,
    Case,
    Put,
    check_files,
    check_nothing_comes_back,
    merge,
    pass_over,
    served,
)
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append


def segments_of_sizes(*sizes: int, gap_after: int | None = None) -> list[Segment]:
    found, offset = list[Segment](), 0
    for number, size_bytes in enumerate(sizes):
        segment = Segment(DIRECTORY, offset)
        segment.size_bytes, segment.end_offset = size_bytes, offset + 10
        offset += 10 + 5 * (number == gap_after)
        found.append(segment)
    return found


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "groups"),
    [
        ([], 100, []),
        ([50, 25], 100, [2]),
        ([51, 25], 100, [1, 1]),
        ([50, 50], 100, [2]),
        ([50, 50], 99, [1, 1]),
        ([1, 100], 101, [2]),
        ([100, 1, 1, 1, 1], 200, [1, 3, 1]),
        ([100, 25, 25], 200, [3]),
        ([1] * 100, 1000, [89, 8, 3]),
    ],
)
def test_neighbours_are_joined_while_the_one_before_is_at_most_twice_as_large(
    sizes: list[int], bytes_max: int, groups: list[int]
) -> None:
    assert [len(each) for each in mergeable(segments_of_sizes(*sizes), bytes_max)] == groups


def test_segments_with_missing_offsets_between_them_are_not_joined() -> None:
    segments = segments_of_sizes(1, 1, 1, gap_after=1)
    assert [len(each) for each in mergeable(segments, 100)] == [2, 1]


def written_again_and_again(rounds: int) -> Case:
    """Return a log whose four keys were written and compacted so often."""
    case = Case(7)
    for _ in range(rounds):
        write_again(case)
        case.progress = pass_over(case.disk, case.log, case.progress, case.now_us)
    return case


def write_again(case: Case, *keys: bytes) -> None:
    """Write keys, four if none are given, in a frame each, and seal the segment."""
    for key in keys or [b"key-%d" % number for number in range(4)]:
        case.now_us += 1
        value = b"value" * 60
        frame = encode_frame(Columns([value], [key]))
        offset = append(case.log, [frame], time_us=case.now_us)
        older = [each for each, put in case.present.items() if put.key == key]
        case.present[offset] = Put(key, value, case.now_us, 0)
        for each in older:
            del case.present[each]
    case.log.roll()


def test_segments_that_lost_nearly_all_do_not_stay_apart() -> None:
    case = written_again_and_again(160)
    size_bytes = sum(segment.size_bytes for segment in case.log.segments)
    assert len(case.log.segments) <= 2 * size_bytes / CONFIG.segment_bytes + 4 < 160 / 4


def test_a_merged_segment_serves_what_its_parts_had_also_after_an_open() -> None:
    case = written_again_and_again(10)
    case.check()
    assert any(segment.generation and segment.message_count > 20 for segment in case.log.segments)
    case.reopen()
    case.check()
    check_files(case)


def test_a_crash_while_segments_are_merged_leaves_each_offset_in_one_segment() -> None:
    for number in range(1, 10_000):
        case = written_again_and_again(6)
        before = served(case.log)
        write_again(case)
        before |= served(case.log)
        case.disk.crash_at = case.disk.operations + number
        try:
            pass_over(case.disk, case.log, case.progress, case.now_us)
        except SimulatedCrash:
            case.disk.crash(power=bool(number % 2))
        else:
            break
        assert not verify_log(case.disk, DIRECTORY).damage
        case.log = Log.open(DIRECTORY, case.disk, CONFIG)
        assert not case.log.damage
        check_nothing_comes_back(before, served(case.log))
        check_files(case)
    assert number > 10


def test_a_merge_that_failed_does_not_count_for_a_later_rewrite() -> None:
    for number in range(1, 10_000):
        case = Case(7)
        disk = case.disk
        for key in (b"first", b"second"):
            write_again(case, key)
        fail_between_marker_and_name(disk)
        with pytest.raises(OSError, match="error"):
            pass_over(disk, case.log, case.progress, case.now_us)
        assert has_marker(disk)
        disk.fault = lambda _operation, _path: None
        write_again(case, b"first")
        before = served(case.log)
        case.disk.crash_at = case.disk.operations + number
        try:
            pass_over(case.disk, case.log, CleanerCheckpoint(), case.now_us)
        except SimulatedCrash:
            case.disk.crash(power=bool(number % 2))
        else:
            break
        case.log = Log.open(DIRECTORY, case.disk, CONFIG)
        assert not case.log.damage
        found = served(case.log)
        check_nothing_comes_back(before, found)
        assert case.present.items() <= found.items()
        check_files(case)
    assert number > 10


def fail_between_marker_and_name(disk: SimulatedDisk) -> None:
    disk.fault = lambda done, _path: 5 if done == "rename" and has_marker(disk) else None


def has_marker(disk: SimulatedDisk) -> bool:
    return any(path.suffix.startswith(".merged-") for path in disk.paths())


def contents(case: Case) -> dict[str, bytes]:
    """Return each file of the log."""
    return {path.name: bytes(case.disk.read_all(path)) for path in case.disk.paths()}


def test_segments_with_damaged_bytes_are_not_merged_and_lose_nothing() -> None:
    for damaged in range(2):
        case = Case(7)
        for key in (b"first", b"second"):
            write_again(case, key)
        segments = case.log.segments[:-1]
        case.disk.flip(segments[damaged].path, segments[damaged].size_bytes - 1, 1)
        before = contents(case)
        with pytest.raises(CorruptData, match=str(segments[damaged].path)):
            merge(case.disk, case.log, segments)
        assert contents(case) == before
        pass_over(case.disk, case.log, case.progress, case.now_us)
        assert case.log.segments[:-1] == segments


def test_a_merge_that_is_stopped_between_two_frames_leaves_all_as_it_was() -> None:
    frames = 5
    for number in range(frames + 1):
        case = Case(7)
        write_again(case, b"first", b"second")
        write_again(case, b"third", b"fourth", b"fifth")
        before, left = contents(case), iter(range(number))

        def pause(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Stopped

        segments = case.log.segments[:-1]
        try:
            new = merge_segments(case.disk, segments, pause, time_before_us=0)
        except Stopped:
            assert contents(case) == before
        else:
            break
    assert number == frames
    assert has_marker(case.disk)
    remove_merged(case.disk, segments, new)
    case.log = Log.open(DIRECTORY, case.disk, CONFIG)
    case.check()
    check_files(case)


class Stopped(Exception):
    """The caller of a merge has no time for it."""


def test_a_segment_that_vanished_behind_a_rewritten_one_is_missed() -> None:
    case = written_again_and_again(10)
    merged, after = next(
        (one, two) for one, two in pairwise(case.log.segments[:-1]) if one.generation
    )
    listed = case.log.segments
    assert is_listed(case.disk, listed, merged.base_offset + 1, merged.end_offset)
    left = [segment for segment in listed if segment is not after]
    merged.end_offset = after.end_offset  # as an open takes it, from the next file's name
    assert not is_listed(case.disk, left, after.base_offset, after.end_offset)
    assert not is_listed(case.disk, left[1:], merged.base_offset, merged.end_offset)
