"""A topic's own replication: what is accepted, and how many replicas a write needs then."""

from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.broker.metadata import TopicReplication
from goq.cluster.admin.cluster_view import acknowledged_copies, topic_replication
from goq.cluster.metadata.broker_store import check_replication
from goq.cluster.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterInSync,
    AlterTopicReplication,
    CreateTopic,
    CreateTopicWithMinInsync,
    DecommissionNode,
    DeleteTopic,
    ReassignPartition,
)
from goq.cluster.metadata.features import level_of
from goq.cluster.metadata.state import MetadataState, required_in_sync
from goq.cluster.reconciler import assignment_of
from goq.errors import InvalidInput
from tests.support.cluster.metadata.states import after, at, nodes, partition, refused, with_topic


def alter(state: MetadataState, *asked: int | None, version: int = 0) -> AlterTopicReplication:
    topic = state.topics["orders"]
    return AlterTopicReplication("orders", topic.topic_id, version or topic.version, *asked)


def required(state: MetadataState, number: int = 0) -> int:
    topic = state.topics["orders"]
    found = required_in_sync(state, topic, topic.partitions[number])
    assert assignment_of(state, topic, topic.partitions[number]).min_insync == found
    return found


def test_a_topic_may_have_another_replication_than_the_cluster() -> None:
    state = after(nodes(4), CreateTopicWithMinInsync("orders", 2, {}, 4, 3))
    assert [len(p.replicas) for p in state.topics["orders"].partitions] == [4, 4]
    assert required(state) == 3
    assert topic_replication(state, "orders") == (4, 3)
    assert acknowledged_copies(state, "orders") == 3
    state = after(state, AlterClusterSettings(1, min_insync=1))
    assert required(state) == 3


def test_a_topic_without_its_own_follows_the_cluster() -> None:
    state = with_topic(nodes(3))
    assert (required(state), topic_replication(state, "orders")) == (2, (3, 2))
    state = after(state, AlterClusterSettings(1, min_insync=3))
    assert (required(state), topic_replication(state, "orders")) == (3, (3, 3))
    state = after(state, alter(state, None, 1))
    assert (required(state), topic_replication(state, "orders")) == (1, (3, 1))


@pytest.mark.parametrize(
    ("factor", "min_insync", "code"),
    [
        (0, 1, "invalid_replicas"),
        (limits.REPLICAS_MAX + 1, 1, "invalid_replicas"),
        (3, 0, "invalid_min_insync"),
        (3, 4, "invalid_min_insync"),
        (None, 4, "invalid_min_insync"),
    ],
)
def test_what_no_topic_can_have_is_refused_and_changes_nothing(
    factor: int | None, min_insync: int, code: str
) -> None:
    state = with_topic(nodes(3), "orders")
    assert refused(state, CreateTopicWithMinInsync("t", 1, {}, factor, min_insync)) == code
    assert refused(state, alter(state, factor, min_insync)) == code


@pytest.mark.parametrize("asked", [(1, 1), (limits.REPLICAS_MAX, limits.REPLICAS_MAX), (3, 3)])
def test_the_bounds_themselves_are_accepted(asked: tuple[int, int]) -> None:
    state = after(nodes(limits.REPLICAS_MAX), CreateTopicWithMinInsync("orders", 1, {}, *asked))
    assert topic_replication(state, "orders") == asked
    state = after(state, alter(state, *asked))
    assert topic_replication(state, "orders") == asked


def test_a_factor_is_not_lowered_below_the_min_insync_that_stays() -> None:
    state = after(nodes(3), CreateTopicWithMinInsync("orders", 1, {}, 3, 2))
    assert refused(state, alter(state, 1)) == "invalid_min_insync"
    state = after(state, alter(state, 1, 1))
    assert topic_replication(state, "orders") == (1, 1)


def test_a_change_decided_on_an_older_topic_is_refused() -> None:
    state = with_topic(nodes(3))
    state = after(state, alter(state, None, 1))
    assert refused(state, alter(state, None, 3, version=1)) == "stale_version"
    topic = state.topics["orders"]
    state = after(state, DeleteTopic("orders", topic.topic_id))
    assert refused(state, alter(state, None, 3)) == "topic_deleting"


def test_no_leader_shrinks_the_in_sync_set_by_an_older_min_insync() -> None:
    state = with_topic(nodes(3))
    found = partition(state)
    leader = str(found.leader)
    shrink = AlterInSync(*at(state), leader, found.leader_epoch, {leader: 1, found.replicas[1]: 1})
    raised = after(state, alter(state, None, 3))
    assert refused(raised, shrink) == "stale_version"
    assert set(partition(raised).in_sync) == {"n1", "n2", "n3"}


