"""What a trace reads: copies by their sequence numbers, and messages in their frames."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.broker.events.index import EventIndex
from goq.broker.events.search import IndexedEventLog
from goq.broker.trace import sources
from goq.broker.trace.sources import (
    TraceSource,
    find_copy,
    find_frame,
    first_event,
    last_time_us,
)
from goq.delivery.events.event import Moved
from goq.delivery.events.frame_codec import encode_event_frame
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES
from goq.index_cache import IndexCache
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of

COPIER, OTHER = 7, 8


def copies(first_sequence: int, count: int, producer_id: int = COPIER) -> bytes:
    mark = ProducerMark(producer_id, 1, first_sequence)
    return encode_frame(Columns([b"v"] * count), producer=mark)


@pytest.mark.parametrize("seed", range(25))
def test_a_copy_is_found_by_its_place_behind_the_first_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    monkeypatch.setattr(sources.limits, "READ_MESSAGES_MAX", chance.choice([1, 5, 1000]))
    monkeypatch.setattr(sources, "_READINGS_MAX", 1000)
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=chance.choice([400, 10**6])))
    places, sequences = list[int](), {COPIER: 5, OTHER: 3}
    for _ in range(25):
        count = chance.randrange(1, 4)
        producer_id = chance.choice([COPIER, COPIER, OTHER, 0])
        if producer_id:
            offset = append(log, [copies(sequences[producer_id], count, producer_id)])
            sequences[producer_id] += count
        else:
            offset = append(log, [frame_of([b"v"] * count)])
        if producer_id == COPIER:
            places += range(offset, offset + count)
    other = Log.open(Path("/other"), SimulatedDisk())
    append(other, [frame_of([b"v"])])
    log.remove(log.detach_before(places[0]))
    readers = [other.reader, log.reader] if places[0] else [log.reader]
    for first in range(0, len(places), 3):
        if places[first] == 0 and len(readers) > 1:
            continue
        for index in range(len(places) - first + 2):
            is_there = first + index < len(places)
            found = find_copy(readers, log.end_offset, places[first], index)
            assert found == (places[first + index] if is_there else None)
        if first + 4 < len(places):
            end = places[first + 4]
            assert find_copy(readers, end, places[first], 4) in (None, end)
            assert find_copy(readers, end, places[first], 0) == places[first]


def test_a_copy_behind_too_many_other_messages_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources.limits, "READ_MESSAGES_MAX", 1)
    log = Log.open(DIRECTORY, SimulatedDisk())
    append(log, [copies(0, 1), *[frame_of([b"v"])] * 6, copies(1, 1), copies(2, 1)])
    assert find_copy([log.reader], log.end_offset, 0, 1) == 7
    assert find_copy([log.reader], log.end_offset, 0, 2) is None
    assert find_copy([log.reader], log.end_offset, 99, 1) is None
    assert find_copy([], log.end_offset, 0, 1) is None


def damaged_log() -> tuple[Log, SimulatedDisk]:
    """Return a log of three frames, the second with a damaged body."""
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    first = frame_of([b"a"] * 2)
    append(log, [first, frame_of([b"b"] * 2), frame_of([b"c"])])
    disk.flip(log.active.path, len(first) + HEADER_BYTES, 1)
    return log, disk


def test_a_message_is_found_in_its_frame_or_told_to_be_damaged_or_gone() -> None:
    log, _ = damaged_log()
    nothing: Any = None
    source = TraceSource(log.reader, nothing, nothing)
    for offset, base in ((0, 0), (1, 0), (4, 4)):
        view, should_exist = find_frame(source, offset)
        assert should_exist
        assert view is not None
        assert view.header.base_offset == base
    for offset in (2, 3):
        assert find_frame(source, offset) == (None, True)
    for offset in (5, 99):
        assert find_frame(source, offset) == (None, False)


def test_retention_goes_by_the_newest_time_of_a_segment() -> None:
    log = Log.open(DIRECTORY, SimulatedDisk(), LogConfig(segment_bytes=300))
    for number in range(6):
        append(log, [frame_of([bytes(60)])], time_us=START_US + number)
    sealed = log.segments[0]
    assert sealed.end_offset > 1
    newest_us = START_US + sealed.end_offset - 1
    assert last_time_us(log.reader, 0, START_US) == newest_us
    assert last_time_us(log.reader, 0, newest_us + 9) == newest_us + 9
    assert last_time_us(log.reader, log.end_offset - 1, START_US + 5) == START_US + 5


def events_of(*offsets: int, directory: str) -> IndexedEventLog:
    disk = SimulatedDisk()
    log = Log.open(Path(directory), disk)
    for offset in offsets:
        append(log, [bytes(encode_event_frame([Moved(offset, 0)], 0).buffer)])
    return IndexedEventLog(log.reader, EventIndex(disk, log.reader, IndexCache()), {})


def test_the_first_event_is_that_of_the_first_log_that_has_any() -> None:
    empty, first, second = (
        events_of(directory="/a"),
        events_of(4, 5, directory="/b"),
        events_of(6, directory="/c"),
    )
    found = first_event([empty, first, second])
    assert found is not None
    assert found.event == Moved(4, 0)
    assert first_event([empty]) is None
    assert first_event([]) is None
