"""Recorded acks against a set of offsets that each event changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.broker.events import recorded_acks
from goq.broker.events.recorded_acks import split_recorded
from goq.broker.events.search import EventGap, IndexedEventLog
from goq.delivery.events.event import Acked, AnyEvent, GroupDeleted, Reset, Truncated
from goq.model import Receipt

_LOG = cast(IndexedEventLog, None)
_GROUPS = st.sampled_from(["g", "h"])
_OFFSETS = st.integers(0, 8)
_EVENTS = st.one_of(
    st.builds(
        lambda group, token, start, count: Acked(group, token, [(start, start + count)]),
        _GROUPS,
        st.sampled_from([1, 1, 2]),
        _OFFSETS,
        st.integers(1, 4),
    ),
    st.builds(Reset, _GROUPS, _OFFSETS),
    st.builds(GroupDeleted, _GROUPS),
    st.builds(Truncated, _OFFSETS),
)


class _Found(NamedTuple):
    event: AnyEvent


def _naive(events: Sequence[AnyEvent], group: str, token: int) -> set[int]:
    done: set[int] = set()
    for event in events:
        match event:
            case Acked():
                if (event.group, event.token) == (group, token):
                    done |= {each for start, end in event.ranges for each in range(start, end)}
            case Reset():
                if event.group == group:
                    done = {each for each in done if each < event.offset}
            case GroupDeleted():
                if event.group == group:
                    done = set()
            case Truncated():
                done = {each for each in done if each < event.end_offset}
            case _:
                raise AssertionError(event)
    return done


def _offsets(receipts: Sequence[Receipt]) -> list[int]:
    assert all(receipt.start < receipt.end for receipt in receipts)
    return [each for receipt in receipts for each in range(receipt.start, receipt.end)]


@given(st.lists(_EVENTS, max_size=8), _OFFSETS, st.integers(1, 8))
def test_each_offset_is_settled_or_lost_as_the_events_say(
    events: list[AnyEvent], start: int, count: int
) -> None:
    gap: Any = EventGap(0, None, None)
    with pytest.MonkeyPatch.context() as patch:
        found = [gap, *map(_Found, events)]
        patch.setattr(recorded_acks, "find_events", lambda _logs, _offset, _published: found)
        settled, lost = split_recorded(_LOG, "g", [Receipt(0, 1, start, start + count)])
    done = _naive(events, "g", 1)
    wanted = range(start, start + count)
    assert settled == len(done.intersection(wanted))
    assert _offsets(lost) == [each for each in wanted if each not in done]


def test_no_empty_range_is_left_of_an_ack_that_begins_where_a_reset_goes_back_to() -> None:
    events = [Acked("g", 1, [(3, 5), (7, 9)]), Reset("g", 7)]
    with pytest.MonkeyPatch.context() as patch:
        found = [*map(_Found, events)]
        patch.setattr(recorded_acks, "find_events", lambda _logs, _offset, _published: found)
        assert recorded_acks._acked_ranges(_LOG, "g", 1, 3) == [(3, 5)]


def test_so_many_messages_are_searched_for_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def find(_logs: object, offset: int, _published: object) -> list[_Found]:
        searched.append(offset)
        return []

    monkeypatch.setattr(recorded_acks, "find_events", find)
    monkeypatch.setattr("goq.limits.ACK_SEARCHES_MAX", 3)
    receipt = Receipt(0, 1, 0, 10)
    assert split_recorded(_LOG, "g", [receipt, receipt]) == (0, [receipt])
    assert searched == [0, 1, 2]
