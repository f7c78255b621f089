"""The current work of a node, for lookers-on: totals of topics and groups, and the node's load.

Nothing is kept while nobody looks. Several lookers share one sample of a moment. A topic in which
nothing happened is not counted again, so a sample costs what happened, and little more for topics
at rest. Work on the event loop is done in slices.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Final, NamedTuple

from goq import __version__, limits
from goq.api.router import RequestStats
from goq.api.schemas.live import (
    LiveGroupOut,
    LiveLatencyOut,
    LiveNodeOut,
    LiveTopicOut,
)
from goq.api.views.group_backlog import GroupQueues, ReadyAges
from goq.api.views.live.selection import AT_REST_STEP, shortened
from goq.broker.broker import Broker
from goq.broker.partition.group_view import GroupCounts
from goq.broker.partition.partition import Partition
from goq.broker.runtime.metrics import GroupCounters
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.histogram import Histogram
from goq.storage.disk_space import DiskSpace, SpaceState
from goq.units import format_time_us

_SHARED_S: Final = limits.LIVE_INTERVAL_S_MIN / 2
"""A sample serves other audiences for so long."""
_DUE_S: Final = 5.0
"""A topic at rest is counted again after so long where retries or delays come due."""
_AT_REST_S: Final = 60.0
"""Any other is counted again after half to all of this: compaction may have made it smaller."""
_KEPT_S: Final = 3 * limits.LIVE_INTERVAL_S_MAX
"""The last sample is dropped when nobody has looked for so long."""
_LAGS_STEP: Final = 200
"""The lags of so many groups are read before a look at the time."""
_NO_COUNTS: Final = GroupCounts(0, 0, 0, 0, 0, 0, 0)
_KINDS: Final = {
    "publish": (("POST", "/v1/topics/{topic}/messages"),),
    "receive": (("POST", "/v1/topics/{topic}/groups/{group}/receive"),),
    "settle": tuple(
        ("POST", f"/v1/topics/{{topic}}/groups/{{group}}/{verb}") for verb in ("ack", "nack")
    ),
}
_STATM: Final = Path("/proc/self/statm")
_STARTED_US: Final = time.time_ns() // 1000
Signature = tuple[object, ...]


class _Counted(NamedTuple):
    signature: Signature
    out: LiveTopicOut
    until_s: float


class LiveView:
    """Samples of this node's topics and of its load."""

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        stats: RequestStats,
        connections: Callable[[], int],
        space: DiskSpace | None,
        ready_ages: ReadyAges,
    ) -> None:
        self.node_id = node_id
        self.clock = broker.clock
        self._broker = broker
        self._stats = stats
        self._connections = connections
        self._space = space
        self._counted: dict[str, _Counted] = {}
        self._ready_ages = ready_ages
        self._sampled_s = float("-inf")
        self._sampling = asyncio.Lock()
        self._forgetting: asyncio.TimerHandle | None = None

    async def topics(
        self, names: frozenset[str] | None = None, groups: str = ""
    ) -> dict[str, LiveTopicOut]:
        """Return all topics by name, in order; one that did not change is the same object.

        With ``names`` only these, as they are now, with lanes and tenants of their groups, of those
        that have ``groups`` in their names.
        """
        loop = asyncio.get_running_loop()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = loop.call_later(_KEPT_S, self._forget)
        if names is not None:
            topics = self._broker.topics
            return {
                name: await self._named(topics[name], groups.casefold())
                for name in sorted(names & topics.keys())
            }
        async with self._sampling:
            if loop.time() - self._sampled_s >= _SHARED_S:
                self._sampled_s = loop.time()
                await self._sample()
            return {name: each.out for name, each in self._counted.items()}

    def _forget(self) -> None:
        self._counted = {}
        self._sampled_s = float("-inf")

    async def _sample(self) -> None:
        found: dict[str, _Counted] = {}
        time_slice, now_s = TimeSlice(), asyncio.get_running_loop().time()
        for number, (name, topic) in enumerate(sorted(self._broker.topics.items())):
            known, signature = self._counted.get(name), _signature(topic)
            is_at_rest = known is not None and known.signature == signature
            if known is None or not is_at_rest or now_s >= known.until_s:
                is_at_rest = False
                out = await self._count(topic)
                if known is not None and known.out == out:
                    out = known.out
                known = _Counted(signature, out, now_s + _rest_s(out))
            found[name] = known
            if (not is_at_rest or not number % AT_REST_STEP) and time_slice.is_over:
                await time_slice.next()
        self._counted = found

    async def _count(self, topic: Topic, part: str = "") -> LiveTopicOut:
        """Return a topic with its groups that have ``part`` in their names.

        Of very many, those that lag most; ``lag`` is the sum of all that were compared.
        """
        here, stats = topic.partitions.here(), topic.stats
        names = sorted(name for name in topic.groups if part in name.casefold())
        lags: dict[str, int] = {}
        if len(names) > limits.LIVE_GROUPS_COUNTED_MAX:
            lags = await _lags(here, names)
            names = sorted(_most(lags, limits.LIVE_GROUPS_COUNTED_MAX))
        groups = [await self.count_group(topic, here, name) for name in names]
        return LiveTopicOut(
            name=topic.name,
            partitions=topic.partitions.count,
            offline=sum(not each.is_online for each in here)
            + len(topic.partitions.offline.keys() - {each.identity.number for each in here}),
            messages=sum(each.log_end_offset - each.log_start_offset for each in here),
            bytes=sum(each.size_bytes for each in here),
            published_messages=stats.published_messages,
            published_bytes=stats.published_bytes,
            delivered_messages=stats.delivered_messages,
            acked_messages=stats.acked_messages,
            nacked_messages=stats.nacked_messages,
            expired_messages=stats.expired_messages,
            last_append=stats.last_append_ms,
            group_count=len(topic.groups),
            groups=groups,
            lag=sum(lags.values() if lags else (group.lag for group in groups)),
            leased=sum(group.leased for group in groups),
            scheduled=sum(group.scheduled for group in groups),
            oldest_ready=min(filter(None, (group.oldest_ready for group in groups)), default=0),
        )

    async def count_group(
        self, topic: Topic, partitions: Sequence[Partition], name: str
    ) -> LiveGroupOut:
        """Return a group without its lanes and tenants."""
        now_ms, time_slice = self._broker.clock.wall_ms(), TimeSlice()
        total, times_ms = _NO_COUNTS, []
        for partition in partitions:
            counts = partition.group_counts(name, now_ms)
            total = GroupCounts(*map(sum, zip(total, counts, strict=True)))
            if counts.ready:
                times_ms.append(await self._ready_ages.since_ms(partition, name, now_ms))
            if time_slice.is_over:
                await time_slice.next()
        counters = topic.stats.groups.get(name) or GroupCounters()
        return LiveGroupOut(
            name,
            counters.delivered_messages,
            counters.acked_messages,
            counters.nacked_messages,
            counters.expired_messages,
            total.dead,
            total.lag,
            total.ready,
            total.leased,
            total.retry,
            total.blocked,
            total.scheduled,
            min(filter(None, times_ms), default=0),
            topic.receiver.waiters.count(name),
        )

    async def _named(self, topic: Topic, part: str) -> LiveTopicOut:
        """Return a topic as it is now, with lanes and tenants."""
        out = await self._count(topic, part)
        for group in shortened(out).groups:
            queues = GroupQueues(topic, group.group)
            queues.add_leased(topic, group.group)
            group.lanes, group.tenants = queues.shown_lanes(), queues.shown_tenants()
        return out

    def node(self) -> LiveNodeOut:
        """Return this node's load."""
        return LiveNodeOut(
            self.node_id,
            version=__version__,
            python=sys.version.split()[0],
            started=format_time_us(_STARTED_US),
            cpu_s=round(time.process_time(), 3),
            rss_bytes=_resident_bytes(),
            disk_free_bytes=None if self._space is None else self._space.free_bytes,
            disk=_disk(self._space),
            connections=self._connections(),
            requests=sum(self._stats.requests.values()),
            partitions=sum(len(each.partitions.numbers()) for each in self._broker.topics.values()),
            commit=_latency([self._broker.write_seconds]),
            publish=_latency(self._histograms("publish")),
            receive=_latency(self._histograms("receive")),
            settle=_latency(self._histograms("settle")),
        )

    def _histograms(self, kind: str) -> Iterator[Histogram]:
        seconds = self._stats.seconds
        return (seconds[key] for key in _KINDS[kind] if key in seconds)


