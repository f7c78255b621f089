"""What a follower keeps of its log: before removed rows, and where its leader has other frames."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path
from random import Random

import pytest

from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.follower import FollowerReplica, LogLock, parse_frames
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate, Position
from goq.cluster.replication.repair.lost_gaps import LostGaps
from goq.delivery.events.event import GroupDeleted, Named, Trimmed
from goq.delivery.events.frame_codec import encode_event_frame
from goq.errors import InvalidFrame, StorageFull
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.disk import RealDisk
from goq.storage.disk_space import DiskSpace
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap
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
    return Log.open(Path("/data/anew"), SimulatedDisk(Random(2)), base_offset=offset)


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


def diverge(follower: FollowerReplica, at: int, epoch: int, *, start: int = 0) -> None:
    """Tell a follower that its leader's log is another from an offset on."""
    update = LogUpdate(start, start, 0, diverges_at=at, epoch=epoch)
    follower.apply(PartitionUpdate(KEY, 2, LogOffsets(0, 0), update, None), memoryview(b""))


def test_what_its_leader_does_not_have_is_truncated_down_to_what_is_safe() -> None:
    follower = follower_with([frame(0), frame(2), frame(4)])
    follower.high_watermark = LogOffsets(2, 0)
    diverge(follower, 4, 1)
    assert follower.position.ends == LogOffsets(4, 0)
    assert follower.position.epochs == LogOffsets(1, -1)
    diverge(follower, 2, 1)
    assert follower.position.ends == LogOffsets(2, 0)
    with pytest.raises(InvalidFrame):
        diverge(follower, 0, 1)
    assert follower.position.ends == LogOffsets(2, 0)


def test_frames_of_an_epoch_that_its_leader_never_had_are_truncated() -> None:
    follower = follower_with([frame(0), frame(2)])
    diverge(follower, 99, 0)
    assert follower.position.ends == LogOffsets(0, 0)
    assert follower.position.epochs == LogOffsets(-1, -1)


def test_a_log_of_which_its_leader_has_nothing_begins_anew_and_is_lost_nowhere() -> None:
    lost = LostGaps()
    earlier = follower_with([frame(0), frame(2)])
    follower = FollowerReplica(KEY, 2, earlier.logs, reopen, lost)
    lost.add(0, Gap(0, 2))
    lost.add(1, Gap(0, 2))
    diverge(follower, 0, 1)
    assert follower.position == Position(KEY, 2, LogOffsets(0, 0), LogOffsets(-1, -1))
    assert follower.logs.messages.directory == Path("/data/anew")
    assert not lost.cover(0, 0, 2)
    assert lost.cover(1, 0, 2)
    assert give(follower, [frame(0, removed=[0])]) == []
    assert follower.position.ends == LogOffsets(2, 0)


def test_a_log_that_ends_before_its_leaders_log_begins_continues_there() -> None:
    follower = follower_with([frame(0)])
    update = LogUpdate(6, 6, 0)
    whole = PartitionUpdate(KEY, 2, LogOffsets(0, 0), update, None)
    assert follower.truncated_logs(whole, memoryview(b"")) == [0]
    follower.apply(whole, memoryview(b""))
    assert (follower.logs.messages.start_offset, follower.logs.messages.end_offset) == (6, 6)


def test_an_update_of_another_leadership_changes_nothing() -> None:
    follower = follower_with([frame(0)])
    late = PartitionUpdate(
        KEY, 1, LogOffsets(9, 9), LogUpdate(6, 6, 0, diverges_at=0, rewrites=4), None
    )
    before = follower.position
    assert follower.truncated_logs(late, memoryview(b"")) == []
    follower.apply(late, memoryview(b""))
    assert (follower.position, follower.high_watermark) == (before, LogOffsets(0, 0))


def test_what_is_safe_never_becomes_less() -> None:
    follower = follower_with([frame(0)])
    for told, known in (((2, 0), (2, 0)), ((1, 3), (2, 3)), ((0, 0), (2, 3))):
        nothing = LogUpdate(0, 0, 0)
        update = PartitionUpdate(KEY, 2, LogOffsets(*told), nothing, nothing)
        follower.apply(update, memoryview(b""))
        assert follower.high_watermark == known


def test_segments_that_its_leader_deleted_are_deleted_oldest_first_but_never_the_last() -> None:
    follower = follower_with([frame(0)])
    messages = follower.logs.messages
    messages.roll()
    give(follower, [frame(2)])
    assert follower.expired_segment() is None
    follower.note_bounds(
        PartitionUpdate(KEY, 2, LogOffsets(0, 0), LogUpdate(0, 1, 0), LogUpdate(0, 0, 0))
    )
    assert follower.expired_segment() is None
    for start in (2, 4):
        update = PartitionUpdate(KEY, 2, LogOffsets(0, 0), LogUpdate(start, start, 0), None)
        follower.note_bounds(update)
        expired = follower.expired_segment()
        if expired is not None:
            follower.delete_segment(*expired)
            follower.delete_segment(*expired)
        assert (messages.start_offset, messages.end_offset) == (2, 4)
    follower.delete_segment(0, messages.active)
    assert (messages.start_offset, messages.end_offset) == (2, 4)


