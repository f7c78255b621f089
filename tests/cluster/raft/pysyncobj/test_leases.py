"""Leases: a leader knows until when nobody else was elected, and the next one how long ago."""

from __future__ import annotations

import math
from random import Random

import pytest

from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from tests.cluster.raft.pysyncobj.test_elections import IDS, Group, five, tell
from tests.support.cluster.raft.node import ManualTime, elect, next_index, transport_of
from tests.support.storage.disk import SimulatedDisk

SHORTEST_SILENCE_S = 0.25
"""After which members vote though their leader's connection is open."""


def ms(time: ManualTime) -> int:
    return int(1000 * time.now_s)


def elected_of_five(time: ManualTime) -> HardenedSyncObj:
    node = five(SimulatedDisk(Random(1)))
    elect(node, time)
    return node


def answer(node: HardenedSyncObj, peer: str, **more: int) -> None:
    transport_of(node).tell(peer, next_index(3, term=node.raftCurrentTerm) | more)


def test_a_lease_begins_when_the_leader_had_sent_what_a_majority_answered(
    time: ManualTime,
) -> None:
    node = elected_of_five(time)
    sent_ms = ms(time)
    time.now_s += 0.2
    answer(node, "n2", sent_ms=sent_ms)
    assert node.lease_began_s() == -math.inf
    answer(node, "n3", sent_ms=sent_ms - 40)
    answer(node, "n4", sent_ms=sent_ms - 90)
    assert node.lease_began_s() == (sent_ms - 40) / 1000
    answer(node, "n4", sent_ms=ms(time))
    assert node.lease_began_s() == sent_ms / 1000
    answer(node, "n5", sent_ms=ms(time) + 60_000)  # none that was never sent
    assert node.lease_began_s() <= time.now_s


def test_an_answer_of_an_earlier_term_renews_no_lease(time: ManualTime) -> None:
    node = elected_of_five(time)
    for peer in ("n2", "n3"):
        answer(node, peer, sent_ms=ms(time), term=node.raftCurrentTerm - 1)
    assert node.lease_began_s() == -math.inf


def test_an_answer_of_an_earlier_version_counts_from_its_arrival(time: ManualTime) -> None:
    node = elected_of_five(time)
    for peer in ("n2", "n3"):
        answer(node, peer)
    assert node.lease_began_s() == time.now_s


@pytest.mark.parametrize(("votes_ms", "silent_s"), [((700, 450), 0.45), ((700, None), 0.0)])
def test_the_shortest_silence_of_a_voter_counts(
    time: ManualTime, votes_ms: tuple[int | None, ...], silent_s: float
) -> None:
    node = five()
    time.tick(node, 15)
    for peer in ("n2", "n3"):
        tell(node, peer, "response_pre_vote", node.raftCurrentTerm + 1)
    time.now_s += 1
    for peer, silent_ms in zip(("n2", "n3"), votes_ms, strict=True):
        said = {} if silent_ms is None else {"silent_ms": silent_ms}
        tell(node, peer, "response_vote", node.raftCurrentTerm, **said)
    assert node._isLeader()
    assert node.silent_before_s == silent_s


def test_a_leader_that_falls_silent_is_followed_by_one_that_knows_it(time: ManualTime) -> None:
    group = Group(time)
    former = group.leader_id
    group.live(60, lambda from_, to: former not in (from_, to))
    others = [group.nodes[id_] for id_ in IDS if id_ != former]
    (leader,) = (node for node in others if node._isLeader())
    assert SHORTEST_SILENCE_S <= leader.silent_before_s <= 1.0


def test_a_leader_that_hands_over_is_followed_without_a_silence(time: ManualTime) -> None:
    group = Group(time)
    before = group.leader_id
    target = next(id_ for id_ in IDS if id_ != before)
    group.leader.transferLeadership(target)
    group.live(5)
    assert group.leader_id == target
    assert group.leader.silent_before_s < SHORTEST_SILENCE_S


@pytest.mark.parametrize("seed", range(8))
def test_no_lease_of_a_former_leader_began_after_the_silence_before_an_election(
    time: ManualTime, seed: int
) -> None:
    """Links are cut, connections close, and leaders hand over."""
    random = Random(seed)
    group = Group(time)
    elected: dict[int, tuple[str, float]] = {}
    for _ in range(40):
        cut = {(one, other) for one in IDS for other in IDS if random.random() < 0.25}
        if random.random() < 0.3:
            close_connections_of(group, random.choice(IDS))
        if random.random() < 0.2:
            for node in group.nodes.values():
                if node._isLeader():
                    node.transferLeadership(None)
        for _ in range(random.choice([3, 20, 60])):
            group.live(1, lambda one, other, cut=cut: (one, other) not in cut)  # type: ignore[misc]
            for id_, node in group.nodes.items():
                if node._isLeader():
                    safe_s = time.now_s - node.silent_before_s
                    elected.setdefault(node.raftCurrentTerm, (id_, safe_s))
            leader, safe_s = elected.get(max(elected, default=0), ("", math.inf))
            others = [node for id_, node in group.nodes.items() if id_ != leader]
            assert all(node.lease_began_s() <= safe_s for node in others)
    assert len(elected) > 3


def close_connections_of(group: Group, id_: str) -> None:
    """Close and open a member's connections."""
    for other, node in group.nodes.items():
        told = transport_of(node)
        for peer in [peer for name, peer in told.peers.items() if id_ in (other, name)]:
            told._onNodeDisconnected(peer)
            told._onNodeConnected(peer)
