"""What operators do to a cluster, by the rules of its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, cast

import pytest

from goq import limits
from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import ReplicaStatus
from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.membership.join import AdmissionServer
from goq.cluster.metadata.commands import CreateTopic, ElectLeader, FenceNode, RegisterNode
from goq.cluster.metadata.state import PartitionMetadata
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.node import RaftNode
from goq.errors import Conflict, GoqError, InvalidInput, NodeNotFound, PartitionNotFound
from tests.support.cluster.metadata.local_raft import proposing

ENDS = {"n2": 70, "n3": 90}


class Reports:
    """Says where replicas end; n1 does not answer."""

    async def end_offsets(self, _topic: str, _number: int, nodes: Iterable[str]) -> dict[str, int]:
        return {node: ENDS[node] for node in nodes if node in ENDS}


class Operator:
    """A cluster of some nodes with a topic of three replicas, and what is done to it."""

    def __init__(self, nodes: int = 3) -> None:
        self.cluster = proposing()
        self.admitted: list[str] = []
        self.removed: list[str] = []
        self.status = RaftStatus()
        admission = AdmissionServer(cast(RaftNode, self), lambda: self.cluster.state)
        self.work = ClusterOperations(
            self.cluster,
            cast(ReplicaStatus, Reports()),
            admission.add_member,
            admission.remove_absent_member,
        )
        for number in range(1, nodes + 1):
            name = f"n{number}"
            self.do(self.cluster.propose(RegisterNode(name, 1, f"http://{name}", f"{name}:1")))
        self.do(self.cluster.propose(CreateTopic("t", 1, {})))

    async def add_member(self, spec: str) -> None:
        self.admitted.append(spec)

    async def barrier(self) -> None:
        """Everything is applied here."""

    async def remove_member(self, node: str) -> None:
        self.removed.append(node)

    def do(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return asyncio.run(run())

    @property
    def partition(self) -> PartitionMetadata:
        return self.cluster.state.topics["t"].partitions[0]


def test_a_node_that_is_there_is_not_let_in_again() -> None:
    operator = Operator()
    operator.do(operator.work.add_node("n4", "h:1"))
    with pytest.raises(Conflict):
        operator.do(operator.work.add_node("n1", "h:1"))
    assert operator.admitted == ["n4=h:1"]


def test_a_node_leaves_once_however_often_it_is_told() -> None:
    operator = Operator(nodes=4)
    operator.do(operator.work.decommission_node("n4"))
    operator.do(operator.work.decommission_node("n4"))
    assert operator.cluster.state.nodes["n4"].leaving


def test_a_node_that_others_cannot_stand_in_for_does_not_leave() -> None:
    operator = Operator()
    with pytest.raises(Conflict, match="3 replicas"):
        operator.do(operator.work.decommission_node("n3"))


def test_a_node_that_was_admitted_and_never_came_leaves_at_once() -> None:
    """Nobody could remove it, though it counted for majorities and no other was admitted."""
    operator = Operator()
    operator.status = RaftStatus(members=("n1=h:1", "n2=h:2", "n3=h:3", "n4=h:4/disk"))
    operator.do(operator.work.decommission_node("n4"))
    assert operator.removed == ["n4"]
    with pytest.raises(Conflict, match="3 replicas"):
        operator.do(operator.work.decommission_node("n3"))
    assert operator.removed == ["n4"]


def test_an_unknown_node_cannot_leave() -> None:
    operator = Operator()
    with pytest.raises(NodeNotFound):
        operator.do(operator.work.decommission_node("n9"))


def test_a_dry_run_of_a_rebalance_says_what_the_rebalance_does() -> None:
    operator = Operator(nodes=3)
    for _ in range(4):
        operator.do(operator.cluster.propose(CreateTopic(f"t{_}", 3, {})))
    operator.do(operator.cluster.propose(RegisterNode("n4", 1, "http://n4", "n4:1")))
    before = operator.cluster.state.topics
    planned = operator.do(operator.work.rebalance(dry_run=True))
    assert operator.cluster.state.topics is before
    assert planned
    assert operator.do(operator.work.rebalance(dry_run=False)) == planned
    for move in planned:
        partition = operator.cluster.state.topics[move.topic].partitions[move.partition]
        assert move.target in (partition.target, partition.replicas)


def test_a_move_is_planned_and_given_up() -> None:
    operator = Operator(nodes=4)
    staying = operator.partition.replicas[1:]
    coming = next(n for n in operator.cluster.state.nodes if n not in operator.partition.replicas)
    operator.do(operator.work.reassign_partition("t", 0, (coming, *staying)))
    assert operator.partition.target == (coming, *staying)
    operator.do(operator.work.cancel_reassignment("t", 0))
    assert not operator.partition.target


@pytest.mark.parametrize(
    ("topic", "number", "target", "error"),
    [
        ("t", 0, (), InvalidInput),
        ("t", 1, ("n1",), PartitionNotFound),
        ("t", -1, ("n1",), PartitionNotFound),
        ("t", 0, ("n9",), NodeNotFound),
        ("t", 0, ("n1", "n1"), Conflict),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    topic: str, number: int, target: tuple[str, ...], error: type[GoqError]
) -> None:
    operator = Operator()
    with pytest.raises(error):
        operator.do(operator.work.reassign_partition(topic, number, target))


def test_a_leader_elected_by_name_stays_when_all_nodes_are_steady() -> None:
    operator = Operator()
    first, other, third = operator.partition.replicas
    factor = operator.partition.replication_factor
    assert operator.do(operator.work.elect_leader("t", 0, other)) == other
    assert operator.partition.leader == other
    assert operator.partition.replicas == (other, first, third)
    assert operator.partition.replication_factor == factor
    liveness = NodeLiveness.start(0)
    for name in operator.cluster.state.nodes:
        liveness = liveness.with_heartbeat(name, Heartbeat(1), 0)
    assert decide(operator.cluster.state, liveness.tick(0), preferred_delay_ms=0) == []


def test_the_preferred_leader_is_elected_where_none_is_named() -> None:
    operator = Operator()
    preferred, other, _ = operator.partition.replicas
    topic_id = operator.cluster.state.topics["t"].topic_id
    where = ("t", topic_id, 0, operator.partition.version)
    operator.do(operator.cluster.propose(ElectLeader(*where, other)))
    assert operator.partition.leader == other
    assert operator.do(operator.work.elect_leader("t", 0, None)) == preferred
    assert operator.partition.leader == preferred


def test_a_node_that_cannot_lead_is_not_preferred_either() -> None:
    operator = Operator()
    replicas = operator.partition.replicas
    operator.do(operator.cluster.propose(FenceNode(replicas[1], 1)))
    with pytest.raises(Conflict, match="fenced"):
        operator.do(operator.work.elect_leader("t", 0, replicas[1]))
    assert operator.partition.replicas == replicas


def lost_leader() -> Operator:
    """Return a cluster in which n1, alone in sync, is away."""
    operator = Operator()
    operator.do(operator.work.elect_leader("t", 0, "n1"))
    for node in ("n2", "n3"):
        operator.do(operator.cluster.propose(FenceNode(node, 1)))
    operator.do(operator.cluster.propose(FenceNode("n1", 1)))
    for node in ("n2", "n3"):
        operator.do(operator.cluster.propose(RegisterNode(node, 2, f"http://{node}", "h:1")))
    assert operator.partition.leader is None
    return operator


def test_an_unclean_election_says_first_what_it_would_lose() -> None:
    operator = lost_leader()
    ends = operator.do(operator.work.elect_unclean_leader("t", 0, "n2", dry_run=True))
    assert operator.partition.leader is None
    assert {n: ends.by_node[n] for n in ("n1", "n2", "n3")} == {"n1": None, **ENDS}
    assert ends.lost == 20
    assert operator.do(operator.work.elect_unclean_leader("t", 0, "n2", dry_run=False)) == ends
    assert (operator.partition.leader, operator.partition.unclean) == ("n2", True)


def test_nothing_is_elected_uncleanly_where_nothing_needs_to_be_lost() -> None:
    operator = Operator()
    with pytest.raises(Conflict, match="leads"):
        operator.do(operator.work.elect_unclean_leader("t", 0, "n2", dry_run=False))
    with pytest.raises(Conflict, match="no replica"):
        operator.do(operator.work.elect_unclean_leader("t", 0, "n9", dry_run=True))


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("replication_factor", 1, limits.REPLICAS_MAX),
        ("min_insync", 1, limits.REPLICAS_MAX),
        ("moves_at_once", 1, limits.REASSIGNMENTS_MAX),
        ("move_bytes_per_s", 0, limits.REASSIGNMENT_BYTES_PER_S_MAX),
    ],
)
def test_settings_keep_to_their_bounds(name: str, lowest: int, highest: int) -> None:
    operator = Operator()
    for value in (lowest, highest):
        operator.do(operator.work.change_settings(**{name: value}))
        assert getattr(operator.cluster.state.settings, name) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(InvalidInput, match=name):
            operator.do(operator.work.change_settings(**{name: value}))


def test_nobody_is_let_in_while_a_node_is_away_and_it_is_said_which() -> None:
    operator = Operator()
    operator.do(operator.cluster.propose(FenceNode("n2", 1)))
    with pytest.raises(Conflict, match="goq cluster leave n2"):
        operator.do(operator.work.add_node("n4", "h:1"))
    operator.do(operator.work.decommission_node("n2"))
    assert operator.admitted == []


def test_a_node_that_is_up_leaves_with_fewer_replicas_if_that_is_said() -> None:
    operator = Operator()
    operator.do(operator.work.decommission_node("n3", fewer_replicas=True))
    assert operator.cluster.state.nodes["n3"].leaving


def test_who_moves_or_gives_a_move_up_says_what_is_wanted() -> None:
    operator = Operator()
    operator.do(operator.work.reassign_partition("t", 0, ("n1", "n2")))
    assert operator.partition.is_manual
    operator.do(operator.work.cancel_reassignment("t", 0))
    assert operator.partition.replication_factor == 3
