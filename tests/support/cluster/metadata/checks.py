"""What must hold of the cluster's metadata after every command, and a naive twin of elections."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from goq.cluster.metadata.commands import (
    AnyCommand,
    CreateTopicWithId,
    FenceNode,
    ForceNewCluster,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    RegisterNode,
    RenewLeadership,
    SetNodeHealth,
    UnfenceNode,
)
from goq.cluster.metadata.results import Rejected, Result
from goq.cluster.metadata.state import MetadataState, NodeMetadata, PartitionMetadata
from goq.model import NATIVE_TOPIC_IDS, format_topic_id


def check_step(
    before: MetadataState, command: AnyCommand, after: MetadataState, result: Result
) -> None:
    """Check a state, and that it may follow from the one before by this command."""
    assert after.version > before.version
    if isinstance(result, Rejected):
        assert replace(after, version=before.version) == before, "a refused command changed things"
        assert result.code
        assert result.detail
        return
    assert result.index == after.version
    check_state(after)
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is None or old.topic_id != topic.topic_id:
            drawn = command.topic_id if isinstance(command, CreateTopicWithId) else after.version
            assert topic.topic_id == drawn
            for partition in topic.partitions:
                assert all(before.nodes[n].takes_replicas for n in partition.replicas)
            continue
        assert len(topic.partitions) >= len(old.partitions)
        for number, partition in enumerate(topic.partitions[: len(old.partitions)]):
            if not topic.deleting:
                _check_change(before, command, after, old.partitions[number], partition)
                if isinstance(command, MarkReplicaDamaged | MarkReplicaRepaired):
                    if (command.topic, command.partition) == (name, number):
                        marked = replace(old.partitions[number], damaged=partition.damaged)
                        check_twin(after.nodes, marked, partition, command)
                elif isinstance(command, FenceNode | UnfenceNode | SetNodeHealth):
                    check_twin(after.nodes, old.partitions[number], partition, command)


def check_state(state: MetadataState) -> None:
    """Check a state by itself."""
    for name, node in state.nodes.items():
        assert node.id == name
    assert set(state.groups) <= set(state.topics)
    ids = [t.topic_id for t in [*state.topics.values(), *state.deleted_topics.values()]]
    assert len(set(ids)) == len(ids)
    for text, deleted in state.deleted_topics.items():
        assert text == format_topic_id(deleted.topic_id)
        assert deleted.nodes == tuple(sorted(set(deleted.nodes)))
    for name, topic in state.topics.items():
        assert topic.name == name
        assert topic.topic_id <= state.version or topic.topic_id >= NATIVE_TOPIC_IDS
        for partition in topic.partitions:
            if topic.deleting:
                assert partition.leader is None
                assert not partition.target
            else:
                _check_partition(state.nodes, partition)


def _check_partition(nodes: Mapping[str, NodeMetadata], p: PartitionMetadata) -> None:
    for chosen in (p.replicas, p.target, p.in_sync, p.damaged, p.restarted):
        assert len(set(chosen)) == len(chosen)
    assert p.replicas
    assert {*p.replicas, *p.target} <= set(nodes)
    assert p.in_sync, "nobody is in sync"
    assert set(p.in_sync) <= set(p.holders)
    assert set(p.damaged) <= set(p.holders)
    assert set(p.restarted) <= set(p.in_sync) - {p.leader}
    assert p.target or not (p.is_reassigning or p.is_manual)
    assert p.replication_factor >= 1
    assert not p.target or set(p.target) != set(p.replicas)
    if p.leader is None:
        assert not able(nodes, p), "somebody could lead and nobody does"
        assert not p.unclean
        return
    assert p.leader in p.in_sync
    assert nodes[p.leader].is_up
    assert nodes[p.leader].can_lead or not any(nodes[n].can_lead for n in able(nodes, p))
    assert p.leader not in p.damaged or p.unclean
    assert all(nodes[node].is_up for node in p.in_sync)


def _check_change(
    before: MetadataState,
    command: AnyCommand,
    after: MetadataState,
    old: PartitionMetadata,
    new: PartitionMetadata,
) -> None:
    assert (new.version == old.version) == (new == old)
    assert new.version in (old.version, old.version + 1)
    anew = (
        isinstance(command, RegisterNode)
        and command.node in before.nodes
        and command.node == old.leader
    ) or (isinstance(command, RenewLeadership) and new != old)
    assert new.leader_epoch == old.leader_epoch + (new.leader != old.leader or anew)
    if isinstance(command, ForceNewCluster):
        assert new.replicas == new.in_sync == (command.node,)
        assert new.leader is None
        return
    for node in set(new.holders) - set(old.holders) | set(new.target) - set(old.target):
        assert node in old.target or node in old.holders or before.nodes[node].takes_replicas
    for node in set(new.restarted) - set(old.restarted):
        assert isinstance(command, RegisterNode)
        assert node == command.node
        assert node in old.in_sync
    for node in set(new.in_sync) - set(old.in_sync):
        assert after.nodes[node].is_up, "a fenced node was taken in sync"
    elected = new.leader is not None and (new.leader != old.leader or anew)
    if elected and not new.unclean and after.nodes[str(new.leader)].leaving:
        assert all(after.nodes[node].leaving for node in able(after.nodes, new))


def able(nodes: Mapping[str, NodeMetadata], partition: PartitionMetadata) -> set[str]:
    """Return who could lead, by the words of the rule."""
    up = {n for n in partition.in_sync if nodes[n].is_up and n not in partition.damaged}
    up = up - set(partition.restarted) or up
    return {node for node in up if nodes[node].can_lead} or up


def check_twin(
    nodes: Mapping[str, NodeMetadata],
    old: PartitionMetadata,
    new: PartitionMetadata,
    command: AnyCommand,
) -> None:
    """Check an election against one that is written down naively."""
    could = able(nodes, old)
    uncleanly = old.unclean and old.leader is not None and nodes[old.leader].is_up
    if uncleanly and not nodes[str(old.leader)].can_lead:
        uncleanly = not any(nodes[node].can_lead for node in could)
    if isinstance(command, MarkReplicaDamaged) and command.node == old.leader:
        uncleanly = False
    goes_on = old.leader in could or uncleanly
    if goes_on:
        assert new.leader == old.leader
    elif not could:
        assert new.leader is None
        assert new.in_sync == old.in_sync
    else:
        pool = {node for node in could if not nodes[node].leaving} or could
        assert new.leader in pool
        if old.replicas[0] in pool:
            assert new.leader == old.replicas[0]
    if new.leader is not None:
        assert set(new.in_sync) == {node for node in old.in_sync if nodes[node].is_up}
