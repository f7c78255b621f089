"""Frames of events: what they say of the messages, and what is told of them without decoding."""

from __future__ import annotations

import pytest

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cause,
    CopyQueued,
    Failure,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotOutboxEntry,
    SnapshotProducers,
    SnapshotStarted,
    Trimmed,
)
from goq.delivery.events.frame_codec import (
    begins_snapshot,
    decode_event_frame,
    encode_event_frame,
    encode_weighed,
    event_weight,
    may_set_start,
    messages_end_of,
    snapshot_frames,
)
from goq.errors import InvalidFrame
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView

ACKED = Acked("g", 1, [(0, 5)])
STARTED = SnapshotStarted(0, 0, [])


@pytest.mark.parametrize("messages_end", [None, 0, 1, 2**40])
def test_events_come_back_with_their_numbers_and_the_end_of_the_messages(
    messages_end: int | None,
) -> None:
    events: list[AnyEvent] = [ACKED, Trimmed(7), ACKED]
    view = encode_event_frame(events, messages_end)
    header = view.header._replace(base_offset=10, leader_epoch=3, append_time_us=99)
    stored = decode_event_frame(FrameView(header, view.buffer))
    assert [each.event for each in stored] == events
    assert [each.sequence for each in stored] == [10, 11, 12]
    assert {(each.epoch, each.time_us) for each in stored} == {(3, 99)}
    assert {each.messages_end for each in stored} == {messages_end}
    assert messages_end_of(header) == messages_end
    assert (header.producer_id, header.producer_epoch) == (0, 0)


def test_frames_of_anything_else_are_refused() -> None:
    view = encode_event_frame([ACKED, ACKED])
    for header in (
        view.header._replace(message_count=1),
        view.header._replace(message_count=3),
        view.header._replace(attributes=0),
    ):
        with pytest.raises(InvalidFrame):
            decode_event_frame(FrameView(header, view.buffer))
    messages = FrameView.parse(encode_frame(Columns([b"a message"])))
    with pytest.raises(InvalidFrame):
        decode_event_frame(messages)


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_a_snapshot_and_a_new_start_are_told_without_decoding(count: int) -> None:
    others: list[AnyEvent] = [Acked("g", 1, [])] * (count - 1)
    assert begins_snapshot(encode_event_frame([STARTED, *others]).body)
    assert may_set_start(encode_event_frame([STARTED, *others]).body)
    assert may_set_start(encode_event_frame([*others, Trimmed(9)]).body)
    for events in ([ACKED, *others], [Trimmed(9), *others], [SnapshotEnded(), *others]):
        assert not begins_snapshot(encode_event_frame(events).body)
    assert not may_set_start(encode_event_frame([ACKED, *others]).body)
    if others:
        assert not begins_snapshot(encode_event_frame([*others, STARTED]).body)


FAILURE = Failure(1, "c", Cause.NACKED, "no")
QUEUED = CopyQueued("g", 0, [(0, 1, 1), (3, 4, 1)], Cause.NACKED, "", 0, "t", 1, 0)
WEIGHTS: list[tuple[AnyEvent, int]] = [
    (STARTED, 1),
    (SnapshotGroup("g", 0), 1),
    (SnapshotGroup("g", 0, leases=[(1, "c", [])] * 2, retries=[(0, 1, 1, 0, 0)] * 3), 6),
    (SnapshotGroup("g", 0, partial=[(0, b"x")] * 2, failures=[(FAILURE,)]), 10),
    (SnapshotMarks(moved=[(1, 2)] * 2, rescheduled=[(1, 2)] * 3), 6),
    (SnapshotMarks(cancelled_partial=[(0, b"x")] * 2), 9),
    (SnapshotProducers([], [(1, "a"), (2, "b")]), 3),
    (SnapshotOutboxEntry(1, 0, QUEUED, [(0, 1, (FAILURE,) * 3), (3, 4, (FAILURE,))]), 7),
]


@pytest.mark.parametrize(("event", "weight"), WEIGHTS)
def test_an_event_weighs_as_many_entries_as_it_has(event: AnyEvent, weight: int) -> None:
    assert event_weight(event) == weight


@pytest.mark.parametrize(
    ("weight_max", "counts"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (6, [5]), (3, [3, 2])]
)
def test_a_snapshot_is_cut_where_a_frame_has_its_weight(weight_max: int, counts: list[int]) -> None:
    events: list[AnyEvent] = [STARTED, *(Trimmed(number) for number in range(4))]
    weighed = list(snapshot_frames(map(encode_weighed, events), weight_max, 8))
    assert [weight for _, weight in weighed] == counts
    frames = [frame for frame, _ in weighed]
    assert [frame.header.message_count for frame in frames] == counts
    assert [each.event for frame in frames for each in decode_event_frame(frame)] == events
    assert {messages_end_of(frame.header) for frame in frames} == {8}
    assert not list(snapshot_frames([], weight_max, 8))
