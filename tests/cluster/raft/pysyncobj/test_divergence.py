"""A member whose state contradicts the leader's notices it, and takes the leader's state."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from goq import limits
from goq.cluster.raft.log.snapshots import IN_NAME
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_comparison import StateComparison, StateDigest
from tests.support.cluster.raft.node import (
    FOLDER,
    ManualTime,
    Words,
    hardened,
    live,
    transport_of,
)
from tests.support.storage.disk import SimulatedDisk

IDS = ("n1", "n2", "n3")


class Group:
    """Three members that have agreed on ten words."""

    def __init__(self, time: ManualTime, **settings: Any) -> None:
        self.time = time
        self.settings = settings
        self.disks = {id_: SimulatedDisk(Random(1)) for id_ in IDS}
        self.machines: dict[str, Words] = {}
        self.nodes: dict[str, HardenedSyncObj] = {}
        for id_ in IDS:
            self.start(id_)
        live(self.nodes, time, 200)
        self.agree(*(f"word {number}" for number in range(10)))

    def start(self, id_: str) -> None:
        machine = self.machines[id_] = Words(self.disks[id_])
        others = [other for other in IDS if other != id_]
        disk = self.disks[id_]
        seed = ord(id_[1])
        self.nodes[id_] = hardened(id_, others, disk, machine=machine, seed=seed, **self.settings)

    @property
    def leader(self) -> HardenedSyncObj:
        return next(node for node in self.nodes.values() if node._isLeader())

    @property
    def leader_id(self) -> str:
        return str(self.leader.selfNode.id)

    @property
    def followers(self) -> list[str]:
        return [id_ for id_ in self.nodes if id_ != self.leader_id]

    def agree(self, *words: str) -> None:
        for word in words:
            self.leader.apply(word)
            live(self.nodes, self.time, 5)

    def tamper(self, id_: str) -> None:
        """Change the state of a member, as a fault of its state machine would."""
        self.machines[id_].words[3] = "forged"
        self.machines[id_].flush(self.machines[id_].index)

    def truth(self) -> list[str]:
        return list(self.machines[self.leader_id].words)

    def check_equal(self) -> None:
        assert all(machine.words == self.truth() for machine in self.machines.values())
        assert not any(node.has_diverged for node in self.nodes.values())


def test_members_that_agree_never_think_that_they_differ(time: ManualTime) -> None:
    group = Group(time, logCompactionMinEntries=6)
    for round_ in range(20):
        group.agree(f"more {round_}")
        assert not any(node.has_diverged for node in group.nodes.values())
    group.check_equal()


def test_a_follower_that_differs_takes_the_leaders_state(
    time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(time)
    follower = group.followers[0]
    group.tamper(follower)
    before = group.nodes[follower].raftLastApplied
    with caplog.at_level(logging.CRITICAL):
        group.agree("next")
        live(group.nodes, time, 100)
    assert "differs from the leader's after entry 13" in caplog.text
    group.check_equal()
    group.agree("after it")
    live(group.nodes, time, 20)
    group.check_equal()
    assert group.nodes[follower].raftLastApplied > before
    assert [n for n in group.disks[follower].names(FOLDER) if "snapshot" in n] == []


def test_a_diverged_follower_applies_nothing_until_it_has_the_leaders_state(
    time: ManualTime,
) -> None:
    group = Group(time)
    follower = group.followers[0]
    group.tamper(follower)
    group.agree("next")
    while not group.nodes[follower].has_diverged:
        live(group.nodes, time, 1)
    words = list(group.machines[follower].words)
    lonely = {id_: node for id_, node in group.nodes.items() if id_ != group.leader_id}
    for _ in range(10):
        group.nodes[follower].doTick()
    assert group.machines[follower].words == words
    assert lonely
    live(group.nodes, time, 100)
    group.check_equal()


def test_the_log_of_a_diverged_follower_keeps_what_it_has_acknowledged(time: ManualTime) -> None:
    group = Group(time)
    follower = group.followers[0]
    first = group.nodes[follower]._journal().first.index
    group.tamper(follower)
    group.agree("next")
    live(group.nodes, time, 100)
    group.check_equal()
    assert group.nodes[follower]._journal().first.index == first


def test_a_follower_whose_log_begins_late_gets_a_new_snapshot(time: ManualTime) -> None:
    group = Group(time, logCompactionMinEntries=6)
    group.agree(*(f"more {number}" for number in range(20)))
    follower = group.followers[0]
    group.tamper(follower)
    group.agree("next")
    live(group.nodes, time, 100)
    group.check_equal()


def test_a_restart_in_the_midst_of_it_finds_the_difference_again(time: ManualTime) -> None:
    group = Group(time, logCompactionBatchSize=20)
    follower = group.followers[0]
    group.tamper(follower)
    group.agree("next")
    while IN_NAME not in group.disks[follower].names(FOLDER):
        live(group.nodes, time, 1)
    group.disks[follower].crash(power=True)
    group.start(follower)
    assert "forged" in group.machines[follower].words
    group.agree("another")
    live(group.nodes, time, 200)
    group.check_equal()


def test_another_leader_that_agrees_ends_the_divergence(time: ManualTime) -> None:
    group = Group(time)
    odd = group.leader_id
    group.machines[odd].words[3] = "forged"
    messages = transport_of(group.leader)
    group.leader.apply("next")
    for _ in range(30):
        time.now_s += 0.01
        for node in group.nodes.values():
            node.doTick()
        for id_, node in group.nodes.items():  # no snapshot comes through
            told = transport_of(node)
            sent, told.sent = told.sent, []
            for peer, message in sent:
                if message["type"] != "snapshot":
                    transport_of(group.nodes[peer]).tell(id_, dict(message))
    assert messages is transport_of(group.leader)
    others = group.followers
    assert all(group.nodes[id_].has_diverged for id_ in others)
    gone = group.nodes.pop(odd)
    gone.destroy()
    live(group.nodes, time, 400)
    assert not any(node.has_diverged for node in group.nodes.values())
    assert group.leader_id in others
    assert "forged" not in group.truth()


def test_a_diverged_member_stands_for_election_after_the_others(time: ManualTime) -> None:
    for seed in range(5):
        group = Group(time)
        leader, (odd, other) = group.leader_id, group.followers
        del seed
        group.tamper(odd)
        group.agree("next")
        while not group.nodes[odd].has_diverged:
            live(group.nodes, time, 1)
        group.nodes.pop(leader).destroy()
        live(group.nodes, time, 300)
        assert group.leader_id == other
        live(group.nodes, time, 100)
        assert group.machines[odd].words == group.machines[other].words


def test_a_snapshot_of_a_state_that_was_replaced_is_sent_to_nobody(time: ManualTime) -> None:
    group = Group(time)
    follower = group.nodes[group.followers[0]]
    index = follower.raftLastApplied
    assert follower._snapshots.create(index, 1, ["n1"])
    group.tamper(group.followers[0])
    group.agree("next")
    live(group.nodes, time, 100)
    group.check_equal()
    assert follower._snapshots.retained_index() is None


# The comparison alone


def test_digests_are_compared_at_one_index_whichever_comes_first() -> None:
    for own_first in (True, False):
        for own, differs in ((b"same", False), (b"other", True)):
            comparison = StateComparison()
            steps = [
                lambda c=comparison, o=own: c.on_applied(5, o),
                lambda c=comparison: c.on_announced(StateDigest(5, b"same")),
            ]
            for step in steps if own_first else steps[::-1]:
                assert not comparison.has_diverged
                step()
            assert comparison.has_diverged is differs


def test_a_machine_without_digests_is_not_compared() -> None:
    comparison = StateComparison()
    comparison.on_applied(5, b"of an earlier version")
    comparison.on_applied(6, None)
    comparison.on_announced(StateDigest(5, b"other"))
    assert comparison.latest is None
    assert not comparison.has_diverged


def test_a_bounded_number_of_digests_is_kept() -> None:
    comparison = StateComparison()
    for index in range(limits.RAFT_DIGESTS_REMEMBERED + 1):
        comparison.on_applied(index, b"own")
    comparison.on_announced(StateDigest(0, b"other"))
    assert not comparison.has_diverged, "the digest after entry 0 is forgotten"
    comparison.on_announced(StateDigest(1, b"other"))
    assert comparison.has_diverged
