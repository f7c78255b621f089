"""Pure state machine of the cluster's metadata: a state and a command give a state and a result.

Nothing else enters: no clock, no randomness, no order of a dictionary. The same commands therefore
give the same state on every node. No command raises an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from goq.cluster.metadata import commands
from goq.cluster.metadata.command_codec import decode_command
from goq.cluster.metadata.handlers import (
    groups,
    nodes,
    partitions,
    reassignments,
    schedules,
    tokens,
    topics,
)
from goq.cluster.metadata.handlers.unsafe_recovery import force_new_cluster
from goq.cluster.metadata.results import Applied, CommandRejected
from goq.cluster.metadata.state import MetadataState


def apply(state: MetadataState, command: commands.AnyCommand, index: int) -> Applied:
    """Apply the command at ``index`` of the log; a rejected one changes the version alone."""
    state = replace(state, version=index)
    try:
        return _HANDLERS[type(command)](state, command)
    except CommandRejected as rejection:
        return Applied(state, rejection.result)


def apply_bytes(state: MetadataState, data: bytes, index: int) -> Applied:
    """Apply an encoded command; one that cannot be decoded is rejected like any other."""
    try:
        command = decode_command(data)
    except CommandRejected as rejection:
        return Applied(replace(state, version=index), rejection.result)
    return apply(state, command, index)


_HANDLERS: dict[type[commands.Command], Callable[[MetadataState, Any], Applied]] = {
    commands.RegisterNode: nodes.register_node,
    commands.RegisterNodeWithLevel: nodes.register_node,
    commands.RaiseFeatureLevel: nodes.raise_feature_level,
    commands.FenceNode: nodes.fence_node,
    commands.ReportDataLoss: nodes.report_data_loss,
    commands.ResetReplicas: nodes.reset_replicas,
    commands.ForceNewCluster: force_new_cluster,
    commands.UnfenceNode: nodes.unfence_node,
    commands.SetNodeHealth: nodes.set_node_health,
    commands.DecommissionNode: nodes.decommission_node,
    commands.RemoveNode: nodes.remove_node,
    commands.CreateTopic: topics.create_topic,
    commands.CreateTopicWithMinInsync: topics.create_topic,
    commands.CreateTopicWithId: topics.create_topic,
    commands.AdoptTopic: topics.adopt_topic,
    commands.AlterTopic: topics.alter_topic,
    commands.AlterTopicReplication: topics.alter_topic_replication,
    commands.AddPartitions: topics.add_partitions,
    commands.DeleteTopic: topics.delete_topic,
    commands.DeleteTopicAtOnce: topics.delete_topic_at_once,
    commands.RemoveTopic: topics.remove_topic,
    commands.PutGroup: groups.put_group,
    commands.DeleteGroup: groups.delete_group,
    commands.AlterInSync: partitions.alter_in_sync,
    commands.ElectLeader: partitions.elect_leader,
    commands.RenewLeadership: partitions.renew_leadership,
    commands.ChangePartitions: partitions.change_partitions,
    commands.MarkReplicaDamaged: partitions.mark_replica_damaged,
    commands.MarkReplicaRepaired: partitions.mark_replica_repaired,
    commands.ReassignPartition: reassignments.reassign_partition,
    commands.StartReassignment: reassignments.start_reassignment,
    commands.CancelReassignment: reassignments.cancel_reassignment,
    commands.FinishReassignment: reassignments.finish_reassignment,
    commands.AlterClusterSettings: groups.alter_cluster_settings,
    commands.PutToken: tokens.put_token,
    commands.PutSchedule: schedules.put_schedule,
    commands.DeleteSchedule: schedules.delete_schedule,
    commands.RecordScheduleRuns: schedules.record_schedule_runs,
}
