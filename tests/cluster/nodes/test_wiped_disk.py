"""Nodes that come with another disk than they are known with, or with less on it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from goq.cluster.metadata.commands import AlterInSync
from goq.errors import CorruptData, TimedOut, Unavailable
from tests.support.cluster.three_nodes import MESSAGES, NAMES, ThreeNodes, run_story

SENT = [b"%d" % number for number in range(MESSAGES)]


def others_than(*names: str) -> list[str]:
    return [name for name in NAMES if name not in names]


def is_refused(cluster: ThreeNodes, name: str) -> bool:
    """Whether a node says itself that it takes no part, and each other one that runs says so."""
    told = any("another disk" in text for text in cluster.cluster_node(name).readiness.pending())
    return told and all(
        name in cluster.cluster_node(other).view.refused_nodes
        for other in cluster.nodes
        if other != name
    )


def terms(cluster: ThreeNodes, name: str) -> tuple[int, str | None]:
    raft = cluster.cluster_node(name).raft
    assert raft is not None
    return raft.status.commit_index, raft.status.leader


def test_a_wiped_node_neither_votes_nor_follows_and_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victim, watcher = others_than(leader)
        await cluster.wipe(victim)
        await cluster.until(lambda: not cluster.cluster_node(watcher).state.nodes[victim].is_up)
        await cluster.start(victim)
        await cluster.until(lambda: is_refused(cluster, victim))
        await cluster.publish(leader, b"after")
        assert victim not in cluster.partition(leader).in_sync  # type: ignore[union-attr]
        assert not cluster.cluster_node(leader).state.nodes[victim].is_up
        assert terms(cluster, victim) == (1, None)
        # With its vote there would be a leader, who may lack what was agreed on.
        await cluster.nodes.pop(watcher).stop()
        with pytest.raises((Unavailable, TimedOut)):
            await cluster.cluster_node(leader).raft.barrier(3.0)
        await cluster.until(lambda: is_refused(cluster, victim))
        assert terms(cluster, victim) == (1, None)
        await cluster.start(watcher)
        await cluster.publish_somewhere(b"again")

    run_story(tmp_path, story)
    told = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert len(told) == 1
    assert "goq cluster leave" in told[0].getMessage()


def test_most_nodes_wiped_make_no_cluster_of_their_own(tmp_path: Path) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victims = others_than(leader)
        for victim in victims:
            await cluster.wipe(victim)
        await asyncio.gather(*map(cluster.start, victims))
        await cluster.until(lambda: all(is_outcast(cluster, victim) for victim in victims))
        await cluster.until(lambda: all(not links(cluster, victim) for victim in victims))
        assert cluster.values(leader) == SENT

    run_story(tmp_path, story)


def is_outcast(cluster: ThreeNodes, name: str) -> bool:
    driver = cluster.cluster_node(name).raft._driver
    assert driver is not None
    return driver._identity.is_quarantined(driver._loop.time())


def links(cluster: ThreeNodes, name: str) -> list[str]:
    driver = cluster.cluster_node(name).raft._driver
    assert driver is not None
    assert driver._transport is not None
    return list(driver._transport._links)


def test_a_node_that_lost_only_what_was_agreed_on_does_not_start(tmp_path: Path) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victim, _ = others_than(leader)
        await cluster.wipe(victim, "cluster")
        with pytest.raises(CorruptData, match="goq cluster leave"):
            await cluster.start(victim)
        cluster.nodes.pop(victim)
        (tmp_path / victim / "disk-id").unlink()  # another disk, then
        await cluster.start(victim)
        await cluster.until(lambda: is_refused(cluster, victim))

    run_story(tmp_path, story)


def test_a_folder_of_what_was_agreed_on_is_not_taken_from_another_node(tmp_path: Path) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victim, other = others_than(leader)
        await cluster.wipe(victim, "cluster")
        await cluster.nodes.pop(other).stop()
        shutil.copytree(tmp_path / other / "cluster", tmp_path / victim / "cluster")
        with pytest.raises(CorruptData, match="belongs to another node"):
            await cluster.start(victim)
        cluster.nodes.pop(victim)

    run_story(tmp_path, story)


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_node_that_lost_only_its_messages_is_not_in_sync_and_gets_them_back(
    tmp_path: Path, whose: str
) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victim = leader if whose == "leader" else others_than(leader)[0]
        await cluster.stop_at_once()
        await cluster.wipe(victim, "topics")
        await cluster.start(victim)  # all were in sync: who is there first could lead
        first, second = others_than(victim)
        await cluster.start(first)
        await cluster.until(lambda: not cluster.cluster_node(victim).data_loss.has_lost_topics)
        await cluster.start(second)
        await cluster.publish_somewhere(b"after")
        await cluster.until(lambda: len(cluster.partition(first).in_sync) == 3)  # type: ignore[union-attr]
        await cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])
        assert await cluster.led_by(victim) == [*SENT, b"after"]

    run_story(tmp_path, story)


def test_who_alone_was_in_sync_and_lost_its_messages_takes_none_from_the_others(
    tmp_path: Path,
) -> None:
    async def story(cluster: ThreeNodes) -> None:
        victim = await cluster.filled()
        first, _ = others_than(victim)
        await alone_in_sync(cluster, victim)
        await cluster.stop_at_once()
        await cluster.wipe(victim, "topics")
        await asyncio.gather(cluster.start(victim), cluster.start(first))
        await cluster.until(lambda: (p := cluster.partition(first)) and p.damaged == (victim,))
        # It finds nothing damaged in what is empty, and says so, but is not believed for that.
        await cluster.until(lambda: cluster.cluster_node(victim).repairs.repaired)
        version = cluster.cluster_node(first).state.version
        await asyncio.gather(*(cluster.cluster_node(n).heartbeats.send() for n in (first, victim)))
        await cluster.nodes.pop(victim).stop()
        await cluster.start(victim)
        await cluster.until(lambda: cluster.cluster_node(first).state.version > version)
        await cluster.until(lambda: cluster.cluster_node(victim).repairs.repaired)
        assert cluster.leader(first) is None
        operations = cluster.cluster_node(first).view.operations
        await operations.elect_unclean_leader("t", 0, first, dry_run=False)
        await cluster.publish_somewhere(b"after")
        await cluster.until(lambda: in_sync(cluster, first) == {first, victim})
        assert await cluster.led_by(victim) == [*SENT, b"after"]

    run_story(tmp_path, story)


async def alone_in_sync(cluster: ThreeNodes, leader: str) -> None:
    """Have only the leader count as in sync, which hears of no others any more."""
    proposing, partition = cluster.cluster_node(leader).metadata, cluster.partition(leader)
    assert partition is not None

    async def nothing(_command: object) -> None:
        return None

    proposing.propose_until_decided = nothing  # type: ignore[method-assign,assignment]
    topic_id = cluster.cluster_node(leader).state.topics["t"].topic_id
    where = ("t", topic_id, 0, partition.version, leader, partition.leader_epoch)
    await proposing.propose(AlterInSync(*where, {leader: 1}))
    await cluster.until(lambda: in_sync(cluster, leader) == {leader})


def in_sync(cluster: ThreeNodes, seen_by: str) -> set[str]:
    partition = cluster.partition(seen_by)
    return set() if partition is None else set(partition.in_sync)


@pytest.mark.parametrize("is_peer", [False, True])
def test_a_wiped_node_comes_back_under_its_id_and_gets_everything_again(
    tmp_path: Path, *, is_peer: bool
) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        victim, other = others_than(leader)
        await cluster.nodes.pop(victim).stop()
        old = tmp_path / "old"
        shutil.move(tmp_path / victim, old)
        await cluster.move_to(leader, other)
        await cluster.cluster_node(leader).view.operations.decommission_node(victim)
        await cluster.until(lambda: victim not in cluster.cluster_node(leader).state.nodes)
        await cluster.start(victim, join=leader, is_peer=is_peer)
        await cluster.until(lambda: victim in cluster.cluster_node(leader).state.nodes)
        await cluster.until(lambda: cluster.cluster_node(leader).state.nodes[victim].is_up)
        await cluster.publish(leader, b"after")
        await cluster.move_to(leader, other, victim)
        assert await cluster.led_by(victim) == [*SENT, b"after"]
        # The old disk is not let in in its place, and does no harm.
        await cluster.nodes.pop(victim).stop()
        shutil.move(tmp_path / victim, tmp_path / "new")
        shutil.move(old, tmp_path / victim)
        await cluster.start(victim)
        await cluster.until(lambda: is_refused(cluster, victim))
        await cluster.publish_somewhere(b"again")
        assert not cluster.cluster_node(leader).state.nodes[victim].is_up
        await cluster.wipe(victim)
        shutil.move(tmp_path / "new", tmp_path / victim)
        await cluster.start(victim)
        await cluster.until(lambda: cluster.cluster_node(victim).readiness.pending() == [])
        assert await cluster.led_by(victim) == [*SENT, b"after", b"again"]

    run_story(tmp_path, story)
