"""The latest batches of logs: without a gap, in one segment, within their bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from goq.broker.log.recent_batches import BATCH_BYTES, RecentBatches, RecentBatchPool

SIZE = 100
KEPT = SIZE + BATCH_BYTES


def batch(start: int, end: int, *, base: int = 0, size_bytes: int = SIZE) -> Any:
    half = bytes([start % 256]) * (size_bytes // 2)
    return SimpleNamespace(
        start_offset=start,
        end_offset=end,
        size_bytes=size_bytes,
        buffers=[memoryview(half), memoryview(half)],
        segment=SimpleNamespace(base_offset=base),
    )


def starts(log: RecentBatches, offset: int) -> list[int]:
    return [each.start_offset for each in log.after(offset)]


def test_batches_are_found_in_their_order_from_one_that_begins_there() -> None:
    log = RecentBatchPool().of_log()
    assert log.after(0) == []
    for start in (4, 6, 8):
        assert log.add(batch(start, start + 2))
    assert [starts(log, offset) for offset in (4, 6, 8)] == [[4, 6, 8], [6, 8], [8]]
    assert [starts(log, offset) for offset in (0, 3, 5, 7, 9, 10)] == [[]] * 6
    [last] = log.after(8)
    assert (last.segment_base, last.end_offset, bytes(last.data)) == (0, 10, b"\x08" * SIZE)


def test_batches_of_the_next_segment_are_found_from_its_begin_alone() -> None:
    log = RecentBatchPool().of_log()
    log.add(batch(0, 2))
    log.add(batch(2, 4, base=2))
    log.add(batch(4, 6, base=2))
    assert [starts(log, offset) for offset in (0, 2, 4)] == [[0], [2, 4], [4]]


def test_a_gap_forgets_what_was_before_it() -> None:
    log = RecentBatchPool().of_log()
    log.add(batch(0, 2))
    log.add(batch(4, 6))
    assert [starts(log, offset) for offset in (0, 4)] == [[], [4]]
    assert log.size_bytes == KEPT


def test_a_log_keeps_what_fits_and_forgets_its_first_batches() -> None:
    pool = RecentBatchPool(log_bytes_max=2 * KEPT)
    log = pool.of_log()
    for start in (0, 2, 4):
        log.add(batch(start, start + 2))
    assert [starts(log, offset) for offset in (0, 2)] == [[], [2, 4]]
    assert log.size_bytes == pool.size_bytes == 2 * KEPT


def test_a_batch_that_is_too_large_is_not_kept_and_breaks_the_row() -> None:
    pool = RecentBatchPool(log_bytes_max=KEPT)
    log = pool.of_log()
    assert log.add(batch(0, 2))
    assert not log.add(batch(2, 4, size_bytes=SIZE + 2))
    assert (log.after(0), log.size_bytes, pool.size_bytes) == ([], 0, 0)
    assert log.add(batch(4, 6))
    assert starts(log, 4) == [4]


def test_all_logs_together_keep_what_fits_and_the_one_written_least_recently_goes() -> None:
    pool = RecentBatchPool(bytes_max=2 * KEPT)
    first, second, third = (pool.of_log() for _ in range(3))
    first.add(batch(0, 1))
    second.add(batch(0, 1))
    first.clear()
    first.add(batch(0, 1))
    third.add(batch(0, 1))
    assert [starts(log, 0) for log in (first, second, third)] == [[0], [], [0]]
    assert pool.size_bytes == 2 * KEPT


def test_a_log_that_is_cleared_takes_no_room() -> None:
    pool = RecentBatchPool()
    log = pool.of_log()
    log.add(batch(0, 1))
    log.clear()
    log.clear()
    assert (pool.size_bytes, log.size_bytes, log.after(0)) == (0, 0, [])
