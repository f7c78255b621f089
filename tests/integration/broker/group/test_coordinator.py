"""What a coordinator refuses, when it evicts, and how it hands over."""

from __future__ import annotations

import pytest

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.clock import ManualClock
from goq.errors import Conflict, GoqError, InvalidInput, MemberNotFound, TooLarge, TooManyRequests
from tests.support.broker.harness import run
from tests.support.delivery.members_model import GROUP, FakeHost, Pair
from tests.support.eventually import until


@pytest.fixture
def pair() -> Pair:
    return Pair(4)


@pytest.mark.parametrize(
    ("consumer", "error"),
    [("", InvalidInput), ("a/b", InvalidInput), ("a\x1b[2J", InvalidInput), ("x" * 201, TooLarge)],
)
def test_a_name_that_cannot_be_a_members_is_refused_by_every_way_in(
    pair: Pair, consumer: str, error: type[GoqError]
) -> None:
    with pytest.raises(error) as joining:
        pair.coordinator.join(GROUP, consumer)
    with pytest.raises(error) as receiving, pair.coordinator.session(GROUP, consumer):
        pass
    assert joining.value.field == receiving.value.field == "consumer"
    assert pair.coordinator.members(GROUP) is None


@pytest.mark.parametrize(
    ("timeout_ms", "is_good"),
    [
        (0, False),
        (limits.SESSION_TIMEOUT_MS_MIN - 1, False),
        (limits.SESSION_TIMEOUT_MS_MIN, True),
        (limits.SESSION_TIMEOUT_MS_MAX, True),
        (limits.SESSION_TIMEOUT_MS_MAX + 1, False),
    ],
)
def test_a_session_timeout_has_bounds_on_both_sides(
    pair: Pair, timeout_ms: int, is_good: bool
) -> None:
    if is_good:
        pair.join("ann", timeout_ms)
        pair.check()
        return
    with pytest.raises(InvalidInput) as refused:
        pair.coordinator.join(GROUP, "ann", timeout_ms)
    assert refused.value.field == "session_timeout"


def test_a_group_that_does_not_share_partitions_has_no_members(pair: Pair) -> None:
    pair.host.shares = False
    with pytest.raises(Conflict):
        pair.coordinator.join(GROUP, "ann")
    with pytest.raises(MemberNotFound):
        pair.coordinator.heartbeat(GROUP, "ann")


def test_a_group_has_so_many_members_and_no_more() -> None:
    pair = Pair(members_max=20)
    for number in range(20):
        pair.coordinator.join(GROUP, f"m{number}")
    with pytest.raises(TooManyRequests):
        pair.coordinator.join(GROUP, "one-more")
    pair.coordinator.join(GROUP, "m0")
    pair.coordinator.leave(GROUP, "m1")
    pair.coordinator.join(GROUP, "one-more")


def test_who_is_no_member_cannot_say_that_it_lives(pair: Pair) -> None:
    with pytest.raises(MemberNotFound):
        pair.coordinator.heartbeat(GROUP, "ann")
    pair.join("ann", 1000)
    pair.advance(1000)
    with pytest.raises(MemberNotFound):
        pair.coordinator.heartbeat(GROUP, "ann")
    with pytest.raises(MemberNotFound):
        pair.coordinator.leave(GROUP, "ann")
    pair.coordinator.touch(GROUP, "ann")
    assert pair.coordinator.partitions_for(GROUP, "ann") == ()


def test_any_sign_of_life_begins_the_session_anew(pair: Pair) -> None:
    pair.join("ann", 1000)
    for _ in range(5):
        pair.timers.advance(900)
        pair.coordinator.touch(GROUP, "ann")
    assert pair.coordinator.partitions_for(GROUP, "ann") == (0, 1, 2, 3)


