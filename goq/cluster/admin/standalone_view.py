"""A node without a cluster, shown as a cluster of one that cannot be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    """The view of a node on its own, with the interface of ``ClusterView``."""

    is_cluster = False
    operations = None
    raft_status = None
    elections = 0
    unheard_s = None
    peer_problems: Mapping[str, str] = MappingProxyType({})
    absent_members: Mapping[str, str] = MappingProxyType({})
    has_diverged = False
    clock_skews_ms: Mapping[str, int] = MappingProxyType({})
    unreachable_nodes: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, broker: Broker, node: str, url: Callable[[], str]) -> None:
        self.node = node
        self.controller = node
        self._broker = broker
        self._url = url

    @property
    def state(self) -> MetadataState:
        """The node and its topics as metadata; the version stays 0."""
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

    async def wait_for_change(self, version: int, wait_s: float) -> None:
        """Return at once for any version but 0, else after ``wait_s``: the version never rises."""
        if version == 0:
            await asyncio.sleep(wait_s)

    def local_leaders(self) -> list[ReplicaReport]:
        """Return nothing: there are no followers to report."""
        return []

    def damage(self) -> list[DamageReport]:
        """Return nothing: no other replica can repair anything."""
        return []

    async def leader_reports(self, topic: str | None) -> Reports:
        """Return the bounds of this node's partitions, of one topic or of all."""
        return {
            (name, partition.identity.number): ReplicaReport(
                name,
                partition.identity.number,
                True,
                partition.log_start_offset,
                partition.log_end_offset,
            )
            for name, found in self._broker.topics.items()
            if topic in (None, name)
            for partition in found.partitions
        }
