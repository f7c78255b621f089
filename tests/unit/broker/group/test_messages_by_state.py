from __future__ import annotations

import random

import pytest

from goq.broker.partition.group_view import GroupView, Run, _minus
from goq.delivery.events.event import Acked, Leased, token_of
from goq.delivery.events.transitions import MessageState
from goq.delivery.partition_state import PartitionState


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


def test_what_is_done_may_be_anywhere_and_what_waits_only_behind_it() -> None:
    state = PartitionState()
    state.extend_to(10)
    state.apply(Leased("g", "c", 1000, [(0, 4, 1)]), 0, 1)
    state.apply(Acked("g", token_of(1, 0), [(0, 4)]), 1, 1)
    view = GroupView(state, "g")
    for wanted in (MessageState.DONE, MessageState.CANCELLED):
        assert view.bounds(wanted, 0) == (0, 10)
        assert view.bounds(wanted, 7) == (7, 10)
    for wanted in (MessageState.READY, MessageState.EXPIRED, MessageState.SCHEDULED):
        assert view.bounds(wanted, 0) == (4, 10)
        assert view.bounds(wanted, 7) == (7, 10)