def test_a_moving_partition_goes_over_when_the_last_lease_in_it_ends(pair: Pair) -> None:
    pair.join("ann")
    pair.lease("ann")
    pair.lease("ann")
    pair.join("bob")
    pair.check()
    assert pair.lease("ann") == 2
    assert pair.lease("bob") == 0
    assert pair.coordinator.heartbeat(GROUP, "ann").revoking == (2, 3)
    pair.host.woken.clear()
    for partition in (2, 2):
        pair.host.leases.remove((partition, "ann"))
        assert pair.host.woken == []
        pair.coordinator.on_settled(GROUP, partition)
    assert pair.host.woken == ["bob"]
    assert pair.coordinator.partitions_for(GROUP, "bob") == (2,)
    assert pair.coordinator.owner(GROUP, 2) == "bob"
    assert pair.coordinator.owner(GROUP, 3) is None
    assert pair.coordinator.heartbeat(GROUP, "ann").revoking == (3,)


def test_an_idle_partition_goes_over_within_the_same_call(pair: Pair) -> None:
    pair.join("ann")
    assert pair.coordinator.join(GROUP, "bob").partitions == (2, 3)
    assert pair.real.moves() == []


def test_the_leases_of_an_evicted_member_run_to_their_end(pair: Pair) -> None:
    pair.join("ann", 1000)
    pair.lease("ann")
    pair.join("bob")
    pair.advance(1000)
    pair.check()
    assert set(pair.members) == {"bob"}
    assert pair.lease("bob") == 0
    while pair.host.leases:
        pair.end_lease(0)
    pair.check()
    assert pair.lease("bob") == 4


def test_after_a_restart_partitions_go_to_who_still_has_messages_of_them(pair: Pair) -> None:
    pair.host.leases = [(0, "bob"), (1, "cy"), (2, "bob"), (3, "cy")]
    pair.restart()
    pair.join("ann")
    pair.check()
    assert pair.coordinator.partitions_for(GROUP, "ann") == ()
    pair.join("cy")
    pair.check()
    assert pair.coordinator.partitions_for(GROUP, "cy") == (1, 3)
    pair.coordinator.leave(GROUP, "ann")
    pair.coordinator.join(GROUP, "bob")
    assert pair.coordinator.partitions_for(GROUP, "bob") == (0, 2)
    assert pair.real.moves() == []


def test_leases_of_more_than_one_consumer_are_all_waited_for(pair: Pair) -> None:
    pair.host.leases = [(0, ""), (0, "ann"), (0, "bob")]
    pair.join("ann")
    assert pair.coordinator.partitions_for(GROUP, "ann") == (1, 2, 3)
    for lease in [(0, ""), (0, "bob")]:
        pair.check()
        pair.host.leases.remove(lease)
        pair.coordinator.on_settled(GROUP, 0)
    assert pair.coordinator.partitions_for(GROUP, "ann") == (0, 1, 2, 3)


def test_an_owner_waits_for_a_lease_whose_end_was_never_written(pair: Pair) -> None:
    pair.join("ann")
    pair.join("bob")
    pair.reopen(3, "ann")
    pair.check()
    assert pair.coordinator.partitions_for(GROUP, "bob") == (2,)
    assert pair.coordinator.heartbeat(GROUP, "ann").revoking == (3,)
    pair.end_lease(0)
    pair.check()
    assert pair.coordinator.partitions_for(GROUP, "bob") == (2, 3)


def test_setting_the_wall_clock_evicts_nobody(pair: Pair) -> None:
    pair.join("ann", 1000)
    for step_ms in (3_600_000, -7_200_000):
        pair.clock.advance_ms(step_ms)
        pair.advance(499)
        pair.check()
        assert set(pair.members) == {"ann"}
    pair.advance(2)
    assert pair.members == {}


def test_the_times_shown_are_of_the_wall_clock(pair: Pair) -> None:
    pair.join("ann")
    members = pair.coordinator.members(GROUP)
    assert members is not None
    joined_us = pair.clock.wall_us()
    assert [entry.time_us for entry in members.history] == [joined_us]
    pair.clock.advance_ms(700)
    pair.advance(700)
    assert members.wall_us(members.membership.members["ann"].last_seen_ms) == joined_us


