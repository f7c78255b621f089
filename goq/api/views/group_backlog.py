"""The messages that wait in a group: since when, and by lane and tenant.

A group that consumers have read since the node started knows its times. Of any other the time of
its first message is read from the log, once for all groups that wait there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from goq import limits
from goq.api.schemas.live import LiveQueueOut
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.topic.topic import Topic
from goq.errors import GoqError
from goq.storage.log.reader import LogReader

_QUEUES_MAX: Final = 2_000
"""A group with more queues, of lanes and tenants, is not looked through."""
_LEASED_MAX: Final = 10_000
"""More leased messages of a partition are not looked through."""


class ReadyAges:
    """Since when the oldest ready messages of groups are ready, read once for all requests."""

    def __init__(self) -> None:
        self._read_ms: OrderedDict[tuple[PartitionId, int], int] = OrderedDict()

    async def since_ms(
        self, partition: Partition, name: str, now_ms: int, *, may_read: bool = True
    ) -> int:
        """Return since when a group's oldest message is ready, 0 if that is not known.

        Without ``may_read`` the log is not read.
        """
        since_ms, offset = ready_since(partition, name, now_ms)
        if since_ms or offset < 0:
            return since_ms
        known_ms = self._read_ms.get((partition.identity, offset))
        if known_ms is not None or not may_read:
            return known_ms or 0
        (read_ms,) = await self.times_ms([(partition, offset)])
        return read_ms

    async def times_ms(self, messages: Sequence[tuple[Partition, int]]) -> list[int]:
        """Return when messages were appended, by partition and offset, 0 where it is not known."""
        keys = [(partition.identity, offset) for partition, offset in messages]
        unknown = {
            key: (partition.message_reader, key[1])
            for key, (partition, _) in zip(keys, messages, strict=True)
            if key not in self._read_ms
        }
        found = {}
        if unknown:
            found = await messages[0][0].in_thread(
                lambda: {key: _append_time_ms(*each) for key, each in unknown.items()}
            )
        times_ms = [found.get(key) or self._read_ms.get(key, 0) for key in keys]
        self._read_ms.update(found)
        while len(self._read_ms) > limits.FIRST_READY_TIMES_MAX:
            self._read_ms.popitem(last=False)
        return times_ms


def _append_time_ms(reader: LogReader, offset: int) -> int:
    try:
        return reader.append_time_us(offset) // 1000
    except (GoqError, OSError):
        return 0


def ready_since(partition: Partition, name: str, now_ms: int) -> tuple[int, int]:
    """Return since when a group's oldest message is ready, or 0 and the offset to read that of.

    The offset is -1 where there is none.
    """
    group = partition.group(name)
    since_ms = group.ready_since_ms(now_ms, _QUEUES_MAX)
    if since_ms is not None:
        return since_ms, -1
    first = group.first_unfinished()
    return 0, -1 if first is None else first


class GroupQueues:
    """The messages of a group by lane number and by tenant: that wait, and that are leased."""

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic = topic
        self._name = name
        self.is_known = True
        """Whether all was counted: else there is more than in lanes and tenants."""
        self.lanes: Counter[int] = Counter()
        self.tenants: Counter[str] = Counter()
        self.leased_lanes: Counter[int] = Counter()
        self.leased_tenants: Counter[str] = Counter()
        for partition in topic.partitions.here():
            waiting = partition.waiting(name, _QUEUES_MAX)
            self.is_known &= waiting is not None
            for lane, tenant, count in waiting or ():
                self.lanes[lane] += count
                if tenant:
                    self.tenants[partition.tenant_name(tenant)] += count

    def add_leased(self) -> None:
        """Add the leased messages."""
        default_lane = self._topic.settings.default_lane
        for partition in self._topic.partitions.here():
            leased = partition.group(self._name).leased(_LEASED_MAX)
            self.is_known &= leased is not None
            for (lane, tenant), count in (leased or Counter()).items():
                self.leased_lanes[default_lane if lane < 0 else lane] += count
                if tenant:
                    self.leased_tenants[partition.tenant_name(tenant)] += count

    def shown_lanes(self) -> list[LiveQueueOut]:
        """Return the lanes by number."""
        lane_name = self._topic.settings.lane_name
        return [
            LiveQueueOut(lane_name(lane), self.lanes[lane], self.leased_lanes[lane])
            for lane in sorted(self.lanes.keys() | self.leased_lanes.keys())
        ]

    def shown_tenants(self) -> list[LiveQueueOut]:
        """Return the tenants with the most that wait, then with the most that is leased."""
        names = nsmallest(
            limits.LIVE_TENANTS_MAX,
            self.tenants.keys() | self.leased_tenants.keys(),
            key=lambda name: (-self.tenants[name], -self.leased_tenants[name], name),
        )
        return [LiveQueueOut(name, self.tenants[name], self.leased_tenants[name]) for name in names]
