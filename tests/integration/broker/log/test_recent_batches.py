"""The latest batches of a log in memory: what follows an offset without a gap, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.log.recent_batches import BATCH_BYTES, RecentBatches, RecentBatchPool
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import WriteBatch
from tests.support.storage.logs import START_US, frame_of

FRAME = frame_of([bytes(1000)] * 10)
SIZE = len(FRAME) + BATCH_BYTES


class _Written:
    """A log, and what is kept of it."""

    def __init__(self, directory: Path, recent: RecentBatches, segment_bytes: int = 2**20) -> None:
        self.log = Log.open(directory, RealDisk(), LogConfig(segment_bytes=segment_bytes))
        self.recent = recent

    def write(self, frames: int = 1, *, is_kept: bool = True) -> WriteBatch:
        batch = self.log.begin(START_US)
        for _ in range(frames):
            body = memoryview(FRAME)[HEADER_BYTES:]
            batch.add(parse_header(FRAME), body, append_time_us=START_US, leader_epoch=1)
        self.log.write(batch)
        self.log.commit(batch)
        if is_kept:
            self.recent.add(batch)
        return batch

    def kept_after(self, offset: int) -> bytes:
        return b"".join(batch.data for batch in self.recent.after(offset))

    def in_file_after(self, offset: int) -> bytes:
        reading = self.log.reader.read(offset, self.log.end_offset, bytes_max=2**20)
        return b"".join(view.buffer for view in reading.frames)


@pytest.fixture
def pool() -> RecentBatchPool:
    return RecentBatchPool(bytes_max=10 * SIZE, log_bytes_max=4 * SIZE)


def test_what_follows_an_offset_is_what_the_file_has(tmp_path: Path, pool: RecentBatchPool) -> None:
    written = _Written(tmp_path, pool.of_log())
    for frames in (1, 2, 1):
        written.write(frames)
    for offset in (0, 10, 30):
        assert written.kept_after(offset) == written.in_file_after(offset)
    for offset in (5, 20, 40):  # within a batch, or behind all
        assert written.kept_after(offset) == b""


@pytest.mark.parametrize("batches", [4, 5])
def test_the_oldest_batches_of_a_log_go_when_there_are_too_many_bytes(
    tmp_path: Path, pool: RecentBatchPool, batches: int
) -> None:
    written = _Written(tmp_path, pool.of_log())
    for _ in range(batches):
        written.write()
    assert len(written.kept_after(0)) == (4 * len(FRAME) if batches == 4 else 0)
    assert written.kept_after(10 * (batches - 4)) == written.in_file_after(10 * (batches - 4))
    assert pool.size_bytes == 4 * SIZE


@pytest.mark.parametrize("frames", [4, 5])
def test_a_batch_that_is_too_large_is_only_in_the_file(
    tmp_path: Path, pool: RecentBatchPool, frames: int
) -> None:
    written = _Written(tmp_path, pool.of_log())
    written.write()
    written.write(frames)
    assert len(written.kept_after(10)) == (4 * len(FRAME) if frames == 4 else 0)
    assert written.kept_after(0) == b""
    written.write()
    assert len(written.kept_after(10 + 10 * frames)) == len(FRAME)


def test_a_batch_that_was_not_kept_leaves_no_gap(tmp_path: Path, pool: RecentBatchPool) -> None:
    written = _Written(tmp_path, pool.of_log())
    written.write()
    written.write(is_kept=False)
    written.write()
    assert written.kept_after(0) == b""
    assert written.kept_after(20) == written.in_file_after(20)


def test_the_batches_after_an_offset_are_of_one_segment(
    tmp_path: Path, pool: RecentBatchPool
) -> None:
    written = _Written(tmp_path, pool.of_log(), segment_bytes=2 * len(FRAME))
    bases = [written.write().segment.base_offset for _ in range(3)]
    assert bases == [0, 0, 20]
    assert [batch.end_offset for batch in written.recent.after(0)] == [10, 20]
    assert [batch.segment_base for batch in written.recent.after(20)] == [20]


@pytest.mark.parametrize("logs", [2, 3])
def test_the_log_that_was_written_least_recently_gives_way(
    tmp_path: Path, pool: RecentBatchPool, logs: int
) -> None:
    all_written = [_Written(tmp_path / str(n), pool.of_log()) for n in range(logs)]
    for written in all_written:
        for _ in range(4):
            written.write()
    kept = [len(written.kept_after(0)) // len(FRAME) for written in all_written]
    assert kept == ([4, 4] if logs == 2 else [0, 4, 4])
    assert pool.size_bytes == 8 * SIZE
    for written in all_written:
        written.recent.clear()
    assert pool.size_bytes == 0
