"""What retention keeps of a log, by age and by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from goq.broker.retention.retention_manager import expires_at_us, retained_from
from goq.config.topic import Cleanup, TopicSettings
from goq.storage.log.segment import Segment

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
    return found, len(loaded)


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


def test_a_segment_expires_when_its_newest_message_is_too_old() -> None:
    (segment,) = log_of(5)
    assert expires_at_us(segment, BY_AGE) == 9_000_001
    assert expires_at_us(segment, TopicSettings(retention_age_ms=None)) is None
