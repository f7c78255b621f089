"""How many entries a part of a file of keys takes."""

from __future__ import annotations

import numpy as np
import pytest

from goq import limits
from goq.storage.key_index.extract import NO_FRAME, NO_TIMES, PartBuilder
from goq.storage.key_index.file import (
    DISTANCE_MAX,
    KeyEntries,
    PartRange,
    SegmentPosition,
)

START = SegmentPosition(0, 100)
FRAMES = PartRange(START, START, NO_FRAME, NO_TIMES)


def entries(*offsets: int) -> KeyEntries:
    return KeyEntries(np.zeros((len(offsets), 2), np.uint64), np.array(offsets, np.int64))


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.parametrize(("distance", "fits"), [(DISTANCE_MAX, True), (DISTANCE_MAX + 1, False)])
def test_a_part_has_room_for_entries_whose_offsets_are_near_enough_to_its_first(
    table: int, distance: int, fits: bool
) -> None:
    part = PartBuilder(START)
    part.add((entries(120), entries(100, 110)), FRAMES)
    tables = [entries(130), entries(130)]
    tables[table] = entries(140, 100 + distance)
    assert part.has_room_for((tables[0], tables[1])) is fits
    assert part.has_room_for((entries(), entries()))
    assert PartBuilder(START).has_room_for((tables[0], tables[1]))


def test_a_part_has_room_for_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_PART_ENTRIES", 5)
    part = PartBuilder(START)
    part.add((entries(100), entries(100, 101)), FRAMES)
    assert part.has_room_for((entries(102), entries(103)))
    assert not part.has_room_for((entries(102, 104), entries(103)))
