"""Frames for a gap: from whom they are taken, and which of them are certain to be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.frame_source import FramesMerged, FrameSource, RepairDeferred
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse, answer_repair
from goq.cluster.replication.replica import Replica, ReplicaLogs
from goq.config.topic import TopicSettings
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap
from tests.support.broker.harness import frame
from tests.support.storage.disk import SimulatedDisk

KEY = PartitionKey("t", 1, 0)
GAP = Gap(1, 4)


def logs_of(*epochs: int) -> PartitionLogs:
    """Return logs with one message of each of these leader epochs."""
    logs = open_logs(Path("/t/0"), SimulatedDisk(Random(1)), TopicSettings())
    for number, epoch in enumerate(epochs):
        batch = logs.messages.begin(1)
        view = frame(b"%d" % number)
        batch.add(view.header, view.body, append_time_us=1, leader_epoch=epoch)
        logs.messages.write(batch)
        logs.messages.commit(batch)
    return logs


def damaged_log(*epochs: int) -> Log:
    """Return a log that has lost the frames of the gap."""
    log = logs_of(*epochs[: GAP.start_offset]).messages
    log.skip(GAP.end_offset)
    for epoch in epochs[GAP.end_offset :]:
        batch = log.begin(1)
        view = frame(b"x")
        batch.add(view.header, view.body, append_time_us=1, leader_epoch=epoch)
        log.write(batch)
        log.commit(batch)
    return log


def found(log: Log, others: dict[str, tuple[PartitionLogs, int]]) -> list[int] | None:
    """Return the offsets of the frames that other replicas give; each has a high watermark."""

    async def call(node: str, request: RepairRequest) -> tuple[RepairResponse, memoryview]:
        logs, high_watermark = others[node]
        replica = ReplicaLogs(logs, LogOffsets(high_watermark, 0))
        answer, data = answer_repair(request, replica, lambda _key, _which, own: own.reader)
        return answer, memoryview(b"".join(data))

    async def in_thread(work: Callable[[], object]) -> object:
        return work()

    class Other(Replica):
        @property
        def other_nodes(self) -> list[str]:
            return list(others)

    async def find() -> list[FrameView] | None:
        replica = Other.__new__(Other)
        replica.key = KEY
        return await FrameSource(call, in_thread).find(replica, 0, log, GAP)

    views = asyncio.run(find())
    return None if views is None else [view.header.base_offset for view in views]


def test_a_gap_that_no_other_replica_reaches_has_no_frames() -> None:
    log = damaged_log(1, 1, 1, 1, 1)
    assert found(log, {"b": (logs_of(1), 1), "c": (logs_of(), 0)}) is None


@pytest.mark.parametrize("high_watermark", [0, 3])
def test_a_replica_that_ends_within_a_gap_gives_what_it_has(high_watermark: int) -> None:
    log = damaged_log(1, 1, 1, 1, 1)
    others = {"b": (logs_of(1, 1), high_watermark), "c": (logs_of(1, 1, 1), high_watermark)}
    assert found(log, others) == [1, 2]


def test_frames_that_may_be_of_another_leader_are_not_taken() -> None:
    log = damaged_log(1, 1, 2, 2, 2)
    with pytest.raises(RepairDeferred):
        found(log, {"b": (logs_of(1, 1, 1), 0)})


def test_frames_below_the_high_watermark_are_taken_whatever_their_epoch() -> None:
    log = damaged_log(1, 1, 2, 2, 2)
    assert found(log, {"b": (logs_of(1, 1, 2), 3)}) == [1, 2]


def test_frames_of_another_epoch_than_around_the_gap_are_not_taken() -> None:
    log = damaged_log(2, 2, 2, 2, 2)
    with pytest.raises(RepairDeferred):
        found(log, {"b": (logs_of(1, 1), 0)})


def merged_logs(count: int) -> PartitionLogs:
    """Return logs with one frame, of so many messages."""
    logs = open_logs(Path("/t/0"), SimulatedDisk(Random(1)), TopicSettings())
    batch = logs.messages.begin(1)
    view = frame(*(b"%d" % number for number in range(count)))
    batch.add(view.header, view.body, append_time_us=1, leader_epoch=1)
    logs.messages.write(batch)
    logs.messages.commit(batch)
    return logs


@pytest.mark.parametrize("whole", [None, "a", "c"])
def test_frames_that_reach_beyond_the_gap_are_told_unless_another_replica_fits(
    whole: str | None,
) -> None:
    log = damaged_log(1, 1, 1, 1, 1)
    others = {"b": (merged_logs(5), 5)}
    if whole is None:
        with pytest.raises(FramesMerged):
            found(log, others)
        return
    others[whole] = logs_of(1, 1, 1, 1, 1), 5
    in_turn = {node: others[node] for node in sorted(others)}
    assert found(log, in_turn) == [1, 2, 3]


def test_a_repair_waits_while_the_replica_has_no_others() -> None:
    with pytest.raises(RepairDeferred, match="assignment changed"):
        found(damaged_log(1, 1, 1, 1, 1), {})
