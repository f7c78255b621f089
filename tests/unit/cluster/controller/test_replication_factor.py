"""Partitions with fewer replicas than wanted get them by themselves; people have the last word."""

from __future__ import annotations

import pytest

from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterInSync,
    AlterTopicReplication,
    CancelReassignment,
    DecommissionNode,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    MarkReplicaDamaged,
    ReassignPartition,
    RegisterNode,
    RemoveNode,
    StartReassignment,
)
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import MetadataState, active_partitions
from tests.support.cluster.metadata.states import (
    after,
    at,
    counts,
    nodes,
    partition,
    refused,
    uneven,
    with_topic,
)


def joined(state: MetadataState, name: str) -> MetadataState:
    """Return the state after another node came."""
    return after(state, RegisterNode(name, 1, f"http://{name}", f"{name}:9"))


def looked(state: MetadataState) -> MetadataState:
    """Return the state after the controller looked once, with all up nodes heard of."""
    liveness = NodeLiveness.start(0)
    for name, node in state.nodes.items():
        if node.is_up:
            liveness = liveness.with_heartbeat(name, Heartbeat(node.incarnation), 0)
    for command in decide(state, liveness.tick(0)):
        state, result = apply(state, command, state.version + 1)
        assert isinstance(result, Accepted), result
    return state


def caught_up(state: MetadataState) -> MetadataState:
    """Return the state after every replica that can has everything."""
    for place, _, found in active_partitions(state):
        up = {name: 1 for name in found.holders if state.nodes[name].is_up}
        if found.leader is not None and set(up) != set(found.in_sync):
            leading = (found.leader, found.leader_epoch)
            state = after(state, AlterInSync(*at(state, *place), *leading, up))
    return state


def at_rest(state: MetadataState) -> MetadataState:
    """Return the state once the controller has nothing more to do."""
    for _ in range(100):
        before = state.version
        state = caught_up(looked(state))
        if state.version == before:
            return state
    raise AssertionError("it does not come to rest")


def test_a_topic_made_before_all_nodes_are_there_gets_its_replicas_when_they_come() -> None:
    state = at_rest(with_topic(nodes(1), partitions=12))
    assert all(found.replicas == ("n1",) for _, _, found in active_partitions(state))
    state = at_rest(joined(state, "n2"))
    assert all(set(found.replicas) == {"n1", "n2"} for _, _, found in active_partitions(state))
    state = at_rest(joined(state, "n3"))
    assert all(
        set(found.replicas) == {"n1", "n2", "n3"} for _, _, found in active_partitions(state)
    )
    assert all(not found.is_missing_replicas for _, _, found in active_partitions(state))
    assert uneven(counts(state)[1]) <= 2  # who came later has a share of the leaderships, too


def test_filling_up_is_done_while_another_replica_is_away() -> None:
    state = at_rest(with_topic(nodes(2), partitions=12))
    state = after(joined(state, "n3"), FenceNode("n1", 1))
    state = at_rest(state)
    assert all(
        set(found.replicas) == {"n1", "n2", "n3"} for _, _, found in active_partitions(state)
    )
    assert all(set(found.in_sync) == {"n2", "n3"} for _, _, found in active_partitions(state))


def test_filling_up_is_bounded_like_any_move() -> None:
    state = after(with_topic(nodes(2), partitions=9), AlterClusterSettings(1, moves_at_once=2))
    state = looked(joined(state, "n3"))
    assert sum(bool(found.target) for _, _, found in active_partitions(state)) == 2
    state = looked(looked(state))
    assert sum(found.is_reassigning for _, _, found in active_partitions(state)) == 2


def test_a_replica_that_is_only_away_is_not_replaced() -> None:
    state = at_rest(after(with_topic(nodes(4), partitions=4), FenceNode("n2", 1)))
    assert not any(found.target for _, _, found in active_partitions(state))
    assert any("n2" in found.replicas for _, _, found in active_partitions(state))


def test_what_nobody_leads_is_filled_up_only_once_somebody_does() -> None:
    state = after(with_topic(nodes(1)), FenceNode("n1", 1))
    state = joined(state, "n2")
    assert not partition(looked(state)).target


def test_people_who_move_a_partition_to_fewer_replicas_want_no_more() -> None:
    state = with_topic(nodes(3))
    state = after(state, ReassignPartition(*at(state), ("n1", "n3"), is_manual=True))
    assert partition(state).replication_factor == 3  # until it is done it may be given up
    state = at_rest(state)
    assert (partition(state).replicas, partition(state).replication_factor) == (("n1", "n3"), 2)
    state = after(state, ReassignPartition(*at(state), ("n1", "n3", "n2"), is_manual=True))
    state = at_rest(state)
    assert (set(partition(state).replicas), partition(state).replication_factor) == (
        {"n1", "n2", "n3"},
        3,
    )


def test_a_move_by_name_that_is_given_up_changes_nothing_that_is_wanted() -> None:
    state = with_topic(nodes(3))
    state = after(state, ReassignPartition(*at(state), ("n1", "n3"), is_manual=True))
    state = after(state, CancelReassignment(*at(state), is_manual=True))
    assert (partition(state).replication_factor, partition(state).is_manual) == (3, False)


