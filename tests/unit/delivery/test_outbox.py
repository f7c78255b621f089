from __future__ import annotations

from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import (
    Cause,
    CopyQueued,
    CopyStored,
    Failure,
    Leased,
    Nacked,
    SnapshotOutboxEntry,
    Truncated,
    epoch_of,
    token_of,
)
from goq.delivery.events.frame_codec import event_weight
from goq.delivery.outbox import LOST
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import snapshot_of
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import FrameHeader, parse_header


def leaving(*spans: tuple[int, int, int], token: int = 0, group: str = "g") -> CopyQueued:
    return CopyQueued(group, token, list(spans), Cause.TTL, "", 5, "t.dlq", 0, 77)


def state_of(end_offset: int) -> PartitionState:
    state = PartitionState()
    state.extend_to(end_offset)
    return state


def restored(state: PartitionState) -> PartitionState:
    other = state_of(state.end_offset)
    for event in snapshot_of(state, state.end_offset):
        other.apply(event, 0, 0)
    return other


def header_of(mark: ProducerMark, count: int) -> FrameHeader:
    return parse_header(encode_frame(Columns([b""] * count), producer=mark))


def test_departures_are_numbered_on_through_a_snapshot() -> None:
    state = state_of(20)
    state.apply(leaving((0, 3, 1)), 1, 9)
    state.apply(leaving((5, 7, 1)), 2, 9)
    state.apply(CopyStored(token_of(9, 1), 0), 3, 9)
    state = restored(state)
    state.apply(leaving((9, 10, 1)), 4, 10)
    assert [(epoch_of(d.number), d.first_sequence) for d in state.outbox.entries.values()] == [
        (9, 3),
        (10, 5),
    ]
    assert state.outbox.producer_id == 77


def test_what_was_lost_while_it_left_keeps_its_numbers_and_gives_up_its_offsets() -> None:
    state = state_of(10)
    state.apply(leaving((1, 3, 1), (4, 8, 2)), 1, 9)
    state.apply(Truncated(6), 2, 9)
    [departure] = restored(state).outbox.entries.values()
    assert departure.event.spans == [(1, 3, 1), (4, 6, 2), (6 - LOST, 8 - LOST, 2)]
    state.apply(Truncated(5), 3, 9)
    [departure] = state.outbox.entries.values()
    assert departure.event.spans == [
        (1, 3, 1),
        (4, 5, 2),
        (5 - LOST, 6 - LOST, 2),
        (6 - LOST, 8 - LOST, 2),
    ]


def test_a_message_that_expires_while_it_waits_for_a_retry_leaves_with_its_past() -> None:
    state = state_of(10)
    state.apply(Leased("g", "c", 50, [(2, 4, 1)]), 1, 9)
    state.apply(Nacked("g", token_of(9, 1), [(2, 4, 1)], 60, "busy", 55), 2, 9)
    state.apply(leaving((3, 4, 1)), 3, 9)
    [departure] = state.outbox.entries.values()
    assert departure.histories == [(3, 4, (Failure(55, "c", "nacked", "busy"),))]
    assert [(part.start, part.end) for part in state.group("g").retries] == [(2, 3)]


def test_a_departure_of_many_runs_weighs_as_much_in_a_snapshot() -> None:
    event = leaving(*[(2 * n, 2 * n + 1, 1) for n in range(1000)])
    assert event_weight(SnapshotOutboxEntry(1, 0, event, [])) > 1000


def test_a_table_tells_how_far_a_producer_is_and_where_its_messages_lie() -> None:
    table = ProducerTable()
    assert table.progress(7) is None
    assert table.offset_of(7, 0) is None
    table.add(header_of(ProducerMark(7, 2, 10), 3), 100, 0)
    table.add(header_of(ProducerMark(7, 2, 13), 2), 200, 0)
    assert table.progress(7) == (2, 15)
    assert [table.offset_of(7, n) for n in (9, 10, 12, 13, 15)] == [None, 100, 102, 200, None]
