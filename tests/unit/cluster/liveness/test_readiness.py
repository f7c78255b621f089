from __future__ import annotations

from collections.abc import Callable, Sequence

from goq.cluster.liveness.heartbeat import HAS_LEFT
from goq.cluster.liveness.readiness import Readiness, pending_conditions
from goq.cluster.metadata.commands import AlterInSync, FenceNode, RegisterNode
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.driver import RaftStatus
from tests.support.cluster.metadata.states import after, at, nodes, with_topic

NOT_KNOWN = ["the cluster to know that this node is up"]


def behind(partitions: int = 1, fenced: tuple[str, ...] = ()) -> MetadataState:
    """Return a cluster of which n3 has started anew and is in sync nowhere."""
    state = with_topic(nodes(3), partitions=partitions, factor=3)
    for number in range(partitions):
        part = state.topics["orders"].partitions[number]
        if part.leader in ("n1", "n2"):
            others = dict.fromkeys(("n1", "n2"), 1)
            place = at(state, number=number)
            state = after(state, AlterInSync(*place, part.leader, part.leader_epoch, others))
    for node in fenced:
        state = after(state, FenceNode(node, state.nodes[node].incarnation))
    return state


def test_a_node_that_the_cluster_does_not_know_is_not_ready() -> None:
    assert pending_conditions(nodes(2), "n3", 1) == NOT_KNOWN


def test_a_node_is_not_ready_by_what_was_known_of_its_life_before() -> None:
    state = nodes(3)
    assert pending_conditions(state, "n3", 2) == NOT_KNOWN
    again = after(state, RegisterNode("n3", 2, "http://n3", "n3:9", None))
    assert pending_conditions(again, "n3", 2) == []


def test_a_fenced_node_is_not_ready() -> None:
    assert pending_conditions(after(nodes(3), FenceNode("n3", 1)), "n3", 1) == NOT_KNOWN


def test_a_node_is_not_ready_until_it_is_in_sync_where_somebody_leads() -> None:
    state = behind()
    assert pending_conditions(state, "n3", 1) == ["being in sync in orders:0"]
    assert pending_conditions(state, "n1", 1) == []
    part = state.topics["orders"].partitions[0]
    everybody = dict.fromkeys(("n1", "n2", "n3"), 1)
    state = after(state, AlterInSync(*at(state), "n1", part.leader_epoch, everybody))
    assert pending_conditions(state, "n3", 1) == []


def test_what_nobody_leads_is_not_waited_for() -> None:
    assert pending_conditions(behind(fenced=("n2", "n1")), "n3", 1) == []


def test_a_node_waits_for_none_of_the_partitions_that_are_not_its_own() -> None:
    state = with_topic(nodes(3), factor=1)
    assert [pending_conditions(state, node, 1) for node in ("n1", "n2", "n3")] == [[], [], []]


def test_no_more_than_ten_partitions_are_named() -> None:
    found = pending_conditions(behind(partitions=40), "n3", 1)
    assert len(found) == 11
    assert found[-1].startswith("being in sync in ")
    assert found[-1].endswith(" more")


def readiness_of_n3(
    incarnation: int = 1, left: Sequence[str] = (), silent_s: Callable[[], float] = lambda: 0.0
) -> Readiness:
    return Readiness(
        "n3",
        incarnation,
        lambda: nodes(3),
        lambda: bool(left),
        silent_s,
    )


def test_a_node_that_hears_of_no_controller_says_that_it_may_have_left() -> None:
    readiness = readiness_of_n3(incarnation=2)
    (told,) = readiness.pending()
    assert "no majority, or this node has left it" in told
    readiness.on_raft_status(RaftStatus(leader="n1"))
    assert readiness.pending() == NOT_KNOWN
    assert not readiness.has_started


def test_a_node_that_has_left_is_ready_no_more() -> None:
    left: list[str] = []
    readiness = readiness_of_n3(left=left)
    readiness.on_raft_status(RaftStatus(leader="n1"))
    assert readiness.pending() == []
    left.append("n3")
    (told,) = readiness.pending()
    assert HAS_LEFT in told
    assert readiness.has_started


def test_a_node_is_not_ready_while_it_has_heard_of_no_controller_for_a_while() -> None:
    silent_s = [0.0]
    readiness = readiness_of_n3(silent_s=lambda: silent_s[-1])
    readiness.on_raft_status(RaftStatus(leader="n1"))
    assert readiness.pending() == []
    silent_s.append(5.0)
    assert readiness.pending() == []
    readiness.on_raft_status(RaftStatus())
    silent_s.append(12.0)
    (told,) = readiness.pending()
    assert "has heard of none for 12 s" in told
    silent_s.append(0.0)
    assert readiness.pending() == []


def test_a_node_whose_member_has_stopped_is_not_ready_and_says_why() -> None:
    readiness = readiness_of_n3()
    readiness.on_raft_status(RaftStatus(leader="n1"))
    assert readiness.pending() == []
    readiness.on_raft_status(RaftStatus(failure="the disk failed"))
    (reason,) = readiness.pending()
    assert "a restart" in reason
    assert "the disk failed" in reason
