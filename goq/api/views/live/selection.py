"""The topics that a looker asks for: by a part of their names, the first of an order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.api.schemas.live import LiveTopicOut, LiveWaitOut

AT_REST_STEP: Final = 32
"""Work on topics at rest looks at the time after so many of them."""
Topics = Mapping[str, LiveTopicOut]
_RATES: Final = {
    "publish": "published_messages",
    "deliver": "delivered_messages",
    "ack": "acked_messages",
}
"""Orders by what happened since the sample before, and the counters that tell it."""
_AMOUNTS: Final = ("lag", "bytes", "messages")
BY_NAME: Final = "name"
ORDERS: Final = (BY_NAME, *_RATES, *_AMOUNTS)


class LiveSelection(NamedTuple):
    """The topics with ``search`` in their names, whatever the case; ``top`` of them by ``order``.

    All orders but that by name begin with the most. Topics that are equal come by name.
    """

    search: str = ""
    order: str = BY_NAME
    top: int = limits.LIVE_TOPICS_MAX

    @property
    def is_by_rate(self) -> bool:
        """Whether the order changes when nothing happens any more."""
        return self.order in _RATES

    def matching(self, topics: Topics) -> Topics:
        """Return the topics that match, in the order of ``topics``."""
        if not self.search:
            return topics
        text = self.search.casefold()
        return {name: topic for name, topic in topics.items() if text in name.casefold()}

    def first(self, topics: Topics, before: Topics) -> Topics:
        """Return the first of topics, which come by name; ``before`` is the sample before."""
        if len(topics) <= self.top:
            return topics
        if self.order == BY_NAME:
            return dict(islice(topics.items(), self.top))
        amount = self._amount(before)
        most = sorted(topics.values(), key=amount, reverse=True)  # equal ones stay by name
        return {topic.name: topic for topic in most[: self.top]}

    def _amount(self, before: Topics) -> Callable[[LiveTopicOut], tuple[int, int] | int]:
        if self.order in _AMOUNTS:
            return attrgetter(self.order)
        total_of = attrgetter(_RATES[self.order])

        def rise_and_total(topic: LiveTopicOut) -> tuple[int, int]:
            total, known = total_of(topic), before.get(topic.name)
            return 0 if known is None else total - total_of(known), total

        return rise_and_total


def shortened(topic: LiveTopicOut) -> LiveTopicOut:
    """Return a topic with the groups that a line tells of: those with the most lag."""
    if len(topic.groups) <= limits.LIVE_GROUPS_MAX:
        return topic
    most = nsmallest(limits.LIVE_GROUPS_MAX, topic.groups, key=lambda one: (-one.lag, one.group))
    return msgspec.structs.replace(topic, groups=most)


def longest_waits(topics: Topics) -> list[LiveWaitOut]:
    """Return the groups whose oldest messages have been ready for longest."""
    count = limits.LIVE_WAITS_MAX
    waiting = (topic for topic in topics.values() if topic.oldest_ready)
    found = [
        LiveWaitOut(topic.name, group.group, group.oldest_ready)
        for topic in nsmallest(count, waiting, key=attrgetter("oldest_ready"))
        for group in topic.groups
        if group.oldest_ready
    ]
    return nsmallest(count, found, key=lambda one: (one.oldest_ready, one.topic, one.group))


def offline_topics(topics: Topics) -> list[str]:
    """Return topics with offline partitions, the first by name."""
    found = (topic.name for topic in topics.values() if topic.offline)
    return nsmallest(limits.LIVE_WAITS_MAX, found)