def test_more_required_than_in_sync_keeps_the_leader_and_takes_no_writes() -> None:
    state = with_topic(nodes(3))
    found = partition(state)
    leader = str(found.leader)
    state = after(state, AlterInSync(*at(state), leader, found.leader_epoch, {leader: 1}))
    state = after(state, alter(state, None, 3))
    assert partition(state).leader == leader
    assert len(partition(state).in_sync) < required(state)


def test_never_more_are_required_than_there_are_replicas() -> None:
    state = after(nodes(1), CreateTopicWithMinInsync("orders", 1, {}, 3, 3))
    assert (len(partition(state).replicas), required(state)) == (1, 1)


def test_new_partitions_have_the_replication_of_the_topic() -> None:
    state = after(nodes(3), CreateTopicWithMinInsync("orders", 1, {}, 3, 1))
    state = after(state, alter(state, 2))
    topic = state.topics["orders"]
    state = after(state, AddPartitions("orders", topic.topic_id, topic.version, 2))
    added = partition(state, number=1)
    assert (len(added.replicas), added.replication_factor) == (2, 2)


def test_new_partitions_have_as_many_replicas_as_a_move_by_name_will_leave() -> None:
    state = with_topic(nodes(3), factor=1)
    others = [n for n in ("n1", "n2", "n3") if n not in partition(state).replicas]
    target = (*partition(state).replicas, *others)
    state = after(state, ReassignPartition(*at(state), target, is_manual=True))
    topic = state.topics["orders"]
    state = after(state, AddPartitions("orders", topic.topic_id, topic.version, 2))
    assert len(partition(state, number=1).replicas) == 3


def test_a_node_does_not_leave_where_a_topic_needs_as_many_and_that_is_named() -> None:
    state = after(nodes(3), CreateTopicWithMinInsync("orders", 1, {}, 3, 3))
    command = DecommissionNode("n3", fewer_replicas=True)
    assert refused(state, command) == "too_few_nodes"
    state = after(state, alter(state, None, 2), command)
    assert state.nodes["n3"].leaving


def test_a_min_insync_is_proposed_only_where_all_nodes_know_it() -> None:
    assert level_of(CreateTopicWithMinInsync("t", 1, {}, None, 1)) == 2
    assert level_of(alter(with_topic(nodes(1)), 1)) == 2
    assert level_of(CreateTopic("t", 1, {}, 2)) == 0


# What is asked for


def test_more_replicas_than_nodes_are_refused_with_the_nodes() -> None:
    state = nodes(3)
    check_replication(state, TopicReplication(3, 3))
    with pytest.raises(InvalidInput, match="needs 4 nodes; there are 3: n1, n2, n3") as refusal:
        check_replication(state, TopicReplication(4))
    assert refusal.value.field == "replication_factor"
    leaving = after(nodes(4), DecommissionNode("n4"))
    with pytest.raises(InvalidInput, match="there are 3"):
        check_replication(leaving, TopicReplication(4))


def test_a_topic_that_lacks_nodes_may_be_asked_for_what_it_has_or_less() -> None:
    state = with_topic(nodes(1), factor=3)
    check_replication(state, TopicReplication(3, 2), "orders")
    check_replication(state, TopicReplication(2), "orders")
    with pytest.raises(InvalidInput, match="needs 4 nodes"):
        check_replication(state, TopicReplication(4), "orders")


@pytest.mark.parametrize(
    ("asked", "field", "text"),
    [
        ((0,), "replication_factor", f"1 to {limits.REPLICAS_MAX}, not 0"),
        ((limits.REPLICAS_MAX + 1,), "replication_factor", f"1 to {limits.REPLICAS_MAX}, not 8"),
        ((None, 0), "min_insync", "factor, 3, not 0"),
        ((None, 4), "min_insync", "factor, 3, not 4"),
        ((2, 3), "min_insync", "factor, 2, not 3"),
        ((1,), "min_insync", "is 2: lower it too, to at most 1"),
    ],
)
def test_each_bound_is_told_with_its_field(asked: Any, field: str, text: str) -> None:
    state = after(nodes(8), CreateTopicWithMinInsync("orders", 1, {}, 3, 2))
    with pytest.raises(InvalidInput, match=text) as refusal:
        check_replication(state, TopicReplication(*asked), "orders")
    assert refusal.value.field == field


def test_a_new_topic_is_measured_by_the_factor_of_the_cluster() -> None:
    state = nodes(3)
    check_replication(state, TopicReplication(min_insync=3))
    with pytest.raises(InvalidInput, match="factor, 3, not 4"):
        check_replication(state, TopicReplication(min_insync=4))
