"""The marks of messages: what they say of one message, and what a change does at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from goq.broker.partition.message_marks import MessageMarks
from goq.clock import ManualClock
from goq.delivery.events.event import AnyEvent, Cancelled, Matured, Moved, Rescheduled, Trimmed
from goq.delivery.partition_state import PartitionState
from goq.errors import TooManyRequests

DUE_MS = 5_000


class Case:
    """The marks of the messages 10 to 29; events are applied at once."""

    def __init__(self) -> None:
        self.state, self.clock = PartitionState(), ManualClock()
        self.state.extend_to(30)
        self.apply(Trimmed(10))
        self.steps: list[Any] = []
        self.default_lane = 1
        self.refusal: Exception | None = None
        self.current = self
        given: Any = self
        callbacks: Any = SimpleNamespace(on_ready=lambda group: self.steps.append(("ready", group)))
        self.marks = MessageMarks(
            self.state,
            given,
            callbacks,
            given,
            given,
            given,
            on_rescheduled=lambda: self.steps.append("timer"),
        )

    @property
    def clock_ms(self) -> int:
        return self.clock.wall_ms()

    def apply(self, event: AnyEvent) -> None:
        self.state.apply(event, 0, 1)

    # The writer, and the leases

    def record(self, events: list[AnyEvent]) -> str:
        self.steps.append(("record", *events))
        return "done"

    def check_room(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    # The ready state

    def check_changeable(self) -> None:
        self.steps.append("changeable")

    def places(self, row: Any) -> tuple[Any, Any]:
        return np.array([row.lane]), np.array([row.tenant])

    def cancelled(self, offset: int, due_ms: int) -> None:
        self.steps.append(("cancelled", offset, due_ms))

    def moved(self, offset: int, lane: int, tenant: int, now_ms: int) -> None:
        self.steps.append(("moved", offset, lane, tenant, now_ms))

    def rescheduled(self, row: Any, due_ms: int, new_due_ms: int) -> None:
        self.steps.append(("rescheduled", due_ms, new_due_ms))


def row(*, lane: int = 2, tenant: int = 4, due_ms: int = 0, offset: int = 15) -> Any:
    return SimpleNamespace(
        lane=lane, tenant=tenant, deliver_at_ms=np.array([due_ms]), offsets=np.array([offset])
    )


def test_a_message_in_a_plain_frame_has_the_lane_of_its_topic_and_is_not_delayed() -> None:
    found = Case().marks.status(15, None)
    assert (found.lane, found.tenant, found.due_ms) == (1, 0, 0)
    assert not found.is_scheduled
    assert not found.is_cancelled


@pytest.mark.parametrize(
    ("events", "due_ms", "is_scheduled"),
    [
        ([], DUE_MS, True),
        ([Rescheduled(15, 9_000)], 9_000, True),
        ([Rescheduled(16, 9_000)], DUE_MS, True),
        ([Matured(DUE_MS, 30)], DUE_MS, False),
        ([Matured(DUE_MS - 1, 30)], DUE_MS, True),
        ([Cancelled([(15, 16)])], DUE_MS, False),
        ([Cancelled([(14, 15)])], DUE_MS, True),
    ],
)
def test_a_delayed_message_waits_until_it_matures_unless_it_is_cancelled(
    events: list[AnyEvent], due_ms: int, is_scheduled: bool
) -> None:
    case = Case()
    for event in events:
        case.apply(event)
    found = case.marks.status(15, row(due_ms=DUE_MS))
    assert (found.lane, found.tenant, found.due_ms) == (2, 4, due_ms)
    assert found.is_scheduled is is_scheduled
    assert found.is_cancelled is (Cancelled([(15, 16)]) in events)


def test_marks_are_of_single_messages() -> None:
    case = Case()
    for event in (Moved(15, 0), Rescheduled(16, 9_000), Cancelled([(17, 19)])):
        case.apply(event)
    marks = case.marks
    assert [marks.moved_lane(offset) for offset in (14, 15, 16)] == [None, 0, None]
    assert [marks.is_rescheduled(offset) for offset in (15, 16, 17)] == [False, True, False]
    assert [marks.is_cancelled(offset) for offset in (16, 17, 18, 19)] == [False, True, True, False]
    assert marks.uncancelled(range(15, 21)) == [15, 16, 19, 20]
    assert marks.status(15, row()).lane == 0
    assert marks.count == 4


def test_messages_that_were_not_cancelled_are_counted_from_where_the_log_begins() -> None:
    case = Case()
    assert case.marks.uncancelled_count() == 20
    assert case.marks.next_uncancelled(0) == (10, 30)
    case.apply(Cancelled([(10, 13), (20, 25)]))
    assert case.marks.uncancelled_count() == 12
    found = [case.marks.next_uncancelled(start) for start in (0, 10, 13, 19, 20, 29, 30)]
    assert found == [(13, 20), (13, 20), (13, 20), (19, 20), (25, 30), (29, 30), None]


CHECKED = "changeable"


def test_a_cancelled_message_leaves_its_queue_or_its_delay_and_may_let_others_go_on() -> None:
    case = Case()
    assert case.marks.cancel(15, "late", None) == "done"
    record = ("record", Cancelled([(15, 16)], "late"))
    assert case.steps == [CHECKED, record, ("ready", None)]
    case.steps.clear()
    case.marks.cancel(15, "late", DUE_MS)
    assert case.steps == [CHECKED, record, ("cancelled", 15, DUE_MS), ("ready", None)]


def test_a_message_that_is_moved_is_ready_in_its_lane_unless_it_is_delayed() -> None:
    case = Case()
    assert case.marks.move(15, 0, 4) == "done"
    record, now_ms = ("record", Moved(15, 0)), case.clock_ms
    assert case.steps == [CHECKED, record, ("moved", 15, 0, 4, now_ms), ("ready", None)]
    case.steps.clear()
    case.marks.move(15, 0, None)
    assert case.steps == [CHECKED, record]


def test_a_rescheduled_message_sets_the_timer_anew() -> None:
    case = Case()
    assert case.marks.reschedule(row(), DUE_MS, 9_000) == "done"
    assert case.steps == [
        CHECKED,
        ("record", Rescheduled(15, 9_000)),
        ("rescheduled", DUE_MS, 9_000),
        "timer",
    ]


def test_no_mark_is_made_without_room_for_its_event() -> None:
    case = Case()
    case.refusal = TooManyRequests("too many events wait")
    for change in (
        lambda: case.marks.cancel(15, "", None),
        lambda: case.marks.move(15, 0, 4),
        lambda: case.marks.reschedule(row(), DUE_MS, 9_000),
    ):
        with pytest.raises(TooManyRequests):
            change()
    assert set(case.steps) == {CHECKED}
