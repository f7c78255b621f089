"""What retention keeps of a log, by age and by size, and when it looks again."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition_context import PartitionId
from goq.broker.retention import retention_manager
from goq.broker.retention.retention_manager import (
    RetentionManager,
    retained_from,
)
from goq.broker.runtime.metrics import TopicStats
from goq.clock import ManualClock
from goq.config.topic import Cleanup, TopicSettings
from goq.errors import StorageFull
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk

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


MINUTE_US = 60_000_000
FIRST, SECOND = PartitionId("t", 0), PartitionId("t", 1)


def manager_of(clock: ManualClock, *topics: Any, needed_from: int | None = None) -> Any:
    """Return a retention manager of topics, whose replicas need what is from an offset on."""
    unused: Any = None
    return RetentionManager(
        {topic.name: topic for topic in topics},
        context_on(SimulatedDisk(), clock=clock),
        unused,
        unused,
        replica_start_offset=lambda _partition: needed_from,
    )


def topic_of(name: str = "t", **state: Any) -> Any:
    known = {"is_closed": False, "is_read_only": False, "stats": TopicStats(), "partitions": ()}
    return SimpleNamespace(name=name, **(known | state))


def partition_of(**state: Any) -> Any:
    return SimpleNamespace(**({"identity": FIRST, "is_online": True} | state))


def test_it_rests_until_the_first_partition_is_due_and_a_minute_at_most() -> None:
    clock = ManualClock()
    manager = manager_of(clock)
    assert manager._pause_s() == 60
    for in_s, rests_s in ((1000, 60), (60.5, 60), (59.5, 59.5), (2, 2), (0, 0), (-5, 0)):
        manager._due.set_no_later(FIRST, clock.wall_us() + int(in_s * 1_000_000))
        assert manager._pause_s() == rests_s


def test_archives_of_topics_that_were_checked_are_looked_at_and_those_of_all_once_a_minute() -> (
    None
):
    clock = ManualClock()
    manager = manager_of(clock, topic_of("t"), topic_of("u"))
    assert manager._topics_to_expire() == ["t", "u"]
    manager._checked.add("u")
    assert manager._topics_to_expire() == {"u"}
    assert manager._topics_to_expire() == set()
    clock.now_us += MINUTE_US - 1
    assert manager._topics_to_expire() == set()
    clock.now_us += 1
    assert manager._topics_to_expire() == ["t", "u"]
    clock.now_us += 1
    assert manager._topics_to_expire() == set()


@pytest.mark.parametrize("due_us", [None, 5])
def test_a_partition_that_cannot_be_changed_is_looked_at_again_in_a_minute(
    due_us: int | None,
) -> None:
    clock = ManualClock()
    manager, worked = manager_of(clock), list[bool]()
    again_us = clock.wall_us() + MINUTE_US

    async def work() -> int | None:
        worked.append(True)
        return due_us

    async def looked(topic: Any, partition: Any) -> int:
        found: int = await manager._run_logged(topic, partition, work)
        return found

    async def run() -> None:
        assert await looked(topic_of(), partition_of(is_online=False)) == again_us
        assert await looked(topic_of(is_read_only=True), partition_of()) == again_us
        assert worked == []
        assert await looked(topic_of(), partition_of()) == (due_us or again_us)
        assert worked == [True]

    asyncio.run(run())


@pytest.mark.parametrize("error", [StorageFull("no room"), OSError(errno.ENOSPC, "no room")])
def test_a_full_disk_is_counted_each_time_and_told_once_until_there_is_room(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    clock, topic = ManualClock(), topic_of()
    manager = manager_of(clock)

    async def fail() -> int | None:
        raise error

    async def run() -> None:
        for partition in (partition_of(), partition_of(identity=SECOND), partition_of()):
            assert await manager._run_logged(topic, partition, fail) == clock.wall_us() + MINUTE_US

    asyncio.run(run())
    assert topic.stats.retention_stalls == 3
    assert [message.partition(" of t ")[0] for message in caplog.messages] == [
        "the disk is full: retention of partition 0",
        "the disk is full: retention of partition 1",
    ]


@pytest.mark.parametrize(
    ("is_online", "is_closed", "is_told"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_a_failure_is_told_unless_the_partition_went_offline_or_its_topic_is_closing(
    caplog: pytest.LogCaptureFixture, is_online: bool, is_closed: bool, is_told: bool
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    topic, partition = topic_of(is_closed=is_closed), partition_of()

    async def fail() -> int | None:
        partition.is_online = is_online
        raise OSError(errno.EIO, "bad")

    asyncio.run(manager_of(ManualClock())._run_logged(topic, partition, fail))
    assert caplog.messages == ["retention failed in t:0"] * is_told
    assert topic.stats.retention_stalls == 0


@pytest.mark.parametrize(
    ("needed_from", "unread", "expected"),
    [(None, None, 30), (None, 12, 12), (9, None, 9), (9, 12, 9), (13, 12, 12), (0, None, 0)],
)
def test_nothing_goes_that_a_replica_or_a_protected_group_needs(
    monkeypatch: pytest.MonkeyPatch, needed_from: int | None, unread: int | None, expected: int
) -> None:
    monkeypatch.setattr(retention_manager, "first_protected_offset", lambda *_: unread)
    manager = manager_of(ManualClock(), needed_from=needed_from)
    assert manager._protected_from(topic_of(), partition_of(log_end_offset=30)) == expected


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
    monkeypatch: pytest.MonkeyPatch,
    times_s: tuple[float | None, ...],
    expected: tuple[int, int | None],
) -> None:
    monkeypatch.setattr(Segment, "load_index", lambda *_: None)
    segments, manager = log_of(*times_s), manager_of(ManualClock())
    assert manager._find_retained(segments, BY_AGE, NOW_US) == expected
    without_age = TopicSettings(retention_age_ms=None)
    assert manager._find_retained(segments, without_age, NOW_US) == (0, None)
