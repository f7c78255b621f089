"""How far a node's clock is ahead of the nodes that it follows."""

from __future__ import annotations

from goq.clock import ManualClock
from goq.cluster.replication.leader_clocks import LeaderClocks
from goq.cluster.replication.protocol import PartitionKey

KEY, OTHER = PartitionKey("t", 7, 0), PartitionKey("t", 7, 1)


def test_what_no_response_has_told_is_not_known() -> None:
    clocks = LeaderClocks(ManualClock())
    clocks.note("n1", 0, [KEY])
    assert clocks.ahead_of("n1", KEY) is None


def test_the_clock_of_a_leader_that_did_not_record_itself_is_not_known() -> None:
    clock = ManualClock()
    clocks = LeaderClocks(clock)
    assert clocks.ahead_of("", KEY) is None
    clocks.note("n1", clock.wall_ms() - 400, [OTHER])
    assert clocks.ahead_of("", KEY) is None
    assert clocks.ahead_of("", OTHER) is None


def test_the_latest_response_counts_where_none_brought_events() -> None:
    clock = ManualClock()
    clocks = LeaderClocks(clock)
    for behind_ms in (3, 250, 40):
        clocks.note("n1", clock.wall_ms() - behind_ms)
    assert clocks.ahead_of("n1", KEY) == 40


def test_events_are_by_the_clock_that_their_leader_had_before_it_started_again() -> None:
    clock = ManualClock()
    clocks = LeaderClocks(clock)
    clocks.note("n1", clock.wall_ms(), [KEY, OTHER])
    clocks.note("n1", clock.wall_ms() + 400)
    assert clocks.ahead_of("n1", KEY) == 0
    clocks.note("n1", clock.wall_ms() + 400, [KEY])
    assert clocks.ahead_of("n1", KEY) == -400
    assert clocks.ahead_of("n1", OTHER) == 0
    assert clocks.ahead_of("n2", KEY) is None


def test_a_clock_that_is_set_after_the_response_is_ahead_by_as_much_more() -> None:
    clock = ManualClock()
    clocks = LeaderClocks(clock)
    clocks.note("n1", clock.wall_ms() - 40, [KEY])
    for step_ms, ahead_ms in ((3_000, 3_040), (-7_200_000, -7_196_960)):
        clock.jump_ms(step_ms)
        clock.advance_ms(500)
        assert clocks.ahead_of("n1", KEY) == clocks.ahead_of("n1", OTHER) == ahead_ms


def test_a_partition_that_was_dropped_is_forgotten() -> None:
    clock = ManualClock()
    clocks = LeaderClocks(clock)
    clocks.note("n1", clock.wall_ms(), [KEY])
    clocks.note("n1", clock.wall_ms() + 400)
    clocks.forget(KEY)
    assert clocks.ahead_of("n1", KEY) == -400