async def _lags(partitions: Sequence[Partition], names: Sequence[str]) -> dict[str, int]:
    """Return the lags of groups by name: of as many, the first by name, as the bound allows."""
    count_max = limits.LIVE_GROUP_LAGS_MAX // max(1, len(partitions))
    count_max = max(limits.LIVE_GROUPS_COUNTED_MAX, count_max)
    names, time_slice = names[:count_max], TimeSlice()
    lags = dict.fromkeys(names, 0)
    for partition in partitions:
        for start in range(0, len(names), _LAGS_STEP):
            some = names[start : start + _LAGS_STEP]
            for name, lag in zip(some, partition.group_lags(some), strict=True):
                lags[name] += lag
            if time_slice.is_over:
                await time_slice.next()
    return lags


def _most(lags: Mapping[str, int], count: int) -> list[str]:
    """Return the names with the most lag; of equal ones, the first."""
    return nsmallest(count, lags, key=lambda name: (-lags[name], name))


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _disk(space: DiskSpace | None) -> str:
    return "" if space is None or space.state is SpaceState.OK else str(space.state)


def _latency(histograms: Sequence[Histogram] | Iterator[Histogram]) -> LiveLatencyOut:
    total = Histogram()
    for each in histograms:
        total.counts = [a + b for a, b in zip(total.counts, each.counts, strict=True)]
        total.sum_s += each.sum_s
    return LiveLatencyOut(total.counts, round(total.sum_s, 6))


def _rest_s(topic: LiveTopicOut) -> float:
    """Return when to count a topic again in which nothing happens."""
    if any(group.retry or group.scheduled for group in topic.groups):
        return _DUE_S
    return _AT_REST_S * random.uniform(0.5, 1)  # not all at once


def _signature(topic: Topic) -> Signature:
    """Return what changes whenever something happens in a topic of this node."""
    stats, partitions = topic.stats, topic.partitions
    return (
        len(topic.groups),
        partitions.count,
        len(partitions.offline),
        stats.delivered_messages,
        stats.acked_messages,
        sum(map(len, topic.receiver.waiters.queues.values())),
        *[each.change_mark() for each in partitions.here()],
    )
