"""A whole cluster under faults, from seeds: what was acknowledged stays, and all agree.

``python -m tests.sim --seeds A-B`` runs more of them, and one with its history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pysyncobj.syncobj
import pytest

from goq import limits
from goq.broker import broker
from goq.cluster import bootstrap as membership
from goq.cluster.replication.push.sender import PushSender
from tests.sim.__main__ import main
from tests.sim.faults.operators import Operators
from tests.sim.mutations import MUTATIONS, large_batches, slow_threads
from tests.sim.run import Outcome, run
from tests.support.effort import first_of
from tests.support.paths import REPOSITORY

SEEDS = 60
AT_ONCE = 6
LONE_SEEDS = 6
_MUTATION_SEEDS = 60
_COVERING_SEEDS = range(1, 31)  # four are enough as a rule: each sees each fault once
_COVERED = (
    "acks acknowledged",
    "answers lost",
    "bytes not synced when the power went",
    "calls repeated",
    "changes of leaders",
    "disk errors",
    "disks lost",
    "elections of Raft",
    "ends within an operation",
    "frames repaired",
    "kills",
    "logs cut",
    "nodes joined",
    "nodes left",
    "power losses",
    "publishes sent again",
    "redeliveries",
    "snapshots taken over",
    "streams between nodes",
    "calls that arrived late",
    "fault: cut one port of a link",
    "fault: cut one port of a node",
    "fault: cut one port of the controller",
    "fault: cut one way",
    "fault: fill a disk",
    "fault: hold a leader",
    "fault: isolate the controller",
    "fault: jump a clock",
    "fault: leave a bridge",
    "fault: move a leadership",
    "fault: move a partition",
    "fault: rebalance",
    "fault: slow a disk",
    "fault: slow links",
    "fault: stop and start",
)


def check_seeds(seeds: range) -> Counter[str]:
    """Run the seeds, each of which must keep every promise; return what happened in them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed)
        replay = f"replay it: python -m tests.sim --seeds {seed}"
        assert not outcome.broken, f"seed {seed}: {outcome.broken[:3]}; {replay}"
        counts += outcome.counts
    return counts


# The simulation


def test_a_seed_gives_the_same_history_each_time() -> None:
    first = run(5)
    again = run(5)
    assert again == first
    assert run(6).history != first.history


@pytest.mark.parametrize("hash_seed", first_of(["1", "2"], quick=1))
def test_a_seed_gives_the_same_history_in_another_process(hash_seed: str) -> None:
    code = "from tests.sim.run import run; print(run(302).history)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    assert output.stdout.decode().strip() == run(302).history


def test_a_failing_life_names_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_badly(seed: int, **_options: object) -> Outcome:
        return Outcome(seed, ["a promise"], "", Counter(), 1.0)

    monkeypatch.setattr("tests.sim.run.run", run_badly)
    monkeypatch.setattr(sys, "argv", ["tests.sim", "--seeds", "7-7", "--each-fault", "--long"])
    assert main() == 1
    replay = "replay it: python -m tests.sim --seeds 7 --each-fault --long\n"
    assert replay in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "skewed", "lost", "can_lose"),
    [
        ("abc", None, "c", True),
        ("abc", "a", "c", True),  # nothing moves: two nodes stay
        ("abcd", None, "c", True),
        ("abcd", "a", "c", False),  # what c had waits for the clock of a
        ("abcd", "a", "a", True),
        ("abcde", "a", "c", True),
    ],
)
def test_no_disk_is_lost_of_which_only_a_node_with_a_wrong_clock_could_take_the_replicas(
    monkeypatch: pytest.MonkeyPatch, names: str, skewed: str | None, lost: str, can_lose: bool
) -> None:
    cluster: Any = SimpleNamespace(names=list(names), skewed=skewed)
    nothing: Any = None
    operators = Operators(cluster, nothing, nothing)
    monkeypatch.setattr(operators, "_have_others_all", lambda _name: True)
    assert operators.can_lose(lost) == can_lose


def test_the_product_lives_on_the_machine_again_after_a_life() -> None:
    modules = (broker, limits, membership, pysyncobj.syncobj)
    before = [dict(vars(module)) for module in modules]
    run(2)
    assert [dict(vars(module)) for module in modules] == before


# The cluster


@pytest.mark.parametrize("first", first_of(range(1, SEEDS + 1, AT_ONCE), quick=1))
def test_the_cluster_keeps_its_promises_whatever_breaks(first: int) -> None:
    counts = check_seeds(range(first, first + AT_ONCE))
    assert counts["messages acknowledged"] > 50 * AT_ONCE


@pytest.mark.long
def test_everything_that_can_break_has_broken() -> None:
    counts: Counter[str] = Counter()
    for seed in _COVERING_SEEDS:
        outcome = run(seed, each_fault=True)
        assert not outcome.broken, f"seed {seed} with each fault: {outcome.broken[:3]}"
        counts += outcome.counts
        missing = [what for what in _COVERED if not counts[what]]
        if not missing:
            return
    pytest.fail(f"has not happened in any life: {missing}")


@pytest.mark.parametrize("seed", first_of(range(1, LONE_SEEDS + 1), quick=1))
def test_the_other_nodes_publish_while_one_is_struck(seed: int) -> None:
    assert run(seed, lone_fault=True).broken == []


