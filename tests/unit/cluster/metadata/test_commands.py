"""What commands do: elections, epochs, in-sync sets, moves, topics, groups; one rule a test."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from goq.cluster.membership.data_loss import lost_sole_replicas
from goq.cluster.metadata.commands import (
    AdoptTopic,
    AlterClusterSettings,
    AlterInSync,
    AlterTopic,
    CancelReassignment,
    CreateTopic,
    CreateTopicWithId,
    DecommissionNode,
    DeleteGroup,
    DeleteTopic,
    DeleteTopicAtOnce,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    PutGroup,
    ReassignPartition,
    RegisterNode,
    RemoveNode,
    RemoveTopic,
    RenewLeadership,
    ReportDataLoss,
    SetNodeHealth,
    StartReassignment,
    UnfenceNode,
)
from goq.cluster.metadata.state import DeletedTopic, MetadataState, PartitionMetadata
from goq.model import NATIVE_TOPIC_IDS, format_topic_id
from tests.support.cluster.metadata.states import after, at, nodes, partition, refused, with_topic


@pytest.fixture
def three() -> MetadataState:
    """Return a topic of one partition on n1, n2 and n3, led by n1."""
    state = with_topic(nodes(3), factor=3)
    assert partition(state).replicas == ("n1", "n2", "n3")
    return state


def in_sync(state: MetadataState, *names: str, leader: str | None = None) -> AlterInSync:
    """Return what the present leader says of who is in sync."""
    found = partition(state)
    members = {name: state.nodes[name].incarnation for name in names}
    return AlterInSync(*at(state), leader or str(found.leader), found.leader_epoch, members)


def copied(state: MetadataState, command: ReassignPartition) -> MetadataState:
    """Return the state with a move begun and all of its nodes in sync."""
    state = after(state, command)
    state = after(state, StartReassignment(*at(state)))
    return after(state, in_sync(state, *partition(state).holders))


def test_a_dead_leaders_partition_is_led_by_another_in_the_next_epoch(three: MetadataState) -> None:
    state = after(three, FenceNode("n1", 1))
    found = partition(state)
    assert found.leader in ("n2", "n3")
    assert found.leader_epoch == partition(three).leader_epoch + 1
    assert set(found.in_sync) == {"n2", "n3"}


def test_only_who_was_in_sync_last_can_lead_again(three: MetadataState) -> None:
    state = after(three, FenceNode("n1", 1), FenceNode("n2", 1), FenceNode("n3", 1))
    assert partition(state).leader is None
    assert partition(state).in_sync == ("n3",)
    assert partition(state).leader_epoch == partition(three).leader_epoch + 3
    state = after(state, UnfenceNode("n1", 1), UnfenceNode("n2", 1))
    assert partition(state).leader is None
    epoch = partition(state).leader_epoch
    state = after(state, UnfenceNode("n3", 1))
    assert partition(state).leader == "n3"
    assert partition(state).leader_epoch == epoch + 1


def test_an_unclean_election_is_by_name_and_only_without_a_leader(three: MetadataState) -> None:
    assert refused(three, ElectLeader(*at(three), "n2", True)) == "has_leader"
    state = after(three, *(FenceNode(name, 1) for name in ("n1", "n2", "n3")))
    assert refused(state, ElectLeader(*at(state), "n1", True)) == "cannot_lead"
    state = after(state, UnfenceNode("n1", 1))
    assert refused(state, ElectLeader(*at(state), "n1")) == "cannot_lead"
    state = after(state, ElectLeader(*at(state), "n1", True))
    assert partition(state).leader == "n1"
    assert partition(state).in_sync == ("n1",)
    assert partition(state).unclean


def test_while_nobody_leads_nobody_falls_out_of_sync(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    damaged = [MarkReplicaDamaged("orders", topic_id, 0, node, 1) for node in ("n2", "n3")]
    state = after(three, *damaged)
    state = after(state, FenceNode("n1", 1))
    assert partition(state).leader is None
    assert set(partition(state).in_sync) == {"n1", "n2", "n3"}
    led_again = after(state, UnfenceNode("n1", 1))
    assert partition(led_again).leader == "n1"
    led_by_another = after(state, MarkReplicaRepaired("orders", topic_id, 0, "n3", 1))
    assert partition(led_by_another).leader == "n3"
    assert set(partition(led_by_another).in_sync) == {"n2", "n3"}


def test_an_unfit_node_leads_only_while_no_fit_one_can(three: MetadataState) -> None:
    full = [SetNodeHealth(node, 1, "its disk is full") for node in ("n1", "n2", "n3")]
    state = after(three, full[0])
    assert partition(state).leader != "n1"
    state = after(state, *full[1:])
    leader = partition(state).leader
    assert leader is not None, "with all disks full nobody could read or delete"
    fit = next(node for node in ("n1", "n2", "n3") if node != leader)
    assert partition(after(state, SetNodeHealth(fit, 1))).leader == fit


def test_a_restarted_leader_without_others_leads_again_in_the_next_epoch() -> None:
    state = with_topic(nodes(1))
    epoch = partition(state).leader_epoch
    state = after(state, RegisterNode("n1", 2, "http://n1", "n1:9"))
    assert partition(state).leader == "n1"
    assert partition(state).leader_epoch == epoch + 1


def test_a_node_with_another_disk_is_not_the_node_that_was_let_in(three: MetadataState) -> None:
    assert refused(three, RegisterNode("n1", 9, "http://n1", "n1:9", None, "new")) == "another_disk"
    state = after(nodes(1), RegisterNode("n2", 1, "http://n2", "n2:9", None, "first"))
    assert refused(state, RegisterNode("n2", 2, "http://n2", "n2:9", None, "")) == "another_disk"
    state = after(state, RegisterNode("n2", 2, "http://n2", "n2:9", None, "first"))
    assert state.nodes["n2"].disk == "first"


def test_a_restarted_node_is_out_of_sync_until_the_leader_has_seen_it(three: MetadataState) -> None:
    state = after(three, RegisterNode("n2", 2, "http://n2", "n2:9"))
    assert partition(state).leader == "n1"
    assert partition(state).leader_epoch == partition(three).leader_epoch
    assert set(partition(state).in_sync) == {"n1", "n3"}
    state = after(state, in_sync(state, "n1", "n2", "n3"))
    assert set(partition(state).in_sync) == {"n1", "n2", "n3"}


def test_a_node_that_has_lost_its_messages_is_in_sync_nowhere(three: MetadataState) -> None:
    emptied = partition(after(three, ReportDataLoss("n1", "")))
    assert (emptied.leader, emptied.in_sync, emptied.damaged) == ("n2", ("n2", "n3"), ())
    assert refused(three, ReportDataLoss("n1", "another")) == "another_disk"
    assert refused(three, ReportDataLoss("n9", "")) == "node_not_found"


def test_a_node_that_has_lost_the_only_whole_copy_does_not_lead_with_nothing(
    three: MetadataState,
) -> None:
    alone = after(three, in_sync(three, "n1"))
    emptied = after(
        alone, ReportDataLoss("n1", ""), RegisterNode("n1", 2, "http://n1", "n1:9", None)
    )
    found = partition(emptied)
    assert (found.leader, found.in_sync, found.damaged) == (None, ("n1",), ("n1",))
    assert lost_sole_replicas(emptied, "n1") == {(found_id(emptied), 0)}
    chosen = after(emptied, ElectLeader(*at(emptied), "n2", unclean=True))
    assert partition(chosen).leader == "n2"
    assert not lost_sole_replicas(chosen, "n1")


def found_id(state: MetadataState) -> int:
    return state.topics["orders"].topic_id


def test_what_the_leader_saw_of_an_earlier_start_of_a_node_counts_for_nothing(
    three: MetadataState,
) -> None:
    state = after(three, FenceNode("n2", 1))
    seen = in_sync(state, "n1", "n2", "n3")
    assert refused(state, seen) == "node_fenced"
    state = after(state, RegisterNode("n2", 2, "http://n2", "n2:9"))
    assert refused(state, seen) == "stale_incarnation"


def test_an_old_leader_changes_nothing(three: MetadataState) -> None:
    old = in_sync(three, "n1")
    state = after(three, FenceNode("n1", 1))
    assert refused(state, old) == "stale_version"
    found = partition(state)
    late = AlterInSync(*at(state), "n1", found.leader_epoch - 1, {"n1": 1})
    assert refused(state, late) == "not_leader"
    wrong = AlterInSync(*at(state), str(found.leader), found.leader_epoch - 1, {"n2": 1, "n3": 1})
    assert refused(state, wrong) == "not_leader"


def test_the_leader_is_always_in_sync_and_strangers_never(three: MetadataState) -> None:
    assert refused(three, in_sync(three, "n2", "n3")) == "invalid_in_sync"
    state = after(three, RegisterNode("n4", 1, "", ""))
    assert refused(state, in_sync(state, "n1", "n4")) == "invalid_in_sync"


def test_a_node_that_cannot_lead_gives_its_leaderships_away_and_stays_in_sync(
    three: MetadataState,
) -> None:
    state = after(three, SetNodeHealth("n1", 1, "the disk is full"))
    assert partition(state).leader in ("n2", "n3")
    assert set(partition(state).in_sync) == {"n1", "n2", "n3"}


def test_a_leaving_node_is_elected_only_when_there_is_no_other() -> None:
    state = with_topic(nodes(4), factor=3)
    first, second, third = partition(state).replicas
    state = after(state, DecommissionNode(second), FenceNode(first, 1))
    assert partition(state).leader == third
    state = after(state, FenceNode(third, 1))
    assert partition(state).leader == second


def test_a_damaged_replica_does_not_lead_until_it_is_repaired(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    state = after(three, MarkReplicaDamaged("orders", topic_id, 0, "n1", 1))
    assert partition(state).leader in ("n2", "n3")
    assert refused(state, ElectLeader(*at(state), "n1")) == "cannot_lead"
    state = after(state, MarkReplicaRepaired("orders", topic_id, 0, "n1", 1))
    state = after(state, ElectLeader(*at(state), "n1"))
    assert partition(state).leader == "n1"


def test_a_damaged_replica_may_be_named_in_an_unclean_election() -> None:
    state = with_topic(nodes(2), factor=1)
    name, topic_id = partition(state).replicas[0], state.topics["orders"].topic_id
    state = after(state, MarkReplicaDamaged("orders", topic_id, 0, name, 1))
    assert partition(state).leader is None
    state = after(state, ElectLeader(*at(state), name, True))
    assert partition(state).leader == name
    state = after(state, SetNodeHealth("n1" if name == "n2" else "n2", 1, "disk full"))
    assert partition(state).leader == name


def test_a_move_is_planned_begun_and_finished(three: MetadataState) -> None:
    state = after(three, RegisterNode("n4", 1, "", ""))
    state = after(state, ReassignPartition(*at(state), ("n4", "n2", "n3")))
    assert partition(state).adding_replicas == ()
    assert refused(state, FinishReassignment(*at(state))) == "no_move"
    assert refused(state, ReassignPartition(*at(state), ("n1", "n2"))) == "move_under_way"
    state = after(state, StartReassignment(*at(state)))
    assert partition(state).adding_replicas == ("n4",)
    assert partition(state).removing_replicas == ("n1",)
    assert refused(state, FinishReassignment(*at(state))) == "not_in_sync"
    state = after(state, in_sync(state, "n1", "n2", "n3", "n4"))
    state = after(state, FinishReassignment(*at(state)))
    found = partition(state)
    assert found.replicas == found.in_sync == ("n4", "n2", "n3")
    assert found.leader == "n4"
    assert not found.is_reassigning


def test_a_move_that_is_given_up_leaves_the_replicas_as_they_were(three: MetadataState) -> None:
    state = after(three, RegisterNode("n4", 1, "", ""))
    state = copied(state, ReassignPartition(*at(state), ("n4", "n2", "n3")))
    state = after(state, CancelReassignment(*at(state)))
    assert partition(state).replicas == partition(three).replicas
    assert set(partition(state).in_sync) == {"n1", "n2", "n3"}


def test_a_move_is_not_given_up_when_only_the_new_replica_could_lead() -> None:
    state = with_topic(nodes(2), factor=1)
    old = partition(state).replicas[0]
    new = "n2" if old == "n1" else "n1"
    state = copied(state, ReassignPartition(*at(state), (new,)))
    state = after(state, FenceNode(old, 1))
    assert partition(state).leader == new
    assert refused(state, CancelReassignment(*at(state))) == "needs_new_replicas"
    state = after(state, FinishReassignment(*at(state)))
    assert partition(state).replicas == (new,)


def test_no_end_of_a_move_takes_the_leader_away() -> None:
    state = with_topic(nodes(2), factor=1)
    old = partition(state).replicas[0]
    new = "n2" if old == "n1" else "n1"
    state = copied(state, ReassignPartition(*at(state), (new,)))
    topic_id = state.topics["orders"].topic_id
    damaged = after(state, MarkReplicaDamaged("orders", topic_id, 0, old, 1))
    assert partition(damaged).leader == new
    assert refused(damaged, CancelReassignment(*at(damaged))) == "needs_new_replicas"
    damaged = after(state, MarkReplicaDamaged("orders", topic_id, 0, new, 1))
    assert partition(damaged).leader == old
    assert refused(damaged, FinishReassignment(*at(damaged))) == "not_in_sync"


def test_a_topic_deleted_during_a_move_is_waited_for_where_it_was_going(
    three: MetadataState,
) -> None:
    state = after(three, RegisterNode("n4", 1, "", ""))
    state = after(state, ReassignPartition(*at(state), ("n4", "n2", "n3")))
    state = after(state, StartReassignment(*at(state)))
    state = after(state, DeleteTopic("orders", state.topics["orders"].topic_id))
    assert set(partition(state).replicas) == {"n1", "n2", "n3", "n4"}
    assert not partition(state).target


def test_a_move_of_the_order_alone_is_done_at_once(three: MetadataState) -> None:
    state = after(three, ReassignPartition(*at(three), ("n3", "n1", "n2")))
    assert partition(state).replicas == ("n3", "n1", "n2")
    assert not partition(state).target
    assert partition(state).leader == "n1"


def test_a_move_to_fewer_racks_than_could_be_is_refused() -> None:
    state = with_topic(nodes(list("aab")), factor=2)
    assert partition(state).replicas in (("n3", "n1"), ("n1", "n3"))
    assert refused(state, ReassignPartition(*at(state), ("n1", "n2"))) == "fewer_racks"
    after(state, ReassignPartition(*at(state), ("n3", "n2")))


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), "invalid_replicas"),
        (("n1", "n1"), "invalid_replicas"),
        (("n1", "n2", "n9"), "node_not_found"),
        (("n1", "n2", "n3"), "unchanged"),
        (("n1", "n2", "n4"), "node_unusable"),
    ],
)
def test_impossible_replicas_are_refused(
    three: MetadataState, target: tuple[str, ...], code: str
) -> None:
    state = after(three, RegisterNode("n4", 1, "", ""), FenceNode("n4", 1))
    assert refused(state, ReassignPartition(*at(state), target)) == code


def test_a_topic_made_anew_is_another_one(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    state = after(three, PutGroup("orders", topic_id, "g", 0, {}), DeleteTopic("orders", topic_id))
    assert state.topics["orders"].partitions[0].leader is None
    assert not state.groups
    assert refused(state, CreateTopic("orders", 1, {})) == "topic_deleting"
    assert refused(state, PutGroup("orders", topic_id, "g", 0, {})) == "topic_deleting"
    state = with_topic(after(state, RemoveTopic("orders", topic_id)))
    assert state.topics["orders"].topic_id > topic_id
    assert refused(state, DeleteTopic("orders", topic_id)) == "topic_not_found"
    assert refused(state, RemoveTopic("orders", topic_id)) == "topic_not_found"


def test_the_name_of_a_topic_that_is_deleted_at_once_is_free(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    state = after(
        three, PutGroup("orders", topic_id, "g", 0, {}), DeleteTopicAtOnce("orders", topic_id)
    )
    assert not state.topics
    assert not state.groups
    nodes = sorted({node for p in three.topics["orders"].partitions for node in p.replicas})
    text = format_topic_id(topic_id)
    assert state.deleted_topics == {text: DeletedTopic("orders", topic_id, tuple(nodes))}
    drawn = NATIVE_TOPIC_IDS + 7
    for other in (drawn - 8, topic_id):
        create = CreateTopicWithId("orders", 1, {}, topic_id=other)
        assert refused(state, create) == "invalid_topic_id"
    state = after(state, CreateTopicWithId("orders", 1, {}, None, 1, drawn))
    assert (state.topics["orders"].topic_id, state.topics["orders"].min_insync) == (drawn, 1)
    assert refused(state, DeleteTopicAtOnce("orders", topic_id)) == "topic_not_found"
    again = CreateTopicWithId("mails", 1, {}, topic_id=drawn)
    assert refused(state, again) == "invalid_topic_id"
    state = after(state, DeleteTopicAtOnce("orders", drawn), RemoveTopic("orders", topic_id))
    assert state.deleted_topics.keys() == {format_topic_id(drawn)}
    assert refused(state, again) == "invalid_topic_id"


def test_a_topic_that_lives_is_not_forgotten(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    assert refused(three, RemoveTopic("orders", topic_id)) == "not_deleting"


def test_settings_of_a_topic_are_put_in_and_taken_away(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    state = after(three, AlterTopic("orders", topic_id, 1, {"a": "1", "b": "2"}))
    state = after(state, AlterTopic("orders", topic_id, 2, {"a": None, "c": "3"}))
    assert state.topics["orders"].settings == {"b": "2", "c": "3"}
    late = AlterTopic("orders", topic_id, 2, {"b": None})
    assert refused(state, late) == "stale_version"


def test_a_node_leaves_only_if_the_others_can_hold_what_it_has(three: MetadataState) -> None:
    assert refused(three, DecommissionNode("n1")) == "too_few_nodes"
    state = after(three, RegisterNode("n4", 1, "", ""), DecommissionNode("n1"))
    assert refused(state, DecommissionNode("n1")) == "already_leaving"
    assert refused(state, DecommissionNode("n2")) == "too_few_nodes"
    assert refused(state, RemoveNode("n1")) == "has_replicas"
    assert refused(state, RemoveNode("n4")) == "not_leaving"
    assert refused(nodes(1), DecommissionNode("n1")) == "too_few_nodes"


def test_a_node_that_is_leaving_still_leaves_after_a_restart() -> None:
    state = after(nodes(2), DecommissionNode("n1"), RegisterNode("n1", 2, "", ""))
    assert state.nodes["n1"].leaving
    state = after(state, FenceNode("n1", 2), RemoveNode("n1"))
    assert set(state.nodes) == {"n2"}


def test_a_start_must_have_a_higher_incarnation() -> None:
    state = after(nodes(1), RegisterNode("n1", 5, "", ""))
    for incarnation in (0, 4, 5):
        assert refused(state, RegisterNode("n1", incarnation, "", "")) == "stale_incarnation"
    for command in (FenceNode("n1", 1), UnfenceNode("n1", 6), SetNodeHealth("n1", 4, "x")):
        assert refused(state, command) == "stale_incarnation"


def test_what_is_so_already_is_refused() -> None:
    state = nodes(2)
    assert refused(state, UnfenceNode("n1", 1)) == "not_fenced"
    assert refused(state, SetNodeHealth("n1", 1)) == "unchanged"
    assert refused(after(state, FenceNode("n1", 1)), FenceNode("n1", 1)) == "already_fenced"


def test_groups_change_at_their_version(three: MetadataState) -> None:
    key = ("orders", three.topics["orders"].topic_id, "g")
    assert refused(three, DeleteGroup(*key, 0)) == "group_not_found"
    state = after(three, PutGroup(*key, 0, {"a": "1"}))
    assert refused(state, PutGroup(*key, 0, {})) == "stale_version"
    state = after(state, PutGroup(*key, 1, {"b": "2"}))
    group = state.groups["orders"]["g"]
    assert (group.settings, group.version) == ({"b": "2"}, 2)
    assert refused(state, DeleteGroup(*key, 1)) == "stale_version"
    assert not after(state, DeleteGroup(*key, 2)).groups


def test_the_clusters_settings_change_at_their_version() -> None:
    state = after(nodes(1), AlterClusterSettings(1, min_insync=1, move_bytes_per_s=10))
    assert state.settings.min_insync == 1
    assert state.settings.replication_factor == 3
    assert refused(state, AlterClusterSettings(1, min_insync=2)) == "stale_version"


def test_a_state_that_was_taken_stays_as_it_was(three: MetadataState) -> None:
    before = repr(three)
    found: PartitionMetadata = partition(three)
    state = after(three, FenceNode("n1", 1), RegisterNode("n5", 1, "", ""))
    after(state, DeleteTopic("orders", three.topics["orders"].topic_id))
    assert repr(three) == before
    assert partition(three) is found


def test_a_leader_leads_on_in_the_next_epoch_only_if_it_still_leads(three: MetadataState) -> None:
    before = partition(three)
    state = after(three, RenewLeadership(*at(three), "n1", before.leader_epoch))
    found = partition(state)
    assert (found.leader, found.leader_epoch) == ("n1", before.leader_epoch + 1)
    assert found.in_sync == before.in_sync
    assert refused(state, RenewLeadership(*at(state), "n1", before.leader_epoch)) == "not_leader"
    assert refused(state, RenewLeadership(*at(state), "n2", found.leader_epoch)) == "not_leader"
    assert refused(state, RenewLeadership(*at(three), "n1", found.leader_epoch)) == "stale_version"


def test_a_leader_elected_uncleanly_leads_on_though_it_is_damaged(three: MetadataState) -> None:
    topic_id = three.topics["orders"].topic_id
    state = after(three, *(FenceNode(name, 1) for name in ("n1", "n2", "n3")))
    state = after(state, UnfenceNode("n1", 1), MarkReplicaDamaged("orders", topic_id, 0, "n1", 1))
    state = after(state, ElectLeader(*at(state), "n1", True))
    state = after(state, RenewLeadership(*at(state), "n1", partition(state).leader_epoch))
    state = after(state, SetNodeHealth("n2", 1, "its disk is full"))
    assert partition(state).leader == "n1"


def test_an_adopted_topic_begins_on_its_node_with_its_groups_above_its_epochs(
    three: MetadataState,
) -> None:
    drawn = NATIVE_TOPIC_IDS + 7
    groups = {"billing": {"max_attempts": "7"}}
    adopt = AdoptTopic("old", 2, {"fsync": "always"}, None, None, drawn, "n2", 41, groups)
    state = after(three, adopt)
    for each in state.topics["old"].partitions:
        assert (each.replicas, each.in_sync, each.leader) == (("n2",), ("n2",), "n2")
        assert each.leader_epoch == 41
        assert each.replication_factor == state.settings.replication_factor > 1
    assert dict(state.groups["old"]["billing"].settings) == {"max_attempts": "7"}
    assert refused(state, adopt) == "topic_exists"
    other = replace(adopt, name="other", topic_id=drawn + 1)
    assert refused(state, replace(other, topic_id=drawn)) == "invalid_topic_id"
    assert refused(state, replace(other, node="n9")) == "not_enough_nodes"
    assert refused(state, replace(other, leader_epoch=0)) == "invalid_epoch"
    assert refused(state, replace(other, groups={"../x": {}})) == "invalid_name"
    assert refused(state, replace(other, name="../x")) == "invalid_name"
    fenced = after(state, FenceNode("n2", state.nodes["n2"].incarnation))
    assert refused(fenced, other) == "not_enough_nodes"
