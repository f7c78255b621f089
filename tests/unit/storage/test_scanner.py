"""The known damage of a log: each place once, until it is repaired or gone."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.storage.scanner import BadRegion, Damage, DamageRegistry

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
