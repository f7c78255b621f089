"""What is to be done next, as a function of the state and of what was heard of the nodes.

The node that leads the Raft group runs it: again after each change, and when time passes. It keeps
nothing: whoever takes over goes on from the state. A command is decided on a draft that has all
earlier ones of the same look applied, so each is accepted unless something else comes in between;
then the next look decides anew. When there is nothing to do it decides nothing.

Elections are no work of the controller but part of every command (see ``elections``); it only moves
leaderships that could stay where they are: away from leaving nodes, and back to preferred ones.
"""

from __future__ import annotations

from goq import limits
from goq.cluster.controller.node_liveness import NodeLiveness
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import (
    AnyCommand,
    CancelReassignment,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    ReassignPartition,
    RemoveNode,
    RemoveTopic,
    SetNodeHealth,
    StartReassignment,
    UnfenceNode,
)
from goq.cluster.metadata.handlers.elections import LeaderCounts, eligible_leaders
from goq.cluster.metadata.handlers.reassignments import with_target_replicas
from goq.cluster.metadata.handlers.replica_placement import assignable_nodes, completed_replicas
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    TopicPartition,
    active_partitions,
)


def decide(
    state: MetadataState,
    liveness: NodeLiveness,
    *,
    timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS,
    preferred_delay_ms: int = limits.PREFERRED_LEADER_DELAY_MS,
) -> list[AnyCommand]:
    """Return the commands to propose now, in order, ``limits.CONTROLLER_COMMANDS_MAX`` at most.

    ``liveness`` must have been looked at just now. A node is fenced after ``timeout_ms`` without a
    heartbeat, and gets leaderships back when it was heard of for ``preferred_delay_ms``.
    """
    look = _Look(state, liveness, timeout_ms, preferred_delay_ms)
    look.at_nodes()
    look.at_damage()
    look.at_partitions()
    look.at_what_is_going()
    return look.decided


