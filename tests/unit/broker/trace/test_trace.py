"""A trace: the order of steps of a message and of its copies, and the times between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.trace.trace import (
    Links,
    MessageHistory,
    Trace,
    build_trace,
    linked_messages,
    order_by_origin,
)
from goq.delivery.trace.steps import Step, StepName, TraceGap
from goq.model import MessageId

FIRST, COPY, LATER = MessageId("t", 0, 1), MessageId("t.dlq", 0, 0), MessageId("t", 0, 2)
PUBLISHED, DELIVERED, ACKED = StepName.PUBLISHED, StepName.DELIVERED, StepName.ACKNOWLEDGED
DEAD, REDRIVEN = StepName.DEAD_LETTERED, StepName.REDRIVEN


def history(
    identity: MessageId, *steps: tuple[int, StepName], gaps: tuple[TraceGap, ...] = ()
) -> MessageHistory:
    delivered = sum(name is DELIVERED for _, name in steps)
    timeline: Any = SimpleNamespace(
        steps=[Step(*step) for step in steps], incomplete=gaps, attempts=delivered
    )
    return MessageHistory(identity, "done", None, None, "p", False, None, timeline)


def told(trace: Trace) -> list[tuple[int, int]]:
    return [(each.id.offset, each.step.time_us) for each in trace.steps]


def test_a_copy_comes_after_the_step_that_made_it_though_its_clock_is_behind() -> None:
    first = history(FIRST, (100, PUBLISHED), (110, DELIVERED), (120, DEAD))
    copy = history(COPY, (5, PUBLISHED), (130, DELIVERED))
    trace = build_trace(first, [first, copy], {FIRST: {2: COPY}}, is_cut=False)
    assert told(trace) == [(1, 100), (1, 110), (1, 120), (0, 5), (0, 130)]
    assert [each.to for each in trace.steps] == [None, None, COPY, None, None]
    assert [each.origin for each in trace.steps] == [None, None, None, FIRST, None]
    assert [each.producer for each in trace.steps] == ["p", None, None, None, None]
    assert (trace.message, trace.copies, trace.attempts) == (first, [copy], 2)


def test_steps_after_the_copy_was_made_are_told_by_their_times() -> None:
    first = history(FIRST, (100, PUBLISHED), (120, DEAD), (140, REDRIVEN))
    copy = history(COPY, (130, PUBLISHED), (150, DELIVERED))
    trace = build_trace(first, [first, copy], {FIRST: {1: COPY}}, is_cut=False)
    assert told(trace) == [(1, 100), (1, 120), (0, 130), (1, 140), (0, 150)]


def test_messages_that_are_copies_of_each_other_are_told_all_the_same() -> None:
    """An offset was used twice after data was lost."""
    first = history(FIRST, (100, PUBLISHED), (120, DEAD))
    copy = history(COPY, (90, PUBLISHED), (130, DEAD))
    links = {FIRST: {1: COPY}, COPY: {1: FIRST}}
    trace = build_trace(first, [first, copy], links, is_cut=False)
    assert sorted(told(trace)) == [(0, 90), (0, 130), (1, 100), (1, 120)]


def test_a_gap_is_told_once_and_so_are_copies_that_are_left_out() -> None:
    gap = TraceGap(1, 2, "lost")
    first, copy = history(FIRST, (1, PUBLISHED), gaps=(gap,)), history(COPY, gaps=(gap,))
    assert build_trace(first, [first, copy], {}, is_cut=False).incomplete == [gap]
    cut = build_trace(first, [first, copy], {}, is_cut=True).incomplete
    assert cut[0] == gap
    assert [each.reason for each in cut[1:]] == ["there are more copies than a trace follows"]


@pytest.mark.parametrize(
    ("steps", "expected_us"),
    [
        ([(100, PUBLISHED), (110, DELIVERED), (150, ACKED), (20, DELIVERED)], 50),
        ([(100, PUBLISHED), (100, DELIVERED), (100, ACKED)], 0),
        ([(100, PUBLISHED), (90, DELIVERED), (150, ACKED)], None),
        ([(100, PUBLISHED), (110, DELIVERED)], None),
        ([(110, DELIVERED), (150, ACKED)], None),
        ([], None),
    ],
)
def test_the_time_from_publish_to_ack_is_told_unless_a_clock_went_back_in_between(
    steps: list[tuple[int, StepName]], expected_us: int | None
) -> None:
    message = history(FIRST, *steps)
    assert build_trace(message, [message], {}, is_cut=False).publish_to_ack_us == expected_us


LINKS: Links = {FIRST: {1: COPY}, COPY: {2: LATER}, MessageId("u", 0, 0): {1: MessageId("u", 0, 9)}}


@pytest.mark.parametrize("asked", [FIRST, COPY, LATER])
def test_whichever_message_is_asked_for_all_that_descend_from_one_are_of_its_trace(
    asked: MessageId,
) -> None:
    assert linked_messages(asked, LINKS) == {FIRST, COPY, LATER}


def test_messages_stand_behind_what_they_are_copies_of() -> None:
    chosen = [history(each) for each in (COPY, LATER, FIRST)]
    assert [each.id for each in order_by_origin(chosen, LINKS)] == [FIRST, COPY, LATER]
    circle: Links = {FIRST: {1: COPY}, COPY: {1: FIRST}}
    assert {each.id for each in order_by_origin(chosen, circle)} == {FIRST, COPY, LATER}
