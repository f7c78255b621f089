"""The use of this node by a principal, where its quotas ask for it.

A node counts what it leads itself. What principals hold, stored or in flight, is bounded for all
nodes together. Of what is in flight each node has the share that it leads of the partitions in
question; what is stored elsewhere the others tell. Publishes and receives without quotas never come
here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from time import monotonic
from typing import Final, TypeVar

from goq import limits
from goq.access.quota import TENANT_RATES, Quota
from goq.access.quota_bucket import InFlightRoom, TenantAmount
from goq.access.quota_table import QuotaTable
from goq.access.rule import Principal, Verb
from goq.broker.broker import Broker
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.frame.view import FrameView

T = TypeVar("T")
_TENANTS_AT_ONCE: Final = 1000  # then others get a turn


class PrincipalUsage:
    """Counts publishes and leases of principals with quotas against ``quotas``."""

    def __init__(
        self,
        broker: Broker,
        quotas: QuotaTable,
        stored_elsewhere: Callable[[Principal], int] | None = None,
    ) -> None:
        """``stored_elsewhere`` returns what the topics of a principal hold on other nodes."""
        self._broker = broker
        self._quotas = quotas
        self._stored_elsewhere = stored_elsewhere
        self._stored: dict[str, tuple[float, int]] = {}
        self._rooms: dict[str, tuple[Principal, InFlightRoom]] = {}

    async def admit_frames(self, principal: Principal, frames: Sequence[FrameView]) -> None:
        """Count a publish; raise ``QuotaExceeded`` and ``TooManyRequests``."""
        count = sum(frame.header.message_count for frame in frames)
        asks = not TENANT_RATES.isdisjoint(principal.quotas)
        await self._admit(principal, count, _tenants_of_frames(frames) if asks else ())

    async def admit_messages(self, principal: Principal, placed: Sequence[RoutedMessage]) -> None:
        """Count a publish; raise ``QuotaExceeded`` and ``TooManyRequests``."""
        asks = not TENANT_RATES.isdisjoint(principal.quotas)
        await self._admit(principal, len(placed), _tenants_of_messages(placed) if asks else ())

    async def _admit(
        self, principal: Principal, count: int, tenants: Sequence[TenantAmount]
    ) -> None:
        self._quotas.take_messages(principal, count, monotonic())
        if Quota.STORED_BYTES in principal.quotas:
            stored_bytes = self.stored_here(principal)
            if self._stored_elsewhere is not None:
                stored_bytes += self._stored_elsewhere(principal)
            self._quotas.check_stored(principal, stored_bytes, monotonic())
        for some in _batches(tenants):
            self._quotas.check_tenants(principal, some, monotonic())
            if len(some) == _TENANTS_AT_ONCE:
                await asyncio.sleep(0)
        for some in _batches(tenants):
            self._quotas.take_tenants(principal, some, monotonic())
            if len(some) == _TENANTS_AT_ONCE:
                await asyncio.sleep(0)

    def stored_here(self, principal: Principal) -> int:
        """Return the size in bytes of all partitions here to which a principal may publish."""
        now_s = monotonic()
        at_s, stored_bytes = self._stored.get(principal.id, (-math.inf, 0))
        if now_s - at_s >= limits.QUOTA_STORED_MS / 1000:
            all_topics = self._broker.topics.values()
            topics = (t for t in all_topics if principal.allows(Verb.PUBLISH, t.name))
            stored_bytes = sum(p.size_bytes for topic in topics for p in topic.partitions)
            self._stored[principal.id] = now_s, stored_bytes
        return stored_bytes

    def in_flight_room(self, principal: Principal | None) -> InFlightRoom | None:
        """Return the room of a principal for messages in flight, None without a bound.

        Raises ``TooManyRequests`` if there is none left.
        """
        if principal is None or Quota.IN_FLIGHT not in principal.quotas:
            return None
        known, room = self._rooms.get(principal.id, (None, None))
        if room is None or known is None or known.texts != principal.texts:
            room = InFlightRoom(
                lambda: self._leased_max(principal),
                lambda: self._leased_count(principal),
                monotonic,
            )
            self._rooms[principal.id] = principal, room
        self._quotas.check_in_flight(principal, room, monotonic())
        return room

    def _leased_max(self, principal: Principal) -> int:
        topics = [t for t in self._broker.topics.values() if principal.may_consume(t.name)]
        return _share(principal.quotas[Quota.IN_FLIGHT], topics)

    def _leased_count(self, principal: Principal) -> int:
        """Count what all groups that a principal may consume from have leased here."""
        return sum(
            partition.group(group).leased_count
            for topic in self._broker.topics.values()
            for group in topic.groups
            if principal.allows(Verb.CONSUME, topic.name, group)
            for partition in topic.partitions
            if group in partition.group_names
        )


def _share(bound: int, topics: Sequence[Topic]) -> int:
    """Return this node's share of a bound, rounded up; at least 1."""
    count = sum(topic.partitions.count for topic in topics)
    held = sum(topic.partitions.held_count() for topic in topics)
    return max(1, -(-bound * held // count)) if count else bound


def _batches(found: Iterable[T]) -> Iterable[list[T]]:
    rest = iter(found)
    return iter(lambda: list(islice(rest, _TENANTS_AT_ONCE)), [])


def _tenants_of_frames(frames: Sequence[FrameView]) -> list[TenantAmount]:
    """Return what frames have of each tenant; the size of a message is that of its value."""
    return _summed(
        chain.from_iterable(
            zip(tenants, frame.value_sizes_bytes(), strict=True)
            for frame in frames
            if (tenants := frame.tenants_of(0, frame.header.message_count)) is not None
        )
    )


def _tenants_of_messages(placed: Sequence[RoutedMessage]) -> list[TenantAmount]:
    return _summed((each.content.tenant, len(each.content.value or b"")) for each in placed)


def _summed(parts: Iterable[tuple[str | None, int]]) -> list[TenantAmount]:
    found: dict[str, list[int]] = {}
    for tenant, size_bytes in parts:
        if tenant is not None:
            sums = found.setdefault(tenant, [0, 0])
            sums[0] += 1
            sums[1] += size_bytes
    return [TenantAmount(tenant, *sums) for tenant, sums in found.items()]
