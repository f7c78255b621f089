"""Counts of a topic and of its groups: from nothing on, each for itself."""

from __future__ import annotations

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
