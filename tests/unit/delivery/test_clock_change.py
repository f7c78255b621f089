"""The move of deadlines to another clock; times are arguments."""

from __future__ import annotations

import pytest

from goq import limits
from goq.delivery.clock_change import clock_change, clock_set, is_ahead_unknown
from goq.delivery.events.event import (
    ClockChanged,
    Expired,
    Leased,
    decode_events,
    encode_events,
    token_of,
)
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import snapshot_of
from tests.support.delivery.model import canonical

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def state_with_lease(deadline_ms: int, retry_ms: int) -> PartitionState:
    state = PartitionState()
    state.extend_to(10)
    state.apply(ClockChanged("a"), 0, 1)
    state.apply(Leased("g", "c", deadline_ms, [(0, 2, 1), (4, 6, 1)]), 1, 1)
    state.apply(Leased("g", "c", deadline_ms, [(2, 4, 1)]), 2, 1)
    state.apply(Expired("g", token_of(1, 2), [(2, 4, 1)], retry_ms), 3, 1)
    return state


def times(state: PartitionState) -> tuple[set[int], set[int]]:
    group = state.groups["g"]
    leases = {part.time_ms for lease in group.leases.values() for part in lease.parts}
    return leases, {part.time_ms for part in group.retries}


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, -1000, 1000, HOUR_MS])
def test_what_is_left_of_a_lease_is_left_by_the_new_clock(ahead_ms: int) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    now_ms = NOW_MS + 2000 + ahead_ms  # two seconds after the last event
    event = clock_change(state, "b", now_ms, NOW_MS * 1000, lambda _: ahead_ms)
    assert event == ClockChanged("b", ahead_ms, ahead_ms)
    state.apply(event, 4, 2)
    assert times(state) == ({now_ms + 3000}, {now_ms + 5000})
    assert [token for token, _ in state.groups["g"].expired(now_ms + 2999)] == []
    assert [token for token, _ in state.groups["g"].expired(now_ms + 3000)] == [token_of(1, 1)]
    assert state.clock_node == "b"


@pytest.mark.parametrize("ahead_ms", [-limits.CLOCK_SKEW_WARN_MS, 0, limits.CLOCK_SKEW_WARN_MS])
def test_a_difference_that_is_tolerated_moves_nothing(ahead_ms: int) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    now_ms = NOW_MS + 2000 + ahead_ms
    event = clock_change(state, "b", now_ms, NOW_MS * 1000, lambda _: ahead_ms)
    assert event == ClockChanged("b")


@pytest.mark.parametrize("known_ms", [None, -HOUR_MS, 0, 1000, HOUR_MS, 100 * HOUR_MS])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_no_lease_lasts_longer_than_its_length_from_the_takeover(
    ahead_ms: int, known_ms: int | None
) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    now_ms = NOW_MS + 2000 + ahead_ms
    event = clock_change(state, "b", now_ms, NOW_MS * 1000, lambda _: known_ms)
    assert event is not None
    state.apply(event, 4, 2)
    (lease_ms,), (retry_ms,) = times(state)
    tolerated_ms = limits.CLOCK_SKEW_WARN_MS
    assert lease_ms - now_ms <= 5000 + tolerated_ms
    assert retry_ms - now_ms <= 7000 + tolerated_ms


@pytest.mark.parametrize("elapsed_ms", [0, 2000, HOUR_MS])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_no_lease_ends_before_its_time_under_a_clock_that_is_not_known(
    ahead_ms: int, elapsed_ms: int
) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    now_ms = NOW_MS + elapsed_ms + ahead_ms
    event = clock_change(state, "b", now_ms, NOW_MS * 1000, is_ahead_unknown)
    assert event is not None
    state.apply(event, 4, 2)
    (lease_ms,), _ = times(state)
    assert lease_ms - now_ms >= 5000 - elapsed_ms - limits.CLOCK_SKEW_WARN_MS


def test_a_retry_does_not_wait_longer_only_because_a_clock_is_not_known() -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 24 * HOUR_MS)
    now_ms = NOW_MS + 23 * HOUR_MS
    event = clock_change(state, "b", now_ms, NOW_MS * 1000, is_ahead_unknown)
    assert event == ClockChanged("b", 23 * HOUR_MS, 0)


def test_the_same_node_changes_nothing() -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    assert clock_change(state, "a", NOW_MS, NOW_MS * 1000, lambda _: HOUR_MS) is None


def test_a_partition_without_leases_only_records_the_node() -> None:
    state = PartitionState()
    assert clock_change(state, "a", NOW_MS, None, is_ahead_unknown) == ClockChanged("a")


def test_a_snapshot_keeps_the_node_whose_clock_counts() -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    state.apply(ClockChanged("b", HOUR_MS, HOUR_MS), 4, 2)
    fresh = PartitionState()
    fresh.extend_to(state.end_offset)
    for event in decode_events(encode_events(list(snapshot_of(state, state.end_offset)))):
        fresh.apply(event, 0, 0)
    assert fresh.clock_node == "b"
    assert canonical(fresh) == canonical(state)


def test_many_leases_and_retries_move_together() -> None:
    state = PartitionState()
    count = 50_000
    state.extend_to(2 * count)
    spans = [(offset, offset + 1, offset % 7 + 1) for offset in range(0, 2 * count, 2)]
    state.apply(ClockChanged("a"), 0, 1)
    state.apply(Leased("g", "c", NOW_MS, spans), 1, 1)
    state.apply(Expired("g", token_of(1, 1), spans[: count // 2], NOW_MS + 7), 2, 1)
    state.apply(ClockChanged("b", HOUR_MS, -HOUR_MS), 3, 2)
    assert times(state) == ({NOW_MS + HOUR_MS}, {NOW_MS + 7 - HOUR_MS})
    group = state.groups["g"]
    assert group.retries.advance(NOW_MS + 7 - HOUR_MS)
    assert group.leased_count == group.retries.message_count == count // 2


@pytest.mark.parametrize("back_ms", [1000, HOUR_MS, 9000 * HOUR_MS])
def test_a_node_whose_clock_was_set_back_before_it_started_moves_its_own_times_back(
    back_ms: int,
) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    event = clock_change(state, "a", NOW_MS - back_ms, NOW_MS * 1000, is_ahead_unknown)
    assert event == ClockChanged("a", -back_ms, -back_ms)


@pytest.mark.parametrize("later_ms", [-limits.CLOCK_SKEW_WARN_MS, 0, HOUR_MS])
def test_a_node_that_starts_later_moves_none_of_its_own_times(later_ms: int) -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    assert clock_change(state, "a", NOW_MS + later_ms, NOW_MS * 1000, is_ahead_unknown) is None


def test_a_clock_that_is_set_moves_times_only_where_there_are_any() -> None:
    state = state_with_lease(NOW_MS + 5000, NOW_MS + 7000)
    assert clock_set(state, -1000) == ClockChanged("a", -1000, -1000)
    assert clock_set(PartitionState(), -1000) is None
