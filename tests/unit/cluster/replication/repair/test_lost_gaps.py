"""Gaps that no replica can fill: followers pass them, and no other gaps."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.cluster.replication.repair.lost_gaps import LostGaps
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap
from tests.support.broker.harness import frame
from tests.support.storage.disk import SimulatedDisk

KEY = PartitionKey("t", 1, 0)
GAP = Gap(1, 2)


def _append(log: Log, epoch: int) -> None:
    batch = log.begin(1)
    view = frame(b"%d" % log.end_offset)
    batch.add(view.header, view.body, append_time_us=1, leader_epoch=epoch)
    log.write(batch)
    log.commit(batch)


def _logs(disk: SimulatedDisk) -> PartitionLogs:
    return open_logs(Path("/t/0"), disk, TopicSettings())


class Pair:
    """A leader with one frame an epoch, of which one is damaged, and an empty follower."""

    def __init__(self, *epochs: int, damaged: int = 1) -> None:
        self.lost, self.follower_lost = LostGaps(), LostGaps()
        disk = SimulatedDisk(Random(1))
        logs = _logs(disk)
        ends = []
        for epoch in epochs:
            _append(logs.messages, epoch)
            ends.append(logs.messages.size_bytes)
        disk.flip(logs.messages.active.path, ends[damaged] - 10, 1)
        ends_here = LogOffsets(len(epochs), 0)
        progress = ReplicaProgress("a", ends_here, in_sync=("a",), min_insync=1)
        self.leader = LeaderReplica(KEY, 9, logs, progress, self.lost)
        follower_logs = _logs(SimulatedDisk(Random(2)))
        self.follower = FollowerReplica(KEY, 9, follower_logs, self._reopen, self.follower_lost)

    def _reopen(self, log: Log, offset: int) -> Log:
        return Log.open(log.directory, SimulatedDisk(Random(3)), log.config, base_offset=offset)

    def fetch(self, *, is_checked: bool = False) -> PartitionUpdate:
        """Fetch once; return the update."""
        update = self.leader.read_update(
            self.follower.position, is_checked=is_checked, bytes_max=2**20
        )
        self.follower.apply(update.head, memoryview(b"".join(update.buffers)))
        return update.head

    def offsets(self) -> list[int]:
        log = self.follower.logs.messages
        return [v.header.base_offset for v in log.reader.read(0, log.end_offset).frames]


def test_a_follower_stays_before_a_gap_that_another_replica_may_fill() -> None:
    pair = Pair(1, 1, 1)
    for _ in range(3):
        pair.fetch()
    assert pair.follower.position.ends.messages == 1
    assert not pair.follower.logs.messages.damage


def test_a_follower_passes_a_lost_gap_and_counts_it_as_damage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair(1, 1, 1)
    pair.lost.add(0, GAP)
    for _ in range(3):
        pair.fetch()
    assert pair.offsets() == [0, 2]
    assert [(d.start_offset, d.end_offset) for d in pair.follower.logs.messages.damage] == [GAP]
    assert pair.follower_lost.cover(0, *GAP)
    assert "offsets 1 to 1 of /t/0/messages are damaged" in caplog.text
    assert [sealed.segment.end_offset for sealed in pair.follower.sealed_segments] == [2]


@pytest.mark.parametrize("epochs", [(1, 1, 1), (1, 2, 3), (1, 2)])
def test_a_follower_behind_a_lost_gap_is_where_its_leader_is_in_a_new_session(
    epochs: tuple[int, ...],
) -> None:
    pair = Pair(*epochs)
    pair.lost.add(0, GAP)
    pair.fetch()
    pair.fetch()
    assert pair.follower.position.ends.messages == 2
    pair.follower.high_watermark = LogOffsets(2, 0)
    update = pair.fetch()
    assert update.messages is not None
    assert update.messages.diverges_at is None
    pair.fetch()
    assert pair.follower.position.ends.messages == len(epochs)


def test_a_follower_passes_a_lost_gap_at_the_start_of_its_log() -> None:
    pair = Pair(1, 1, damaged=0)
    pair.lost.add(0, Gap(0, 1))
    for _ in range(3):
        pair.fetch()
    assert pair.offsets() == [1]
    assert pair.follower.logs.messages.start_offset == 0


def test_a_follower_passes_only_a_gap_that_begins_where_its_log_ends() -> None:
    pair = Pair(1, 1, 1)
    pair.lost.add(0, GAP)
    pair.fetch()
    late = pair.leader.read_update(pair.follower.position, is_checked=True, bytes_max=2**20)
    pair.follower.apply(late.head, memoryview(b""))
    with pytest.raises(InvalidFrame):
        pair.follower.apply(late.head, memoryview(b""))
    assert pair.follower.position.ends.messages == 2


def test_gaps_behind_the_end_of_a_truncated_log_are_not_lost_any_more() -> None:
    lost = LostGaps()
    for gap in (Gap(1, 3), Gap(3, 5), Gap(7, 9)):
        lost.add(1, gap)
    assert lost.cover(1, 2, 5)
    assert not lost.cover(0, 2, 5)
    assert not lost.cover(1, 2, 6)
    assert not lost.cover(1, 4, 8)
    lost.forget_from(1, 4)
    assert lost.cover(1, 1, 3)
    assert not lost.cover(1, 3, 4)


def test_a_log_that_is_cut_within_a_gap_ends_before_the_gap() -> None:
    logs, lost = _logs(SimulatedDisk(Random(1))), LostGaps()
    _append(logs.messages, 1)
    logs.messages.skip(10)
    lost.add(0, Gap(1, 10))
    _append(logs.messages, 1)
    follower = FollowerReplica(KEY, 2, logs, lambda log, _offset: log, lost)
    cut = LogUpdate(0, 0, 0, diverges_at=5, epoch=1)
    follower.apply(PartitionUpdate(KEY, 2, LogOffsets(0, 0), cut, None), memoryview(b""))
    assert logs.messages.end_offset == 1
    assert not lost.cover(0, 1, 10)