def test_people_who_give_filling_up_want_no_more_than_there_is() -> None:
    state = looked(joined(with_topic(nodes(2)), "n3"))
    assert len(partition(state).target) == 3
    state = after(state, CancelReassignment(*at(state), is_manual=True))
    assert partition(state).replication_factor == 2
    assert at_rest(state).topics == state.topics


def test_naming_the_replicas_that_there_are_says_that_they_are_enough() -> None:
    state = with_topic(nodes(2))
    same = partition(state).replicas
    assert refused(state, ReassignPartition(*at(state), same)) == "unchanged"
    state = after(state, ReassignPartition(*at(state), same, is_manual=True))
    assert partition(state).replication_factor == 2
    assert refused(state, ReassignPartition(*at(state), same, is_manual=True)) == "unchanged"


def test_new_partitions_want_as_many_replicas_as_the_others() -> None:
    state = with_topic(nodes(2), partitions=1)
    topic = state.topics["orders"]
    state = after(state, AddPartitions("orders", topic.topic_id, topic.version, 3))
    assert [(len(p.replicas), p.replication_factor) for _, _, p in active_partitions(state)] == [
        (2, 3)
    ] * 3


def test_a_lost_node_leaves_without_a_replacement_and_the_next_one_takes_its_place() -> None:
    state = after(with_topic(nodes(3), partitions=6), FenceNode("n2", 1), DecommissionNode("n2"))
    state = at_rest(state)
    assert "n2" not in state.nodes
    assert all(set(found.replicas) == {"n1", "n3"} for _, _, found in active_partitions(state))
    assert all(
        (found.replication_factor, len(found.in_sync)) == (3, 2)
        for _, _, found in active_partitions(state)
    )
    state = at_rest(joined(state, "n4"))
    assert all(set(found.in_sync) == {"n1", "n3", "n4"} for _, _, found in active_partitions(state))
    assert uneven(counts(state)[1]) == 0


def test_a_lost_node_that_leaves_after_its_replacement_came_is_replaced_at_once() -> None:
    state = after(joined(with_topic(nodes(3)), "n4"), FenceNode("n2", 1), DecommissionNode("n2"))
    assert set(partition(at_rest(state)).replicas) == {"n1", "n3", "n4"}


def test_a_lost_node_waits_to_be_replaced_while_one_that_stays_is_only_away() -> None:
    state = after(with_topic(nodes(4), factor=3), FenceNode("n4", 1))
    lost = partition(state).replicas[0]
    state = at_rest(after(state, FenceNode(lost, 1), DecommissionNode(lost)))
    assert lost in partition(state).replicas or len(partition(state).replicas) == 3


def test_a_node_that_is_up_leaves_with_fewer_replicas_only_if_that_is_said() -> None:
    state = with_topic(nodes(3), partitions=3)
    assert refused(state, DecommissionNode("n2")) == "too_few_nodes"
    state = at_rest(after(state, DecommissionNode("n2", fewer_replicas=True)))
    assert "n2" not in state.nodes
    assert all(set(found.in_sync) == {"n1", "n3"} for _, _, found in active_partitions(state))


@pytest.mark.parametrize("fewer", [False, True])
def test_nobody_leaves_if_too_few_stay_to_acknowledge_anything(fewer: bool) -> None:
    state = after(with_topic(nodes(3)), AlterClusterSettings(1, min_insync=3), FenceNode("n2", 1))
    assert refused(state, DecommissionNode("n2", fewer)) == "too_few_nodes"
    state = after(state, AlterClusterSettings(2, min_insync=2), DecommissionNode("n2", fewer))
    assert state.nodes["n2"].leaving


def test_a_lost_node_that_alone_has_everything_is_not_taken_out() -> None:
    state = with_topic(nodes(3), partitions=2)
    found = partition(state, number=1)
    alone = str(found.leader)
    only = AlterInSync(*at(state, number=1), alone, found.leader_epoch, {alone: 1})
    state = after(state, only, FenceNode(alone, 1))
    result = apply(state, DecommissionNode(alone), state.version + 1).result
    assert "orders:1" in str(result)
    assert "orders:0" not in str(result)
    assert refused(state, DecommissionNode(alone, fewer_replicas=True)) == "only_copy"


def test_a_replica_is_not_taken_out_before_those_that_stay_have_everything() -> None:
    state = with_topic(nodes(3))
    first = partition(state)
    others = [name for name in first.replicas if name != first.leader]
    behind, lost = others
    in_sync = {str(first.leader): 1, lost: 1}
    state = after(state, AlterInSync(*at(state), str(first.leader), first.leader_epoch, in_sync))
    state = after(state, FenceNode(lost, 1), DecommissionNode(lost))
    for _ in range(5):
        state = looked(state)
    assert partition(state).is_reassigning
    assert lost in partition(state).replicas
    assert refused(state, FinishReassignment(*at(state))) == "not_in_sync"
    assert refused(state, RemoveNode(lost)) == "has_replicas"
    state = at_rest(state)
    assert set(partition(state).in_sync) == {str(first.leader), behind}
    assert lost not in state.nodes


