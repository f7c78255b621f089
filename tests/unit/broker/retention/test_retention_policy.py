"""What retention keeps of a log, by age and by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from goq.broker.retention.retention_policy import retained_from
from goq.config.topic import Cleanup, TopicSettings
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import IndexEntry, SparseIndex

NOW_US = 10_000_000
AGE_MS = 4_000
BY_AGE = TopicSettings(retention_age_ms=AGE_MS)


def log_of(*times_s: float | None) -> list[Segment]:
    """Return segments of ten messages and 100 bytes each by their newest time, None if it is lost.

    The last one is active.
    """
    segments = []
    for number, time_s in enumerate(times_s):
        segment = Segment(Path("/log"), 10 * number)
        segment.end_offset, segment.size_bytes = 10 * number + 10, 100
        segment.time_us = int(1_000_000 * (time_s or 0))
        segment.has_lost_times = time_s is None
        segments.append(segment)
    return segments


def kept(segments: Sequence[Segment], settings: TopicSettings) -> tuple[int, int]:
    """Return where what is kept begins, and how many segments' times were needed."""
    loaded: list[Segment] = []
    found = retained_from(segments, settings, NOW_US, loaded.append)
    return found.offset, len(loaded)


def test_sealed_segments_go_once_their_newest_message_is_too_old() -> None:
    assert kept(log_of(1, 2, 7, 8), BY_AGE) == (20, 3)
    assert kept(log_of(1, 2, 3, 4), BY_AGE) == (30, 3)
    assert kept(log_of(1, 6, 6, 6), BY_AGE) == (10, 2)  # as old as is kept
    assert kept(log_of(1, 5.9999, 6, 6), BY_AGE) == (20, 3)
    assert kept(log_of(7, 1, 1, 9), BY_AGE) == (0, 1)  # none before the first that is kept
    assert kept(log_of(1), BY_AGE) == (0, 0)


def test_sealed_segments_go_while_the_log_is_too_large() -> None:
    for most, expected in ((400, 0), (399, 10), (300, 10), (299, 20), (100, 30), (0, 30)):
        settings = TopicSettings(retention_age_ms=None, retention_bytes=most)
        assert kept(log_of(9, 9, 9, 9), settings) == (expected, 0)


def test_what_is_not_too_large_goes_by_age_and_what_is_young_by_size() -> None:
    settings = TopicSettings(retention_age_ms=AGE_MS, retention_bytes=300)
    assert kept(log_of(9, 9, 9, 9), settings) == (10, 1)
    assert kept(log_of(1, 2, 9, 9), settings) == (20, 2)


def test_a_segment_without_its_times_goes_with_the_next_one_that_has_them() -> None:
    assert kept(log_of(1, None, 3, 9), BY_AGE) == (30, 3)
    assert kept(log_of(1, None, 9, 9), BY_AGE) == (10, 3)
    assert kept(log_of(1, None, None, 9), BY_AGE) == (10, 3)
    settings = TopicSettings(retention_age_ms=AGE_MS, retention_bytes=250)
    assert kept(log_of(None, 3, None, 9, 9), settings) == (30, 1)


def test_nothing_goes_without_a_limit_or_of_a_compacted_log() -> None:
    assert kept(log_of(1, 1, 1), TopicSettings(retention_age_ms=None)) == (0, 0)
    settings = TopicSettings(retention_age_ms=AGE_MS, retention_bytes=0, cleanup=Cleanup.COMPACT)
    assert kept(log_of(1, 1, 1), settings) == (0, 0)


def test_the_first_that_is_kept_expires_when_its_newest_message_is_too_old() -> None:
    assert retained_from(log_of(1, 7, 8), BY_AGE, NOW_US).expires_us == 11_000_001
    assert retained_from(log_of(1, 2), BY_AGE, NOW_US).expires_us is None
    assert retained_from(log_of(9, 9), TopicSettings(retention_age_ms=None), NOW_US)[1] is None


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ((1, 7, 8, 9), (10, 11_000_001)),
        ((1, 2, 3, 9), (30, None)),  # the last one is active
        ((1, None, 8, 9), (10, 12_000_001)),  # goes together with the next one
        ((7, 9), (0, 11_000_001)),
        ((9,), (0, None)),
    ],
)
def test_the_next_look_is_when_the_first_segment_that_is_kept_gets_too_old(
    times_s: tuple[float | None, ...],
    expected: tuple[int, int | None],
) -> None:
    segments = log_of(*times_s)
    assert retained_from(segments, BY_AGE, NOW_US) == expected
    without_age = TopicSettings(retention_age_ms=None)
    assert retained_from(segments, without_age, NOW_US) == (0, None)


