"""A follower that gets frames with removed rows: which of its own messages it may keep."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk

KEY = PartitionKey("t", 1, 0)


def frame(offset: int, removed: list[int] | None = None) -> bytes:
    view = FrameView.parse(encode_frame(Columns([b"x", b"y"]), removed=removed))
    header = view.header._replace(base_offset=offset, append_time_us=1, leader_epoch=1)
    return header.pack() + view.body


def follower_with(frames: list[bytes]) -> FollowerReplica:
    """Return a follower that has some frames of an earlier leader."""
    disk = SimulatedDisk(Random(1))
    messages, events = (Log.open(Path("/data") / name, disk) for name in ("messages", "events"))
    first = FollowerReplica(KEY, 1, PartitionLogs(messages, events), reopen)
    if frames:
        give(first, frames, epoch=1)
    return FollowerReplica(KEY, 2, first.logs, reopen)


def reopen(log: Log, offset: int) -> Log:
    assert offset == 0
    return Log.open(Path("/data/anew"), SimulatedDisk(Random(2)))


def give(follower: FollowerReplica, frames: list[bytes], *, epoch: int = 2) -> list[int]:
    """Give frames of the messages; return the logs that may lose segments."""
    data = b"".join(frames)
    update = LogUpdate(0, 0, len(data), rewrites=0)
    whole = PartitionUpdate(KEY, epoch, LogOffsets(0, 0), update, None)
    truncated = follower.truncated_logs(whole, memoryview(data))
    follower.apply(whole, memoryview(data))
    return truncated


@pytest.mark.parametrize("place", [1, 2])
def test_messages_of_an_earlier_leader_are_dropped_before_removed_rows(place: int) -> None:
    follower = follower_with([frame(0)])
    rest = [frame(2 * n, removed=[0] if n == place else None) for n in range(1, 4)]
    assert give(follower, rest) == [0]
    assert follower.logs.messages.end_offset == 0
    assert give(follower, [frame(0), *rest]) == []
    assert follower.logs.messages.end_offset == 8


def test_messages_of_an_earlier_leader_are_kept_before_complete_frames() -> None:
    follower = follower_with([frame(0)])
    assert give(follower, [frame(2)]) == []
    assert follower.logs.messages.end_offset == 4


def test_an_empty_log_takes_removed_rows() -> None:
    follower = follower_with([])
    assert give(follower, [frame(0, removed=[0])]) == []
    assert give(follower, [frame(2, removed=[0])]) == []
    assert follower.logs.messages.end_offset == 4


def test_messages_repaired_from_another_replica_are_dropped_before_removed_rows() -> None:
    follower = follower_with([])
    give(follower, [frame(0)])
    follower.on_messages_repaired()
    assert give(follower, [frame(2, removed=[0])]) == [0]
    assert follower.logs.messages.end_offset == 0
