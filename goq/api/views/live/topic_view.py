"""A topic of this node as lines tell of it, counted again only where something changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from goq import limits
from goq.api.schemas.live import LiveGroupOut, LiveTopicOut
from goq.api.views.group_backlog import GroupQueues, ReadyAges
from goq.api.views.live.group_table import GroupTable
from goq.api.views.live.selection import shortened
from goq.broker.runtime.metrics import GroupCounters
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.delivery.group_tally import Int64s

_PARTS_KEPT: Final = 20
_NOTHING_YET: Final[tuple[int, ...]] = ()


def _signature(topic: Topic) -> tuple[int, ...]:
    """Return what differs whenever something has happened in a topic of this node."""
    stats, partitions = topic.stats, topic.partitions
    return (
        stats.change_count,
        stats.published_messages,
        stats.delivered_messages,
        stats.acked_messages,
        stats.nacked_messages,
        stats.expired_messages,
        stats.deleted_messages,
        partitions.change_count,
        partitions.count,
        topic.receiver.waiters.change_count,
    )


class TopicView:
    """One topic for lookers-on. Nothing is counted before it is asked for."""

    def __init__(self, topic: Topic, ages: ReadyAges) -> None:
        self.topic = topic
        self._table = GroupTable(topic, ages)
        self._signature = _NOTHING_YET
        self._number = 0
        self._told: dict[int, tuple[int, LiveTopicOut]] = {}
        self._named: dict[tuple[str, int], LiveTopicOut] = {}

    def close(self) -> None:
        """Have the topic note changes no more."""
        self._table.close()

    def is_fresh(self, now_ms: int) -> bool:
        """Return whether nothing has changed since the last :meth:`refresh`."""
        return self._signature == _signature(self.topic) and self._table.is_current(now_ms)

    def current(self, groups_max: int, now_ms: int) -> LiveTopicOut | None:
        """Return what :meth:`told` would if nothing has changed since then, else None."""
        known = self._told.get(groups_max)
        return known[1] if known and known[0] == self._number and self.is_fresh(now_ms) else None

    async def refresh(self, now_ms: int) -> None:
        """Count what changed."""
        signature = _signature(self.topic)
        self._signature = _NOTHING_YET
        await self._table.refresh(now_ms)
        self._named = {}
        self._number += 1
        self._signature = signature

    async def told(self, groups_max: int) -> LiveTopicOut:
        """Return the topic with those of its groups that lag most; the same object while it is so.

        Of as many groups come besides those that may have waited longest.
        """
        number, before = self._told.get(groups_max, (0, None))
        if before is not None and number == self._number:
            return before
        out = await self._count(self._table.all, groups_max)
        if before is not None and before == out:
            out = before
        self._told[groups_max] = self._number, out
        return out

    async def named(self, part: str, groups_max: int) -> LiveTopicOut:
        """Return the topic with the groups that have a part in their names, with their queues."""
        out = self._named.get((part, groups_max))
        if out is None:
            time_slice = TimeSlice()
            places = self._table.matching(part)
            if time_slice.is_over:
                await time_slice.next()
            out = await self._count(places, groups_max)
            for group in shortened(out).groups:
                queues = GroupQueues(self.topic, group.group)
                queues.add_leased()
                group.lanes = queues.shown_lanes() if queues.is_known else None
                group.tenants = queues.shown_tenants() if queues.is_known else None
                if time_slice.is_over:
                    await time_slice.next()
            if len(self._named) >= _PARTS_KEPT:
                self._named = {}
            self._named[part, groups_max] = out
        return out

    async def _count(self, places: Int64s, groups_max: int) -> LiveTopicOut:
        topic, table = self.topic, self._table
        shown: Sequence[int] = places.tolist()
        if len(shown) > groups_max:
            waiting = table.longest_waiting(places, limits.LIVE_WAITS_MAX)
            shown = table.most_lag(places, groups_max)
            shown = [*shown, *(place for place in waiting if place not in set(shown))]
        groups = await self._groups(shown)
        here, stats, totals = topic.partitions.here(), topic.stats, table.totals(places)
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
            group_count=len(table.names),
            groups=groups,
            lag=totals.lag,
            leased=totals.leased,
            scheduled=totals.scheduled,
            oldest_ready=min(filter(None, (each.oldest_ready for each in groups)), default=0),
        )

    async def _groups(self, places: Sequence[int]) -> list[LiveGroupOut]:
        table, groups = self._table, self.topic.stats.groups
        waiters = self.topic.receiver.waiters
        found = []
        since_ms = await table.since_ms(places)
        for place, counts, oldest_ms in zip(places, table.counts(places), since_ms, strict=True):
            name = table.names[place]
            counters = groups.get(name) or GroupCounters()
            found.append(
                LiveGroupOut(
                    name,
                    counters.delivered_messages,
                    counters.acked_messages,
                    counters.nacked_messages,
                    counters.expired_messages,
                    counts.dead,
                    counts.lag,
                    counts.ready,
                    counts.leased,
                    counts.retry,
                    counts.blocked,
                    counts.scheduled,
                    oldest_ms,
                    waiters.count(name),
                )
            )
        return found
