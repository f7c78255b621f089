"""A Raft group under faults, from seeds: what was acknowledged stays, and all agree."""

from __future__ import annotations

import time

import pysyncobj.syncobj
import pytest
from fuzz.profile import any_profile, gentle_profile
from fuzz.run import run
from fuzz.stock import Stock


@pytest.mark.parametrize("seed", [5, 7])
def test_a_seed_gives_the_same_history_each_time(seed: int) -> None:
    first = run(seed, Stock(), gentle_profile(seed))
    assert run(seed, Stock(), gentle_profile(seed)) == first
    assert run(seed + 1, Stock(), gentle_profile(seed + 1)).history != first.history


def test_the_library_lives_on_the_machine_again_after_a_run() -> None:
    before = dict(vars(pysyncobj.syncobj))
    run(1, Stock(), any_profile(1))
    assert vars(pysyncobj.syncobj) == before
    assert pysyncobj.syncobj.monotonicTime() <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (3, "without committed entries"),
        (7, "cut its log"),
        (14, "applied"),
        (15, "came back without"),
    ],
)
def test_the_library_as_it_is_sold_breaks_what_it_promised(seed: int, what: str) -> None:
    assert what in run(seed, Stock(), gentle_profile(seed)).broken[0]
