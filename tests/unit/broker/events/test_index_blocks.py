"""Blocks of the event index: what they cover, how they are found, and the file that stores them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import NamedTuple

import pytest
from crc32c import crc32c

from goq import limits
from goq.broker.events.index_blocks import (
    INTERVALS_MAX,
    BlockBuilder,
    EventIndexBlock,
    Interval,
    IntervalSet,
    SegmentEventIndex,
    build_blocks,
    merge_intervals,
)
from goq.delivery.events.affected import PendingCopies
from goq.delivery.events.event import (
    Acked,
    Cause,
    CopyQueued,
    CopyStored,
    GroupDeleted,
    Matured,
    Named,
    Trimmed,
    token_of,
)
from goq.delivery.events.frame_codec import encode_event_frame
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.disk import SimulatedDisk


class _Segment(NamedTuple):
    """The part of a segment that names the events of an index file."""

    base_offset: int
    end_offset: int
    size_bytes: int
    log_id: int = 2**64 - 7


SEGMENT = _Segment(100, 900, 4321)


def random_intervals(rng: random.Random) -> list[Interval]:
    starts = [rng.randrange(20_000) for _ in range(rng.randrange(1, 80))]
    return [(start, start + rng.randrange(1, 200)) for start in starts]


def covers(intervals: list[Interval], offset: int) -> bool:
    return any(start <= offset < end for start, end in intervals)


@pytest.mark.parametrize("count", [1, 48, 49, 500])
def test_many_ranges_of_one_event_are_all_covered(count: int) -> None:
    rng = random.Random(count)
    added = [(start, start + 3, 7) for start in rng.sample(range(0, 100_000, 200), count)]
    collected = IntervalSet()
    collected.add_all(added)
    found = collected.intervals()
    assert len(found) <= INTERVALS_MAX
    assert all(covers(found, at) for start, end, _ in added for at in range(start, end))


@pytest.mark.parametrize("seed", range(30))
def test_few_sorted_intervals_cover_all_that_was_added(seed: int) -> None:
    rng = random.Random(seed)
    added = random_intervals(rng)
    collected = IntervalSet()
    for start, end in added:
        collected.add(start, end)
    for found in (collected.intervals(), merge_intervals(added)):
        assert len(found) <= INTERVALS_MAX
        assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
        assert all(covers(found, start) and covers(found, end - 1) for start, end in added)
        assert found[0][0] == min(start for start, _ in added)
        assert found[-1][1] == max(end for _, end in added)


def test_the_smallest_gaps_are_closed_first() -> None:
    apart = [(0, 10), (1000, 1010), (1200, 1210), (5000, 5010), (5300, 5310), (9000, 9010)]
    assert merge_intervals(apart, 6) == apart
    assert merge_intervals(apart, 5) == [apart[0], (1000, 1210), *apart[3:]]
    assert merge_intervals(apart, 4) == [apart[0], (1000, 1210), (5000, 5310), apart[5]]
    assert merge_intervals(apart, 3) == [(0, 1210), (5000, 5310), apart[5]]
    assert merge_intervals([(0, 10), (74, 80)], 5) == [(0, 80)]
    assert merge_intervals([(0, 10), (75, 80)], 5) == [(0, 10), (75, 80)]


def test_an_interval_grows_to_both_sides_and_an_empty_set_has_none() -> None:
    collected = IntervalSet()
    assert collected.intervals() == []
    for start, end in ((500, 510), (400, 440), (570, 580), (10_000, 10_001)):
        collected.add(start, end)
    assert collected.intervals() == [(400, 580), (10_000, 10_001)]


def random_blocks(rng: random.Random) -> list[EventIndexBlock]:
    starts = sorted(rng.sample(range(SEGMENT.base_offset, SEGMENT.end_offset), 12))
    return [
        EventIndexBlock(
            start,
            rng.random() < 0.1,
            rng.choice([0, 10, 20, 30]),
            rng.choice([0, 10, 20, 30]),
            rng.choice([0, 10, 20, 30]),
            merge_intervals(random_intervals(rng)[:3]) if rng.random() < 0.8 else (),
        )
        for start in starts
    ]


def expected_ranges(blocks: list[EventIndexBlock], chosen: list[bool]) -> list[Interval]:
    """The sequences of chosen blocks one by one, those in a row together."""
    ends = [*(block.start for block in blocks[1:]), SEGMENT.end_offset]
    found: list[Interval] = []
    for block, end, is_chosen in zip(blocks, ends, chosen, strict=True):
        if is_chosen and found and found[-1][1] == block.start:
            found[-1] = (found[-1][0], end)
        elif is_chosen:
            found.append((block.start, end))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_lookup_finds_exactly_the_blocks_that_may_speak_of_a_message(seed: int) -> None:
    rng = random.Random(seed)
    blocks = random_blocks(rng)
    index = SegmentEventIndex.of(SEGMENT.base_offset, SEGMENT.end_offset, blocks)
    data = index.pack(SEGMENT)
    stored = SegmentEventIndex.unpack(data, SEGMENT)
    assert stored is not None
    bounds = {at for block in blocks for pair in block.intervals for at in pair}
    offsets = sorted(bounds | {at - 1 for at in bounds} | {0, 10, 20, 30, 40})
    summary = stored.summary()
    for which in (index, stored):
        for offset in offsets:
            named = [b.covers_all or covers(list(b.intervals), offset) for b in blocks]
            assert which.message_ranges(offset) == expected_ranges(blocks, named)
            assert not any(named) or summary.covers_all or covers([*summary.intervals], offset)
            trims = [b.covers_all or b.trimmed_to > offset for b in blocks]
            assert which.trim_ranges(offset) == expected_ranges(blocks, trims)
            for due_ms in (9, 10, 11, 30, 31):
                matures = [
                    b.covers_all or (b.matured_ms >= due_ms and b.matured_end > offset)
                    for b in blocks
                ]
                assert which.maturity_ranges(offset, due_ms) == expected_ranges(blocks, matures)
    assert summary[:5] == (
        SEGMENT.base_offset,
        any(b.covers_all for b in blocks),
        *(max(getattr(b, name) for b in blocks) for name in ("matured_ms", "matured_end")),
        max(b.trimmed_to for b in blocks),
    )


def test_touching_intervals_of_blocks_are_one_in_the_summary() -> None:
    blocks = [EventIndexBlock(100, intervals=[(0, 10), (500, 510)]), EventIndexBlock(200)]
    blocks.append(EventIndexBlock(300, intervals=[(10, 20), (505, 530)]))
    index = SegmentEventIndex.of(100, 900, blocks)
    assert index.summary().intervals == [(0, 20), (500, 530)]
    assert SegmentEventIndex.of(100, 900, []).summary() == EventIndexBlock(100)
    assert SegmentEventIndex.of(100, 900, blocks[1:2]).summary().intervals == []


@pytest.mark.parametrize("count", [0, 1, 12])
def test_a_file_that_is_damaged_or_of_another_segment_is_no_index(count: int) -> None:
    blocks = random_blocks(random.Random(3))[:count]
    packed = SegmentEventIndex.of(SEGMENT.base_offset, SEGMENT.end_offset, blocks)
    data = packed.pack(SEGMENT)

    def is_read(data: bytes, segment: _Segment = SEGMENT) -> bool:
        return SegmentEventIndex.unpack(data, segment) is not None

    def checked(body: bytes) -> bytes:
        return body + crc32c(body, SEGMENT.log_id % 2**32).to_bytes(8, "little")

    assert is_read(data)
    assert is_read(checked(data[:-8]))
    assert len(data) % 8 == 0
    for position in range(len(data)):
        for flip in (1, 0x80):
            assert not is_read(
                data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]
            )
    for length in range(len(data)):
        assert not is_read(data[:length])
        assert not is_read(checked(data[:length])) or length == len(data) - 8
    assert not is_read(checked(data[:-8] + bytes(8)))
    assert not is_read(checked(b"x" + data[1:-8]))
    for other in (SEGMENT._replace(base_offset=101), SEGMENT._replace(end_offset=901)):
        assert not is_read(data, other)
    assert not is_read(data, SEGMENT._replace(size_bytes=4322))
    assert not is_read(data, SEGMENT._replace(log_id=1))


def test_a_block_ends_with_the_frame_that_fills_it() -> None:
    builder = BlockBuilder(7, PendingCopies())
    assert builder.blocks() == [EventIndexBlock(7, False, 0, 0, 0, [])]
    builder.add(Acked("g", 1, [(5, 6)]), 1, 7)
    builder.end_frame(8, limits.EVENT_INDEX_BLOCK_BYTES - 1)
    builder.add(Acked("g", 1, [(900, 905)]), 1, 8)
    builder.add(Matured(50, 60), 1, 9)
    builder.add(Matured(40, 70), 1, 10)
    builder.add(Trimmed(4), 1, 11)
    builder.end_frame(12, 1)
    first = EventIndexBlock(7, False, 50, 70, 4, [(5, 6), (900, 905)])
    assert builder.blocks() == [first, EventIndexBlock(12, intervals=[])]
    builder.add(GroupDeleted("g"), 1, 12)
    builder.end_frame(13, limits.EVENT_INDEX_BLOCK_BYTES - 1)
    assert builder.blocks() == [first, EventIndexBlock(12, True, intervals=[])]
    builder.end_frame(14, 1)
    builder.add(Named(0, "p"), 1, 14)
    assert builder.blocks()[2:] == [EventIndexBlock(14, intervals=[])]


def test_blocks_that_are_built_from_a_log_end_after_a_number_of_events() -> None:
    log = Log.open(Path("/events"), SimulatedDisk(), LogConfig(2**62, 2**62))
    for number in range(150):
        view = encode_event_frame([Acked("g", 1, [(number, number + 1)])])
        batch = log.begin(1_000_000 + number)
        batch.add(view.header, view.body, append_time_us=1_000_000 + number, leader_epoch=1)
        log.write(batch)
        log.commit(batch)
    blocks = build_blocks(log.reader, 0, 150)
    assert [each.start for each in blocks] == [0, 64, 128]
    assert [each.intervals for each in blocks] == [[(0, 64)], [(64, 128)], [(128, 150)]]


def test_a_stored_copy_is_about_the_messages_of_its_entry_if_that_was_seen() -> None:
    builder = BlockBuilder(0, PendingCopies())
    builder.add(CopyQueued("g", 1, [(5, 9, 1)], Cause.REJECTED, "", 0, "t.dlq", 0, 1), 3, 0)
    builder.end_frame(1, limits.EVENT_INDEX_BLOCK_BYTES)
    builder.add(CopyStored(token_of(3, 0), 0), 3, 1)
    builder.end_frame(2, limits.EVENT_INDEX_BLOCK_BYTES)
    builder.add(CopyStored(token_of(3, 0), 0), 3, 2)
    assert [(b.covers_all, b.intervals) for b in builder.blocks()] == [
        (False, [(5, 9)]),
        (False, [(5, 9)]),
        (True, []),
    ]