def test_frames_that_are_cut_off_damaged_or_missing_are_refused() -> None:
    whole = frame(0)
    assert [view.header.base_offset for view in parse_frames(memoryview(whole + frame(2)))] == [
        0,
        2,
    ]
    damaged = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    for data in (b"", whole[:-8], whole + whole[:20], damaged):
        with pytest.raises(InvalidFrame):
            parse_frames(memoryview(data))


def test_what_changes_a_log_waits_for_what_changes_it_and_goes_on_though_its_caller_leaves() -> (
    None
):
    async def run() -> None:
        lock, may_end = LogLock(), asyncio.Event()
        done: list[str] = []

        async def work(name: str) -> None:
            done.append(f"{name} begins")
            await may_end.wait()
            done.append(f"{name} ends")

        first, second = (
            asyncio.ensure_future(lock.run(partial(work, name))) for name in ("first", "second")
        )
        for _ in range(3):
            await asyncio.sleep(0)
        assert done == ["first begins"]
        assert not lock.try_acquire()
        first.cancel()
        may_end.set()
        await second
        assert done == ["first begins", "first ends", "second begins", "second ends"]
        await asyncio.sleep(0)
        assert lock.try_acquire()
        lock.release()
        assert lock.try_acquire()

    asyncio.run(run())


def test_what_the_leader_has_rewritten_is_noted_with_frames_and_not_where_logs_differ() -> None:
    follower = follower_with([frame(0), frame(2)])
    assert follower.position.rewrites == -1
    update = LogUpdate(0, 0, 0, rewrites=5)
    follower.note_bounds(PartitionUpdate(KEY, 2, LogOffsets(0, 0), update, None))
    assert follower.position.rewrites == 5
    update = LogUpdate(0, 0, 0, rewrites=6, diverges_at=2, epoch=1)
    follower.apply(PartitionUpdate(KEY, 2, LogOffsets(0, 0), update, None), memoryview(b""))
    assert (follower.position.ends.messages, follower.position.rewrites) == (2, 5)


def test_only_the_oldest_segment_is_deleted_and_never_the_one_that_is_written() -> None:
    follower = follower_with([frame(0)])
    log = follower.logs.messages
    for _ in range(2):
        log.roll()
        give(follower, [frame(log.end_offset)], epoch=2)
    first, second, active = log.segments
    for segment in (second, active):
        follower.delete_segment(0, segment)
    assert log.segments[0] is first
    for segment in (first, first, second, active):
        follower.delete_segment(0, segment)
    assert list(log.segments) == [active]


def test_files_that_could_not_be_removed_are_known_until_they_are() -> None:
    follower = follower_with([frame(0)])
    log = follower.logs.messages
    disk = log.reader.disk
    assert isinstance(disk, SimulatedDisk)
    log.roll()
    give(follower, [frame(log.end_offset)], epoch=2)
    first = log.segments[0]
    disk.fault = lambda operation, _path: errno.EMFILE if operation == "remove" else None
    with pytest.raises(OSError, match="Too many open files"):
        follower.delete_segment(0, first)
    assert log.segments[0] is not first
    assert follower.has_detached
    disk.fault = lambda _operation, _path: None
    assert first.path in disk.paths()
    follower.remove_detached()
    assert not follower.has_detached
    assert first.path not in disk.paths()


def test_what_begins_anew_is_told_before_as_a_log_that_may_lose_segments() -> None:
    rows = [frame(2, removed=[0])]
    assert give(follower_with([frame(0)]), rows) == [0]
    assert give(follower_with([]), [frame(0, removed=[0])]) == []
    assert give(follower_with([frame(0)]), [frame(2)]) == []


def test_a_full_disk_takes_the_events_without_which_no_replica_could_make_room(
    tmp_path: Path,
) -> None:
    space = DiskSpace(tmp_path)
    disk = RealDisk(space=space)
    logs = PartitionLogs(*(Log.open(tmp_path / name, disk) for name in ("messages", "events")))
    follower = FollowerReplica(KEY, 1, logs, reopen)
    space.is_given_up = True
    for event, is_taken in (
        (Named(1, "shop"), False),
        (Trimmed(0), True),
        (GroupDeleted("g"), True),
    ):
        before = logs.events.end_offset
        view = encode_event_frame([event])
        header = view.header._replace(base_offset=before, append_time_us=1, leader_epoch=1)
        both = (frame(0), header.pack() + view.body)
        updates = (LogUpdate(0, 0, len(each)) for each in both)
        with pytest.raises(StorageFull):
            follower.apply(
                PartitionUpdate(KEY, 1, LogOffsets(0, 0), *updates), memoryview(b"".join(both))
            )
        assert (logs.messages.end_offset, logs.events.end_offset) == (0, before + is_taken)
