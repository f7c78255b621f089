from __future__ import annotations

import random

import pytest

from goq.broker.partition.group_view import Run, _minus


def runs(offsets: set[int], rng: random.Random) -> list[Run]:
    """Offsets as runs in order, some of which touch."""
    found: list[Run] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset and rng.random() < 0.7:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_runs_without_holes_are_what_sets_say(seed: int) -> None:
    rng = random.Random(seed)
    some, others = ({o for o in range(30) if rng.random() < rng.random()} for _ in range(2))
    left = list(_minus(runs(some, rng), runs(others, rng)))
    assert [o for run in left for o in range(*run)] == sorted(some - others)
    assert all(start < end for start, end in left)
