"""How far a producer is, and its name at the time of a frame, from the events of that time."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition.producers import ProducerProgress, Producers, recorded_name
from goq.delivery.events.event import AnyEvent, Named, SnapshotProducers, Trimmed
from goq.delivery.events.frame_codec import encode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import FrameHeader
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append

PRODUCER, OTHER = 0x7000_0001, 0x7000_0002
NOISE = Trimmed(0)


def header(offset: int, time_us: int, producer_id: int = PRODUCER, count: int = 2) -> FrameHeader:
    """Return the header of a frame that a producer has published."""
    mark = ProducerMark(producer_id, 3, 1)
    view = FrameView.parse(encode_frame(Columns([b"v"] * count), producer=mark))
    return view.header._replace(base_offset=offset, append_time_us=time_us)


class Events:
    """A log of events; each frame says where the messages ended then."""

    def __init__(self) -> None:
        self.log = Log.open(Path("/t/0/events"), SimulatedDisk())

    def add(self, time_us: int, messages_end: int, *events: AnyEvent) -> None:
        view = encode_event_frame(events or (NOISE,), messages_end)
        append(self.log, [bytes(view.buffer)], time_us=time_us)

    def name(self, offset: int, time_us: int, producer_id: int = PRODUCER) -> str | None:
        return recorded_name(self.log.reader, header(offset, time_us, producer_id))


def test_the_name_is_the_last_one_that_was_recorded_by_the_end_of_the_frame() -> None:
    events = Events()
    events.add(10, 0)
    events.add(20, 12, Named(OTHER, "another"), Named(PRODUCER, "first"))
    events.add(30, 14, Named(PRODUCER, "second"))
    events.add(40, 30, Named(PRODUCER, "third"))
    assert events.name(10, 20) == "first"
    assert events.name(12, 30) == "second"
    assert events.name(20, 35) == "second"
    assert events.name(28, 40) == "third"
    assert events.name(10, 20, OTHER) == "another"
    assert events.name(10, 20, PRODUCER + 9) is None


def test_a_name_that_was_recorded_later_only_is_that_one() -> None:
    events = Events()
    events.add(10, 0)
    events.add(30, 20, Named(PRODUCER, "later"))
    assert events.name(10, 20) == "later"


def test_a_snapshot_repeats_the_names_of_several_producers() -> None:
    events = Events()
    events.add(10, 0)
    events.log.roll()
    names = [(OTHER, "another"), (PRODUCER, "repeated")]
    events.add(30, 12, SnapshotProducers([], names))
    assert events.name(10, 25) == "repeated"
    assert events.name(10, 25, OTHER) == "another"


@pytest.mark.parametrize("time_us", [5, 15, 25, 35, 1_000])
def test_where_the_messages_ended_decides_where_a_clock_was_set_back(time_us: int) -> None:
    events = Events()
    events.add(10, 0, Named(PRODUCER, "early"))
    events.log.roll()
    events.add(20, 90, Named(PRODUCER, "middle"))
    events.log.roll()
    events.add(30, 190, Named(PRODUCER, "late"))
    found = [events.name(offset, time_us) for offset in (87, 89, 90, 187, 190)]
    assert found == ["early", "early", "middle", "middle", "late"]


def test_a_producer_has_its_name_now_or_the_one_of_that_time_or_its_number() -> None:
    events, state = Events(), PartitionState()
    events.add(20, 12, Named(PRODUCER, "then"))
    producers = Producers(state, events.log)
    frame = header(10, 20)
    assert producers.name(frame) == "then"
    state.producer_names[PRODUCER] = "now"
    assert producers.name(frame) == "now"
    assert producers.name(header(10, 20, OTHER)) == "0000000070000002"
    assert producers.name(header(10, 20, 0)) is None
    elsewhere = Events()
    elsewhere.add(20, 12, Named(OTHER, "archived"))
    assert producers.name(header(10, 20, OTHER), elsewhere.log.reader) == "archived"


def test_a_producer_is_as_far_as_its_last_message() -> None:
    state = PartitionState()
    producers = Producers(state, Events().log)
    assert producers.progress(PRODUCER) is None
    state.producers.add(header(10, 20)._replace(first_sequence=1), 10, 20)
    found = producers.progress(PRODUCER)
    assert isinstance(found, ProducerProgress)
    assert (found.epoch, found.offset) == (3, 11)
    assert found.next_sequence == state.producers.progress(PRODUCER)[1]
