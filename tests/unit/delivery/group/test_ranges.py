"""Runs of offsets: what is held, in one part or in several."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from goq.delivery.group.attempt_ranges import AttemptRange, AttemptRanges


def _parts(*runs: tuple[int, int]) -> AttemptRanges:
    parts = AttemptRanges()
    for start, end in runs:
        parts.add(AttemptRange(start, end, 1, 0))
    return parts


def test_neighbours_together_hold_what_reaches_over_them() -> None:
    parts = _parts((3, 4), (4, 5), (5, 9))
    assert parts.contains(3, 9)
    assert parts.contains(4, 7)
    assert parts.contains(8, 9)


def test_what_a_gap_is_in_is_not_held() -> None:
    parts = _parts((3, 5), (6, 9))
    assert not parts.contains(3, 9)
    assert not parts.contains(5, 6)
    assert not parts.contains(5, 7)
    assert not parts.contains(2, 4)
    assert not parts.contains(8, 10)
    assert not _parts().contains(0, 1)


def test_all_that_is_here_may_be_named_by_ranges_over_several_parts() -> None:
    parts = _parts((3, 4), (4, 6), (8, 9))
    assert parts.equals([(3, 6), (8, 9)])
    assert not parts.equals([(3, 6)])
    assert not parts.equals([(3, 6), (7, 8)])


def test_spans_of_any_order_are_joined_where_they_are_one_run() -> None:
    parts = AttemptRanges()
    parts.add_spans([(9, 10, 1), (3, 4, 1), (4, 6, 1), (8, 9, 2), (20, 21, 1)], 70)
    assert [part[:2] for part in parts] == [(3, 6), (8, 9), (9, 10), (20, 21)]
    assert parts.message_count == 6
    parts.add_spans([(6, 8, 1), (1, 3, 1)], 80)
    assert [part[:2] for part in parts] == [(1, 3), (3, 6), (6, 8), (8, 9), (9, 10), (20, 21)]
    assert [part.time_ms for part in parts] == [80, 70, 80, 70, 70, 70]
    assert parts.message_count == 10
    assert parts.at(7) == AttemptRange(6, 8, 1, 80)


@pytest.mark.parametrize(
    "change",
    [
        lambda ranges: ranges.add(AttemptRange(20, 21, 1, 5)),
        lambda ranges: ranges.add_spans([(20, 21, 1)], 5),
        lambda ranges: ranges.take(3, 4),
        lambda ranges: ranges.take_all(),
        lambda ranges: ranges.shift_times(7),
    ],
    ids=["add", "add spans", "take", "take all", "shift"],
)
def test_what_ranges_were_encoded_as_is_forgotten_when_they_change(
    change: Callable[[AttemptRanges], object],
) -> None:
    ranges = AttemptRanges()
    assert ranges.only() is None
    ranges.add(AttemptRange(0, 9, 1, 5))
    assert ranges.only() == AttemptRange(0, 9, 1, 5)
    ranges.encoded = raw = msgspec.Raw(b"as it was")
    ranges.within(0, 3), ranges.at(2), ranges.contains(1, 2), ranges.earliest_ms()
    assert ranges.encoded is raw
    change(ranges)
    assert ranges.encoded is None


def test_an_empty_set_forgets_it_too_and_several_ranges_are_not_the_only_one() -> None:
    ranges = AttemptRanges()
    ranges.encoded = msgspec.Raw(b"")
    ranges.add_spans([(0, 2, 1), (5, 6, 1)], 9)
    assert ranges.encoded is None
    assert ranges.only() is None
