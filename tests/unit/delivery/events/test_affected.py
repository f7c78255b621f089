"""Which messages an event speaks of, for every event there is."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from goq.broker.events.index_blocks import INTERVALS_MAX, IntervalSet
from goq.delivery.events.affected import (
    ANY_OFFSET,
    NO_MESSAGES,
    WITH_OFFSETS,
    WITHOUT_OFFSETS,
    PendingCopies,
    affected_spans,
    affects,
    holds_offset,
)
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cause,
    CopyQueued,
    CopyStored,
    Event,
    Matured,
    Moved,
    Reset,
    SnapshotMarks,
    Trimmed,
    token_of,
)
from goq.delivery.trace.timeline import _HANDLERS


def test_each_event_is_in_exactly_one_part_of_the_table() -> None:
    parts = [set(WITH_OFFSETS), set(NO_MESSAGES), set(WITHOUT_OFFSETS), set(ANY_OFFSET)]
    everything = set(get_args(AnyEvent))
    assert set().union(*parts) == everything
    assert sum(map(len, parts)) == len(everything)


def test_each_event_that_is_about_a_message_is_a_step_of_its_timeline() -> None:
    assert set(_HANDLERS) == set(get_args(AnyEvent)) - NO_MESSAGES


def test_an_event_that_nobody_told_of_may_concern_any_message() -> None:
    class New(Event, frozen=True, tag=99):
        pass

    assert affected_spans(New()) is None
    assert affects(New(), 5)


def test_events_speak_of_the_messages_that_they_name() -> None:
    acked = Acked("g", 1, [(3, 5), (9, 10)])
    assert [offset for offset in range(12) if affects(acked, offset)] == [3, 4, 9]
    assert [offset for offset in range(12) if affects(Moved(7, 1), offset)] == [7]
    assert affects(Reset("g", 5), 1_000_000)
    for event in (SnapshotMarks(), Matured(5, 5), Trimmed(5), CopyStored(1, 5)):
        assert not affects(event, 3)


def test_what_has_arrived_are_the_messages_of_its_departure() -> None:
    leaving = PendingCopies()
    departing = CopyQueued("g", 0, [(4, 6, 1)], Cause.REJECTED, "", 0, "t.dlq", 0, 1)
    leaving.begin(departing, 3, 8)
    number = token_of(3, 8)
    assert leaving.of(number) == [(4, 6, 1)]
    assert leaving.end(CopyStored(number, 0)) == [(4, 6, 1)]
    assert leaving.end(CopyStored(number, 0)) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(1, 300)).map(lambda t: (t[0], t[0] + t[1])),
        max_size=150,
    )
)
def test_a_cover_holds_all_in_few_intervals(stretches: list[tuple[int, int]]) -> None:
    cover = IntervalSet()
    for start, end in stretches:
        cover.add(start, end)
    intervals = cover.intervals()
    assert len(intervals) <= INTERVALS_MAX
    assert intervals == sorted(intervals)
    for start, end in stretches:
        assert any(low <= start and end <= high for low, high in intervals)
    if stretches:
        assert intervals[0][0] == min(start for start, _ in stretches)
        assert intervals[-1][1] == max(end for _, end in stretches)


def test_stretches_hold_the_offsets_from_their_start_up_to_before_their_end() -> None:
    assert [o for o in range(6) if holds_offset([(1, 3, 9), (4, 5, 9)], o)] == [1, 2, 4]
