"""Metrics of groups: what waits in them, and what their consumers do.

Their number is bounded: ``goq_metrics_omitted_groups`` counts the groups without series. Of lanes
and tenants there are series where most waits, and only while it waits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from goq import limits
from goq.api.schemas.live import LiveQueueOut
from goq.api.views.group_backlog import GroupQueues, ReadyAges
from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.broker.runtime.metrics import GroupCounters
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice

_LABELS: Final = ("topic", "group")
_GAUGES: Final = {
    "lag_messages": "Not done yet",
    "ready_messages": "Ready to be delivered",
    "leased_messages": "With consumers",
    "retry_messages": "To be tried again",
    "blocked_messages": "Ready, but behind another message of their key",
    "scheduled_messages": "Not due yet",
    "waiting_receives": "Idle consumers",
    "oldest_ready_seconds": "How long the oldest ready message has been ready",
}
_COUNTERS: Final = {
    "delivered_messages": "Messages leased to consumers of the group, repeats included",
    "acked_messages": "Messages that the group acknowledged",
    "nacked_messages": "Messages that consumers of the group gave back",
    "expired_messages": "Messages of the group whose lease ran out",
    "dead_messages": "Messages that the group gave up",
    "deleted_unread_messages": "Messages that retention deleted before the group was done",
}
_MS_PER_S: Final = 1000
_Queue = tuple[int, str, str, str]


class GroupMetrics:
    """Collects the metrics of groups on each scrape."""

    def __init__(self, broker: Broker, ready_ages: ReadyAges) -> None:
        self._broker = broker
        self._ready_ages = ready_ages

    async def collect(self, topics: Sequence[Topic]) -> list[Metric]:
        """Return every metric of groups."""
        scrape = _Scrape(self._broker, self._ready_ages)
        groups = ((topic, name) for topic in topics for name in sorted(topic.groups))
        time_slice = TimeSlice()
        for topic, name in islice(groups, limits.METRICS_GROUPS_MAX):
            if self._broker.topics.get(topic.name) is topic:
                await scrape.add(topic, name)
            if time_slice.is_over:
                await time_slice.next()
        omitted = GaugeMetricFamily(
            "goq_metrics_omitted_groups",
            "Groups beyond the bound, without series of their own",
            value=max(0, sum(len(topic.groups) for topic in topics) - limits.METRICS_GROUPS_MAX),
        )
        return [*scrape.metrics(), omitted]


class _Scrape:
    """The series of one answer."""

    def __init__(self, broker: Broker, ready_ages: ReadyAges) -> None:
        self._ready_ages = ready_ages
        self._now_ms = broker.clock.wall_ms()
        self._reads_until_s = asyncio.get_running_loop().time() + limits.METRICS_READ_S_MAX
        self._gauges = {
            name: GaugeMetricFamily(f"goq_group_{name}", text, labels=_LABELS)
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: CounterMetricFamily(f"goq_group_{name}", text, labels=_LABELS)
            for name, text in _COUNTERS.items()
        }
        self._lanes: list[_Queue] = []
        self._tenants: list[_Queue] = []

    async def add(self, topic: Topic, name: str) -> None:
        """Add the series of a group."""
        partitions = topic.partitions.here()
        counts = [each.group_counts(name, self._now_ms) for each in partitions]
        values = {
            "lag_messages": sum(each.lag for each in counts),
            "ready_messages": sum(each.ready for each in counts),
            "leased_messages": sum(each.leased for each in counts),
            "retry_messages": sum(each.retry for each in counts),
            "blocked_messages": sum(each.blocked for each in counts),
            "scheduled_messages": sum(each.scheduled for each in counts),
            "waiting_receives": topic.receiver.waiters.count(name),
        }
        labels = (topic.name, name)
        for gauge, value in values.items():
            self._gauges[gauge].add_metric(labels, value)
        counters = topic.stats.groups.get(name) or GroupCounters()
        for counter in _COUNTERS:
            self._counters[counter].add_metric(labels, getattr(counters, counter))
        if not values["ready_messages"]:
            self._gauges["oldest_ready_seconds"].add_metric(labels, 0)
            return
        queues = GroupQueues(topic, name)
        if queues.is_known:
            _add_queues(self._lanes, topic.name, name, queues.shown_lanes())
            _add_queues(self._tenants, topic.name, name, queues.shown_tenants())
        since_ms = []
        for partition, count in zip(partitions, counts, strict=True):
            if count.ready:
                since_ms.append(await self._since_ms(partition, name))
        oldest_ms = min(filter(None, since_ms), default=None)
        if oldest_ms is not None:
            age_s = max(0, self._now_ms - oldest_ms) / _MS_PER_S
            self._gauges["oldest_ready_seconds"].add_metric(labels, age_s)

    async def _since_ms(self, partition: Partition, name: str) -> int:
        may_read = asyncio.get_running_loop().time() < self._reads_until_s
        return await self._ready_ages.since_ms(partition, name, self._now_ms, may_read=may_read)

    def metrics(self) -> Iterator[Metric]:
        """Yield what was added."""
        yield from self._gauges.values()
        yield from self._counters.values()
        yield _queue_gauge("lane", "By lane: not delivered yet", self._lanes)
        yield _queue_gauge("tenant", "By tenant, of those that most wait", self._tenants)


def _add_queues(
    found: list[_Queue], topic: str, group: str, queues: Sequence[LiveQueueOut]
) -> None:
    """Keep the queues in which most waits."""
    for queue in queues:
        if queue.waiting:
            entry = (queue.waiting, topic, group, queue.name)
            if len(found) < limits.METRICS_QUEUES_MAX:
                heapq.heappush(found, entry)
            else:
                heapq.heappushpop(found, entry)


def _queue_gauge(label: str, text: str, queues: Sequence[_Queue]) -> Metric:
    gauge = GaugeMetricFamily(f"goq_group_{label}_waiting_messages", text, labels=(*_LABELS, label))
    for waiting, topic, group, name in sorted(queues, key=lambda each: each[1:]):
        gauge.add_metric((topic, group, name), waiting)
    return gauge
