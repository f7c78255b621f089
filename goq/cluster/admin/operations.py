"""Operations on a cluster: nodes, reassignments, elections and settings.

Each becomes a metadata command, which is accepted or refused by the rules of the metadata. A
refusal is raised as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from goq import limits
from goq.cluster.admin.replica_status import ReplicaStatus
from goq.cluster.controller.rebalance import plan_rebalance
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import (
    AlterClusterSettings,
    CancelReassignment,
    DecommissionNode,
    ElectLeader,
    ReassignPartition,
)
from goq.cluster.metadata.handlers.elections import eligible_leaders
from goq.cluster.metadata.state import MetadataState, PartitionMetadata, TopicMetadata
from goq.errors import Conflict, InvalidInput, NodeNotFound, PartitionNotFound, TopicNotFound


class PlannedReassignment(NamedTuple):
    """A reassignment of one partition; ``refusal`` is the reason if it was refused."""

    topic: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    refusal: str = ""


class ReplicaEndOffsets(NamedTuple):
    """The end offsets of a partition's replicas, None for nodes that do not answer.

    ``lost`` is how many messages the replicas that answer have beyond those of the new leader.
    """

    by_node: dict[str, int | None]
    lost: int


class ClusterOperations:
    """Changes the cluster for operators.

    ``add_member`` adds a node to the Raft group. ``remove_absent_member`` removes one that has
    never registered, and returns whether there was such a member.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        replica_status: ReplicaStatus,
        add_member: Callable[[str], Awaitable[None]],
        remove_absent_member: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._metadata = metadata
        self._replica_status = replica_status
        self._add_member = add_member
        self._remove_absent_member = remove_absent_member

    @property
    def _state(self) -> MetadataState:
        return self._metadata.state

    async def add_node(self, node: str, address: str) -> None:
        """Add a node that runs already and knows the others."""
        if node in self._state.nodes:
            raise Conflict(f"node {node} is in the cluster already", field="node")
        await self._add_member(f"{node}={address}")

    async def decommission_node(self, node: str, *, fewer_replicas: bool = False) -> None:
        """Move all replicas off a node, then remove it; repeating it has no effect.

        With ``fewer_replicas`` even if too few nodes remain for the current replica counts. A node
        that never came has none, and is removed at once.
        """
        if node not in self._state.nodes and await self._remove_absent_member(node):
            return
        known = self._state.nodes.get(node)
        if known is None:
            raise NodeNotFound(f"there is no node {node[:200]!r} in the cluster", field="node")
        if not known.leaving:
            await self._metadata.propose(DecommissionNode(node, fewer_replicas))

    async def rebalance(self, *, dry_run: bool) -> list[PlannedReassignment]:
        """Plan reassignments that balance the nodes, and start them unless it is a dry run."""
        state = self._state
        plan = await asyncio.to_thread(plan_rebalance, state)
        planned = []
        for command in plan:
            refusal = "" if dry_run else await self._refusal_of(command)
            before = state.topics[command.topic].partitions[command.partition].replicas
            planned.append(
                PlannedReassignment(
                    command.topic, command.partition, before, command.target, refusal
                )
            )
        return planned

    async def _refusal_of(self, command: ReassignPartition) -> str:
        try:
            await self._metadata.propose(command)
        except Conflict as error:
            return error.detail
        return ""

    async def reassign_partition(self, topic: str, number: int, target: tuple[str, ...]) -> None:
        """Reassign a partition to these nodes; the first is its preferred leader.

        The number of nodes becomes its number of replicas.
        """
        if not target:
            raise InvalidInput("name the nodes that should have the partition", field="replicas")
        await self._metadata.propose(ReassignPartition(*self._where(topic, number), target, True))

    async def cancel_reassignment(self, topic: str, number: int) -> None:
        """Cancel a reassignment: the partition keeps its replicas, and their number."""
        await self._metadata.propose(CancelReassignment(*self._where(topic, number), True))

    async def elect_leader(self, topic: str, number: int, leader: str | None) -> str:
        """Elect a node that is in sync, the preferred leader if none is named; return its id.

        A named node is the preferred leader from then on. Otherwise the controller would give the
        leadership back to the preferred one at once. A move under way brings its own order.
        """
        partition = self._partition(topic, number)
        leader = leader or partition.replicas[0]
        is_eligible = leader in eligible_leaders(self._state.nodes, partition)
        if is_eligible and leader != partition.replicas[0] and not partition.target:
            order = (leader, *(node for node in partition.replicas if node != leader))
            await self._metadata.propose(ReassignPartition(*self._where(topic, number), order))
        if leader != self._partition(topic, number).leader:
            try:
                await self._metadata.propose(ElectLeader(*self._where(topic, number), leader))
            except Conflict:
                if leader != self._partition(topic, number).leader:  # the controller elected it
                    raise
        return leader

    async def elect_unclean_leader(
        self, topic: str, number: int, leader: str, *, dry_run: bool
    ) -> ReplicaEndOffsets:
        """Elect a leader that may lack acknowledged messages, for a partition without a leader.

        The loss returned was measured before the election, at the replicas that answer.
        """
        partition, where = self._partition(topic, number), self._where(topic, number)
        if leader not in partition.holders:
            raise Conflict(f"node {leader[:200]!r} has no replica of the partition")
        if partition.leader is not None:
            raise Conflict(
                f"node {partition.leader} leads the partition; nothing needs to be lost:"
                " elect without unclean"
            )
        found = await self._replica_status.end_offsets(topic, number, partition.holders)
        if not dry_run:
            await self._metadata.propose(ElectLeader(*where, leader, unclean=True))
        by_node = {node: found.get(node) for node in partition.holders}
        known = [end for end in by_node.values() if end is not None]
        return ReplicaEndOffsets(by_node, max(known, default=0) - (by_node[leader] or 0))

    async def change_settings(
        self,
        *,
        replication_factor: int | None = None,
        min_insync: int | None = None,
        moves_at_once: int | None = None,
        move_bytes_per_s: int | None = None,
    ) -> None:
        """Change settings of the cluster; None leaves a setting unchanged."""
        for name, value, lowest, highest in (
            ("replication_factor", replication_factor, 1, limits.REPLICAS_MAX),
            ("min_insync", min_insync, 1, limits.REPLICAS_MAX),
            ("moves_at_once", moves_at_once, 1, limits.REASSIGNMENTS_MAX),
            ("move_bytes_per_s", move_bytes_per_s, 0, limits.REASSIGNMENT_BYTES_PER_S_MAX),
        ):
            if value is not None and not lowest <= value <= highest:
                raise InvalidInput(f"{name} is {lowest} to {highest}, not {value}", field=name)
        await self._metadata.propose(
            AlterClusterSettings(
                self._state.settings.version,
                replication_factor,
                min_insync,
                moves_at_once,
                move_bytes_per_s,
            )
        )

    def _where(self, topic: str, number: int) -> tuple[str, int, int, int]:
        partition = self._partition(topic, number)
        return topic, self._topic(topic).topic_id, number, partition.version

    def _topic(self, name: str) -> TopicMetadata:
        topic = self._state.topics.get(name)
        if topic is None or topic.deleting:
            raise TopicNotFound(f"there is no topic {name[:200]!r}", field="topic")
        return topic

    def _partition(self, topic: str, number: int) -> PartitionMetadata:
        known = self._topic(topic)
        if not 0 <= number < len(known.partitions):
            raise PartitionNotFound(f"topic {topic} has no partition {number}", field="partition")
        return known.partitions[number]
