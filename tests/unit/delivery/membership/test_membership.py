"""The machine of a group's membership, and the history of what it did."""

from __future__ import annotations

from goq import limits
from goq.delivery.membership.membership import DEFAULT_SESSION_TIMEOUT_MS, Membership
from goq.delivery.membership.rebalance_history import (
    Move,
    Rebalance,
    RebalanceHistory,
    RebalanceReason,
)


def settled(membership: Membership, now_ms: int = 0) -> None:
    """Hand everything over that moves."""
    for move in membership.moves():
        membership.release(move.partition, now_ms)


def joined(*consumers: str, partitions: int = 4) -> Membership:
    membership = Membership(partitions)
    for consumer in consumers:
        membership.join(consumer, 0)
        settled(membership)
    return membership


def test_nothing_is_owned_before_it_is_released() -> None:
    membership = Membership(2)
    membership.join("ann", 0)
    assert membership.partitions_of("ann") == ()
    assert membership.release(0, 5) == "ann"
    assert membership.partitions_of("ann") == (0,)
    assert (membership.owner(0), membership.owner(1)) == ("ann", None)
    assert (membership.next_owner(0), membership.next_owner(1)) == (None, "ann")


def test_a_partition_that_the_group_does_not_know_yet_belongs_to_nobody() -> None:
    membership = joined("ann", partitions=2)
    assert [membership.owner(partition) for partition in range(4)] == ["ann", "ann", None, None]


def test_only_the_partitions_that_move_pause() -> None:
    membership = joined("ann")
    rebalance = membership.join("bob", 0)
    assert rebalance is not None
    assert [(m.partition, m.source, m.target) for m in rebalance.moves] == [
        (2, "ann", "bob"),
        (3, "ann", "bob"),
    ]
    assert membership.partitions_of("ann") == (0, 1)
    assert membership.revoking_from("ann") == (2, 3)
    assert membership.partitions_of("bob") == ()


def test_assignments_agree_with_what_is_asked_of_each_member() -> None:
    membership = joined("bob", "ann", partitions=7)
    membership.join("cat", 0)
    membership.release(6, 0)
    assert [tuple(each) for each in membership.assignments()] == [
        (member, membership.partitions_of(name), membership.revoking_from(name))
        for name, member in sorted(membership.members.items())
    ]
    assert any(each.revoking for each in membership.assignments())


def test_partitions_are_in_order_however_they_are_released() -> None:
    membership = Membership(4)
    membership.join("ann", 0)
    for partition in (2, 0, 3, 1):
        membership.release(partition, 0)
    assert membership.partitions_of("ann") == (0, 1, 2, 3)


def test_a_partition_is_handed_over_by_itself_as_soon_as_it_is_released() -> None:
    membership = joined("ann")
    rebalance = membership.join("bob", 100)
    assert rebalance is not None
    assert membership.release(3, 340) == "bob"
    assert membership.partitions_of("bob") == (3,)
    assert membership.revoking_from("ann") == (2,)
    assert [m.paused_ms for m in rebalance.moves] == [None, 240]


def test_releasing_what_does_not_move_changes_nothing() -> None:
    membership = joined("ann")
    assert membership.release(0, 9) is None
    assert membership.release(99, 9) is None
    assert membership.partitions_of("ann") == (0, 1, 2, 3)


def test_a_partition_that_is_not_given_up_yet_goes_back_when_its_heir_leaves() -> None:
    membership = joined("ann")
    membership.join("bob", 100)
    rebalance = membership.leave("bob", 150)
    assert rebalance is not None
    assert [(m.partition, m.source, m.target) for m in rebalance.moves] == [
        (2, "ann", "ann"),
        (3, "ann", "ann"),
    ]
    assert membership.revoking_from("ann") == ()
    membership.release(2, 160)
    assert membership.partitions_of("ann") == (0, 1, 2)
    assert rebalance.moves[0].paused_ms == 60, "the pause began with the first move"


def test_a_member_that_joins_again_keeps_what_it_has() -> None:
    membership = joined("ann", "bob")
    generation = membership.generation
    assert membership.join("ann", 500) is None
    assert membership.generation == generation
    assert membership.partitions_of("ann") == (0, 1)


def test_a_consumer_that_comes_back_takes_up_what_still_waits_for_it() -> None:
    membership = joined("ann", "bob")
    membership.leave("bob", 0)
    assert [(m.partition, m.target) for m in membership.moves()] == [(2, "ann"), (3, "ann")]
    membership.join("bob", 10)
    assert [(m.partition, m.source, m.target) for m in membership.moves()] == [
        (2, "bob", "bob"),
        (3, "bob", "bob"),
    ]


