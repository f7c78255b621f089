"""Finding a place: the index against plain lists, and the cost of reading an old one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq import limits
from goq.broker.retention.retention_policy import retained_from
from goq.config.topic import TopicSettings
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of

FRAME = frame_of([bytes(100)] * 10)


@st.composite
def entries(draw: st.DrawFn) -> list[IndexEntry]:
    found = [IndexEntry(draw(st.integers(0, 2**40)), 0, draw(st.integers(0, 2**50)))]
    for _ in range(draw(st.integers(0, 30))):
        offset, position, time_us = found[-1][:3]
        found.append(
            IndexEntry(
                offset + draw(st.integers(1, 100)),
                position + draw(st.integers(1, 3 * limits.INDEX_INTERVAL_BYTES)),
                time_us + draw(st.integers(0, 5)),
            )
        )
    return found


@settings(deadline=None)
@given(entries(), st.data())
def test_an_index_finds_what_a_list_finds(
    all_entries: list[IndexEntry], data: st.DataObject
) -> None:
    index, kept = SparseIndex(), list[IndexEntry]()
    for entry in all_entries:
        index.add(entry)
        if not kept or entry.position - kept[-1].position >= limits.INDEX_INTERVAL_BYTES:
            kept.append(entry)
    assert (len(index), index.first(), index.last()) == (len(kept), kept[0], kept[-1])
    first, last = all_entries[0], all_entries[-1]
    offset = data.draw(st.integers(first.offset, last.offset + 10))
    assert index.before_offset(offset) == [e for e in kept if e.offset <= offset][-1]
    time_us = data.draw(st.integers(first.time_us, last.time_us + 10))
    earlier = [e for e in kept if e.time_us < time_us]
    assert index.before_time(time_us) == (earlier[-1] if earlier else kept[0])
    again = SparseIndex.unpack(index.pack(last, 7), 7)
    assert again is not None
    assert SparseIndex.unpack(index.pack(last, 7), 8) is None
    assert again.last() == last
    assert again.before_offset(offset).offset <= offset


@pytest.mark.parametrize("data", [b"", b"x", bytes(16), bytes(100)])
def test_bytes_that_are_no_index_are_none(data: bytes) -> None:
    assert SparseIndex.unpack(data, 7) is None


def test_reading_an_old_place_costs_no_more_than_reading_a_new_one() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=limits.MIB))
    for _ in range(400):
        append(log, [FRAME] * 10)
    log.reader.offset_for_time(0, log.end_offset)
    costs = []
    for offset in range(0, log.end_offset, 97):
        before = disk.bytes_read
        reading = log.reader.read(offset, log.end_offset, messages_max=1)
        assert reading.frames[0].header.base_offset == offset // 10 * 10
        costs.append(disk.bytes_read - before)
    assert len(log.segments) > 3
    assert max(costs) <= 4 * limits.INDEX_INTERVAL_BYTES


def test_an_index_up_to_a_checkpoint_is_the_stored_one_only_if_that_ends_there() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    frame = frame_of([bytes(1000)])
    for number in range(30):
        append(log, [frame], time_us=number)
    log.roll()
    segment = log.segments[0]
    size_bytes = segment.size_bytes // 30
    for frames in (9, 30):
        before = disk.bytes_read
        found = segment.index_up_to(disk, frames * size_bytes, time_before_us=0)
        last = found.last()
        assert (last.position, last.offset) == (frames * size_bytes, frames)
        is_stored = disk.bytes_read - before < 2 * size_bytes
        assert is_stored is (frames == 30)


def test_a_reading_keeps_to_its_bounds() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk())
    for _ in range(20):
        append(log, [FRAME])
    read = log.reader.read
    assert len(read(0, 200, messages_max=25).frames) == 3
    assert len(read(0, 200, bytes_max=1).frames) == 1
    assert len(read(0, 200, bytes_max=2 * len(FRAME)).frames) == 2
    assert len(read(0, 15).frames) == 2
    assert read(0, 15).next_offset == 20
    assert read(55, 60).frames[0].header.base_offset == 50
    assert read(200, 200).frames == read(300, 200).frames == []
    assert read(-5, 10).next_offset == 10


def test_retention_keeps_what_it_should() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=1))
    for second in range(5):
        append(log, [FRAME], time_us=second * 1_000_000)
    day = 86_400_000_000

    def kept(now_us: int, **settings: int | None) -> int:
        chosen = {"retention_age_ms": None, "retention_bytes": None} | settings
        settings_of = TopicSettings(**chosen)
        return retained_from(log.segments, settings_of, now_us).offset

    assert kept(day) == 0
    assert kept(3_000_001, retention_age_ms=1000) == 30
    assert kept(3_000_000, retention_age_ms=1000) == 20
    assert kept(day, retention_age_ms=1000) == 40, "the active segment stays"
    assert kept(day, retention_bytes=3 * len(FRAME)) == 20
    assert kept(day, retention_bytes=3 * len(FRAME) - 1) == 30
    assert kept(day, retention_bytes=0) == 40


def test_times_before_a_segment_raise_the_earlier_times_of_its_index_alone() -> None:
    index = SparseIndex()
    for number, time_us in enumerate((10, 20, 30)):
        place = IndexEntry(number, number * limits.INDEX_INTERVAL_BYTES, time_us, time_us, time_us)
        index.add(place, always=True)
    index.raise_max_times(20)
    assert (index.first().time_us, index.last().time_us) == (20, 30)
    assert index.before_time(25).offset == 1