@pytest.mark.parametrize("seed", first_of(range(1, 41), quick=1))
@pytest.mark.parametrize("lone_fault", [False, True])
def test_what_dies_has_one_dead_letter_and_each_letter_one_copy(
    seed: int, lone_fault: bool
) -> None:
    outcome = run(seed, dead_letters=True, lone_fault=lone_fault)
    assert not outcome.broken, f"seed {seed}: {outcome.broken[:3]}"


@pytest.mark.parametrize("first", first_of(range(1, 81, 4), quick=1))
def test_every_node_answers_by_each_acknowledged_change(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 4):
        outcome = run(seed, alterations=True)
        assert not outcome.broken, f"seed {seed}: {outcome.broken[:3]}"
        counts += outcome.counts
    assert counts["settings altered"] > 10


@pytest.mark.long
@pytest.mark.parametrize("first", range(1001, 2001, 100))
def test_the_cluster_keeps_its_promises_in_many_lives(first: int) -> None:
    check_seeds(range(first, first + 100))


# The cluster without one of its rules

_LIKELY = {
    "a leader refuses though it may be deposed": (53, 62, 82, 88),
    "a leader shows what it alone has": (1, 2, 3),
    "clocks are not compared": (6, 11, 15),
    "epochs are not looked at": (2, 4, 5),
    "leases keep the old clock": (11,),
    "logs are not cut where they part": (5, 6, 12),
    "some of the in-sync set are enough": (2, 3, 4),
    "topics are visited as they were made": (9, 17, 23),
}

_LONE_LIKELY = {
    "a leader counts what it has not synced": (1, 2, 3),
    "a follower reports what it has not synced": (1, 2, 3),
    "a report counts for all pushes before it": (3,),
    "a deaf controller stays": (3, 12),
    "a node that hears no Raft may lead": (52,),
}
"""Lives with one long fault only."""

_ALTERED_LIKELY = {
    "sessions outlast the lease of their controller": (28, 52, 53),
}
"""Lives in which the topic is altered all the time."""

_MORTAL_LIKELY = {
    "a dead letter leaves before it is safe": (True, (14, 9)),
    "a redrive is acknowledged before it is safe": (True, (18, 9)),
    "an outbox does not look at its target": (False, (4, 22, 35)),
}
"""Lives with dead letters, of which some have one long fault only."""


def _fails_without(rule: str) -> bool:
    """Whether some life finds it: most soon one of those with each fault.

    Few lives find some rules. The ones that found them last are tried first.
    """
    with MUTATIONS[rule]():
        if rule in _LONE_LIKELY:
            seeds = (*_LONE_LIKELY[rule], *range(1, _MUTATION_SEEDS + 1))
            return any(run(seed, lone_fault=True).broken for seed in seeds)
        if rule in _ALTERED_LIKELY:
            seeds = (*_ALTERED_LIKELY[rule], *range(1, _MUTATION_SEEDS + 1))
            return any(run(seed, alterations=True).broken for seed in seeds)
        if rule in _MORTAL_LIKELY:
            is_lone, likely = _MORTAL_LIKELY[rule]
            seeds = (*likely, *range(1, _MUTATION_SEEDS + 1))
            return any(run(s, lone_fault=is_lone, dead_letters=True).broken for s in seeds)
        if any(run(seed).broken for seed in _LIKELY.get(rule, ())):
            return True
        if any(run(seed, each_fault=True).broken for seed in (1, 2)):
            return True
        return any(run(seed).broken for seed in range(1, _MUTATION_SEEDS + 1))


@pytest.mark.parametrize("seed", first_of((1, 2, 3), quick=1))
def test_slow_threads_alone_are_no_fault(seed: int) -> None:
    with slow_threads():
        assert run(seed, lone_fault=True).broken == []


def test_pushes_that_are_reported_before_earlier_ones_are_no_fault() -> None:
    original, early = PushSender.on_stored, Counter[int]()

    def on_stored(self: PushSender, number: int, others: Sequence[int] = ()) -> None:
        early.update(others)
        original(self, number, others)

    with large_batches(), patch.object(PushSender, "on_stored", on_stored):
        assert run(3, lone_fault=True).broken == []
    assert early, "no push was reported before an earlier one in this life"


_DIVERGING_SEEDS = (9, 17, 23)


def test_nodes_whose_metadata_forks_heal_and_lose_nothing() -> None:
    with MUTATIONS["topics are visited as they were made"]():
        outcomes = [run(seed, may_diverge=True) for seed in _DIVERGING_SEEDS]
    assert [outcome.broken for outcome in outcomes] == [[]] * len(outcomes)
    aside = [outcome.counts["files set aside"] for outcome in outcomes]
    assert sum(aside) > 0, "no metadata has forked in these lives"


_LONG = {
    "a dead letter leaves before it is safe",
    "a leader counts what it has not synced",
    "a report counts for all pushes before it",
    "a redrive is acknowledged before it is safe",
    "followers count before they are looked at",
    "nobody syncs",
    "raft answers before it syncs",
}
"""Each takes several seconds."""


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.long] * (rule in _LONG)) for rule in MUTATIONS],
)
def test_without_this_rule_a_fault_is_found(rule: str) -> None:
    assert _fails_without(rule)
