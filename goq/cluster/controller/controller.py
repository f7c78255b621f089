"""Pure decision of the next commands, from the metadata and the nodes' liveness.

The leader of the Raft group runs it after each change, and at intervals. It keeps no state: another
node that takes over continues from the metadata. Each command is decided on a draft of the state
with all earlier commands of the same pass applied. So each is accepted unless another command comes
in between; then the next pass decides again. With nothing to do, it decides nothing.

Elections are no task of the controller but part of every command (see ``elections``). The
controller only moves leaderships that could stay: away from leaving nodes, and back to preferred
replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from goq import limits
from goq.cluster.controller.clock_skew import ClockSkew, is_clock_off
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.controller.unsettled_partitions import UnsettledPartitions, can_add_replica
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import (
    AnyCommand,
    CancelReassignment,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    RaiseFeatureLevel,
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
    NodeMetadata,
    PartitionMetadata,
    PartitionRef,
    active_partitions,
    active_topics,
)

CLOCK_IS_OFF: Final = (
    f"its clock is over {limits.CLOCK_SKEW_UNFIT_MS // 1000} s off those of the other nodes"
)

IS_UNCALLABLE: Final = "most other nodes cannot call it"

IS_RAFT_SILENT: Final = "it does not answer in the Raft group"


def decide(
    state: MetadataState,
    liveness: NodeLiveness,
    *,
    timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS,
    preferred_delay_ms: int = limits.PREFERRED_LEADER_DELAY_MS,
    reachable: Collection[str] = (),
    unsettled: UnsettledPartitions | None = None,
) -> list[AnyCommand]:
    """Return the commands to propose now, in order, at most ``limits.CONTROLLER_COMMANDS_MAX``.

    ``liveness`` must just have been ticked. A node is fenced after ``timeout_ms`` without a
    heartbeat. It gets leaderships back once it has sent heartbeats for ``preferred_delay_ms``.
    ``reachable`` are the nodes that answer in the Raft group: their silence may be the fault of
    this node or of the network, see :func:`is_deaf`. ``unsettled`` saves a look at all partitions
    when it is used again with the same topics; it changes no decision.
    """
    controller_pass = _ControllerPass(
        state, liveness, timeout_ms, preferred_delay_ms, reachable, unsettled
    )
    controller_pass.plan_nodes()
    controller_pass.plan_features()
    controller_pass.plan_replica_health()
    controller_pass.plan_partitions()
    controller_pass.plan_removals()
    return controller_pass.decided


def is_deaf(
    state: MetadataState,
    liveness: NodeLiveness,
    reachable: Collection[str],
    timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS,
) -> bool:
    """Whether the controller should run on another node.

    It hears no majority of the nodes, though a majority answers in the Raft group. Then it would
    fence nodes that work, and no node could tell it otherwise.
    """
    silent = _silent_nodes(state, liveness, timeout_ms)
    lost = silent - set(reachable)
    return not _is_majority(state, silent) and _is_majority(state, lost)


def _silent_nodes(state: MetadataState, liveness: NodeLiveness, timeout_ms: int) -> set[str]:
    return {
        name
        for name, node in state.nodes.items()
        if liveness.is_expired(name, node.incarnation, timeout_ms)
    }


def _is_majority(state: MetadataState, without: set[str]) -> bool:
    """Whether the nodes ``without`` some are a majority of all."""
    return 2 * (len(state.nodes) - len(without)) > len(state.nodes)


class _ControllerPass:
    """One pass over the metadata; ``decided`` collects the commands."""

    def __init__(
        self,
        state: MetadataState,
        liveness: NodeLiveness,
        timeout_ms: int,
        preferred_delay_ms: int,
        reachable: Collection[str],
        unsettled: UnsettledPartitions | None,
    ) -> None:
        self._unsettled = UnsettledPartitions() if unsettled is None else unsettled
        self.decided: list[AnyCommand] = []
        self._state = state
        self._draft = state
        self._liveness = liveness
        self._timeout_ms = timeout_ms
        self._preferred_delay_ms = preferred_delay_ms
        self._reachable = reachable
        self._leader_counts = LeaderCounts(state)
        self._reassignments_left = state.settings.moves_at_once

    @property
    def _is_full(self) -> bool:
        return len(self.decided) >= limits.CONTROLLER_COMMANDS_MAX

    def _decide(self, command: AnyCommand) -> bool:
        """Add a command if it is accepted; return whether it was."""
        if self._is_full:
            return False
        state, result = apply(self._draft, command, self._draft.version)
        if not isinstance(result, Accepted):
            return False
        self._draft = state
        self.decided.append(command)
        return True

    def plan_nodes(self) -> None:
        """Fence nodes with expired sessions, unfence others, and record health."""
        clocks = self._liveness.clocks(self._state.nodes)
        for name, node in sorted(self._state.nodes.items()):
            expired = self._liveness.is_expired(
                name, node.incarnation, self._timeout_ms
            ) or self._is_lost_since_takeover(node)
            heard = self._liveness.latest(name, node.incarnation)
            if node.is_up and expired and self._may_fence(node):
                self._decide(FenceNode(name, node.incarnation))
            elif heard is not None and not expired:
                reason = self._unfit_reason(node, heard.heartbeat, clocks.get(name))
                if reason != node.unfit_reason:
                    self._decide(SetNodeHealth(name, node.incarnation, reason))
                if not node.is_up and heard.at_ms >= self._liveness.ticked_ms - self._timeout_ms:
                    self._decide(UnfenceNode(name, node.incarnation))

    def _unfit_reason(self, node: NodeMetadata, heard: Heartbeat, clock: ClockSkew | None) -> str:
        """Return why a node should not lead, "" if it may."""
        if heard.unfit_reason:
            return heard.unfit_reason[: limits.METADATA_TEXT_CHARS_MAX]
        if is_clock_off(clock, was_off=node.unfit_reason == CLOCK_IS_OFF):
            return CLOCK_IS_OFF
        if self._is_uncallable(node):
            return IS_UNCALLABLE
        return IS_RAFT_SILENT if self._is_raft_silent(node) else ""

    def _is_uncallable(self, node: NodeMetadata) -> bool:
        """Whether a node is heard, and most others cannot fetch what it leads."""
        was = node.unfit_reason == IS_UNCALLABLE
        return self._liveness.is_uncallable(node.id, self._state.nodes, self._timeout_ms, was=was)

    def _is_raft_silent(self, node: NodeMetadata) -> bool:
        """Whether a node is heard, but not in the Raft group.

        It may not know what it leads, or could not have its in-sync sets changed. A controller that
        has had no answer yet from anyone knows nothing of this.
        """
        was = node.unfit_reason == IS_RAFT_SILENT
        if not self._reachable:
            return was
        return self._liveness.is_raft_silent(node.id, was=was)

    def _is_lost_since_takeover(self, node: NodeMetadata) -> bool:
        """Whether a node has been silent since this controller began, in the Raft group too.

        It may be the former controller. The silence before another one was elected counts as the
        first part of the session timeout.
        """
        liveness = self._liveness
        left_ms = self._timeout_ms - liveness.silent_before_ms
        return (
            bool(self._reachable)
            and node.id not in self._reachable
            and liveness.latest(node.id, node.incarnation) is None
            and liveness.ticked_ms - liveness.started_ms > max(left_ms, limits.NODE_TAKEOVER_MS_MIN)
        )

    def _may_fence(self, node: NodeMetadata) -> bool:
        """Whether a silent node is to be fenced.

        One that has ended, or does not answer in the Raft group either, always is. Otherwise only
        if the controller hears a majority, and enough nodes stay up to acknowledge anything. And a
        little later: if the controller is deaf, the nodes fall silent one shortly after another.
        """
        if node.id not in self._reachable or self._liveness.has_ended(node.id, node.incarnation):
            return True
        patience_ms = self._timeout_ms + limits.NODE_HEARSAY_GRACE_MS
        if not self._liveness.is_expired(node.id, node.incarnation, patience_ms):
            return False
        silent = _silent_nodes(self._state, self._liveness, self._timeout_ms)
        up = sum(other.is_up for other in self._draft.nodes.values())
        own = (topic.min_insync or 0 for topic in active_topics(self._state))
        required = max(self._state.settings.min_insync, *own, 0)
        return _is_majority(self._state, silent) and up > required

    def plan_features(self) -> None:
        """Raise the feature level once every node has sent a heartbeat with a higher one."""
        known: dict[str, tuple[int, int]] = {}
        for name, node in self._state.nodes.items():
            heard = self._liveness.latest(name, node.incarnation)
            if heard is None:
                return
            known[name] = node.incarnation, heard.heartbeat.feature_level
        level = min((level for _, level in known.values()), default=0)
        if level > self._state.features.level:
            self._decide(RaiseFeatureLevel(level, known))

    def plan_replica_health(self) -> None:
        """Record which replicas their nodes report as damaged or repaired."""
        reports = [
            (name, node.incarnation, heard.heartbeat)
            for name, node in sorted(self._state.nodes.items())
            if (heard := self._liveness.latest(name, node.incarnation)) is not None
            and (heard.heartbeat.damaged or heard.heartbeat.repaired)
        ]
        for place, topic, partition in active_partitions(self._state) if reports else ():
            partition_id = (topic.topic_id, place.partition)
            for name, incarnation, heartbeat in reports:
                where = (place.topic, *partition_id, name, incarnation)
                if partition_id in heartbeat.damaged:
                    if name not in partition.damaged:
                        self._decide(MarkReplicaDamaged(*where))
                elif partition_id in heartbeat.repaired and name in partition.damaged:
                    self._decide(MarkReplicaRepaired(*where))

    def plan_partitions(self) -> None:
        """Take one step of each reassignment, and start new ones; give leaderships back.

        New reassignments empty leaving nodes, and add missing replicas.
        """
        leaving = {name for name, node in self._draft.nodes.items() if node.leaving}
        receivers = set(assignable_nodes(self._draft.nodes))
        unsettled = self._unsettled.find(self._state.topics, leaving, receivers)
        self._reassignments_left -= unsettled.reassigning
        for place in unsettled.places:
            topic = self._draft.topics[place.topic]
            if self._is_full:
                return
            if not topic.deleting:
                self._plan_partition(place, topic.partitions[place.partition], leaving, receivers)

    def _plan_partition(
        self,
        place: PartitionRef,
        partition: PartitionMetadata,
        leaving: set[str],
        receivers: set[str],
    ) -> None:
        where = (
            place.topic,
            self._draft.topics[place.topic].topic_id,
            place.partition,
            partition.version,
        )
        leader = self._better_leader(partition, leaving)
        if leader is not None and self._decide(ElectLeader(*where, leader)):
            self._leader_counts.change(partition.leader, leader)
            return
        if partition.target:
            if _is_target_too_long(partition) and self._decide(CancelReassignment(*where)):
                return
            if leaving.intersection(partition.target):
                self._decide(CancelReassignment(*where))
            elif not partition.is_reassigning:
                if self._reassignments_left > 0 and self._decide(StartReassignment(*where)):
                    self._reassignments_left -= 1
            elif with_target_replicas(self._draft, partition) is not None:
                self._decide(FinishReassignment(*where))
        elif self._reassignments_left > 0 and (
            leaving.intersection(partition.replicas)
            or (partition.has_surplus_replicas and partition.leader is not None)
            or can_add_replica(partition, receivers)
        ):
            target = completed_replicas(self._draft, self._draft.topics[place.topic], partition)
            if target is not None and self._decide(ReassignPartition(*where, target)):
                self._reassignments_left -= 1

    def _better_leader(self, partition: PartitionMetadata, leaving: set[str]) -> str | None:
        """Return the node that should lead instead; None if the leader is to stay."""
        if partition.leader is None:
            return None
        preferred = partition.replicas[0]
        if partition.leader in leaving:
            able = eligible_leaders(self._draft.nodes, partition)
            others = [node for node in able if node not in leaving]
            if preferred in others:
                return preferred
            return min(others, key=self._leader_counts.count, default=None)
        if partition.target or preferred == partition.leader or not self._is_steady(preferred):
            return None  # also of thousands, ten times a second
        return preferred if preferred in eligible_leaders(self._draft.nodes, partition) else None

    def _is_steady(self, node: str) -> bool:
        known = self._draft.nodes.get(node)
        heard = None if known is None else self._liveness.latest(node, known.incarnation)
        return (
            heard is not None
            and self._liveness.ticked_ms - heard.steady_since_ms >= self._preferred_delay_ms
        )

    def plan_removals(self) -> None:
        """Remove topics whose files are all deleted, and leaving nodes without replicas."""
        for _, deleted in sorted(self._state.deleted_topics.items()):
            if self._is_deleted(deleted.topic_id, deleted.nodes):
                self._decide(RemoveTopic(deleted.name, deleted.topic_id))
        for name, topic in sorted(self._state.topics.items()):
            if not topic.deleting:
                continue
            nodes = {node for partition in topic.partitions for node in partition.replicas}
            if self._is_deleted(topic.topic_id, nodes):
                self._decide(RemoveTopic(name, topic.topic_id))
        for name, node in sorted(self._draft.nodes.items()):
            if node.leaving:
                self._decide(RemoveNode(name))

    def _is_deleted(self, topic_id: int, nodes: Iterable[str]) -> bool:
        for name in nodes:
            node = self._state.nodes.get(name)
            if node is not None:
                heard = self._liveness.latest(name, node.incarnation)
                if heard is None or topic_id not in heard.heartbeat.deleted:
                    return False
        return True


def _is_target_too_long(partition: PartitionMetadata) -> bool:
    """Whether the replication factor was lowered since the reassignment was planned."""
    return not partition.is_manual and len(partition.target) > partition.replication_factor