def test_a_member_is_evicted_when_its_time_is_over_and_not_before() -> None:
    membership = joined("ann")
    membership.join("bob", 10, 2000)
    assert membership.evict_expired(2009) is None
    assert membership.next_deadline_ms() == 2010
    rebalance = membership.evict_expired(2010)
    assert rebalance is not None
    assert (rebalance.reason, rebalance.consumers) == (RebalanceReason.EVICTED, ("bob",))
    assert set(membership.members) == {"ann"}
    assert membership.next_deadline_ms() == DEFAULT_SESSION_TIMEOUT_MS


def test_members_whose_time_is_over_at_once_are_evicted_at_once() -> None:
    membership = joined("ann", "bob", "cy")
    membership.join("cy", 5000)
    rebalance = membership.evict_expired(DEFAULT_SESSION_TIMEOUT_MS)
    assert rebalance is not None
    assert rebalance.consumers == ("ann", "bob")
    settled(membership)
    assert membership.partitions_of("cy") == (0, 1, 2, 3)


def test_a_member_with_something_open_lives_until_its_timeout_after_the_last_is_closed() -> None:
    membership = joined("ann")
    tokens = [membership.open("ann", 0), membership.open("ann", 0)]
    membership.close("ann", tokens[0], 10)
    assert membership.next_deadline_ms() is None
    assert membership.evict_expired(10**9) is None
    membership.close("ann", tokens[1], 10**9)
    assert membership.next_deadline_ms() == 10**9 + DEFAULT_SESSION_TIMEOUT_MS


def test_what_was_open_for_one_that_left_says_nothing_of_one_that_came_after() -> None:
    membership = joined("ann")
    before = membership.open("ann", 0)
    membership.leave("ann", 0)
    membership.join("ann", 0)
    now = membership.open("ann", 0)
    membership.close("ann", before, 5)
    assert membership.evict_expired(10**9) is None
    membership.close("ann", now, 6)
    assert membership.members["ann"].open_count == 0


def test_when_the_last_member_goes_nobody_owns_anything_and_the_next_gets_it_all() -> None:
    membership = joined("ann")
    rebalance = membership.leave("ann", 100)
    assert rebalance is not None
    assert {m.target for m in rebalance.moves} == {None}
    assert membership.moves() == []
    assert [membership.owner(p) for p in range(4)] == [None] * 4
    rebalance = membership.join("bob", 5000)
    assert rebalance is not None
    settled(membership, 5020)
    assert {m.paused_ms for m in rebalance.moves} == {20}, "nobody was there to wait before"


def test_added_partitions_are_shared_out_without_moving_others() -> None:
    membership = joined("ann", "bob")
    rebalance = membership.add_partitions(6, 0)
    assert rebalance is not None
    assert rebalance.reason is RebalanceReason.PARTITIONS_ADDED
    assert [(m.partition, m.source, m.target) for m in rebalance.moves] == [
        (4, None, "ann"),
        (5, None, "bob"),
    ]
    assert membership.add_partitions(6, 0) is None


def test_partitions_added_while_nobody_is_there_wait_for_the_first_member() -> None:
    membership = Membership(1)
    assert membership.add_partitions(3, 0) is None
    assert membership.generation == 0
    membership.join("ann", 0)
    settled(membership)
    assert membership.partitions_of("ann") == (0, 1, 2)


def test_a_holder_that_is_not_a_member_yet_gets_its_partition_when_it_joins() -> None:
    membership = Membership(4)
    membership.set_last_owner(1, "bob")
    membership.join("ann", 0)
    for partition in (0, 2, 3):
        membership.release(partition, 0)
    membership.join("bob", 0)
    assert membership.next_owner(1) == "bob"
    assert membership.release(1, 0) == "bob"


def test_the_generation_rises_with_every_change_and_with_nothing_else() -> None:
    membership = Membership(2, 70)
    membership.join("ann", 0)
    membership.join("bob", 0)
    assert membership.generation == 72
    settled(membership)
    membership.join("ann", 5)
    membership.evict_expired(6)
    membership.leave("cy", 6)
    assert membership.generation == 72
    membership.leave("ann", 7)
    assert membership.generation == 73


def test_the_history_forgets_the_oldest_changes() -> None:
    history = RebalanceHistory()
    for generation in range(limits.REBALANCES_REMEMBERED + 7):
        history.add(generation, Rebalance(generation, RebalanceReason.JOINED, ("ann",), ()))
    assert len(history) == limits.REBALANCES_REMEMBERED
    assert min(entry.time_us for entry in history) == 7


def test_the_history_is_bounded_in_moves_but_keeps_the_latest_change() -> None:
    history = RebalanceHistory()
    many = limits.REBALANCE_MOVES_REMEMBERED // 2
    for generation in range(5):
        moves = tuple(Move(n, None, "ann", 0) for n in range(many))
        history.add(generation, Rebalance(generation, RebalanceReason.LEFT, (), moves))
    assert [entry.time_us for entry in history] == [3, 4]
    moves = tuple(Move(n, None, "ann", 0) for n in range(10 * many))
    history.add(5, Rebalance(5, RebalanceReason.LEFT, (), moves))
    assert [entry.time_us for entry in history] == [5]
