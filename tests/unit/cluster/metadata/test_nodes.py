"""A node that was started anew before anybody missed it keeps its place, if it kept what it had."""

from __future__ import annotations

from goq.cluster.metadata.commands import (
    AlterInSync,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    ReassignPartition,
    RegisterNode,
    StartReassignment,
)
from goq.cluster.metadata.state import MetadataState
from tests.support.cluster.metadata.states import after, at, nodes, partition, refused, with_topic


def started(state: MetadataState, name: str, *, keeps: bool) -> MetadataState:
    """Return the state after a node came with its next incarnation."""
    topics = tuple(t.topic_id for t in state.topics.values()) if keeps else ()
    incarnation = state.nodes[name].incarnation + 1
    return after(state, RegisterNode(name, incarnation, "", "", durable_topics=topics))


def followers(state: MetadataState) -> tuple[str, str, str]:
    """Return who leads, and the two others."""
    found = partition(state)
    first, second = (name for name in found.replicas if name != found.leader)
    return str(found.leader), first, second


def vouched(state: MetadataState, *not_seen: str) -> MetadataState:
    """Return the state after the leader said who is in sync: the same, some of them not seen."""
    found = partition(state)
    seen = {name: state.nodes[name].incarnation for name in found.in_sync}
    leading = (str(found.leader), found.leader_epoch)
    return after(state, AlterInSync(*at(state), *leading, seen, not_seen))


def test_a_partition_goes_on_when_its_followers_restarted_before_its_dead_leader_was_missed() -> (
    None
):
    state = with_topic(nodes(3))
    leader, first, second = followers(state)
    state = started(started(state, first, keeps=True), second, keeps=True)
    assert partition(state).leader == leader  # nobody knows better yet
    assert set(partition(state).restarted) == {first, second}
    state = after(state, FenceNode(leader, 1))
    assert partition(state).leader in (first, second)
    assert set(partition(state).in_sync) == {first, second}


def test_without_what_it_had_a_follower_waits_for_the_leader() -> None:
    state = with_topic(nodes(3))
    leader, first, second = followers(state)
    state = started(started(state, first, keeps=False), second, keeps=False)
    state = after(state, FenceNode(leader, 1))
    assert (partition(state).leader, partition(state).in_sync) == (None, (leader,))


def test_who_returned_leads_only_where_nobody_else_in_sync_can() -> None:
    state = with_topic(nodes(3))
    leader, first, second = followers(state)
    state = started(state, first, keeps=True)
    assert refused(state, ElectLeader(*at(state), first)) == "cannot_lead"
    assert partition(after(state, FenceNode(leader, 1))).leader == second
    state = after(state, FenceNode(second, 1), FenceNode(leader, 1))
    assert partition(state).leader == first


def test_a_leader_that_restarts_and_is_followed_by_a_dead_node_leads_again() -> None:
    state = with_topic(nodes(2))
    leader, dead = partition(state).replicas
    state = started(state, leader, keeps=True)
    assert (partition(state).leader, partition(state).restarted) == (dead, (leader,))
    before = partition(state).leader_epoch
    state = after(state, FenceNode(dead, 1))
    assert (partition(state).leader, partition(state).restarted) == (leader, ())
    assert partition(state).leader_epoch == before + 1


def test_the_leader_vouches_for_who_returned_and_only_for_whom_it_has_seen() -> None:
    state = with_topic(nodes(3))
    _, first, second = followers(state)
    state = started(started(state, first, keeps=True), second, keeps=True)
    state = vouched(state, second)
    assert partition(state).restarted == (second,)
    state = started(state, first, keeps=True)
    assert set(partition(state).restarted) == {first, second}
    assert partition(vouched(state)).restarted == ()


def test_what_a_leader_saw_of_an_earlier_start_vouches_for_nothing() -> None:
    state = with_topic(nodes(3))
    leader, first, _ = followers(state)
    state = started(state, first, keeps=True)
    found = partition(state)
    seen = dict.fromkeys(found.in_sync, 1)
    command = AlterInSync(*at(state), leader, found.leader_epoch, seen)
    assert refused(state, command) == "stale_incarnation"


def test_who_was_not_in_sync_does_not_come_in_sync_by_a_restart() -> None:
    state = with_topic(nodes(3))
    leader, first, second = followers(state)
    both = AlterInSync(*at(state), leader, partition(state).leader_epoch, {leader: 1, first: 1})
    state = started(after(state, both), second, keeps=True)
    assert second not in partition(state).in_sync
    state = started(after(state, FenceNode(first, 1)), first, keeps=True)
    assert partition(state).in_sync == (leader,)  # it had been missed: others went on without it


def test_a_move_does_not_end_on_who_is_not_vouched_for() -> None:
    state = with_topic(nodes(3))
    leader, first, _ = followers(state)
    state = after(state, ReassignPartition(*at(state), (leader, first)))
    state = started(after(state, StartReassignment(*at(state))), first, keeps=True)
    assert refused(state, FinishReassignment(*at(state))) == "not_in_sync"
    state = vouched(state)
    state = after(state, FinishReassignment(*at(state)))
    assert set(partition(state).replicas) == {leader, first}
