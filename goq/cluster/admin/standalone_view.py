"""A node of its own, shown as what it is: a cluster of one. See ``api.cluster.Seat``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from goq.broker.broker import Broker
from goq.cluster.metadata.state import (
    ClusterSettings,
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from goq.cluster.replication.status import ReplicaReport

if TYPE_CHECKING:
    from goq.cluster.replication.repair.manager import DamageReport

Reports = dict[tuple[str, int], ReplicaReport]


class StandaloneView:
    """A node of its own shows itself as a cluster of one, that nothing can be done to."""

    is_cluster = False
    administering = None
    view = None
    elections = 0
    strangers = ()

    def __init__(self, broker: Broker, node: str, url: Callable[[], str]) -> None:
        self.node = node
        self.controller = node
        self._broker = broker
        self._url = url

    @property
    def state(self) -> MetadataState:
        """The node and its topics; the version stays 0."""
        node = self.node
        topics = {
            name: TopicMetadata(
                name,
                0,
                {},
                tuple(
                    PartitionMetadata((node,), node if partition.is_online else None, (node,))
                    for partition in topic.partitions
                ),
            )
            for name, topic in self._broker.topics.items()
        }
        own = NodeMetadata(node, self._broker.epoch, self._url(), "", None)
        settings = ClusterSettings(replication_factor=1, min_insync=1)
        return MetadataState(0, {node: own}, topics, {}, settings)

    async def changed(self, version: int, wait_s: float) -> None:
        """Wait in vain: there is only one version."""
        if version == 0:
            await asyncio.sleep(wait_s)

    def led_here(self) -> list[ReplicaReport]:
        """Return nothing: nobody follows."""
        return []

    def harm(self) -> list[DamageReport]:
        """Return nothing: what is damaged has no other replica."""
        return []

    async def led(self, topic: str | None) -> Reports:
        """Return the bounds of the partitions that are here."""
        return {
            (name, partition.identity.number): ReplicaReport(
                name,
                partition.identity.number,
                True,
                partition.messages.start_offset,
                partition.messages.end_offset,
            )
            for name, found in self._broker.topics.items()
            if topic in (None, name)
            for partition in found.partitions
        }
