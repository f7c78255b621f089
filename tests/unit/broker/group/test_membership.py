"""A group's membership over time: sessions that end, and partitions that are handed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import pytest

from goq.broker.group.membership import GroupMembers
from goq.clock import ManualClock
from goq.delivery.membership.rebalance_history import RebalanceReason


class FakeTimer:
    """A call that is due; it counts what was scheduled and cancelled."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """The timers of a loop whose time the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(when, callback)
        self.timers.append(timer)
        return timer

    @property
    def due_s(self) -> list[float]:
        """When the timers that are set go off, from the beginning of the test."""
        return [round(each.due_s - 1000, 3) for each in self.timers if not each.is_cancelled]

    def pass_s(self, seconds: float, *, late_s: float = 0.0) -> None:
        """Let time pass; each timer goes off when it is due, or so much later."""
        until_s = self.now_s + seconds
        while due := [t for t in self.timers if not t.is_cancelled and t.due_s <= until_s]:
            first = min(due, key=lambda timer: timer.due_s)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.due_s + late_s)
            first.callback()
        self.now_s = max(self.now_s, until_s)


class Host:
    """A topic of some partitions, with leases as the test sets them."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = partitions
        self.leases: dict[int, set[str]] = {}
        self.woken: list[set[str]] = []
        self.restarted: list[tuple[str, ...]] = []

    def partition_count(self) -> int:
        return self.partitions

    def shares_partitions(self, _group: str) -> bool:
        return True

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        assert group == "g"
        return min(self.leases.get(partition, set()) - {other_than or ""}, default=None)

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        assert group == "g"
        self.woken.append(set(consumers))

    def restart_consumers(self, group: str, consumers: Collection[str]) -> None:
        assert group == "g"
        self.restarted.append(tuple(consumers))


class Case:
    """One group on a host."""

    def __init__(self, partitions: int = 2, leases: dict[int, set[str]] | None = None) -> None:
        self.loop, self.host, self.clock = Loop(), Host(partitions), ManualClock()
        self.host.leases = leases or {}
        self.group = GroupMembers("g", self.host, self.clock, self.loop, generation=0)

    @property
    def members(self) -> set[str]:
        return set(self.group.membership.members)

    def owned(self, *consumers: str) -> list[tuple[int, ...]]:
        return [self.group.membership.partitions_of(consumer) for consumer in consumers]


def test_a_silent_member_is_evicted_when_its_session_is_over_and_not_before() -> None:
    case = Case()
    case.group.join("ann", 10_000)
    assert case.loop.due_s == [10]
    case.loop.pass_s(9.999)
    assert case.members == {"ann"}
    case.loop.pass_s(0.001)
    assert case.members == set()
    assert case.loop.due_s == []
    assert case.host.restarted == [("ann",)]


def test_a_member_that_is_heard_stays_and_its_timer_is_set_anew_once_it_went_off() -> None:
    case = Case()
    case.group.join("ann", 10_000)
    case.loop.pass_s(6)
    case.group.touch("ann")
    case.group.touch("nobody")
    assert case.loop.due_s == [10], "moving it each time would cost more"
    case.loop.pass_s(4)
    assert (case.members, case.loop.due_s) == ({"ann"}, [16])
    case.loop.pass_s(6)
    assert case.members == set()


def test_the_timer_is_that_of_the_session_that_ends_first() -> None:
    case = Case()
    case.group.join("ann", 30_000)
    case.group.join("bob", 10_000)
    case.group.join("cat", 20_000)
    assert case.loop.due_s == [10]
    case.loop.pass_s(10)
    assert (case.members, case.loop.due_s) == ({"ann", "cat"}, [20])


def test_a_member_with_a_receive_or_stream_open_stays_and_needs_no_timer() -> None:
    case = Case()
    case.group.join("ann", 10_000)
    generations = [case.group.open("ann"), case.group.open("ann")]
    case.loop.pass_s(100)
    assert (case.members, case.loop.due_s) == ({"ann"}, [])
    case.group.close("ann", generations[0])
    assert case.loop.due_s == []
    case.group.close("ann", generations[1])
    assert case.loop.due_s == [110]
    case.loop.pass_s(10)
    assert case.members == set()
    case.group.close("ann", generations[1])
    assert case.loop.due_s == []


@pytest.mark.parametrize(("late_s", "stays"), [(0.25, False), (0.251, True)])
def test_a_process_that_stood_still_gives_members_time_to_be_heard(
    late_s: float, stays: bool
) -> None:
    case = Case()
    case.group.join("ann", 10_000)
    case.loop.pass_s(10, late_s=late_s)
    assert (case.members == {"ann"}) is stays
    if stays:
        assert case.loop.due_s == [round(10 + late_s + 1, 3)]
        case.loop.pass_s(1)
        assert case.members == set()


def test_what_happened_is_in_the_history_and_who_is_out_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "goq.broker")
    case = Case()
    for consumer in ("ann", "bob"):
        case.group.join(consumer, 10_000)
    case.group.join("ann", 10_000)
    case.group.leave("ann")
    case.group.leave("nobody")
    case.clock.advance_ms(5)
    case.loop.pass_s(10)
    found = [(r.time_us, r.rebalance.reason, r.rebalance.consumers) for r in case.group.history]
    then_us = case.clock.wall_us() - 5000
    assert found == [
        (then_us, RebalanceReason.JOINED, ("ann",)),
        (then_us, RebalanceReason.JOINED, ("bob",)),
        (then_us, RebalanceReason.LEFT, ("ann",)),
        (then_us + 5000, RebalanceReason.EVICTED, ("bob",)),
    ]
    assert case.host.restarted == [("ann",), ("bob",)]
    assert caplog.messages == ["group g: 1 evicted: bob"]


def test_a_partition_is_handed_over_once_only_its_next_owner_has_leases_in_it() -> None:
    case = Case()
    case.group.join("ann", None)
    assert case.owned("ann") == [(0, 1)]
    assert case.host.woken == [{"ann"}]
    case.host.leases = {1: {"ann"}}
    case.group.join("bob", None)
    assert case.owned("ann", "bob") == [(0,), ()]
    case.group.hand_over((0, 1))
    assert case.owned("ann", "bob") == [(0,), ()]
    case.host.leases = {1: {"bob"}}
    case.group.hand_over((1,))
    assert case.owned("ann", "bob") == [(0,), (1,)]
    assert case.host.woken == [{"ann"}, {"bob"}]


def test_who_has_leases_before_anybody_joins_is_the_last_owner() -> None:
    case = Case(partitions=2, leases={0: {"bob"}, 1: {"ann"}})
    case.group.join("ann", None)
    assert case.owned("ann") == [(1,)]
    assert case.group.membership.revoking_from("bob") == (0,)
    case.group.join("bob", None)
    assert case.owned("ann", "bob") == [(1,), (0,)]


def test_partitions_that_are_added_are_shared_out() -> None:
    case = Case(partitions=1)
    case.group.on_partitions_added()
    assert len(case.group.history) == 0
    case.group.join("ann", None)
    case.group.join("bob", None)
    case.host.partitions = 2
    case.group.on_partitions_added()
    assert case.owned("ann", "bob") == [(0,), (1,)]


def test_leases_that_are_back_after_a_rebuild_are_waited_for() -> None:
    case = Case()
    case.group.join("ann", None)
    case.group.on_reopened(0)
    assert case.owned("ann") == [(0, 1)]
    case.host.leases = {0: {"bob"}}
    case.group.on_reopened(0)
    assert case.owned("ann") == [(1,)]
    case.host.leases = {}
    case.group.on_reopened(0)
    assert case.owned("ann") == [(0, 1)]


def test_a_group_that_is_gone_has_no_members_and_no_timer() -> None:
    case = Case()
    case.group.join("ann", 10_000)
    case.group.stop()
    assert (case.members, case.loop.due_s) == (set(), [])


def test_a_moment_of_the_monotonic_clock_is_told_in_wall_time() -> None:
    case = Case()
    case.loop.pass_s(7)
    now_us = case.clock.wall_us()
    assert case.group.wall_us(1_007_000) == now_us
    assert case.group.wall_us(1_002_500) == now_us - 4_500_000
