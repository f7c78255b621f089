"""What operators do to a cluster: nodes come and go, replicas move, leaders change, settings.

Everything is decided by the agreed state's own rules; a refusal is raised as it came.
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
from goq.cluster.metadata.state import MetadataState, PartitionMetadata, TopicMetadata
from goq.errors import Conflict, InvalidInput, NodeNotFound, PartitionNotFound, TopicNotFound

ADD_MEMBER_TIMEOUT_S = 10.0


class PlannedReassignment(NamedTuple):
    """A move of one partition, and why it was refused, if it was."""

    topic: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    refusal: str = ""


class ReplicaEndOffsets(NamedTuple):
    """Where the replicas of a partition end, None of those that do not answer; what is lost.

    ``lost`` is how many messages replicas that answer have beyond those of the new leader.
    """

    by_node: dict[str, int | None]
    lost: int


def check_all_nodes_up(state: MetadataState) -> None:
    """Refuse to let a node in while another is away, and say which: Raft would refuse it anyway."""
    away = sorted(node.id for node in state.nodes.values() if not node.is_up)
    if away:
        raise Conflict(
            f"nobody is let in while {', '.join(away)} is away: bring it back, or, if it is lost:"
            f" goq cluster leave {away[0]}"
        )


class ClusterOperations:
    """Changes the cluster on behalf of people; ``add_member`` takes a node into the Raft group."""

    def __init__(
        self,
        proposing: MetadataClient,
        reporting: ReplicaStatus,
        add_member: Callable[[str], Awaitable[None]],
    ) -> None:
        self._proposing = proposing
        self._reporting = reporting
        self._add_member = add_member

    @property
    def _state(self) -> MetadataState:
        return self._proposing.state

    async def join(self, node: str, address: str) -> None:
        """Let a node in that runs already and knows the others."""
        if node in self._state.nodes:
            raise Conflict(f"node {node} is in the cluster already", field="node")
        check_all_nodes_up(self._state)
        await self._add_member(f"{node}={address}")

    async def leave(self, node: str, *, fewer_replicas: bool = False) -> None:
        """Let a node give away all that it has, then go; once is enough.

        With ``fewer_replicas`` also where the others are too few for as many as there are.
        """
        known = self._state.nodes.get(node)
        if known is None:
            raise NodeNotFound(f"there is no node {node[:200]!r} in the cluster", field="node")
        if not known.leaving:
            await self._proposing.propose(DecommissionNode(node, fewer_replicas))

    async def rebalance(self, *, dry_run: bool) -> list[PlannedReassignment]:
        """Plan moves that make nodes even, and begin them unless it is a dry run."""
        state = self._state
        plan = await asyncio.to_thread(plan_rebalance, state)
        moves = []
        for command in plan:
            refusal = "" if dry_run else await self._refusal_of(command)
            before = state.topics[command.topic].partitions[command.partition].replicas
            moves.append(
                PlannedReassignment(
                    command.topic, command.partition, before, command.target, refusal
                )
            )
        return moves

    async def _refusal_of(self, command: ReassignPartition) -> str:
        try:
            await self._proposing.propose(command)
        except Conflict as error:
            return error.detail
        return ""

    async def move(self, topic: str, number: int, target: tuple[str, ...]) -> None:
        """Plan other replicas of a partition, and want as many; the first is preferred to lead."""
        if not target:
            raise InvalidInput("name the nodes that are to have the partition", field="replicas")
        await self._proposing.propose(ReassignPartition(*self._where(topic, number), target, True))

    async def cancel_move(self, topic: str, number: int) -> None:
        """Give a move up: the partition stays where it was, also if it was to get more replicas."""
        await self._proposing.propose(CancelReassignment(*self._where(topic, number), True))

    async def elect(self, topic: str, number: int, leader: str | None) -> str:
        """Have a partition led by a node that is in sync, the preferred one without a name."""
        partition = self._partition(topic, number)
        leader = leader or partition.replicas[0]
        if leader != partition.leader:
            await self._proposing.propose(ElectLeader(*self._where(topic, number), leader))
        return leader

    async def elect_unclean(
        self, topic: str, number: int, leader: str, *, dry_run: bool
    ) -> ReplicaEndOffsets:
        """Have a partition that nobody can lead led by one that lacks what others acknowledged.

        What is said to be lost was asked before: of the replicas that answer.
        """
        partition, where = self._partition(topic, number), self._where(topic, number)
        if leader not in partition.holders:
            raise Conflict(f"node {leader[:200]!r} has no replica of the partition")
        if partition.leader is not None:
            raise Conflict(
                f"node {partition.leader} leads the partition; nothing needs to be lost:"
                " elect without unclean"
            )
        found = await self._reporting.replicas_of(topic, number, partition.holders)
        if not dry_run:
            await self._proposing.propose(ElectLeader(*where, leader, unclean=True))
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
        """Change settings of the cluster; None leaves one as it is."""
        for name, value, lowest, highest in (
            ("replication_factor", replication_factor, 1, limits.REPLICAS_MAX),
            ("min_insync", min_insync, 1, limits.REPLICAS_MAX),
            ("moves_at_once", moves_at_once, 1, limits.MOVES_AT_ONCE_MAX),
            ("move_bytes_per_s", move_bytes_per_s, 0, limits.MOVE_BYTES_PER_S_MAX),
        ):
            if value is not None and not lowest <= value <= highest:
                raise InvalidInput(f"{name} is {lowest} to {highest}, not {value}", field=name)
        await self._proposing.propose(
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