def after_a_clock_ahead(*times_s: tuple[float, float] | None) -> list[Segment]:
    """Return segments whose running maximum is ahead of now, by their first and newest time.

    None has no messages.
    """
    segments = log_of(*[AHEAD_S for _ in times_s])
    for segment, times in zip(segments, times_s, strict=True):
        segment.index = SparseIndex()
        segment.index.add(IndexEntry(0, 0, 0))
        for position, time_s in enumerate(times or (), start=1):
            time_us = int(time_s * 1_000_000)
            entry = IndexEntry(0, position, segment.time_us, time_us, time_us)
            segment.index.add(entry, always=True)
        segment.first_time_us = None if times is None else int(times[0] * 1_000_000)
    return segments


AHEAD_S = 1e6
AHEAD = (AHEAD_S, AHEAD_S)


def test_after_a_clock_was_ahead_the_times_of_a_segment_itself_count() -> None:
    assert kept(after_a_clock_ahead((1, 2), (2, 3), (4, 7), (8, 9)), BY_AGE) == (20, 3)
    assert kept(after_a_clock_ahead((1, 2), (2, 3), None), BY_AGE) == (20, 2)
    found = retained_from(after_a_clock_ahead((1, 8), (9, 9)), BY_AGE, NOW_US)
    assert found == (0, 8_000_000 + 4_000_001)


def test_what_a_clock_ahead_wrote_is_not_newer_than_what_the_right_one_wrote_next() -> None:
    assert kept(after_a_clock_ahead((1, AHEAD_S), (3, 9), (9, 9)), BY_AGE) == (10, 2)
    assert kept(after_a_clock_ahead((1, AHEAD_S), (7, 9), (9, 9)), BY_AGE) == (0, 1)
    assert kept(after_a_clock_ahead((1, 2), AHEAD, AHEAD, (3, 4), (9, 9)), BY_AGE) == (40, 4)
    assert kept(after_a_clock_ahead((1, 2), AHEAD, AHEAD, (7, 8), (9, 9)), BY_AGE) == (10, 3)
    assert kept(after_a_clock_ahead((1, 2), AHEAD, AHEAD, AHEAD), BY_AGE) == (10, 3)
    assert kept(after_a_clock_ahead(AHEAD, None), BY_AGE) == (0, 1)


def test_what_a_clock_far_behind_wrote_is_not_older_than_what_is_before_it() -> None:
    assert kept(after_a_clock_ahead((1, 9), (0.1, 0.1), (0.2, 0.2), (9, 9)), BY_AGE) == (0, 1)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_kept_is_what_deleting_one_by_one_leaves(seed: int) -> None:
    chance = Random(seed)
    segments, time_us = list[Segment](), 0
    for number in range(chance.randint(1, 8)):
        segment = Segment(Path("/x"), number * 10)
        segment.end_offset = number * 10 + 10
        segment.size_bytes = chance.randint(0, 5)
        time_us += chance.randint(0, 3) * 1000
        segment.time_us = time_us
        segment.has_lost_times = chance.random() < 0.2
        if segment.has_lost_times:
            segment.time_us = 0
        segments.append(segment)
    age_ms, size_bytes = chance.choice([None, 1, 3, 6]), chance.choice([None, 0, 4, 10, 20])
    settings = TopicSettings(retention_age_ms=age_ms, retention_bytes=size_bytes)
    now_us = time_us + chance.randint(0, 4000)
    left = list(segments)
    while len(left) > 1:
        known = (s.time_us for s in left[:-1] if not s.has_lost_times)
        is_old = age_ms is not None and now_us - next(known, now_us) > age_ms * 1000
        is_much = size_bytes is not None and sum(s.size_bytes for s in left) > size_bytes
        if not is_old and not is_much:
            break
        del left[0]
    assert retained_from(segments, settings, now_us).offset == left[0].base_offset
    compacted = TopicSettings().changed({"cleanup": "compact", "retention.bytes": "64KiB"})
    assert retained_from(segments, compacted, now_us + 10**15) == (0, None)
