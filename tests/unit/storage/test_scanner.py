"""Reading on behind damage; and the known damage of a log: each place once, until it is gone."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.frame.header import HEADER_BYTES
from goq.frame.view import FrameView
from goq.storage.disk import NotCached
from goq.storage.scanner import BadRegion, Damage, DamageRegistry, Scanner
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import frame_of

PATH = Path("/0.log")


def region(start: int, end: int | None) -> BadRegion:
    return BadRegion(start, start + 1, start, end, "bad")


def test_damage_is_known_once_with_its_place_and_reason() -> None:
    registry = DamageRegistry([])
    found = registry.record(PATH, region(3, 5), 100)
    assert found == Damage(PATH, 3, 4, 3, 5, "bad")
    assert registry.record(PATH, region(3, 5), 100) is found
    other = registry.record(PATH, region(3, None), 100)
    assert (other.start_offset, other.end_offset) == (3, 100)
    assert registry.items == [found, other]


@pytest.mark.parametrize("seed", range(30))
def test_what_overlaps_repaired_offsets_is_forgotten(seed: int) -> None:
    chance = Random(seed)
    registry = DamageRegistry([])
    for _ in range(8):
        start = chance.randrange(20)
        registry.record(PATH, region(start, start + chance.randrange(1, 4)), 100)
    known = list(registry.items)
    start = chance.randrange(20)
    end = start + chance.randrange(1, 5)
    registry.clear(start, end)
    repaired = set(range(start, end))
    assert registry.items == [
        each for each in known if not repaired & set(range(each.start_offset, each.end_offset))
    ]


def stamped(offset: int, *values: bytes) -> bytes:
    view = FrameView.parse(frame_of(values))
    header = view.header._replace(base_offset=offset, append_time_us=1, leader_epoch=1)
    return header.pack() + view.body


def scanned(data: bytes, *damaged_at: int) -> list[BadRegion | tuple[int, int]]:
    """Return what a file holds, with some damaged bytes: bad regions, and offsets of frames."""
    disk = SimulatedDisk()
    disk.put(PATH, data)
    for position in damaged_at:
        disk.flip(PATH, position, 1)
    return [
        place._replace(reason="")
        if isinstance(place, BadRegion)
        else (place.view.header.base_offset, place.view.header.end_offset)
        for place in Scanner(disk, PATH, len(data)).frames(0, 0)
    ]


def test_behind_a_damaged_header_the_next_frame_is_found_also_if_it_is_the_last() -> None:
    first, second, third = stamped(0, b"a", b"b"), stamped(2, b"c"), stamped(3, b"d")
    region = BadRegion(0, len(first), 0, 2, "")
    assert scanned(first + second, 5) == [region, (2, 3)]
    assert scanned(first + second + third, 5) == [region, (2, 3), (3, 4)]


def test_a_frame_in_a_message_is_not_taken_for_the_next_frame() -> None:
    for inner in (stamped(7, b"x"), stamped(0, b"x"), stamped(1, b"x") * 2):
        first, second = stamped(0, inner), stamped(1, b"c")
        assert scanned(first + second, 5) == [BadRegion(0, len(first), 0, 1, ""), (1, 2)]


def test_a_frame_that_repeats_the_damaged_offset_is_not_taken_for_the_next_one() -> None:
    first, again = stamped(0, b"a"), stamped(0, b"a")
    assert scanned(first + again, 5) == [BadRegion(0, 2 * len(first), 0, None, "")]


def test_a_frame_with_a_damaged_body_is_not_what_reading_continues_with() -> None:
    first, second, third = stamped(0, b"a"), stamped(1, b"b"), stamped(2, b"c")
    found = scanned(first + second + third, 5, len(first) + HEADER_BYTES)
    assert found == [BadRegion(0, len(first + second), 0, 2, ""), (2, 3)]


def test_a_frame_that_is_cut_off_is_not_what_reading_continues_with() -> None:
    first, second = stamped(0, b"a"), stamped(1, b"b" * 100)
    data = first + second[:-8]
    assert scanned(data, 5) == [BadRegion(0, len(data), 0, None, "")]


@pytest.mark.parametrize("distance", [-64, -8, 0, 8, 16, 24])
def test_the_next_frame_is_found_wherever_it_lies_in_the_pieces_that_are_read(
    distance: int,
) -> None:
    first = stamped(0, bytes(limits.MIB + distance - len(stamped(0, b""))))
    assert abs(len(first) - limits.MIB - distance) <= 8
    assert scanned(first + stamped(1, b"c"), 5) == [BadRegion(0, len(first), 0, 1, ""), (1, 2)]


@pytest.mark.parametrize("spare_bytes", [0, -1], ids=["as much", "more"])
def test_a_scan_that_may_not_wait_reads_a_bounded_part_at_once(
    monkeypatch: pytest.MonkeyPatch, spare_bytes: int
) -> None:
    disk, data = SimulatedDisk(), frame_of([b"a message"])
    disk.put(PATH, data)
    monkeypatch.setattr(limits, "READ_AT_ONCE_BYTES", len(data) + spare_bytes)
    scanner = Scanner(disk, PATH, len(data), wait=False)
    if spare_bytes < 0:
        with pytest.raises(NotCached):
            list(scanner.frames(0, 0))
    else:
        assert [type(each).__name__ for each in scanner.frames(0, 0)] == ["ScannedFrame"]
    waiting = Scanner(disk, PATH, len(data))
    assert [type(each).__name__ for each in waiting.frames(0, 0)] == ["ScannedFrame"]
