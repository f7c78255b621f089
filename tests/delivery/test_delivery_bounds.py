"""What a group costs: memory and time for what is outstanding, never for the backlog."""

from __future__ import annotations

from support.delivery_twin import heap_sizes

from goq import limits
from goq.broker.eventlog import snapshot_frames
from goq.delivery.events import Acked, Leased, Nacked, Span, token_of
from goq.delivery.partition import PartitionState
from goq.model import Receipt


def _lease(state: PartitionState, sequence: int, spans: list[Span], end: int) -> int:
    state.apply(Leased("g", "c", end, spans), sequence, 1)
    return token_of(1, sequence)


def test_a_million_acked_messages_leave_nothing_behind() -> None:
    state = PartitionState()
    state.extend_to(1_000_000)
    for sequence in range(0, 20_000, 2):
        spans = state.candidates("g", 0, 100)
        token = _lease(state, sequence, spans, 43_200_000)
        answer = state.acknowledge("g", [Receipt(0, token, s, e) for s, e, _ in spans])
        assert answer.done == 100
        for event in answer.events:
            state.apply(event, sequence + 1, 1)
        assert heap_sizes(state.groups["g"]) < 200
    assert state.groups["g"].cursor == 1_000_000
    assert not state.groups["g"].leases
    assert not state.groups["g"].leased_count


def test_extending_one_lease_for_ever_does_not_grow_the_heap() -> None:
    state = PartitionState()
    state.extend_to(10)
    token = _lease(state, 0, [(0, 10, 1)], 1000)
    for sequence in range(1, 5000):
        answer = state.extend_leases("g", [Receipt(0, token, 0, 10)], 1000 + sequence)
        state.apply(answer.events[0], sequence, 1)
    assert heap_sizes(state.groups["g"]) < 200
    assert state.groups["g"].next_timer_ms() is not None


def test_messages_nacked_again_and_again_do_not_grow_the_heaps() -> None:
    state = PartitionState()
    state.extend_to(3)
    for sequence in range(0, 20_000, 2):
        spans = state.candidates("g", sequence, 3)
        assert [(s, e) for s, e, _ in sorted(spans)] in ([(0, 3)], [(0, 1), (1, 2), (2, 3)])
        token = _lease(state, sequence, spans, 10**9)
        for span in [(o, o + 1, a) for s, e, a in spans for o in range(s, e)]:
            state.apply(Nacked("g", token, [span], sequence), sequence + 1, 1)
        assert heap_sizes(state.groups["g"]) < 200


def test_each_waiting_message_is_offered_once_though_neighbours_were_taken() -> None:
    state = PartitionState()
    state.extend_to(3)
    token = _lease(state, 0, [(0, 3, 1)], 1000)
    for offset in range(3):
        state.apply(Nacked("g", token, [(offset, offset + 1, 1)], 5), offset + 1, 1)
    _lease(state, 10, [(0, 1, 2)], 1000)
    assert state.candidates("g", 5, 10) == [(1, 2, 2), (2, 3, 2)]


def test_each_waiting_message_is_offered_once_after_the_heap_was_made_anew() -> None:
    state = PartitionState()
    state.extend_to(1)
    for sequence in range(0, 400, 2):
        token = _lease(state, sequence, [(0, 1, 1)], 1000)
        state.apply(Nacked("g", token, [(0, 1, 1)], 5 + sequence), sequence + 1, 1)
        assert state.candidates("g", 10_000, 10) == [(0, 1, 2)]


def test_a_snapshot_of_very_many_leases_with_long_names_fits_into_frames() -> None:
    state = PartitionState()
    state.extend_to(100_000)
    name = "\U0001f4e6" * limits.CONSUMER_NAME_CHARS_MAX
    for offset in range(20_000):
        state.apply(Leased("g", name, 1000, [(offset, offset + 1, 1)]), offset, 1)
    frames = list(snapshot_frames(state.snapshot(0)))
    assert len(frames) > 1
    assert all(f.header.frame_bytes <= limits.FRAME_BYTES_MAX for f in frames)


def test_acks_of_another_token_change_nothing() -> None:
    state = PartitionState()
    state.extend_to(5)
    token = _lease(state, 0, [(0, 5, 1)], 1000)
    answer = state.acknowledge("g", [Receipt(0, token + 1, 0, 5)])
    assert (answer.events, answer.done) == ([], 0)
    assert answer.lost == [Receipt(0, token + 1, 0, 5)]
    state.apply(Acked("g", token, [(0, 5)]), 1, 1)
    assert state.acknowledge("g", [Receipt(0, token, 0, 5)]).lost == [Receipt(0, token, 0, 5)]
