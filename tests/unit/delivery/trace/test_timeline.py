"""From the events about one message to its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    Compacted,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.events.frame_codec import StoredEvent
from goq.delivery.trace.steps import CopyLocation, PublishRecord, Step, StepName, TraceGap
from goq.delivery.trace.timeline import DAMAGED, Timeline

EPOCH, OFFSET = 2, 10
PUBLISHED = PublishRecord(OFFSET, 1_000_000)
TOKEN = token_of(EPOCH, 0)
LEASED = Leased("g", "c", 31_000, [(5, 8, 1), (10, 12, 1)])


def timeline(
    *events: AnyEvent | None,
    published: PublishRecord | None = PUBLISHED,
    archived_us: int | None = None,
    ends: Sequence[int | None] = (),
) -> Timeline:
    """Feed events, a second apart; None for one that is damaged.

    ``ends`` are the ends of the messages then, where they are known.
    """
    found = Timeline(OFFSET, published, archived_us)
    for number, event in enumerate(events):
        time_us = 2_000_000 + number * 1_000_000
        messages_end = ends[number] if number < len(ends) else None
        if event is None:
            gap = TraceGap(time_us - 1_000_000, time_us + 1_000_000, DAMAGED)
            found.add_gap(gap, messages_end)
        else:
            found.add(StoredEvent(number, EPOCH, time_us, event, messages_end))
    found.finish()
    return found


def names(found: Timeline) -> list[str]:
    return [str(step.name) for step in found.steps]


def last(*events: AnyEvent | None, **known: Any) -> Step:
    return timeline(*events, **known).steps[-1]


def test_events_about_other_messages_are_no_steps() -> None:
    others = Leased("g", "c", 5, [(0, 10, 1), (11, 20, 1)]), Cancelled([(9, 10)])
    assert names(timeline(*others)) == ["PUBLISHED"]


def test_an_open_lease_and_one_that_ran_out_say_until_when() -> None:
    assert last(LEASED).until_ms == 31_000
    over = timeline(LEASED, Expired("g", TOKEN, [(10, 12, 1)], 3000, "", 3000))
    assert over.steps[1].until_ms == 31_000
    assert (over.steps[2].name, over.steps[2].reason) == (StepName.EXPIRED, "visibility_timeout")
    settled = timeline(LEASED, Acked("g", TOKEN, [(10, 12)]))
    assert settled.steps[1].until_ms is None
    assert settled.steps[2] == Step(3_000_000, StepName.ACKNOWLEDGED, "g", "c", 1)


def test_a_retry_is_a_step_where_it_has_to_wait() -> None:
    nacked = Nacked("g", TOKEN, [(10, 12, 1)], 9_000, "busy", 3_000)
    found = timeline(LEASED, nacked)
    assert names(found)[2:] == ["NACKED", "RETRY_SCHEDULED"]
    assert found.steps[-1].due_ms == 9_000
    at_once = Nacked("g", TOKEN, [(10, 12, 1)], 3_000, "busy", 3_000)
    assert names(timeline(LEASED, at_once))[2:] == ["NACKED"]
    assert names(timeline(LEASED, Cancelled([(10, 11)]), nacked))[2:] == ["CANCELLED", "NACKED"]


def test_what_never_left_the_node_was_returned_and_is_no_attempt() -> None:
    found = timeline(LEASED, Nacked("g", TOKEN, [(10, 12, 0)], 3_000, "", 3_000))
    assert names(found)[1:] == ["DELIVERED", "RETURNED"]
    assert (found.attempts, found.steps[1].until_ms) == (0, None)


def test_without_its_lease_a_step_has_no_consumer_and_that_is_said() -> None:
    found = timeline(None, Acked("g", TOKEN, [(10, 12)]))
    assert found.steps[1:] == [Step(3_000_000, StepName.ACKNOWLEDGED, "g")]
    assert [gap.reason for gap in found.incomplete] == [
        "events are damaged",
        "the event of the delivery is missing",
    ]


def test_without_its_lease_what_may_have_been_returned_is_not_called_nacked() -> None:
    returned = Nacked("g", TOKEN, [(10, 12, 1)], 3_000, "", 3_000)
    assert names(timeline(None, returned)) == ["PUBLISHED"]
    assert names(timeline(None, Nacked("g", TOKEN, [(10, 12, 1)], 3_000, "bad", 3_000))) == [
        "PUBLISHED",
        "NACKED",
    ]


@pytest.mark.parametrize(
    ("cause", "reason", "name", "told"),
    [
        (Cause.NACKED, "busy", "NACKED", "busy"),
        (Cause.EXPIRED, "", "EXPIRED", "visibility_timeout"),
        (Cause.EXPIRED, "gone", "EXPIRED", "gone"),
        (Cause.REJECTED, "", "REJECTED", None),
    ],
)
def test_what_is_given_up_says_why_before_it_says_what_became_of_it(
    cause: Cause, reason: str, name: str, told: str | None
) -> None:
    spans = [(10, 12, 1)]
    dropped = timeline(LEASED, Dropped("g", TOKEN, spans, cause, reason, 3_000))
    assert names(dropped)[2:] == [name, "DROPPED"]
    departing = CopyQueued("g", TOKEN, spans, cause, reason, 3_000, "t.dlq", 1, 7)
    gone = timeline(LEASED, departing)
    assert names(gone)[2:] == [name, "DEAD_LETTERED"]
    for found in (dropped, gone):
        assert (found.steps[2].reason, found.steps[2].consumer) == (told, "c")


def test_a_copy_is_counted_from_the_first_that_left_with_it() -> None:
    spans = [(3, 5, 1), (9, 12, 1)]
    departing = CopyQueued("g", 0, spans, Cause.TTL, "", 3_000, "t.dlq", 1, 7)
    found = timeline(departing)
    assert names(found)[1:] == ["EXPIRED", "DEAD_LETTERED"]
    assert (found.steps[1].reason, found.steps[2].copy) == ("ttl", CopyLocation("t.dlq", 1, -1, 3))
    found = timeline(departing, CopyStored(token_of(EPOCH, 0), 70), CopyStored(9, 80))
    assert found.steps[2].copy == CopyLocation("t.dlq", 1, 70, 3)


def test_what_is_put_back_is_over_for_every_group() -> None:
    departing = CopyQueued("", 0, [(10, 11, 0)], Cause.REDRIVEN, "", 3_000, "t", 0, 7)
    found = timeline(departing, Reset("g", 0))
    assert names(found)[1:] == ["REDRIVEN"]
    assert found.steps[1].group is None


def test_what_is_passed_over_says_why() -> None:
    assert last(Skipped("g", [(10, 11)], Cause.TTL)).name is StepName.EXPIRED
    assert last(Skipped("g", [(10, 11)], Cause.OTHER_GROUP)) == Step(
        2_000_000, StepName.SKIPPED, "g", reason="other_group"
    )


def test_a_reset_is_a_step_where_it_changes_something() -> None:
    acked = Acked("g", TOKEN, [(10, 12)])
    assert names(timeline(Reset("g", 3))) == ["PUBLISHED"]
    assert last(Reset("g", 11)).reason == "passed over"
    assert names(timeline(Reset("g", 11), Reset("g", 12)))[1:] == ["RESET"]
    assert last(LEASED, acked, Reset("g", 10)).reason == "to be delivered again"
    assert names(timeline(LEASED, acked, Reset("g", 11)))[-1] == "ACKNOWLEDGED"
    assert last(LEASED, Reset("g", 11)).reason == "passed over"
    assert names(timeline(LEASED, acked, Reset("h", 3)))[-1] == "ACKNOWLEDGED"
    assert names(timeline(LEASED, acked, None, Reset("g", 3)))[-1] == "ACKNOWLEDGED"


@pytest.mark.parametrize(
    "end",
    [Reset("g", 10), Reset("g", 11), Reset("g", 3, 10), GroupDeleted("g"), Corrupted(8, 12, "bad")],
)
@pytest.mark.parametrize("has_gap", [True, False])
def test_a_lease_that_something_else_ended_says_no_more_until_when(
    end: AnyEvent, has_gap: bool
) -> None:
    gap = [None] if has_gap else []
    delivered = timeline(LEASED, *gap, end).steps[1]
    assert (delivered.name, delivered.until_ms) == (StepName.DELIVERED, None)
    assert timeline(LEASED, *gap, Reset("h", 10)).steps[1].until_ms == 31_000
    ran_out = Expired("g", TOKEN, [(10, 12, 1)], 40_000)
    assert timeline(LEASED, *gap, ran_out, end).steps[1].until_ms == 31_000


def test_a_group_that_is_deleted_is_told_of_where_it_had_the_message() -> None:
    assert names(timeline(GroupDeleted("g"))) == ["PUBLISHED"]
    again = timeline(LEASED, GroupDeleted("g"), GroupDeleted("g"))
    assert names(again)[2:] == ["GROUP_DELETED"]


def test_a_message_matures_once_by_the_time_in_force() -> None:
    delayed = PUBLISHED._replace(due_ms=5_000)
    early, late = Matured(4_999, 100), Matured(6_000, 100)
    found = timeline(early, Matured(6_000, 10), late, Matured(7_000, 100), published=delayed)
    assert names(found) == ["PUBLISHED", "SCHEDULED", "MATURED"]
    assert (found.steps[1].due_ms, found.steps[2].time_us) == (5_000, 6_000_000)
    moved = timeline(Rescheduled(10, 6_500), late, Matured(6_500, 100), published=delayed)
    assert names(moved)[2:] == ["RESCHEDULED", "MATURED"]
    assert moved.steps[-1].time_us == 6_500_000
    assert names(timeline(Cancelled([(10, 11)]), late, published=delayed))[-1] == "CANCELLED"
    assert names(timeline(None, late, published=delayed))[-1] == "SCHEDULED"


def test_a_step_has_its_time_also_where_the_clock_was_set_back() -> None:
    set_back = Timeline(OFFSET, PUBLISHED._replace(due_ms=1_500))
    set_back.add(StoredEvent(0, EPOCH, 2_000_000, Moved(10, 0)))
    set_back.add(StoredEvent(1, EPOCH, 1_700_000, Matured(1_600, 100)))
    assert set_back.steps[-1].time_us == 1_600_000
    late = PUBLISHED._replace(time_us=9_000_000)
    compacted = timeline(LEASED, Compacted(0, 20), Compacted(0, 20), published=late)
    compacted.add_compacted()
    assert [(step.name, step.time_us) for step in compacted.steps] == [
        (StepName.PUBLISHED, 9_000_000),
        (StepName.DELIVERED, 2_000_000),
        (StepName.COMPACTED, 4_000_000),
    ]


def test_a_message_matures_no_earlier_than_a_step_before_that_waited_for_the_disk() -> None:
    delayed = PUBLISHED._replace(due_ms=1_500)
    moved, matured = timeline(Moved(10, 0), Matured(1_600, 100), published=delayed).steps[-2:]
    assert (matured.name, matured.time_us) == (StepName.MATURED, moved.time_us)


def test_a_message_that_was_due_when_that_was_decided_does_not_mature_before_the_decision() -> None:
    delayed = PUBLISHED._replace(due_ms=9_000)
    found = timeline(Rescheduled(10, 1_990), Matured(1_995, 100), published=delayed)
    assert names(found)[2:] == ["RESCHEDULED", "MATURED"]
    assert [step.time_us for step in found.steps[2:]] == [2_000_000, 2_000_000]
    at_once = PUBLISHED._replace(due_ms=990)
    assert last(Matured(995, 100), published=at_once).time_us == 1_000_000


@pytest.mark.parametrize(("published_us", "expected_us"), [(7_450, 7_450), (6_999, 7_000)])
def test_a_message_that_is_due_in_the_millisecond_of_the_step_before_is_not_due_before_it(
    published_us: int, expected_us: int
) -> None:
    published = PublishRecord(OFFSET, published_us, due_ms=7)
    found = timeline(Matured(7, 100), published=published)
    assert names(found)[-1] == "MATURED"
    assert found.steps[-1].time_us == expected_us


def test_a_message_is_archived_when_it_left_the_log() -> None:
    archived = timeline(LEASED, Trimmed(11), Trimmed(90), Reset("g", 50), archived_us=1)
    assert [(step.name, step.time_us) for step in archived.steps][2:] == [(StepName.ARCHIVED, 1)]
    assert names(timeline(LEASED, None, archived_us=1))[2:] == ["ARCHIVED"]


def test_what_retention_deleted_is_deleted_once() -> None:
    found = timeline(Trimmed(10), Trimmed(11), Trimmed(90), published=None)
    assert [(step.name, step.time_us) for step in found.steps] == [(StepName.DELETED, 3_000_000)]


def test_what_was_lost_before_a_message_got_its_offset_was_about_another() -> None:
    found = timeline(LEASED, None, Truncated(10), Leased("g", "d", 5, [(10, 11, 1)]))
    assert [(step.name, step.consumer) for step in found.steps] == [
        (StepName.PUBLISHED, None),
        (StepName.DELIVERED, "d"),
    ]
    assert (found.attempts, found.incomplete) == (1, [])
    assert names(timeline(LEASED, Truncated(11))) == ["PUBLISHED", "DELIVERED"]


def test_damage_from_before_the_message_is_no_gap_in_its_trace() -> None:
    assert not timeline(None, ends=[OFFSET]).incomplete
    assert len(timeline(None, None, ends=[OFFSET + 1, None]).incomplete) == 2


def test_what_was_deleted_behind_a_gap_may_have_been_gone_before() -> None:
    assert last(None, Trimmed(11), published=None).reason == "gone by then"


def test_a_bounded_reset_is_told_of_the_messages_that_were_there_only() -> None:
    bounded = Reset("g", 5, 8)
    assert names(timeline(bounded, ends=[OFFSET])) == ["PUBLISHED"]
    held = timeline(bounded, ends=[OFFSET + 1])
    assert held.steps[1:] == [Step(2_000_000, StepName.RESET, "g", reason="behind the group's end")]
    assert names(timeline(bounded, Reset("g", 6, 9, 8)))[1:] == ["RESET"]


def test_a_reset_that_ends_the_bound_is_told_of_the_messages_behind_it() -> None:
    bounded = Reset("g", 5, 8)
    lifted = Reset("g", 5, -1, 8)
    for before in (OFFSET + 1, OFFSET):  # published before the bound and while it was in force
        step = timeline(bounded, lifted, ends=[before, 20]).steps[-1]
        assert (step.name, step.reason) == (StepName.RESET, "no longer behind the group's end")
    assert last(lifted).reason == "no longer behind the group's end"
    assert names(timeline(bounded, Reset("g", 5, 12, 8), ends=[OFFSET, 20]))[1:] == ["RESET"]
    assert last(bounded, Reset("g", 15, -1, 8)).reason == "passed over"
    assert names(timeline(bounded, lifted, ends=[OFFSET, OFFSET])) == ["PUBLISHED"]


def test_a_group_that_ended_before_a_message_is_told_of_when_it_is_deleted() -> None:
    held = timeline(Reset("g", 5, 8), GroupDeleted("g"), ends=[OFFSET + 1])
    assert names(held)[2:] == ["GROUP_DELETED"]
    assert names(timeline(Reset("g", 5, 8), GroupDeleted("g"), ends=[OFFSET])) == ["PUBLISHED"]


def test_an_extension_and_a_corruption_are_steps() -> None:
    extended = last(LEASED, Extended("g", TOKEN, [(10, 12)], 77_000))
    assert extended == Step(3_000_000, StepName.EXTENDED, "g", "c", 1, 77_000)
    assert last(Corrupted(8, 12, "bad")) == Step(2_000_000, StepName.CORRUPTED, reason="bad")
    repaired = last(Corrupted(8, 12, "bad"), Repaired(8, 12))
    assert repaired == Step(3_000_000, StepName.REPAIRED)
