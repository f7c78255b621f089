"""A follower that is too far behind gets the whole state, whatever comes between."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from goq import limits
from goq.cluster.raft.log.snapshots import IN_NAME, OUT_NAME
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import StateMachineFailed
from goq.errors import CorruptData, StorageFull
from tests.support.cluster.raft.node import (
    FOLDER,
    ManualTime,
    Words,
    deliver,
    hardened,
    live,
    transport_of,
)
from tests.support.storage.disk import SimulatedDisk

WORDS = [f"word {number}" for number in range(40)]


class Crash(BaseException):
    """The process ends here."""


class Pair:
    """A leader whose log begins late, and a follower that has nothing."""

    def __init__(self, time: ManualTime, **settings: Any) -> None:
        self.time = time
        self.settings = {"logCompactionMinEntries": 6, "logCompactionBatchSize": 50} | settings
        self.disks = {id_: SimulatedDisk(Random(1)) for id_ in ("n1", "n2", "n3")}
        self.machines: dict[str, Words] = {}
        self.nodes: dict[str, HardenedSyncObj] = {}
        for id_ in ("n1", "n3"):
            self.start(id_)
        live(self.nodes, time, 200)
        for word in WORDS:
            self.leader.apply(word)
            live(self.nodes, time, 3)
        self.start("n2")

    @property
    def leader(self) -> HardenedSyncObj:
        return next(node for node in self.nodes.values() if node._isLeader())

    @property
    def follower(self) -> HardenedSyncObj:
        return self.nodes["n2"]

    @property
    def disk(self) -> SimulatedDisk:
        return self.disks["n2"]

    def start(self, id_: str) -> None:
        others = [other for other in ("n1", "n2", "n3") if other != id_]
        machine = self.machines[id_] = Words(self.disks[id_])
        self.nodes[id_] = hardened(
            id_, others, self.disks[id_], machine=machine, seed=ord(id_[1]), **self.settings
        )

    def restart(self) -> None:
        self.disk.crash(power=True)
        self.start("n2")

    def some_pieces(self) -> None:
        """Let a part of the snapshot come."""
        while IN_NAME not in self.disk.names(FOLDER):
            live(self.nodes, self.time, 1)
        live(self.nodes, self.time, 3)
        assert self.machines["n2"].words == []

    def finish(self) -> None:
        live(self.nodes, self.time, 400)
        assert self.machines["n2"].words == WORDS
        assert self.follower.raftLastApplied == self.leader.raftLastApplied
        assert [name for name in self.disk.names(FOLDER) if "snapshot" in name] == []


def test_the_state_comes_in_pieces(time: ManualTime) -> None:
    pair = Pair(time)
    assert pair.leader._SyncObj__raftLog.first.index > 2
    pair.some_pieces()
    pair.finish()
    pair.leader.apply("more")
    live(pair.nodes, time, 20)
    assert pair.machines["n2"].words == [*WORDS, "more"]


def test_a_piece_that_is_lost_is_sent_again(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    for node in pair.nodes.values():
        node.doTick()
        transport_of(node).sent.clear()
    pair.finish()


def test_pieces_that_come_twice_do_no_harm(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    for _ in range(5):
        pair.leader.doTick()
        told = transport_of(pair.leader)
        told.sent = [message for message in told.sent for _ in range(2)]
        deliver(pair.nodes)
        time.now_s += 0.01
    pair.finish()


def test_a_follower_that_restarts_in_the_midst_begins_anew(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    pair.restart()
    assert pair.disk.names(FOLDER) == ["journal", "journal.synced"]
    pair.finish()


@pytest.mark.parametrize("moment", ["restore", "flush"])
def test_an_installation_that_a_crash_cut_short_is_finished_at_the_next_start(
    time: ManualTime, moment: str
) -> None:
    pair = Pair(time)

    def crash(*_: object, **__: object) -> None:
        raise Crash

    setattr(pair.machines["n2"], moment, crash)
    with suppress(Crash):
        live(pair.nodes, time, 400)
    pair.restart()
    assert pair.machines["n2"].words == WORDS[: len(pair.machines["n2"].words)]
    assert pair.machines["n2"].words
    pair.finish()


def test_a_follower_whose_database_has_no_room_for_a_snapshot_stops_and_skips_nothing(
    time: ManualTime,
) -> None:
    """Its log began after its state by then. It acknowledged the snapshot, and applied the rest."""
    pair = Pair(time)
    pair.some_pieces()
    pair.machines["n2"].flush = no_room  # type: ignore[method-assign]
    with pytest.raises(StateMachineFailed, match="no room"):
        live(pair.nodes, time, 400)
    assert pair.follower.failure is not None
    del pair.nodes["n2"]
    for number in range(4):
        pair.leader.apply(f"meanwhile {number}")
        live(pair.nodes, time, 3)
    pair.restart()
    live(pair.nodes, time, 400)
    assert pair.machines["n2"].words == [*WORDS, *(f"meanwhile {n}" for n in range(4))]


def no_room(_index: int) -> None:
    raise StorageFull("no room on the disk for the database")


def test_a_log_that_begins_after_the_state_ends_is_refused(time: ManualTime) -> None:
    pair = Pair(time)
    pair.finish()
    live(pair.nodes, time, 10)
    pair.disk.delete(FOLDER / "words")
    with pytest.raises(CorruptData, match="starts at"):
        pair.restart()


def test_a_leader_with_no_room_for_a_copy_still_leads(time: ManualTime) -> None:
    pair = Pair(time)
    leader = next(id_ for id_, node in pair.nodes.items() if node is pair.leader)
    full = {"replace": errno.ENOSPC}
    pair.disks[leader].fault = lambda operation, path: (
        full.get(operation) if path.name == OUT_NAME else None
    )
    live(pair.nodes, time, 200)
    assert pair.nodes[leader]._isLeader()
    assert pair.machines["n2"].words == []
    pair.disks[leader].fault = lambda _operation, _path: None
    pair.finish()


def test_a_leader_whose_state_is_damaged_stops(time: ManualTime) -> None:
    pair = Pair(time)
    leader = pair.leader

    def damaged(_path: object) -> None:
        raise CorruptData("the cluster's database is damaged here")

    leader._machine.snapshot = damaged  # type: ignore[method-assign]
    with pytest.raises(CorruptData, match="damaged here"):
        live(pair.nodes, time, 50)
    assert leader.failure is not None
    assert pair.machines["n2"].words == []


def test_a_leader_with_no_room_for_a_newer_copy_has_none_and_still_leads(time: ManualTime) -> None:
    """It stopped over the copy before, which was deleted to make room."""
    pair = Pair(time)
    pair.some_pieces()
    leader = next(id_ for id_, node in pair.nodes.items() if node is pair.leader)
    snapshots, machine = pair.leader._snapshots, pair.machines[leader]
    pair.disks[leader].fault = lambda operation, path: (
        errno.ENOSPC if (operation, path.name) == ("replace", OUT_NAME) else None
    )
    assert not snapshots.create(machine.index, 1, ["n1", "n2", "n3"])
    live(pair.nodes, time, 50)
    assert pair.nodes[leader]._isLeader()
    pair.disks[leader].fault = lambda _operation, _path: None
    pair.finish()


def test_a_follower_with_no_room_for_a_piece_waits_for_it(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    pair.disk.capacity_bytes = pair.disk.used_bytes
    live(pair.nodes, time, 100)
    assert pair.follower.failure is None
    assert pair.machines["n2"].words == []
    pair.disk.capacity_bytes = None
    pair.finish()


def test_the_log_keeps_what_comes_after_a_snapshot_until_it_has_come(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    for number in range(30):
        pair.leader.apply(f"meanwhile {number}")
        live(pair.nodes, time, 2)
    taken = pair.leader._snapshots.retained_index()
    assert taken is not None
    assert pair.leader._SyncObj__raftLog.first.index <= taken
    live(pair.nodes, time, 400)
    assert pair.machines["n2"].words == [*WORDS, *(f"meanwhile {n}" for n in range(30))]


def test_a_log_that_is_large_all_the_same_does_not_end_a_transfer(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_JOURNAL_BYTES", 10)  # it cannot be trimmed to that
    pair = Pair(time)
    pair.finish()


def test_a_transfer_that_stands_still_is_given_up_and_the_log_trimmed(time: ManualTime) -> None:
    pair = Pair(time)
    pair.some_pieces()
    del pair.nodes["n2"]
    for node in pair.nodes.values():
        told = transport_of(node)
        told._onNodeDisconnected(told.peers["n2"])
    for number in range(200):
        pair.leader.apply(f"meanwhile {number}")
        live(pair.nodes, time, 2, step_s=0.05)
    assert all(OUT_NAME not in disk.names(FOLDER) for disk in pair.disks.values())
    assert len(pair.leader._SyncObj__raftLog) < 10
