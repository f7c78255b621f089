"""A Raft group under faults, from seeds: what was acknowledged stays, and all agree.

``python -m tests.cluster.raft.fuzz --seeds A-B`` runs more of them, and one with its log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pysyncobj.syncobj
import pytest

from tests.cluster.raft.fuzz.libraries.ablation import ABLATIONS
from tests.cluster.raft.fuzz.libraries.hardened import Hardened
from tests.cluster.raft.fuzz.libraries.stock import Stock
from tests.cluster.raft.fuzz.profile import PROFILES, any_profile, gentle_profile
from tests.cluster.raft.fuzz.run import run
from tests.support.effort import first_of
from tests.support.paths import REPOSITORY


def check_seeds(profile: str, seeds: range) -> Counter[str]:
    """Run the seeds, each of which must keep every promise; return what happened in them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed, Hardened(), PROFILES[profile](seed))
        assert not outcome.broken, f"seed {seed} of {profile}: {outcome.broken[:3]}"
        counts += outcome.counts
    print(profile, seeds, dict(sorted(counts.items())))
    return counts


# The simulation


@pytest.mark.parametrize("library", [Stock, Hardened])
def test_a_seed_gives_the_same_history_each_time(library: type[Stock] | type[Hardened]) -> None:
    first = run(5, library(), any_profile(5))
    assert run(5, library(), any_profile(5)) == first
    assert run(6, library(), any_profile(6)).history != first.history


def test_a_seed_gives_the_same_history_in_another_process() -> None:
    code = (
        "from tests.cluster.raft.fuzz.libraries.hardened import Hardened;"
        "from tests.cluster.raft.fuzz.profile import any_profile;"
        "from tests.cluster.raft.fuzz.run import run;"
        "print(run(5, Hardened(), any_profile(5)).history)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    assert output.stdout.decode().strip() == run(5, Hardened(), any_profile(5)).history


def test_the_library_lives_on_the_machine_again_after_a_run() -> None:
    before = dict(vars(pysyncobj.syncobj))
    run(1, Hardened(), any_profile(1))
    assert vars(pysyncobj.syncobj) == before
    assert pysyncobj.syncobj.monotonicTime() <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


# The library as it is sold


STOCK_SEEDS = [
    (1, "applied"),
    (7, "cut its log"),
    (13, "committed term"),
    (18, "without committed entries"),
]


@pytest.mark.parametrize(("seed", "what"), STOCK_SEEDS)
def test_the_library_as_it_is_sold_breaks_its_promises(seed: int, what: str) -> None:
    assert what in run(seed, Stock(), gentle_profile(seed)).broken[0]
    assert run(seed, Hardened(), gentle_profile(seed)).broken == []


# goq's node without one of its mends

BITES = {  # the profile, and the seed that found it last: others are tried if it does not any more
    "cuts whatever follows": ("crossing", 4),
    "commits what nobody vouched for": ("any", 31),
    "drops the log after a snapshot": ("power", 2),
    "goes back step by step": ("crossing", 18),
    "goes back for each answer": ("crossing", 2),
    "stumbles over poison": ("any", 1),
    "syncs nothing": ("power", 2),
    "checks nothing": ("power", 4),
    "trusts what a failed sync left": ("disk", 4),
    "gives snapshots up for nothing": ("member", 7),
}


@pytest.mark.parametrize("mend", first_of(list(BITES), quick=3))
def test_the_fuzz_fails_without_a_mend(mend: str) -> None:
    name, likely = BITES[mend]
    profile = PROFILES[name]
    with ABLATIONS[mend]():
        assert any(run(seed, Hardened(), profile(seed)).broken for seed in (likely, *range(1, 61)))


# goq's node


@pytest.mark.parametrize("first", first_of(range(1, 201, 40), quick=1))
def test_goq_keeps_its_promises_whatever_breaks(first: int) -> None:
    counts = check_seeds("any", range(first, first + 40))
    for what in ("acknowledged", "elections", "kills", "power losses", "snapshots restored",
                 "members added", "members removed", "disk errors", "truncations"):  # fmt: skip
        assert counts[what], f"no {what} in 40 seeds: they try too little"


@pytest.mark.parametrize("first", first_of(range(1, 21, 5), quick=1))
@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"any"}))
def test_goq_keeps_its_promises_when_one_kind_of_thing_breaks_much(
    profile: str, first: int
) -> None:
    check_seeds(profile, range(first, first + 5))


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("first", range(1001, 2001, 200))
def test_goq_keeps_its_promises_in_thousands_of_seeds(profile: str, first: int) -> None:
    check_seeds(profile, range(first, first + 200))
