"""Counts of a topic and of its groups: from nothing on, each for itself; and recent rates."""

from __future__ import annotations

import pytest

from goq.broker.runtime.metrics import GroupCounters, TopicCounts, TopicStats


def test_counts_begin_at_nothing() -> None:
    for counts in (TopicCounts(), GroupCounters()):
        assert {getattr(counts, name) for name in counts.__struct_fields__} == {0}
    stats = TopicStats()
    assert {getattr(stats, name) for name in TopicCounts.__struct_fields__} == {0}
    assert stats.last_append_ms == 0
    assert stats.groups == {}


def test_each_group_of_each_topic_has_its_own_counts() -> None:
    one, other = TopicStats(), TopicStats()
    one.groups["g"].acked_messages += 2
    one.groups["h"].acked_messages += 1
    assert (one.groups["g"].acked_messages, one.groups["h"].acked_messages) == (2, 1)
    assert other.groups["g"].acked_messages == 0


def count(stats: TopicStats, now_s: float, published: int) -> None:
    stats.begin(now_s)
    stats.published_messages += published
    stats.published_bytes += 10 * published
    stats.delivered_messages += 2 * published
    stats.acked_messages += 3 * published


def test_rates_are_of_the_last_ten_seconds_with_the_current_one() -> None:
    stats = TopicStats()
    assert stats.rates(100.5)[:4] == (0, 0, 0, 0)
    count(stats, 100.0, 50)
    count(stats, 100.9, 45)
    for second in range(101, 120):
        count(stats, second, 95)
    rates = stats.rates(119.5)
    assert rates.window_s == 9.5
    assert rates[:4] == (100, 1000, 200, 300)
    assert stats.rates(125.5).published_per_s == pytest.approx(4 * 95 / 9.5)
    assert stats.rates(128.5).published_per_s == pytest.approx(95 / 9.5)
    assert stats.rates(129.0)[:4] == (0, 0, 0, 0)
