"""Who is to have which partition, against a search through everything that could be."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.delivery.membership.sticky_assignor import assign

NAMES = ["ann", "bob", "cy", "di"]


def shares(targets: list[str | None], members: list[str]) -> list[int]:
    return [targets.count(member) for member in members]


def is_balanced(targets: list[str | None], members: list[str]) -> bool:
    counts = shares(targets, members)
    return sum(counts) == len(targets) and max(counts) - min(counts) <= 1


def moves(before: list[str | None], after: list[str | None], members: list[str]) -> int:
    """How many partitions are taken from somebody who is there."""
    return sum(b in members and b != a for b, a in zip(before, after, strict=True))


def fewest_moves(before: list[str | None], members: list[str]) -> int:
    every = itertools.product(members, repeat=len(before))
    return min(moves(before, list(a), members) for a in every if is_balanced(list(a), members))


@given(
    members=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    current=st.lists(st.sampled_from([None, *NAMES]), max_size=6),
    data=st.data(),
)
def test_it_is_balanced_with_the_fewest_moves_that_could_be(
    members: list[str], current: list[str | None], data: st.DataObject
) -> None:
    held = data.draw(
        st.lists(st.sampled_from([None, *NAMES]), min_size=len(current), max_size=len(current))
    )
    targets = assign(members, current, held)
    assert is_balanced(targets, members)
    assert moves(current, targets, members) == fewest_moves(current, members)
    shuffled = list(members)
    random.Random(len(current)).shuffle(shuffled)
    assert assign(shuffled, current, held) == targets
    assert assign(set(members), targets, held) == targets, "what is settled stays"


@pytest.mark.parametrize("partitions", [1, 2, 5, 12, 100, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_a_join_moves_a_share_to_the_newcomer_and_a_leave_only_the_leavers(
    partitions: int, count: int
) -> None:
    members = [f"m{n}" for n in range(count)]
    targets: list[str | None] = [None] * partitions
    for number in range(count):
        before, some = targets, members[: number + 1]
        targets = assign(some, before, before)
        changed = [n for n in range(partitions) if before[n] != targets[n]]
        assert {targets[n] for n in changed} <= {members[number]}
        assert len(changed) <= -(-partitions // (number + 1))
        assert is_balanced(targets, some)
    for gone in range(count - 1):
        before, some = targets, members[gone + 1 :]
        targets = assign(some, before, before)
        assert all(before[n] == members[gone] for n in range(partitions) if before[n] != targets[n])
        assert is_balanced(targets, some)


def test_without_members_nobody_is_to_have_anything() -> None:
    assert assign([], ["ann", None], ["ann", None]) == [None, None]
    assert assign(["ann"], [], []) == []


def test_more_members_than_partitions_leave_some_with_none() -> None:
    targets = assign(NAMES, [None, None], [None, None])
    assert sorted(shares(targets, NAMES)) == [0, 0, 1, 1]


def test_who_had_a_partition_gets_that_one_back_rather_than_another() -> None:
    everything: list[str | None] = ["ann"] * 4
    assert assign(["ann", "bob"], everything, ["bob", "ann", "bob", "ann"]) == [
        "bob", "ann", "bob", "ann",
    ]  # fmt: skip
    assert assign(["ann", "bob"], [None] * 4, ["bob", None, None, "bob"]) == [
        "bob", "ann", "ann", "bob",
    ]  # fmt: skip


def test_who_has_too_many_gives_up_those_it_has_not_got_yet() -> None:
    everything: list[str | None] = ["ann"] * 4
    targets = assign(["ann", "bob"], everything, ["gone", "ann", "gone", "ann"])
    assert targets == ["bob", "ann", "bob", "ann"]
