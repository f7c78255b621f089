"""The topics that a looker asks for, of a sample."""

from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.api.schemas.live import LiveGroupOut, LiveTopicOut
from goq.api.views.live.selection import (
    LiveSelection,
    longest_waits,
    offline_topics,
    shortened,
)


def group(name: str, lag: int = 0, oldest_ready: int = 0) -> LiveGroupOut:
    return LiveGroupOut(name, 0, 0, 0, 0, 0, lag, 0, 0, 0, 0, 0, oldest_ready, 0)


def topic(name: str, *groups: LiveGroupOut, **fields: Any) -> LiveTopicOut:
    counts = (
        *("partitions", "offline", "messages", "bytes", "published_messages", "published_bytes"),
        *("delivered_messages", "acked_messages", "nacked_messages", "expired_messages"),
        *("last_append", "group_count"),
    )
    return LiveTopicOut(name=name, groups=[*groups], **{**dict.fromkeys(counts, 0), **fields})


def by_name(*topics: LiveTopicOut) -> dict[str, LiveTopicOut]:
    return {each.name: each for each in topics}


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("name", ["a", "b"]),
        ("publish", ["c", "a"]),
        ("lag", ["b", "d"]),
        ("bytes", ["d", "a"]),
        ("deliver", ["a", "b"]),
    ],
)
def test_the_first_are_those_with_the_most_since_the_sample_before(
    order: str, first: list[str]
) -> None:
    before = by_name(topic("a", published_messages=900), topic("c", published_messages=1))
    now = by_name(
        topic("a", published_messages=901),
        topic("b", lag=7),
        topic("c", published_messages=5),
        topic("d", lag=3, bytes=10),
    )
    assert list(LiveSelection(order=order, top=2).first(now, before)) == first
    assert LiveSelection(order=order, top=4).first(now, before) is now


def test_a_search_takes_a_part_of_a_name_whatever_its_case() -> None:
    topics = by_name(topic("EU-orders"), topic("us-orders"), topic("mails"))
    assert list(LiveSelection("ORD").matching(topics)) == ["EU-orders", "us-orders"]
    assert LiveSelection().matching(topics) is topics


def test_a_topic_with_many_groups_is_told_with_those_that_lag_most() -> None:
    few = topic("few", group("g"))
    assert shortened(few) is few
    groups = [group(f"g{n:03}", n) for n in range(limits.LIVE_GROUPS_MAX + 2)]
    told = shortened(topic("many", *groups, group_count=len(groups))).groups
    assert len(told) == limits.LIVE_GROUPS_MAX
    assert (told[0].lag, told[-1].lag) == (limits.LIVE_GROUPS_MAX + 1, 2)


def test_the_longest_waits_and_offline_topics_of_all_are_named() -> None:
    topics = by_name(
        *(topic(f"t{n:02}", group("g", 1, 100 + n), oldest_ready=100 + n) for n in range(50)),
        topic("slow", group("a", 1, 5), group("b", 1, 0), oldest_ready=5),
        topic("off", offline=1),
    )
    waits = longest_waits(topics)
    assert len(waits) == limits.LIVE_WAITS_MAX
    assert (waits[0].topic, waits[0].group, waits[0].oldest_ready) == ("slow", "a", 5)
    assert waits[1].topic == "t00"
    assert offline_topics(topics) == ["off"]
