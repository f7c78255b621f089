"""When the deadlines of a partition follow a clock that was set."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from goq.broker.events.deadline_clock import DeadlineClock
from goq.broker.partition_context import Availability, PartitionId
from goq.clock import ManualClock
from goq.delivery.events.event import ClockChanged, Leased
from goq.delivery.partition_state import PartitionState


class Case:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = PartitionState()
        self.state.extend_to(10)
        self.state.apply(Leased("g", "c", self.clock.wall_ms() + 5000, [(0, 2, 1)]), 0, 1)
        self.writer, self.availability = Mock(has_room=True), Availability(PartitionId("t", 0))
        self.moves = 0
        self.deadlines = DeadlineClock(
            self.clock, self.state, self.writer, self.availability, on_moved=self._on_moved
        )

    def _on_moved(self) -> None:
        self.moves += 1

    def recorded(self) -> list[ClockChanged]:
        return [event for call in self.writer.record.call_args_list for event in call.args[0]]


@pytest.fixture
def case() -> Case:
    return Case()


def test_steps_that_are_small_move_deadlines_once_they_add_up(case: Case) -> None:
    case.deadlines.follow(None)
    for _ in range(2):
        case.clock.jump_ms(150)
        case.clock.advance_ms(1000)
        assert case.deadlines.now_ms() == case.clock.wall_ms()
    assert case.recorded() == [ClockChanged("", 300, 300)]
    assert case.moves == 1


def test_time_that_passes_moves_nothing(case: Case) -> None:
    case.deadlines.follow(None)
    case.clock.advance_ms(1_000_000)
    assert case.deadlines.now_ms() == case.clock.wall_ms()
    assert case.recorded() == []


def test_a_clock_is_not_followed_before_it_may_be_recorded(case: Case) -> None:
    case.clock.jump_ms(-5000)
    assert case.deadlines.now_ms() == case.clock.wall_ms()
    assert case.recorded() == []


def test_nothing_is_recorded_for_a_partition_that_is_offline(case: Case) -> None:
    case.deadlines.follow(None)
    case.availability.take_offline("is away")
    case.clock.jump_ms(-5000)
    assert case.deadlines.now_ms() == case.clock.wall_ms()
    assert case.recorded() == []


def test_a_move_waits_for_the_next_event_while_the_disk_is_full(case: Case) -> None:
    case.deadlines.follow(None)
    case.writer.has_room = False
    case.clock.jump_ms(-5000)
    case.deadlines.now_ms()
    case.writer.record_later.assert_called_once_with(ClockChanged("", -5000, -5000))
    assert case.recorded() == []
