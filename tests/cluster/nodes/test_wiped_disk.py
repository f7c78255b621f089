"""Nodes that come with another disk than they are known with, or with less on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from goq import limits
from goq.cluster.metadata.commands import AlterInSync
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.errors import CorruptData, TimedOut, Unavailable, UsageError
from tests.support.cluster.replicated_partition import SENT, ReplicatedPartition
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.effort import first_of


def others_than(*names: str) -> list[str]:
    return [name for name in NAMES if name not in names]


def is_refused(cluster: RunningCluster, name: str) -> bool:
    """Whether a node says itself that it takes no part, and each other one that runs says so."""
    told = any("another disk" in text for text in cluster.cluster_node(name).readiness.pending())
    return told and all(
        name in cluster.cluster_node(other).view.peer_problems
        for other in cluster.running
        if other != name
    )


def terms(cluster: RunningCluster, name: str) -> tuple[int, str | None]:
    raft = cluster.cluster_node(name).raft
    assert raft is not None
    return raft.status.commit_index, raft.status.leader


def test_a_wiped_node_neither_votes_nor_follows_and_says_what_to_do(
    cluster: RunningCluster, partition: ReplicatedPartition, caplog: pytest.LogCaptureFixture
) -> None:
    leader = partition.fill()
    victim, watcher = others_than(leader)
    cluster.wipe(victim)
    cluster.until(lambda: not cluster.state(watcher).nodes[victim].is_up)
    cluster.start_peer(victim)
    cluster.until(lambda: is_refused(cluster, victim))
    listed = cluster.by_name[victim].request("GET", "/v1/topics")
    assert (listed.status, listed.json["code"]) == (503, "unavailable")
    partition.publish(leader, b"after")
    assert victim not in partition.in_sync(leader)
    assert not cluster.state(leader).nodes[victim].is_up
    assert terms(cluster, victim) == (1, None)
    # With its vote there would be a leader, who may lack what was agreed on.
    cluster.stop(watcher)
    with pytest.raises((Unavailable, TimedOut)):
        cluster.on_loop(leader, lambda cluster_node: cluster_node.raft.barrier(3.0))
    cluster.until(lambda: is_refused(cluster, victim))
    assert terms(cluster, victim) == (1, None)
    cluster.start_peer(watcher)
    partition.publish_somewhere(b"again")
    told = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert len(told) == 1
    assert "goq cluster leave" in told[0].getMessage()


def test_most_nodes_wiped_make_no_cluster_of_their_own(
    cluster: RunningCluster, partition: ReplicatedPartition
) -> None:
    leader = partition.fill()
    victims = others_than(leader)
    for victim in victims:
        cluster.wipe(victim)
    for victim in victims:
        cluster.start_peer(victim)
    cluster.until(lambda: all(is_outcast(cluster, victim) for victim in victims))
    cluster.until(lambda: all(not links(cluster, victim) for victim in victims))
    assert partition.values(leader) == SENT


def is_outcast(cluster: RunningCluster, name: str) -> bool:
    driver = cluster.cluster_node(name).raft._driver
    assert driver is not None
    return driver._identity.is_quarantined(driver._loop.time())


def links(cluster: RunningCluster, name: str) -> list[str]:
    driver = cluster.cluster_node(name).raft._driver
    assert driver is not None
    assert driver._transport is not None
    return list(driver._transport._links)


def test_a_node_that_lost_only_what_was_agreed_on_does_not_start(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path
) -> None:
    leader = partition.fill()
    victim, _ = others_than(leader)
    cluster.wipe(victim, "cluster")
    with pytest.raises(CorruptData, match="goq cluster leave"):
        cluster.start_peer(victim)
    (tmp_path / victim / "disk-id").unlink()
    with pytest.raises(UsageError, match="start with an empty folder"):
        cluster.start_peer(victim)
    cluster.wipe(victim)  # another disk, then
    cluster.start_peer(victim)
    cluster.until(lambda: is_refused(cluster, victim))


def test_a_folder_of_what_was_agreed_on_is_not_taken_from_another_node(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path
) -> None:
    leader = partition.fill()
    victim, other = others_than(leader)
    cluster.wipe(victim, "cluster")
    cluster.stop(other)
    shutil.copytree(tmp_path / other / "cluster", tmp_path / victim / "cluster")
    with pytest.raises(CorruptData, match="belongs to another node"):
        cluster.start_peer(victim)


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_node_that_lost_only_its_messages_is_not_in_sync_and_gets_them_back(
    cluster: RunningCluster, partition: ReplicatedPartition, whose: str
) -> None:
    leader = partition.fill()
    victim = leader if whose == "leader" else others_than(leader)[0]
    cluster.stop_at_once()
    cluster.wipe(victim, "topics")
    cluster.start_peer(victim)  # all were in sync: who is there first could lead
    first, second = others_than(victim)
    cluster.start_peer(first)
    cluster.until(lambda: not cluster.cluster_node(victim).data_loss.has_lost_topics)
    cluster.start_peer(second)
    partition.publish_somewhere(b"after")
    cluster.until(lambda: partition.in_sync(first) == set(NAMES))
    cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])
    assert partition.led_by(victim) == [*SENT, b"after"]


def test_who_alone_was_in_sync_and_lost_its_messages_takes_none_from_the_others(
    cluster: RunningCluster,
    partition: ReplicatedPartition,
) -> None:
    victim = partition.fill()
    first, _ = others_than(victim)
    alone_in_sync(cluster, partition, victim)
    cluster.stop_at_once()
    cluster.wipe(victim, "topics")
    cluster.start_peer(victim)
    cluster.start_peer(first)
    cluster.until(lambda: (p := partition.metadata(first)) and p.damaged == (victim,))
    # It finds nothing damaged in what is empty, and says so, but is not believed for that.
    cluster.until(lambda: cluster.cluster_node(victim).repairs.repaired)
    version = cluster.state(first).version
    for name in (first, victim):
        cluster.on_loop(name, lambda cluster_node: cluster_node.heartbeats.send())
    cluster.stop(victim)
    cluster.start_peer(victim)
    cluster.until(lambda: cluster.state(first).version > version)
    cluster.until(lambda: cluster.cluster_node(victim).repairs.repaired)
    assert partition.leader(first) is None
    cluster.on_loop(
        first,
        lambda node: node.view.operations.elect_unclean_leader("t", 0, first, dry_run=False),
    )
    partition.publish_somewhere(b"after")
    cluster.until(lambda: partition.in_sync(first) == {first, victim})
    assert partition.led_by(victim) == [*SENT, b"after"]


def alone_in_sync(cluster: RunningCluster, partition: ReplicatedPartition, leader: str) -> None:
    """Have only the leader count as in sync, which hears of no others any more."""
    client, known = cluster.cluster_node(leader).metadata, partition.metadata(leader)
    assert known is not None

    async def nothing(_command: object) -> None:
        return None

    client.propose_until_decided = nothing
    topic_id = cluster.state(leader).topics["t"].topic_id
    where = ("t", topic_id, 0, known.version, leader, known.leader_epoch)
    command = AlterInSync(*where, {leader: 1})
    cluster.on_loop(leader, lambda node: node.metadata.propose(command))
    cluster.until(lambda: partition.in_sync(leader) == {leader})


@pytest.mark.parametrize("is_peer", first_of([True, False], quick=1))
def test_a_node_joins_a_cluster_whose_log_names_an_earlier_disk_of_each_member(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, *, is_peer: bool
) -> None:
    monkeypatch.setattr(limits, "RAFT_BATCH_ENTRIES_MAX", 1)  # a replay that stops at any entry
    cluster.start_three()
    for victim in (*NAMES, *NAMES):
        via = others_than(victim)[0]
        replace_disk(cluster, victim, via, cluster.start_peer if is_peer else cluster.start)


def replace_disk(
    cluster: RunningCluster, victim: str, via: str, start: Callable[[str, str], object]
) -> None:
    """Have a node leave, and join again with an empty folder; wait until it has caught up."""
    old = cluster.state(via).nodes[victim].disk
    cluster.wipe(victim)
    cluster.on_loop(via, lambda node: node.view.operations.decommission_node(victim))
    cluster.until(lambda: victim not in cluster.state(via).nodes)
    start(victim, via)

    def is_back() -> bool:
        known, own = (cluster.state(name).nodes.get(victim) for name in (via, victim))
        return known is not None and known == own and known.is_up and known.disk != old

    cluster.until(is_back)
    cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])


@pytest.mark.parametrize("is_peer", first_of([True, False], quick=1))
def test_a_wiped_node_comes_back_under_its_id_and_gets_everything_again(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path, *, is_peer: bool
) -> None:
    leader = partition.fill()
    victim, other = others_than(leader)
    cluster.stop(victim)
    old = tmp_path / "old"
    shutil.move(tmp_path / victim, old)
    partition.move_to(leader, other)
    cluster.on_loop(leader, lambda node: node.view.operations.decommission_node(victim))
    cluster.until(lambda: victim not in cluster.state(leader).nodes)
    (cluster.start_peer if is_peer else cluster.start)(victim, via=leader)
    cluster.until(lambda: victim in cluster.state(leader).nodes)
    cluster.until(lambda: cluster.state(leader).nodes[victim].is_up)
    partition.publish(leader, b"after")
    partition.move_to(leader, other, victim)
    assert partition.led_by(victim) == [*SENT, b"after"]
    # The old disk is not let in in its place, and does no harm.
    cluster.stop(victim)
    shutil.move(tmp_path / victim, tmp_path / "new")
    shutil.move(old, tmp_path / victim)
    cluster.start_peer(victim)
    cluster.until(lambda: is_refused(cluster, victim))
    partition.publish_somewhere(b"again")
    assert not cluster.state(leader).nodes[victim].is_up
    cluster.wipe(victim)
    shutil.move(tmp_path / "new", tmp_path / victim)
    cluster.start_peer(victim)
    cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])
    assert partition.led_by(victim) == [*SENT, b"after", b"again"]


@pytest.mark.parametrize("is_peer", first_of([True, False], quick=1))
def test_a_wiped_node_that_followed_under_its_old_id_joins_after_that_was_removed(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, *, is_peer: bool
) -> None:
    cluster.start_three()
    victim, via = "n3", "n1"
    with monkeypatch.context() as patched:  # as if all others had forgotten its disk
        patched.setattr(PeerIdentity, "rejection_reason", lambda *_: "")
        cluster.wipe(victim)
        cluster.until(lambda: cluster.cluster_node(via).raft.leader in ("n1", "n2"))
        (cluster.start_peer if is_peer else cluster.start)(victim, via)
        leader = cluster.cluster_node(via).raft.leader
        assert leader is not None
        (to,) = others_than(leader, victim)  # it replays all: it does not know what was confirmed
        cluster.on_loop(leader, lambda node: node.raft.transfer_leadership(to))
        cluster.until(lambda: victim in cluster.state(victim).nodes)
    disk = cluster.cluster_node(victim).disk_id
    assert cluster.state(via).nodes[victim].disk != disk
    assert not cluster.cluster_node(victim).heartbeats._is_registered()  # that was another node
    cluster.on_loop(via, lambda node: node.view.operations.decommission_node(victim))
    cluster.until(lambda: (n := cluster.state(via).nodes.get(victim)) and n.disk == disk)
    cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])