def test_no_timer_is_set_when_nobody_can_be_evicted(pair: Pair) -> None:
    pair.join("ann")
    assert len(pair.timers.set) == 1
    pair.coordinator.leave(GROUP, "ann")
    assert pair.timers.set == []
    with pair.coordinator.session(GROUP, "bob"):
        pair.timers.advance(3_600_000)
        assert pair.timers.set == []
        assert pair.coordinator.partitions_for(GROUP, "bob")
    assert len(pair.timers.set) == 1


def test_signs_of_life_do_not_set_the_timer_again(pair: Pair) -> None:
    pair.join("ann")
    (timer,) = pair.timers.set
    for _ in range(100):
        pair.timers.advance(10)
        pair.coordinator.heartbeat(GROUP, "ann")
        with pair.coordinator.session(GROUP, "ann"):
            pass
    assert pair.timers.set == [timer]


def test_a_shorter_session_timeout_holds_at_once(pair: Pair) -> None:
    pair.join("ann")
    pair.join("ann", 1000)
    pair.advance(1000)
    pair.check()
    assert pair.members == {}


def test_what_outlives_its_member_does_not_bring_a_later_ones_timer_forward(pair: Pair) -> None:
    pair.open("ann")
    pair.leave("ann")
    pair.open("ann")
    pair.advance(100_000)
    pair.close(0)
    pair.close(0)
    pair.advance(29_999)
    pair.check()
    assert set(pair.members) == {"ann"}
    pair.advance(1)
    pair.check()
    assert pair.members == {}


def test_a_node_that_stood_still_evicts_nobody_that_it_could_not_hear(pair: Pair) -> None:
    pair.coordinator.join(GROUP, "ann", 1000)
    pair.coordinator.join(GROUP, "bob", 5000)
    pair.timers.stall(60_000)
    assert set(pair.real.members) == {"ann", "bob"}
    pair.coordinator.heartbeat(GROUP, "bob")
    pair.timers.advance(1000)
    assert set(pair.real.members) == {"bob"}, "who stays silent is evicted all the same"


@pytest.mark.parametrize("start_ms", [5_000, 1_234_567, 98_765_432_101])
def test_a_timer_that_comes_on_time_finds_the_session_over(start_ms: int) -> None:
    for more_ms in range(300):
        pair = Pair(1)
        pair.timers.now_ms = start_ms + more_ms
        pair.coordinator.join(GROUP, "ann", 1000)
        pair.timers.stall(1000)
        assert pair.real.members == {}


def test_a_group_that_is_forgotten_goes_on_in_a_higher_generation(pair: Pair) -> None:
    pair.join("ann")
    pair.join("bob")
    with pair.coordinator.session(GROUP, "ann"):
        pair.coordinator.forget(GROUP)
        assert pair.coordinator.partitions_for(GROUP, "ann") == ()
    assert pair.timers.set == []
    assert pair.coordinator.join(GROUP, "ann").generation == 3


def test_what_is_told_of_a_group_without_members_is_no_matter(pair: Pair) -> None:
    pair.coordinator.on_settled(GROUP, 0)
    pair.coordinator.on_reopened(0)
    pair.coordinator.on_partitions_added()
    pair.coordinator.forget(GROUP)
    assert pair.coordinator.owner(GROUP, 0) is None
    pair.join("ann")
    pair.coordinator.on_settled(GROUP, 99)
    assert pair.coordinator.owner(GROUP, 99) is None


def test_a_silent_member_is_evicted_by_the_event_loop_itself() -> None:
    async def scenario() -> None:
        host = FakeHost(2)
        coordinator = Coordinator(host, ManualClock())
        coordinator.join(GROUP, "ann", limits.SESSION_TIMEOUT_MS_MIN)
        with coordinator.session(GROUP, "bob"):
            assert coordinator.partitions_for(GROUP, "bob") == (1,)
            await until(lambda: coordinator.partitions_for(GROUP, "bob") == (0, 1))
        assert host.woken[-1] == "bob"
        coordinator.close()

    run(scenario())
