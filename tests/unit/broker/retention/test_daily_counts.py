"""What a log holds by day, against a list, and rates against the counts they come from."""

from __future__ import annotations

import random

import pytest

from goq.broker.retention.daily_counts import (
    DAY_US,
    LogVolume,
    bounds_us,
    daily_volumes,
    day_starts,
)
from goq.broker.runtime.metrics import RecentTotals, TopicStats, Totals
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of

FRAME = frame_of([bytes(700)] * 3)
TODAY_US = 20_000 * DAY_US


@pytest.mark.parametrize(
    ("first_us", "days", "expected"),
    [
        (TODAY_US, 1, [0]),
        (TODAY_US + DAY_US - 1, 3, [0]),
        (TODAY_US - 1, 3, [-1, 0]),
        (TODAY_US - 5 * DAY_US, 3, [-2, -1, 0]),
        (TODAY_US - 5 * DAY_US, 1, [0]),
        (TODAY_US + 2 * DAY_US, 3, [0]),
    ],
)
def test_days_begin_with_the_first_message_and_end_today(
    first_us: int, days: int, expected: list[int]
) -> None:
    for now_us in (TODAY_US, TODAY_US + DAY_US - 1):
        starts = day_starts(first_us, now_us, days)
        assert starts == [TODAY_US + number * DAY_US for number in expected]


@pytest.mark.parametrize("seed", range(6))
def test_days_are_counted_as_a_list_counts_them(seed: int) -> None:
    chance = random.Random(seed)
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=30_000))
    times = []
    time_us = TODAY_US - 4 * DAY_US
    for _ in range(150):
        time_us += chance.choice((0, 1, DAY_US // 40, DAY_US // 11))
        if chance.random() < 0.05:
            time_us -= chance.choice((1, DAY_US // 20))
        append(log, [FRAME], time_us=time_us)
        times.append(time_us)
    starts = day_starts(times[0], time_us, 14)
    places = [next((i for i, t in enumerate(times) if t >= start), len(times)) for start in starts]
    ends = [*places[1:], len(times)]
    assert daily_volumes(log.reader, starts) == [
        LogVolume(3 * (end - place), len(FRAME) * (end - place))
        for place, end in zip(places, ends, strict=True)
    ]
    assert bounds_us(log.reader) == (times[0], times[-1])


def test_a_day_begins_at_midnight_to_the_microsecond() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig())
    for time_us in (TODAY_US - 1, TODAY_US, TODAY_US + DAY_US - 1):
        append(log, [FRAME], time_us=time_us)
    size = len(FRAME)
    starts = [TODAY_US - DAY_US, TODAY_US, TODAY_US + DAY_US]
    assert daily_volumes(log.reader, starts) == [
        LogVolume(3, size),
        LogVolume(6, 2 * size),
        LogVolume(0, 0),
    ]


def test_what_retention_deleted_is_not_counted() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=1))
    for number in range(3):
        append(log, [FRAME], time_us=TODAY_US + number)
    log.remove(log.detach_before(6))
    assert daily_volumes(log.reader, [TODAY_US]) == [LogVolume(3, len(FRAME))]
    assert bounds_us(log.reader) == (TODAY_US + 2, TODAY_US + 2)


def test_an_empty_log_has_no_first_message() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig())
    assert bounds_us(log.reader) is None
    assert daily_volumes(log.reader, [TODAY_US]) == [LogVolume(0, 0)]


@pytest.mark.parametrize("seed", range(6))
def test_rates_are_what_a_list_of_all_that_happened_says(seed: int) -> None:
    chance = random.Random(seed)
    recent, total, happened, now_s = RecentTotals(), 0, [], 1000.0
    for _ in range(300):
        now_s += chance.choice((0.0, 0.01, 0.3, 1.0, 2.5, 30.0))
        if recent.second != int(now_s):
            recent.note(int(now_s), Totals(total, 2 * total, 0, 0))
        count = chance.randint(1, 9)
        total += count
        happened.append((now_s, count))
        asked_s = now_s + chance.choice((0.0, 0.5, 4.0, 9.0, 9.9, 11.0))
        rates = recent.rates(asked_s, Totals(total, 2 * total, 0, 0))
        since = [n for time_s, n in happened if time_s >= asked_s - rates.window_s]
        assert 9 <= rates.window_s < 10
        assert rates.published_per_s == pytest.approx(sum(since) / rates.window_s)
        assert rates.published_bytes_per_s == pytest.approx(2 * sum(since) / rates.window_s)


def test_a_topic_in_which_nothing_happens_has_no_rate() -> None:
    stats = TopicStats()
    assert stats.rates(5.0)[:4] == (0, 0, 0, 0)
    stats.begin(5.0)
    stats.acked_messages += 90
    assert stats.rates(5.0).acked_per_s == 10
    assert stats.rates(14.9).acked_per_s == pytest.approx(90 / 9.9)
    assert stats.rates(15.0).acked_per_s == 0
