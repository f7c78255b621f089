"""The counts of many groups at once, against the view of each group alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from goq.broker.partition.group_view import GroupView
from goq.delivery.group_tally import NEVER, GroupTally, PartitionBounds, counts_of, group_tallies
from goq.delivery.partition_state import PartitionState
from tests.support.delivery.pair import Pair
from tests.support.delivery.steps import GROUPS, random_messages, random_pair, step

NAMES = [*GROUPS, "unknown"]


def bounds_of(state: PartitionState, delayed_count: int) -> PartitionBounds:
    return PartitionBounds(state.start_offset, state.end_offset, delayed_count)


def counted(tallies: list[GroupTally], bounds: PartitionBounds) -> list[tuple[int, ...]]:
    """Return the counts of groups in one partition, each in the order of ``GroupCounts``."""
    columns = counts_of(
        np.array(tallies, np.int64).T[:, np.newaxis, :],
        np.array(bounds, np.int64).reshape(3, 1, 1),
    )
    return [tuple(int(column[0, place]) for column in columns) for place in range(len(tallies))]


def viewed(pair: Pair, delayed_count: int) -> list[tuple[int, ...]]:
    views = (GroupView(pair.real, name) for name in NAMES)
    return [tuple(view.counts(delayed_count, pair.now_ms)) for view in views]


@pytest.mark.parametrize("seed", range(25))
def test_tallies_give_the_counts_of_each_group_and_still_do_after_a_publish(seed: int) -> None:
    rng = random.Random(seed)
    pair = random_pair(rng)
    for _ in range(rng.randint(0, 40)):
        step(pair, rng)
    state, delayed_count = pair.real, rng.choice([0, 1, 3, 10**6])
    tallies = group_tallies(state, NAMES, pair.now_ms)
    assert counted(tallies, bounds_of(state, delayed_count)) == viewed(pair, delayed_count)
    for name, tally in zip(NAMES, tallies, strict=True):
        group = state.group(name)
        later_ms = [part.time_ms for part in group.retries if part.time_ms > pair.now_ms]
        assert tally.next_due_ms == min(later_ms, default=NEVER)
        is_simple = not (
            group.scheduler or group.leased_count or group.retries.message_count or state.corrupt
        )
        assert (tally.first_offset >= 0) is is_simple
    pair.publish(random_messages(pair, rng, 5, is_plain=True), is_plain=True)
    assert counted(tallies, bounds_of(state, delayed_count)) == viewed(pair, delayed_count)
    for name, tally in zip(NAMES, tallies, strict=True):
        if tally.first_offset >= 0:
            assert GroupView(state, name).first_unfinished() in (tally.first_offset, None)
