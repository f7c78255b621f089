"""The current work of a node's topics, for lookers-on.

Without lookers nothing is kept. Several lookers share one sample of a moment. A topic in which
nothing happened is not counted again, so a sample costs what happened, and little more for topics
at rest. Work on the event loop is done in slices.
"""

from __future__ import annotations

import asyncio
from typing import Final

from goq import limits
from goq.api.schemas.live import LiveTopicOut
from goq.api.views.group_backlog import ReadyAges
from goq.api.views.live.selection import AT_REST_STEP
from goq.api.views.live.topic_view import TopicView
from goq.broker.broker import Broker
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice

_SHARED_S: Final = limits.LIVE_INTERVAL_S_MIN / 2
"""A sample serves other audiences for so long."""
_KEPT_S: Final = 3 * limits.LIVE_INTERVAL_S_MAX
"""Everything is dropped after so long without a look."""


class LiveView:
    """Samples of this node's topics."""

    def __init__(self, broker: Broker, ready_ages: ReadyAges) -> None:
        self.clock = broker.clock
        self._topics = broker.topics
        self._ready_ages = ready_ages
        self._views: dict[str, TopicView] = {}
        self._order: dict[str, None] = {}  # the names of the topics, sorted
        self._told: dict[int, tuple[float, dict[str, LiveTopicOut]]] = {}
        self._sampling = asyncio.Lock()
        self._forgetting: asyncio.TimerHandle | None = None

    async def topics(self, groups_max: int) -> dict[str, LiveTopicOut]:
        """Return all topics by name, in order; one that did not change is the same object.

        Each has those of its groups that lag most, and some that have waited longest.
        """
        loop = asyncio.get_running_loop()
        self._keep()
        async with self._sampling:
            taken_s, told = self._told.get(groups_max, (float("-inf"), {}))
            if loop.time() - taken_s >= _SHARED_S:
                taken_s, told = loop.time(), await self._sample(groups_max)
                self._told[groups_max] = taken_s, told
            return told

    async def named(
        self, names: frozenset[str], part: str, groups_max: int
    ) -> dict[str, LiveTopicOut]:
        """Return topics as they are now, with lanes and tenants of their groups.

        They have the groups with ``part`` in their names, whatever the case.
        """
        self._keep()
        async with self._sampling:
            found = {}
            for name in sorted(names):
                topic = self._topics.get(name)
                if topic is None:
                    continue
                view, now_ms = self._view_of(topic), self.clock.wall_ms()
                if not view.is_fresh(now_ms):
                    await view.refresh(now_ms)
                found[name] = await view.named(part.casefold(), groups_max)
            return found

    async def _sample(self, groups_max: int) -> dict[str, LiveTopicOut]:
        told: dict[str, LiveTopicOut] = {}
        time_slice, now_ms = TimeSlice(), self.clock.wall_ms()
        for number, (name, topic) in enumerate(self._in_order()):
            view = self._views.get(name)
            if view is None or view.topic is not topic:
                view = self._view_of(topic)
            known = view.current(groups_max, now_ms)
            if known is None:
                if not view.is_fresh(now_ms):
                    await view.refresh(now_ms)
                known = await view.told(groups_max)
                number = 0
            told[name] = known
            if not number % AT_REST_STEP and time_slice.is_over:
                await time_slice.next()
        for name in self._views.keys() - told.keys():
            self._views.pop(name).close()
        return told

    def _in_order(self) -> list[tuple[str, Topic]]:
        """Return the topics by name; sorting a thousand again takes as long as looking at them."""
        topics = self._topics
        if self._order.keys() != topics.keys():
            self._order = dict.fromkeys(sorted(topics))
        return [(name, topics[name]) for name in self._order]

    def _view_of(self, topic: Topic) -> TopicView:
        view = self._views.get(topic.name)
        if view is not None and view.topic is not topic:  # deleted, and made anew
            view.close()
            view = None
        if view is None:
            view = self._views[topic.name] = TopicView(topic, self._ready_ages)
        return view

    def _keep(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(_KEPT_S, self._forget)

    def _forget(self) -> None:
        for view in self._views.values():
            view.close()
        self._views, self._told = {}, {}
