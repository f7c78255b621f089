"""A replica has the same bytes in the same segments, and epochs say where two logs part."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from goq.errors import InvalidFrame
from goq.frame.view import FrameView
from goq.storage.disk import RealDisk
from goq.storage.log.leader_epochs import NO_EPOCH, EpochEnd, epoch_end, last_epoch
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.replicated import append_replicated
from tests.support.broker.harness import frame

FOLLOWING = LogConfig(2**62, 2**62)


def _append(log: Log, epoch: int, *values: bytes, time_us: int = 5) -> None:
    batch = log.begin(time_us)
    view = frame(*values)
    batch.add(view.header, view.body, append_time_us=time_us, leader_epoch=epoch)
    log.write(batch)
    log.commit(batch)


def _copy(source: Log, target: Log, bytes_max: int) -> None:
    """Bring a replica up to its leader as a follower does, in pieces of one segment each."""
    while target.end_offset < source.end_offset:
        number = max(n for n, s in enumerate(source.segments) if s.base_offset <= target.end_offset)
        segment = source.segments[number]
        reading = source.reader.read(target.end_offset, segment.end_offset, bytes_max=bytes_max)
        append_replicated(target, reading.frames, segment.base_offset)


def _bytes_of(log: Log) -> list[tuple[int, bytes]]:
    return [(s.base_offset, s.path.read_bytes()) for s in log.segments]


@pytest.mark.parametrize("bytes_max", [1, 500, 2**20])
def test_a_replica_has_the_same_bytes_in_the_same_segments(tmp_path: Path, bytes_max: int) -> None:
    leader = Log.open(tmp_path / "a", RealDisk(), LogConfig(segment_bytes=1000))
    for number in range(40):
        _append(leader, number // 7, b"%d" % number * (number % 5), b"x", time_us=1000 - number)
    assert len(leader.segments) > 3
    follower = Log.open(tmp_path / "b", RealDisk(), FOLLOWING)
    _copy(leader, follower, bytes_max)
    assert _bytes_of(follower) == _bytes_of(leader)
    assert [s.time_us for s in follower.segments] == [s.time_us for s in leader.segments]
    follower.close()
    again = Log.open(tmp_path / "b", RealDisk(), FOLLOWING)
    assert again.end_offset == leader.end_offset
    assert not again.damage
    _append(leader, 9, b"more")
    _copy(leader, again, bytes_max)
    assert _bytes_of(again) == _bytes_of(leader)


def test_a_replica_that_begins_where_retention_left_off_has_the_same_segments(
    tmp_path: Path,
) -> None:
    leader = Log.open(tmp_path / "a", RealDisk(), LogConfig(segment_bytes=300))
    for number in range(20):
        _append(leader, 1, b"%d" % number)
    leader.remove(leader.detach_before(leader.segments[3].base_offset))
    follower = Log.open(tmp_path / "b", RealDisk(), FOLLOWING, base_offset=leader.start_offset)
    _copy(leader, follower, 2**20)
    assert _bytes_of(follower) == _bytes_of(leader)


def test_frames_that_do_not_follow_are_refused_and_change_nothing(tmp_path: Path) -> None:
    leader = Log.open(tmp_path / "a", RealDisk())
    for number in range(4):
        _append(leader, 1, b"%d" % number)
    frames = leader.reader.read(0, 4).frames
    follower = Log.open(tmp_path / "b", RealDisk(), FOLLOWING)
    append_replicated(follower, frames[:1], 0)
    for wrong in (frames[2:], frames[:1], [frames[1], frames[3]]):
        with pytest.raises(InvalidFrame, match="cannot follow"):
            append_replicated(follower, wrong, 0)
    append_replicated(follower, frames[1:], 0)
    assert _bytes_of(follower) == _bytes_of(leader)


def test_the_end_of_an_epoch_is_found_as_by_looking_at_every_frame(tmp_path: Path) -> None:
    rng = random.Random(4)
    for number in range(12):
        config = LogConfig(segment_bytes=rng.choice([200, 2**20]))
        log = Log.open(tmp_path / str(number), RealDisk(), config)
        epoch, ends = rng.randrange(3), dict[int, int]()
        for _ in range(rng.randrange(30)):
            epoch += rng.choice([0, 0, 0, 1, 2])
            _append(log, epoch, *[b"v"] * rng.randrange(1, 9))
            ends[epoch] = log.end_offset
        assert last_epoch(log.reader, log.end_offset) == max(ends, default=NO_EPOCH)
        for asked in range(-1, epoch + 3):
            known = [e for e in ends if e <= asked]
            expected = EpochEnd(max(known), ends[max(known)]) if known else EpochEnd(NO_EPOCH, 0)
            assert epoch_end(log.reader, asked, log.end_offset) == expected
        log.close()


def test_the_end_of_an_epoch_is_found_beside_damage(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "a", RealDisk())
    for number in range(9):
        _append(log, number // 3, b"value %d" % number)
    path = log.active.path
    data = bytearray(path.read_bytes())
    data[_positions(data)[4] + 70] ^= 1
    path.write_bytes(data)
    assert epoch_end(log.reader, 0, 9) == EpochEnd(0, 3)
    assert epoch_end(log.reader, 1, 9) == EpochEnd(1, 6)
    assert epoch_end(log.reader, 5, 9) == EpochEnd(2, 9)


def _positions(data: bytes | bytearray) -> list[int]:
    found, position = [], 0
    while position < len(data):
        found.append(position)
        position += FrameView.parse(bytes(data), position).header.frame_bytes
    return found
