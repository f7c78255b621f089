"""Runs of offsets: what is held, in one part or in several."""

from __future__ import annotations

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
    assert parts.bounds() == [(3, 6), (8, 9), (9, 10), (20, 21)]
    assert parts.message_count == 6
    parts.add_spans([(6, 8, 1), (1, 3, 1)], 80)
    assert parts.bounds() == [(1, 3), (3, 6), (6, 8), (8, 9), (9, 10), (20, 21)]
    assert [part.time_ms for part in parts] == [80, 70, 80, 70, 70, 70]
    assert parts.message_count == 10
    assert parts.at(7) == AttemptRange(6, 8, 1, 80)
