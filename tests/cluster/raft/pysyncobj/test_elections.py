"""Elections: whoever is cut off alone deposes nobody, and a vote counts once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from goq.cluster.raft.pysyncobj import election
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from tests.support.cluster.raft.node import (
    ManualTime,
    Words,
    append_entries,
    deliver,
    elect,
    hardened,
    live,
    manual_time,
    next_index,
    transport_of,
)
from tests.support.storage.disk import SimulatedDisk

IDS = ("n1", "n2", "n3")
Passes = Callable[[str, str], bool]


class Group:
    """Three members with a leader, and a network that passes what it is told to."""

    def __init__(self, time: ManualTime) -> None:
        self.time = time
        self.machines = {id_: Words(SimulatedDisk(Random(1))) for id_ in IDS}
        self.nodes: dict[str, HardenedSyncObj] = {}
        for id_ in IDS:
            others = [other for other in IDS if other != id_]
            disk = SimulatedDisk(Random(1))
            machine = self.machines[id_]
            self.nodes[id_] = hardened(id_, others, disk, machine=machine, seed=ord(id_[1]))
        live(self.nodes, time, 200)
        self.leaders = [self.leader_id]

    @property
    def leader_id(self) -> str:
        return next(id_ for id_, node in self.nodes.items() if node._isLeader())

    @property
    def leader(self) -> HardenedSyncObj:
        return self.nodes[self.leader_id]

    @property
    def terms(self) -> set[int]:
        return {node.raftCurrentTerm for node in self.nodes.values()}

    def live(self, rounds: int, passes: Passes = lambda _from, _to: True) -> None:
        """Let the members talk, as far as the network passes their messages."""
        for _ in range(rounds):
            self.time.now_s += 0.01
            for node in self.nodes.values():
                node.doTick()
            for id_, node in self.nodes.items():
                told = transport_of(node)
                told.sent = [(to, message) for to, message in told.sent if passes(id_, to)]
            deliver(self.nodes)
            for id_, node in self.nodes.items():
                if node._isLeader() and self.leaders[-1] != id_:
                    self.leaders.append(id_)

    def agree(self, word: str) -> None:
        self.leader.apply(word)
        self.live(40)
        assert all(machine.words[-1] == word for machine in self.machines.values())


def test_a_member_that_was_cut_off_comes_back_without_an_election(time: ManualTime) -> None:
    group = Group(time)
    cut = next(id_ for id_ in IDS if id_ != group.leader_id)
    terms = group.terms
    group.live(500, lambda from_, to: cut not in (from_, to))
    group.live(200)
    assert group.terms == terms
    assert len(group.leaders) == 1
    group.agree("afterwards")


@pytest.mark.parametrize("one_way", [False, True])
def test_a_partial_partition_moves_no_leadership(time: ManualTime, one_way: bool) -> None:
    group = Group(time)
    leader = group.leader_id
    deaf = next(id_ for id_ in IDS if id_ != leader)
    links = {(leader, deaf)} | (set() if one_way else {(deaf, leader)})
    terms = group.terms
    group.live(500, lambda from_, to: (from_, to) not in links)
    assert group.terms == terms
    assert group.leaders == [leader]
    group.live(100)
    group.agree("afterwards")


def test_without_pre_votes_a_partial_partition_moves_leadership(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "PRE_VOTE_LEVEL", 99)
    group = Group(time)
    leader = group.leader_id
    deaf = next(id_ for id_ in IDS if id_ != leader)
    group.live(500, lambda from_, to: {from_, to} != {leader, deaf})
    assert len(group.leaders) > 2


def test_a_leader_that_ends_is_followed_by_another(time: ManualTime) -> None:
    group = Group(time)
    gone = group.leader_id
    group.nodes.pop(gone).destroy()
    group.machines.pop(gone)
    group.live(150)
    assert group.leader_id != gone
    group.agree("afterwards")


def test_a_leader_hands_over_though_all_hear_it(time: ManualTime) -> None:
    group = Group(time)
    before = group.leader_id
    target = next(id_ for id_ in IDS if id_ != before)
    group.leader.transferLeadership(target)
    group.live(5)
    assert group.leaders == [before, target]
    group.agree("afterwards")


def test_a_leader_steps_down_for_a_member_in_a_later_term(time: ManualTime) -> None:
    group = Group(time)
    odd = next(id_ for id_ in IDS if id_ != group.leader_id)
    later = group.leader.raftCurrentTerm + 7
    group.nodes[odd]._SyncObj__setCurrentTerm(later, None)
    group.live(300)
    assert min(group.terms) > later
    group.agree("afterwards")


def test_a_member_in_an_earlier_term_learns_the_later_one_to_be_elected(time: ManualTime) -> None:
    group = Group(time)
    gone = group.leader_id
    behind, ahead = (id_ for id_ in IDS if id_ != gone)
    group.nodes.pop(gone).destroy()
    group.machines.pop(gone)
    ahead_node = group.nodes[ahead]
    ahead_node._SyncObj__raftLog.add(b"\x01", ahead_node._journal().last.index + 1, 1)
    group.nodes[behind]._SyncObj__setCurrentTerm(9, None)
    group.live(300)
    assert group.leader_id == ahead
    assert min(group.terms) > 9


# One member


def five(disk: SimulatedDisk | None = None) -> HardenedSyncObj:
    return hardened("n1", ["n2", "n3", "n4", "n5"], disk or SimulatedDisk(Random(1)))


def tell(node: HardenedSyncObj, peer: str, kind: str, term: int, **more: Any) -> None:
    transport_of(node).tell(peer, {"type": kind, "term": term, **more})


def test_a_vote_that_comes_twice_counts_once(time: ManualTime) -> None:
    node = five()
    time.tick(node, 15)
    for peer in ("n2", "n3"):
        tell(node, peer, "response_pre_vote", node.raftCurrentTerm + 1)
    term = node.raftCurrentTerm
    assert term == 1
    for _ in range(5):
        tell(node, "n2", "response_vote", term)
    assert not node._isLeader()
    tell(node, "n3", "response_vote", term)
    assert node._isLeader()


def test_a_pre_vote_that_comes_twice_counts_once(time: ManualTime) -> None:
    node = five()
    time.tick(node, 15)
    for _ in range(5):
        tell(node, "n2", "response_pre_vote", 1)
    assert node.raftCurrentTerm == 0
    tell(node, "n3", "response_pre_vote", 1)
    assert node.raftCurrentTerm == 1


@pytest.mark.parametrize("term", [0, 2, 9])
def test_a_pre_vote_for_another_term_counts_nothing(time: ManualTime, term: int) -> None:
    node = five()
    time.tick(node, 15)
    for peer in ("n2", "n3", "n4"):
        tell(node, peer, "response_pre_vote", term)
    assert node.raftCurrentTerm == 0


def test_a_pre_vote_changes_no_term_and_promises_nothing(time: ManualTime) -> None:
    node = five()
    for peer in ("n2", "n3"):
        tell(node, peer, "request_pre_vote", 5, last_log_index=1, last_log_term=0)
    kinds = [message["type"] for _, message in transport_of(node).sent]
    assert kinds == ["response_pre_vote", "response_pre_vote"]
    assert node.raftCurrentTerm == 0
    tell(node, "n4", "request_vote", 5, last_log_index=1, last_log_term=0)
    assert transport_of(node).last("response_vote")["term"] == 5


def test_nobody_votes_for_a_log_that_lacks_something(time: ManualTime) -> None:
    node = five()
    heartbeat = append_entries((1, 0), [(b"\x01", 2, 3)], term=3, commit=1)
    transport_of(node).tell("n5", heartbeat)
    time.now_s += 10
    transport_of(node).sent.clear()
    for index, term in ((1, 3), (9, 2)):
        for kind in ("request_pre_vote", "request_vote"):
            tell(node, "n2", kind, 4, last_log_index=index, last_log_term=term)
    assert transport_of(node).sent == []
    tell(node, "n2", "request_vote", 4, last_log_index=2, last_log_term=3)
    assert transport_of(node).last("response_vote")["term"] == 4
    transport_of(node).sent.clear()
    tell(node, "n3", "request_vote", 4, last_log_index=2, last_log_term=3)
    assert transport_of(node).sent == [], "a second vote in one term"


def test_who_hears_a_leader_takes_no_part_in_an_election(time: ManualTime) -> None:
    node = five()
    transport_of(node).tell("n5", append_entries((1, 0), [], term=3, commit=1))
    transport_of(node).sent.clear()
    ask = {"last_log_index": 9, "last_log_term": 9}
    for kind in ("request_pre_vote", "request_vote"):
        tell(node, "n2", kind, 4, **ask)
    assert transport_of(node).sent == []
    assert node.raftCurrentTerm == 3
    tell(node, "n2", "request_vote", 4, is_transfer=True, **ask)
    assert transport_of(node).last("response_vote")["term"] == 4


def test_a_leader_takes_no_part_either(time: ManualTime) -> None:
    node = five()
    elect(node, time)
    transport_of(node).sent.clear()
    ask = {"last_log_index": 9, "last_log_term": 9}
    for kind in ("request_pre_vote", "request_vote"):
        tell(node, "n2", kind, 9, **ask)
    assert transport_of(node).sent == []
    assert node._isLeader()


def test_a_new_leader_reaches_those_that_have_answered_it_only() -> None:
    with manual_time() as time:
        node = hardened("n1", ["n2", "n3"], SimulatedDisk(Random(1)))
        elect(node, time)
        assert node.reachable_members() == frozenset()
        time.tick(node)
        transport_of(node).tell("n3", next_index(3, term=node.raftCurrentTerm))
        assert node.reachable_members() == {"n1", "n3"}
        time.now_s += 0.9
        assert node.reachable_members() == frozenset()
