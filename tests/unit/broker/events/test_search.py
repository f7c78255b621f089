"""Which events are about a message, where its offset belonged to another one before."""

from __future__ import annotations

from typing import Any

import pytest

from goq.broker.events import search
from goq.broker.events.index_blocks import UnreadableEvents
from goq.broker.events.search import (
    EventGap,
    _DueTimes,
    _find_first,
    _is_trim_of,
    _mark_gaps,
    _read,
    _reused_offset_sequence,
)
from goq.delivery.events.event import (
    AnyEvent,
    Matured,
    Rescheduled,
    Reset,
    Trimmed,
    Truncated,
)
from goq.delivery.events.frame_codec import StoredEvent


def stored(sequence: int, event: AnyEvent, *, time_us: int = 0) -> StoredEvent:
    return StoredEvent(sequence, 1, time_us, event, None)


@pytest.mark.parametrize(("offset", "expected"), [(8, -1), (9, 4), (10, 6), (11, 6)])
def test_an_offset_belongs_to_another_message_since_the_log_was_cut_at_or_before_it(
    offset: int, expected: int
) -> None:
    events = {2: Reset("g", 0), 4: Truncated(9), 6: Truncated(10), 7: Reset("g", 1)}
    found: dict[int, StoredEvent | EventGap] = {
        number: StoredEvent(number, 1, 0, event, None) for number, event in events.items()
    }
    found[5] = EventGap(5, None, None, None, "lost")
    assert _reused_offset_sequence(found, offset) == expected


def test_the_due_time_in_force_is_the_last_one_before_and_the_earliest_is_searched_for() -> None:
    events = {3: Rescheduled(5, 50), 4: Rescheduled(6, 10), 7: Rescheduled(5, 200)}
    found: dict[int, StoredEvent | EventGap] = {n: stored(n, event) for n, event in events.items()}
    dues = _DueTimes(5, 100, found)
    assert dues.least_ms == 50
    matured = [
        (sequence, up_to_ms)
        for sequence in (0, 3, 4, 7, 8)
        for up_to_ms in (49, 50, 99, 100, 199, 200)
        if dues.is_matured_by(stored(sequence, Matured(up_to_ms, 6)))
    ]
    in_force_ms = {0: 100, 3: 100, 4: 50, 7: 50, 8: 200}
    assert matured == [
        (sequence, up_to_ms)
        for sequence, due_ms in in_force_ms.items()
        for up_to_ms in (49, 50, 99, 100, 199, 200)
        if up_to_ms >= due_ms
    ]
    assert not dues.is_matured_by(stored(8, Matured(1000, 5)))
    assert not dues.is_matured_by(stored(8, Trimmed(9)))


def test_due_times_of_another_message_that_had_the_offset_do_not_count() -> None:
    found: dict[int, StoredEvent | EventGap] = {
        2: stored(2, Rescheduled(5, 50)),
        4: stored(4, Truncated(5)),
        5: EventGap(5, None, None, None, "lost"),
    }
    dues = _DueTimes(5, 100, found)
    assert dues.least_ms == 100
    assert not dues.is_matured_by(stored(4, Matured(1000, 6)))
    assert dues.is_matured_by(stored(6, Matured(100, 6)))
    assert _DueTimes(5, 0, found).least_ms is None
    assert not _DueTimes(5, 0, found).is_matured_by(stored(6, Matured(100, 6)))


def test_a_trim_is_of_a_message_if_it_begins_behind_it_and_comes_after_it() -> None:
    trims = _is_trim_of(5, 3)
    given = [(3, 6), (4, 5), (4, 6)]
    assert [trims(stored(sequence, Trimmed(start))) for sequence, start in given] == [
        False,
        False,
        True,
    ]
    assert not trims(stored(4, Truncated(9)))


LOST = UnreadableEvents(0, 1)


def test_what_cannot_be_read_is_a_gap_between_the_events_around_it() -> None:
    one, two = stored(1, Trimmed(1), time_us=10), stored(4, Trimmed(2), time_us=40)
    lost = [LOST._replace(sequence=number) for number in (0, 2, 3, 5, 6)]
    marked = list(_mark_gaps(iter([lost[0], one, lost[1], lost[2], two, lost[3], lost[4]])))
    assert marked == [
        EventGap(0, None, 10, None),
        one,
        EventGap(2, 10, 40, None),
        two,
        EventGap(5, 40, None),
    ]


def test_ranges_that_touch_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []

    def between(_reader: object, start: int, end: int) -> Any:
        read.append((start, end))
        return iter([stored(start, Trimmed(0))])

    monkeypatch.setattr(search, "events_between", between)
    log: Any = type("Log", (), {"reader": None})
    events = list(_read(log, [(0, 2), (2, 5), (6, 7), (7, 9), (20, 21)]))
    assert read == [(0, 5), (6, 9), (20, 21)]
    assert [each.sequence for each in events] == [0, 6, 20]


def test_the_search_for_one_event_ends_with_it_and_keeps_the_gaps_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def between(_reader: object, start: int, _end: int) -> Any:
        yield LOST._replace(sequence=start)
        yield stored(start + 1, Trimmed(start))

    monkeypatch.setattr(search, "events_between", between)
    logs: Any = [type("Log", (), {"reader": None}) for _ in range(2)]
    found: dict[int, StoredEvent | EventGap] = {}
    ranges = iter([[(0, 2), (10, 12)], [(20, 22), (30, 32)]])
    _find_first(logs, found, lambda _log: next(ranges), lambda each: each.event == Trimmed(20))
    assert sorted(found) == [0, 10, 20, 21]
    assert found[21] == stored(21, Trimmed(20))
