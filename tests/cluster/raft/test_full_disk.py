"""A disk that is full while terms change: what a node is in is what it has written."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq import limits
from goq.cluster.raft.log.journal import Journal
from goq.cluster.raft.log.snapshots import Snapshots
from goq.cluster.raft.state_machine.sqlite import SqliteStateMachine
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import StorageFull
from goq.storage.disk import RealDisk
from tests.cluster.raft.fuzz.cluster import Cluster
from tests.cluster.raft.fuzz.environment.network import Network
from tests.cluster.raft.fuzz.environment.patches import library_in
from tests.cluster.raft.fuzz.environment.world import World
from tests.cluster.raft.fuzz.libraries.hardened import Hardened
from tests.cluster.raft.fuzz.libraries.library import inside
from tests.cluster.raft.fuzz.profile import any_sizes
from tests.cluster.raft.fuzz.watch import Watch
from tests.support.cluster.raft.node import Words, elect, hardened, manual_time, transport_of
from tests.support.node.small_disk import needed_disk
from tests.support.storage.disk import SimulatedDisk


def full(operation: str, _path: Path) -> int | None:
    return errno.ENOSPC if operation == "append" else None


def test_a_snapshot_that_does_not_fit_on_the_disk_leaves_its_room(tmp_path: Path) -> None:
    def create_table(database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE IF NOT EXISTS words (word BLOB)")

    machine = SqliteStateMachine(tmp_path / "state", create_table, lambda _db, _proposal: None)
    machine.connection.execute("INSERT INTO words VALUES (zeroblob(2000000))")
    with needed_disk(tmp_path / "small", 8) as disk:
        folder = tmp_path / "small" / "raft"
        folder.mkdir()
        now_s = 1000.0
        snapshots = Snapshots(RealDisk(), folder, machine, lambda: now_s, 1000)
        disk.fill(1_000_000)
        left_bytes = disk.free_bytes()
        assert not snapshots.create(1, 1, ["n1"])
        assert disk.free_bytes() == left_bytes
        assert not list(folder.iterdir())
        disk.give_back()
        now_s += limits.RAFT_SNAPSHOT_RETRY_S - 0.001
        assert not snapshots.create(1, 1, ["n1"])  # it is not tried in each heartbeat
        now_s = 1000.0 + limits.RAFT_SNAPSHOT_RETRY_S
        assert snapshots.create(1, 1, ["n1"])
        snapshots.discard_outgoing()
    machine.close()


def test_a_term_that_does_not_fit_on_the_disk_is_not_taken() -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, Path("/raft"), ["n1"])
    journal.set_term(3, "n1")
    disk.fault = full
    with pytest.raises(StorageFull):
        journal.set_term(4, "n2")
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, "n1")
    disk.fault = lambda _operation, _path: None
    journal.sync()
    disk.crash(power=True)
    opened = Journal.open(disk, Path("/raft"), ["n1"])
    assert (opened.getCurrentTerm(), opened.getVotedForNodeId()) == (3, "n1")


def test_a_leader_on_a_full_disk_does_not_lead_in_the_term_of_another() -> None:
    world = World(1)
    with library_in(world):
        watch = Watch(world)
        network = Network(world, latency_s=0.005, crossing=False)
        cluster = Cluster(world, watch, network, Hardened(), any_sizes(Random(1)))
        ids = ["n1", "n2", "n3"]
        for node_id in ids:
            cluster.start(cluster.add(node_id, [other for other in ids if other != node_id]))
        world.run_until(20, lambda: cluster.leader() is not None)
        leader = cluster.leader()
        assert leader is not None
        raft, term = leader.raft, leader.raft.raftCurrentTerm
        candidate = next(node_id for node_id in ids if node_id != leader.id)
        message = {"type": "request_vote", "term": term + 1, "is_transfer": True}
        message |= {"last_log_index": 100, "last_log_term": term}
        leader.disk.fault = full
        endpoint = inside(raft, "transport")
        cluster.run(leader, raft, lambda: endpoint.received(candidate, message))
        assert raft._isLeader()
        assert raft.raftCurrentTerm == term
        leader.disk.fault = lambda _operation, _path: None
        cluster.run(leader, raft, lambda: endpoint.received(candidate, message))
        assert not raft._isLeader()
        assert raft.raftCurrentTerm == term + 1
        assert watch.broken == []


def test_a_late_vote_of_an_earlier_term_makes_nobody_a_leader_on_a_full_disk() -> None:
    """It made a second leader of a term in which the member had voted for another one."""
    disk = SimulatedDisk(Random(1))
    with manual_time() as time:
        node = hardened("n1", ["n2", "n3", "n4", "n5"], disk)
        told = transport_of(node)
        time.tick(node, 15)
        for peer in ("n2", "n3"):
            told.tell(peer, {"type": "response_pre_vote", "term": 1})
        told.tell("n2", {"type": "response_vote", "term": 1})
        request = {"type": "request_vote", "term": 2, "is_transfer": True}
        told.tell("n4", request | {"last_log_index": 9, "last_log_term": 1})
        assert told.last("response_vote")["term"] == 2
        time.tick(node, 15)  # and the one of term 2 is not heard
        disk.fault = full
        for peer in ("n2", "n3"):
            told.tell(peer, {"type": "response_pre_vote", "term": 3})
        told.tell("n5", {"type": "response_vote", "term": 1})
        assert not node._isLeader()
        assert node.raftCurrentTerm == 2


def test_a_lone_member_on_a_full_disk_commits_nothing_that_it_has_not_written() -> None:
    """Seed 4885023 of the fuzz's disk profile: the power failed before there was room again."""
    disk = SimulatedDisk(Random(1))
    with manual_time() as time:
        node = hardened("n1", [], disk)
        before, appends = node.raftCommitIndex, iter(range(100))

        def full_after_the_term(operation: str, _path: Path) -> int | None:
            return errno.ENOSPC if operation == "append" and next(appends) else None

        disk.fault = full_after_the_term
        with pytest.raises(StorageFull):
            time.tick(node, 15)
        assert node._isLeader()
        assert node.raftCommitIndex == before
        disk.fault = lambda _operation, _path: None
        time.tick(node)
        assert node.raftCommitIndex == node.raftLastApplied == before + 1


class FullWords(Words):
    """A machine whose database is full for a while."""

    is_full = False

    def apply(self, request: Proposal, index: int) -> int:
        if self.is_full:
            raise StorageFull("no room on the disk for the database")
        return super().apply(request, index)


def test_a_command_that_the_machine_has_no_room_for_is_applied_when_there_is_some() -> None:
    disk = SimulatedDisk(Random(1))
    machine = FullWords(disk)
    told: list[Any] = []
    with manual_time() as time:
        node = hardened("n1", [], disk, machine=machine)
        elect(node, time)
        machine.is_full = True
        node.apply("first", lambda result, _reason: told.append(result))
        node.apply("second", lambda result, _reason: told.append(result))
        time.tick(node)  # they come into the log
        for _ in range(3):
            with pytest.raises(StorageFull):
                time.tick(node)
        assert (machine.words, told, node.failure) == ([], [], None)
        machine.is_full = False
        time.tick(node, 3)
    assert machine.words == ["first", "second"]
    assert told == [1, 2]