class _Look:
    def __init__(
        self, state: MetadataState, liveness: NodeLiveness, timeout_ms: int, preferred_delay_ms: int
    ) -> None:
        self.decided: list[AnyCommand] = []
        self._state = state
        self._draft = state
        self._liveness = liveness
        self._timeout_ms = timeout_ms
        self._preferred_delay_ms = preferred_delay_ms
        self._loads = LeaderCounts(state)
        self._moves_left = state.settings.moves_at_once

    @property
    def _is_full(self) -> bool:
        return len(self.decided) >= limits.CONTROLLER_COMMANDS_MAX

    def _decide(self, command: AnyCommand) -> bool:
        """Take a command up if it does something; whether it was."""
        if self._is_full:
            return False
        state, result = apply(self._draft, command, self._draft.version)
        if not isinstance(result, Accepted):
            return False
        self._draft = state
        self.decided.append(command)
        return True

    def at_nodes(self) -> None:
        """Fence who is silent, take back who is heard, take note of who is fit."""
        for name, node in sorted(self._state.nodes.items()):
            silent = self._liveness.is_expired(name, node.incarnation, self._timeout_ms)
            heard = self._liveness.latest(name, node.incarnation)
            if node.is_up and silent:
                self._decide(FenceNode(name, node.incarnation))
            elif heard is not None and not silent:
                reason = heard.heartbeat.unfit_reason[: limits.METADATA_TEXT_CHARS_MAX]
                if reason != node.unfit_reason:
                    self._decide(SetNodeHealth(name, node.incarnation, reason))
                if not node.is_up and heard.at_ms >= self._liveness.ticked_ms - self._timeout_ms:
                    self._decide(UnfenceNode(name, node.incarnation))

    def at_damage(self) -> None:
        """Take note of what nodes say of their replicas."""
        told = [
            (name, node.incarnation, heard.heartbeat)
            for name, node in sorted(self._state.nodes.items())
            if (heard := self._liveness.latest(name, node.incarnation)) is not None
            and (heard.heartbeat.damaged or heard.heartbeat.repaired)
        ]
        for place, topic, partition in active_partitions(self._state) if told else ():
            this = (topic.topic_id, place.partition)
            for name, incarnation, heartbeat in told:
                where = (place.topic, *this, name, incarnation)
                if this in heartbeat.damaged:
                    if name not in partition.damaged:
                        self._decide(MarkReplicaDamaged(*where))
                elif this in heartbeat.repaired and name in partition.damaged:
                    self._decide(MarkReplicaRepaired(*where))

    def at_partitions(self) -> None:
        """Carry moves on, empty leaving nodes, add replicas that lack, and give leaderships back.

        One step of each.
        """
        leaving = {name for name, node in self._draft.nodes.items() if node.leaving}
        takers = set(assignable_nodes(self._draft.nodes))
        waiting = []
        for topic in self._state.topics.values():
            for number, partition in enumerate(topic.partitions):
                self._moves_left -= partition.is_reassigning
                if (
                    partition.target
                    or partition.leader != partition.replicas[0]
                    or leaving
                    or _can_be_filled(partition, takers)
                ):
                    waiting.append(TopicPartition(topic.name, number))
        for place in sorted(waiting):
            topic = self._draft.topics[place.topic]
            if self._is_full:
                return
            if not topic.deleting:
                self._carry_on(place, topic.partitions[place.partition], leaving, takers)

    def _carry_on(
        self,
        place: TopicPartition,
        partition: PartitionMetadata,
        leaving: set[str],
        takers: set[str],
    ) -> None:
        where = (
            place.topic,
            self._draft.topics[place.topic].topic_id,
            place.partition,
            partition.version,
        )
        leader = self._better_leader(partition, leaving)
        if leader is not None and self._decide(ElectLeader(*where, leader)):
            self._loads.change(partition.leader, leader)
            return
        if partition.target:
            if leaving.intersection(partition.target):
                self._decide(CancelReassignment(*where))
            elif not partition.is_reassigning:
                if self._moves_left > 0 and self._decide(StartReassignment(*where)):
                    self._moves_left -= 1
            elif with_target_replicas(self._draft, partition) is not None:
                self._decide(FinishReassignment(*where))
        elif self._moves_left > 0 and (
            leaving.intersection(partition.replicas) or _can_be_filled(partition, takers)
        ):
            target = completed_replicas(self._draft, self._draft.topics[place.topic], partition)
            if target is not None and self._decide(ReassignPartition(*where, target)):
                self._moves_left -= 1

    def _better_leader(self, partition: PartitionMetadata, leaving: set[str]) -> str | None:
        """Return who is to lead instead; None if nobody or if the leader is to stay."""
        if partition.leader is None:
            return None
        able = eligible_leaders(self._draft.nodes, partition)
        preferred = partition.replicas[0]
        if partition.leader in leaving:
            others = [node for node in able if node not in leaving]
            if preferred in others:
                return preferred
            return min(others, key=self._loads.count, default=None)
        if partition.target or preferred == partition.leader or preferred not in able:
            return None
        return preferred if self._is_steady(preferred) else None

    def _is_steady(self, node: str) -> bool:
        heard = self._liveness.latest(node, self._draft.nodes[node].incarnation)
        return (
            heard is not None
            and self._liveness.ticked_ms - heard.since_ms >= self._preferred_delay_ms
        )

    def at_what_is_going(self) -> None:
        """Forget topics that nobody has files of, and nodes that have nothing any more."""
        for name, topic in sorted(self._state.topics.items()):
            if topic.deleting and self._is_deleted(topic.topic_id, topic.partitions):
                self._decide(RemoveTopic(name, topic.topic_id))
        for name, node in sorted(self._draft.nodes.items()):
            if node.leaving:
                self._decide(RemoveNode(name))

    def _is_deleted(self, topic_id: int, partitions: tuple[PartitionMetadata, ...]) -> bool:
        for name in {node for partition in partitions for node in partition.replicas}:
            node = self._state.nodes.get(name)
            if node is not None:
                heard = self._liveness.latest(name, node.incarnation)
                if heard is None or topic_id not in heard.heartbeat.deleted:
                    return False
        return True


def _can_be_filled(partition: PartitionMetadata, takers: set[str]) -> bool:
    """Whether a partition that is led lacks replicas, and a node could take one."""
    return (
        partition.is_missing_replicas
        and partition.leader is not None
        and not takers.issubset(partition.replicas)
    )