def test_a_move_that_fills_up_goes_on_under_the_next_controller() -> None:
    state = looked(joined(with_topic(nodes(2)), "n3"))
    state = after(state, StartReassignment(*at(state)))
    state = at_rest(state)
    assert set(partition(state).replicas) == {"n1", "n2", "n3"}


# A factor that is altered


def altered(state: MetadataState, factor: int) -> MetadataState:
    topic = state.topics["orders"]
    return after(state, AlterTopicReplication("orders", topic.topic_id, topic.version, factor))


def sizes(state: MetadataState) -> set[int]:
    return {len(found.replicas) for _, _, found in active_partitions(state)}


def test_a_raised_factor_adds_replicas_and_a_lowered_one_removes_them_evenly() -> None:
    state = with_topic(nodes(4), partitions=12, factor=2)
    state = at_rest(altered(state, 4))
    assert sizes(state) == {4}
    leaders = [found.leader for _, _, found in active_partitions(state)]
    state = at_rest(altered(state, 2))
    assert sizes(state) == {2}
    assert [found.leader for _, _, found in active_partitions(state)] == leaders
    assert uneven(counts(state)[0]) <= 1
    assert all(
        set(found.in_sync) == set(found.replicas) for _, _, found in active_partitions(state)
    )


def test_a_leader_that_is_not_preferred_keeps_its_replica() -> None:
    state = with_topic(nodes(3))
    leader = partition(state).replicas[2]
    state = after(state, ElectLeader(*at(state), leader))
    state = at_rest(altered(state, 1))
    assert partition(state).replicas == partition(state).in_sync == (leader,)
    assert partition(state).leader_epoch == 2


def test_no_replica_goes_before_those_that_stay_have_everything() -> None:
    state = with_topic(nodes(3))
    found = partition(state)
    leader = str(found.leader)
    alone = AlterInSync(*at(state), leader, found.leader_epoch, {leader: 1})
    state = altered(after(state, alone), 2)
    for _ in range(5):
        state = looked(state)
    assert partition(state).replicas == found.replicas
    assert not partition(state).target
    assert len(partition(at_rest(state)).replicas) == 2


def test_a_replica_that_falls_behind_meanwhile_is_waited_for() -> None:
    state = looked(altered(with_topic(nodes(3)), 2))
    found = partition(state)
    assert len(found.target) == 2
    leader = str(found.leader)
    state = after(state, AlterInSync(*at(state), leader, found.leader_epoch, {leader: 1}))
    for _ in range(5):
        state = looked(state)
    assert partition(state).is_reassigning
    assert set(partition(state).replicas) == {"n1", "n2", "n3"}


def test_a_replica_that_is_away_goes_first_and_the_node_deletes_it_later() -> None:
    state = with_topic(nodes(3))
    away = partition(state).replicas[1]
    state = at_rest(altered(after(state, FenceNode(away, 1)), 2))
    assert away not in partition(state).replicas
    assert set(partition(state).in_sync) == set(partition(state).replicas)


def test_a_damaged_replica_goes_before_a_sound_one() -> None:
    state = with_topic(nodes(3))
    bad = partition(state).replicas[2]
    topic_id = state.topics["orders"].topic_id
    state = at_rest(altered(after(state, MarkReplicaDamaged("orders", topic_id, 0, bad, 1)), 2))
    assert bad not in partition(state).replicas


def test_a_replica_that_shares_a_rack_goes_before_one_that_does_not() -> None:
    state = with_topic(nodes(["a", "a", "b"]))
    state = at_rest(altered(state, 2))
    assert "n3" in partition(state).replicas


def test_a_factor_that_is_lowered_again_gives_up_the_additions() -> None:
    state = with_topic(nodes(3), factor=1)
    state = looked(looked(altered(state, 3)))
    assert partition(state).is_reassigning
    state = looked(altered(state, 1))
    assert not partition(state).target
    assert sizes(at_rest(state)) == {1}


def test_an_altered_factor_counts_more_than_a_move_by_name_before_it() -> None:
    state = with_topic(nodes(3), factor=1)
    state = after(state, ReassignPartition(*at(state), ("n1", "n2", "n3"), is_manual=True))
    state = at_rest(altered(state, 2))
    assert sizes(state) == {2}
    state = after(state, ReassignPartition(*at(state), ("n1", "n2", "n3"), is_manual=True))
    assert sizes(at_rest(state)) == {3}  # and a later move counts more than it


def test_people_who_give_a_removal_up_keep_the_replicas() -> None:
    state = looked(altered(with_topic(nodes(3)), 2))
    assert partition(state).target
    state = after(state, CancelReassignment(*at(state), is_manual=True))
    assert partition(state).replication_factor == 3
    assert sizes(at_rest(state)) == {3}


def test_a_leaving_node_is_not_replaced_where_a_lowered_factor_has_enough() -> None:
    state = after(altered(with_topic(nodes(4), factor=3), 2), DecommissionNode("n1"))
    state = at_rest(state)
    assert "n1" not in state.nodes
    assert sizes(state) == {2}
