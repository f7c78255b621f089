"""Events that cannot be read are told where they are missed, by every reader of the log."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.broker.events.index_blocks import UnreadableEvents, events_between
from goq.broker.events.replay import LostEvents, read_events, rebuild, replay
from goq.delivery.events.event import Moved
from goq.delivery.events.frame_codec import StoredEvent, encode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.errors import StorageFailed
from goq.frame.header import HEADER_BYTES
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.reader import ReadResult
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import START_US, append

FOLDER = Path("/events")


class Events:
    """A log of events about message 0, some of whose frames are damaged."""

    def __init__(self, seed: int, *, segment_bytes: int = 10**6) -> None:
        chance, self.disk = Random(seed), SimulatedDisk()
        self.log = Log.open(FOLDER, self.disk, LogConfig(segment_bytes=segment_bytes))
        self.frames: list[tuple[int, int]] = []
        self.lanes: list[int] = []
        places = list[tuple[Path, int]]()
        for number in range(12):
            lanes = [chance.randrange(9) for _ in range(chance.randrange(1, 4))]
            view = encode_event_frame([Moved(0, lane) for lane in lanes], 1)
            start = append(self.log, [bytes(view.buffer)], time_us=START_US + number)
            self.frames.append((start, start + len(lanes)))
            self.lanes += lanes
            size_bytes = view.header.frame_bytes
            places.append((self.log.active.path, self.log.active.size_bytes - size_bytes))
        self.damaged = sorted(chance.sample(range(12), chance.randrange(4)))
        for number in self.damaged:
            path, position = places[number]
            self.disk.flip(path, position + HEADER_BYTES + 3, 1)
        self.bad = {offset for n in self.damaged for offset in range(*self.frames[n])}

    @property
    def end(self) -> int:
        return self.frames[-1][1]

    def runs(self) -> list[tuple[int, int]]:
        """Return the ranges of damaged events."""
        found = list[tuple[int, int]]()
        for number in self.damaged:
            start, end = self.frames[number]
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], end
            else:
                found.append((start, end))
        return found


@pytest.mark.parametrize("segment_bytes", [400, 10**6])
@pytest.mark.parametrize("seed", range(25))
def test_each_event_is_read_or_told_to_be_unreadable(seed: int, segment_bytes: int) -> None:
    events = Events(seed, segment_bytes=segment_bytes)
    read, missed = dict[int, int](), set[int]()
    for each in events_between(events.log.reader, 0, events.end):
        if isinstance(each, UnreadableEvents):
            assert each.sequence < each.end
            missed |= set(range(each.sequence, each.end))
        else:
            assert isinstance(each, StoredEvent)
            assert isinstance(each.event, Moved)
            read[each.sequence] = each.event.lane
    assert missed == events.bad
    assert read == {n: lane for n, lane in enumerate(events.lanes) if n not in events.bad}
    assert list(read) == sorted(read)


@pytest.mark.parametrize("seed", range(25))
def test_a_replay_applies_what_is_left_and_tells_what_is_lost_and_when(seed: int) -> None:
    events = Events(seed)
    found = list(read_events(events.log.reader, 0, events.end))
    assert (None in found) == bool(events.bad)
    state = PartitionState()
    state.extend_to(1)
    replayed = replay(events.log.reader, 0, events.end, state, is_whole=True)
    assert replayed is not None
    sound = [n for n in range(events.end) if n not in events.bad]
    assert state.moved == ({0: events.lanes[sound[-1]]} if sound else {})
    times_us = {n: START_US + place for place, run in enumerate(events.frames) for n in range(*run)}
    assert replayed.last_event_us == (times_us[sound[-1]] if sound else None)
    assert replayed.lost == [
        LostEvents(start, end, times_us.get(start - 1), times_us.get(end))
        for start, end in events.runs()
    ]


def test_a_part_of_a_log_is_no_whole_state_without_a_snapshot() -> None:
    events = Events(3)
    assert replay(events.log.reader, 0, events.end, PartitionState(), is_whole=False) is None


def test_what_the_log_lacks_for_the_stored_messages_is_repaired() -> None:
    events = Events(0)
    rebuilt = rebuild(events.log, start_offset=0, end_offset=5)
    assert (rebuilt.sequence, rebuilt.repairs) == (0, [])
    assert (rebuilt.state.start_offset, rebuilt.state.end_offset) == (0, 5)
    trimmed = rebuild(events.log, start_offset=3, end_offset=5)
    assert (trimmed.state.start_offset, trimmed.messages_offset) == (3, 3)
    cut = rebuild(events.log, start_offset=0, end_offset=0)
    assert [type(each).__name__ for each in cut.repairs] == ["Truncated"]
    assert cut.state.moved == {}


def test_a_log_that_cannot_be_read_any_further_is_told_with_the_event() -> None:
    events = Events(1)
    read, tries = events.log.reader.read, iter(range(3))

    def stuck_at_five(offset: int, *_: Any, **options: Any) -> ReadResult:
        return read(offset, 5, **options) if offset < 5 else ReadResult([], offset - next(tries))

    events.log.reader.read = stuck_at_five
    with pytest.raises(StorageFailed, match="from event 5 on"):
        list(read_events(events.log.reader, 0, events.end))
