"""A coordinator against its naive twin, over random histories."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.delivery.members_model import Pair

NAMES = ["ann", "bob", "cy", "di", "eve"]
TIMEOUTS_MS = [None, 1000, 7000, 40_000]
STEPS_MS = [0, 1, 500, 3000, 29_999, 60_000]


def step(pair: Pair, rng: random.Random) -> None:
    """Do one random thing."""
    consumer, roll = rng.choice(NAMES), rng.randrange(100)
    if roll < 20:
        pair.join(consumer, rng.choice(TIMEOUTS_MS))
    elif roll < 40:
        pair.lease(consumer)
    elif roll < 60 and pair.host.leases:
        pair.end_lease(rng.randrange(100))
    elif roll < 66 and consumer in pair.members:
        pair.heartbeat(consumer)
    elif roll < 72 and consumer in pair.members:
        pair.leave(consumer)
    elif roll < 78:
        pair.open(consumer)
    elif roll < 84 and pair.opened:
        pair.close(rng.randrange(100))
    elif roll < 95:
        pair.advance(rng.choice(STEPS_MS))
    elif roll < 96 and pair.host.partitions < 12:
        pair.add_partition()
    elif roll < 97:
        some = rng.sample(NAMES, rng.choice([0, 0, 1, 2]))
        pair.reopen(rng.randrange(pair.host.partitions), *some)
    elif roll < 98:
        pair.forget()
    elif roll < 99:
        pair.restart()
    else:
        pair.clock.advance_ms(rng.choice([-3_600_000, 3_600_000]))


def _run_history(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    pair = Pair(rng.choice([1, 2, 6, 7]))
    try:
        for _ in range(steps):
            step(pair, rng)
            pair.check()
        _finish(pair)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def _finish(pair: Pair) -> None:
    """Let every lease end: then every partition is owned, if somebody lives."""
    while pair.host.leases:
        pair.end_lease(0)
    pair.check()
    if pair.members:
        assert None not in [pair.real.owner(n) for n in range(pair.host.partitions)]


def test_random_histories_agree_with_the_twin_after_every_step() -> None:
    for seed in range(300):
        _run_history(seed, 60)


@pytest.mark.long
def test_many_long_random_histories_agree_with_the_twin() -> None:
    first = random.SystemRandom().randrange(2**32)
    print(f"seeds from {first}")
    for seed in range(first, first + 5000):
        _run_history(seed, 200)


class Histories(RuleBasedStateMachine):
    """The same steps, chosen by hypothesis, so that a failure comes out small."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(consumer=st.sampled_from(NAMES), timeout_ms=st.sampled_from(TIMEOUTS_MS))
    def join(self, consumer: str, timeout_ms: int | None) -> None:
        self.pair.join(consumer, timeout_ms)

    @rule(consumer=st.sampled_from(NAMES))
    def lease(self, consumer: str) -> None:
        self.pair.lease(consumer)

    @rule(number=st.integers(0, 20), count=st.integers(1, 6))
    def end_leases(self, number: int, count: int) -> None:
        for _ in range(min(count, len(self.pair.host.leases))):
            self.pair.end_lease(number)

    @rule(consumer=st.sampled_from(NAMES), leaves=st.booleans())
    def leave_or_heartbeat(self, consumer: str, leaves: bool) -> None:
        if consumer in self.pair.members:
            (self.pair.leave if leaves else self.pair.heartbeat)(consumer)

    @rule(consumer=st.sampled_from(NAMES))
    def open(self, consumer: str) -> None:
        self.pair.open(consumer)

    @rule(number=st.integers(0, 9))
    def close(self, number: int) -> None:
        if self.pair.opened:
            self.pair.close(number)

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def advance(self, step_ms: int) -> None:
        self.pair.advance(step_ms)

    @rule()
    def add_partition(self) -> None:
        self.pair.add_partition()

    @rule(partition=st.integers(0, 5), consumers=st.lists(st.sampled_from(NAMES), max_size=2))
    def reopen(self, partition: int, consumers: list[str]) -> None:
        self.pair.reopen(partition, *consumers)

    @rule(deletes=st.booleans())
    def begin_anew(self, deletes: bool) -> None:
        (self.pair.forget if deletes else self.pair.restart)()

    @invariant()
    def agree(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        _finish(self.pair)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
