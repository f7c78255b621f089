"""The delivery state against its naive twin, over random histories."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.delivery_twin import Pair, skipped

from goq.delivery.events import (
    Acked,
    Corrupted,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Nacked,
    Reset,
    Trimmed,
)
from goq.model import Receipt

GROUPS = ["a", "b"]
MESSAGES_MAX = 60


def _receipts(pair: Pair, rng: random.Random) -> list[Receipt]:
    """Return receipts as consumers send them: right, late, twice, in part, overlapping, foreign."""
    known = pair.receipts[-12:] or [Receipt(0, 1, 0, 1)]
    chosen = []
    for _ in range(rng.randint(1, 5)):
        receipt = rng.choice(known)
        kind = rng.randrange(5)
        if kind == 0:
            start = rng.randint(receipt.start, receipt.end - 1)
            receipt = receipt._replace(start=start, end=rng.randint(start + 1, receipt.end))
        elif kind == 1:
            start = max(0, receipt.start - rng.randint(0, 3))
            receipt = receipt._replace(start=start, end=receipt.end + rng.randint(0, 3))
        elif kind == 2 and rng.random() < 0.3:
            receipt = receipt._replace(token=receipt.token + rng.choice([1, 2**40]))
        chosen.append(receipt)
    return chosen


def step(pair: Pair, rng: random.Random) -> None:
    """Do one random thing."""
    group = rng.choice(GROUPS)
    room = MESSAGES_MAX - pair.twin.end
    start, end = pair.twin.start, pair.twin.end
    roll = rng.randrange(100)
    if roll < 12 and room > 0:
        pair.publish(rng.randint(1, min(room, 12)))
    elif roll < 42:
        count = rng.choice([1, 2, 3, 7, 100])
        keep = count if rng.random() < 0.8 else rng.randint(1, count)
        pair.receive(group, count, keep, rng.choice([0, 5, 50, 5000]))
    elif roll < 78:
        how = rng.choice(["ack", "nack", "nack", "extend"])
        pair.settle(how, group, _receipts(pair, rng), pair.now_ms + rng.choice([0, 3, 60]))
    elif roll < 88:
        pair.move_clock(rng.choice([-40, -2, 0, 1, 4, 30, 200]))
    elif roll < 91:
        pair.reset(group, rng.randint(start, end))
    elif roll < 92:
        pair.delete_group(group)
    elif roll < 94:
        pair.trim(rng.randint(start, min(end, start + 6)))
    elif roll < 96 and start < end:
        first = rng.randint(start, end - 1)
        pair.corrupt(first, rng.randint(first + 1, min(end, first + 5)))
    elif roll < 97 and start < end:
        pair.lose(rng.randint(start, end))
    elif roll < 99:
        pair.restore()
    else:
        pair.replay()


def _run_history(seed: int, steps: int) -> Pair:
    rng, pair = random.Random(seed), Pair()
    try:
        for _ in range(steps):
            step(pair, rng)
            pair.check()
        pair.replay()
        pair.restore()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return pair


def test_random_histories_agree_with_the_twin_after_every_step() -> None:
    for seed in range(500):
        _run_history(seed, 40)


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

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        self.pair.publish(count)

    @rule(
        group=st.sampled_from(GROUPS),
        count=st.integers(1, 6),
        keep=st.integers(1, 6),
        visibility_ms=st.sampled_from([0, 5, 1000]),
    )
    def receive(self, group: str, count: int, keep: int, visibility_ms: int) -> None:
        self.pair.receive(group, count, keep, visibility_ms)

    @rule(
        how=st.sampled_from(["ack", "nack", "extend"]),
        group=st.sampled_from(GROUPS),
        which=st.lists(
            st.tuples(st.integers(0, 5), st.integers(-1, 2), st.integers(-1, 2)),
            min_size=1,
            max_size=3,
        ),
        delay_ms=st.sampled_from([0, 3, 60]),
    )
    def settle(
        self, how: str, group: str, which: list[tuple[int, int, int]], delay_ms: int
    ) -> None:
        receipts = []
        for number, before, after in which:
            if self.pair.receipts:
                known = self.pair.receipts[-1 - number % len(self.pair.receipts)]
                start = max(0, known.start + before)
                end = max(start + 1, known.end + after)
                receipts.append(known._replace(start=start, end=end))
        self.pair.settle(how, group, receipts, self.pair.now_ms + delay_ms)

    @rule(step_ms=st.sampled_from([-40, -1, 1, 5, 60]))
    def move_clock(self, step_ms: int) -> None:
        self.pair.move_clock(step_ms)

    @rule(group=st.sampled_from(GROUPS), share=st.floats(0, 1))
    def reset(self, group: str, share: float) -> None:
        twin = self.pair.twin
        self.pair.reset(group, twin.start + int(share * (twin.end - twin.start)))

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.pair.delete_group(group)

    @rule(count=st.integers(0, 4))
    def trim(self, count: int) -> None:
        self.pair.trim(min(self.pair.twin.start + count, self.pair.twin.end))

    @rule(share=st.floats(0, 1), count=st.integers(1, 3))
    def corrupt(self, share: float, count: int) -> None:
        twin = self.pair.twin
        start = twin.start + int(share * (twin.end - twin.start))
        if start < twin.end:
            self.pair.corrupt(start, min(start + count, twin.end))

    @rule()
    def restore(self) -> None:
        self.pair.restore()

    @invariant()
    def agree(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        self.pair.replay()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

_LOSSY = (Leased, Acked, Nacked, Expired, Extended, Corrupted, Trimmed)


def test_damaged_events_let_messages_come_back_but_never_skip_one() -> None:
    for seed in range(300):
        pair, rng = Pair(), random.Random(seed)
        for _ in range(50):
            step(pair, rng)
        damaged = pair.replay_damaged(rng, _LOSSY)
        found = skipped(damaged, pair.real)
        deleted = {n for n in found if n not in pair.real.groups}
        assert all(not offsets for n, offsets in found.items() if n not in deleted), (seed, found)


def test_any_damage_to_the_events_leads_to_a_sound_state() -> None:
    for seed in range(300):
        pair, rng = Pair(), random.Random(seed)
        for _ in range(50):
            step(pair, rng)
        pair.replay_damaged(rng, (*_LOSSY, Reset, GroupDeleted))


def test_a_lost_reset_is_made_up_for_by_the_first_lease_after_it() -> None:
    pair = Pair()
    pair.publish(10)
    token = pair.receive("a", 10, 10, 1000)
    assert token is not None
    pair.settle("ack", "a", [Receipt(0, token, 0, 10)], 0)
    pair.reset("a", 3)
    pair.receive("a", 2, 2, 1000)
    damaged = pair.replay_damaged(random.Random(1), ())
    for event, sequence, epoch in pair.history:
        if not isinstance(event, Reset):
            damaged.apply(event, sequence, epoch)
    assert skipped(damaged, pair.real) == {"a": []}


def test_a_lease_whose_predecessors_end_was_lost_takes_its_messages_over() -> None:
    pair = Pair()
    pair.publish(10)
    pair.receive("a", 10, 10, 5)
    pair.move_clock(10)
    pair.receive("a", 10, 10, 1000)
    damaged = pair.replay_damaged(random.Random(1), ())
    fresh = type(damaged)()
    fresh.extend_to(10)
    for event, sequence, epoch in pair.history:
        if not isinstance(event, Expired):
            fresh.apply(event, sequence, epoch)
    assert fresh.groups["a"].leased_count == 10
    assert len(fresh.groups["a"].leases) == 1
