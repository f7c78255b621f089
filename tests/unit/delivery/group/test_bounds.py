"""What a group costs: memory and time for what is outstanding, never for the backlog."""

from __future__ import annotations

from goq.config.topic import Ordering, TopicSettings
from goq.delivery.events.event import Leased, Nacked, Span, token_of
from goq.delivery.partition_state import PartitionState
from goq.delivery.settlement import acknowledge, extend
from goq.model import Receipt
from tests.support.delivery.model import Message, heap_sizes
from tests.support.delivery.pair import Pair


def _lease(state: PartitionState, sequence: int, spans: list[Span], end: int) -> int:
    state.apply(Leased("g", "c", end, spans), sequence, 1)
    return token_of(1, sequence)


def test_a_million_acked_messages_leave_nothing_behind() -> None:
    state = PartitionState()
    state.extend_to(1_000_000)
    for sequence in range(0, 20_000, 2):
        start = sequence * 50
        token = _lease(state, sequence, [(start, start + 100, 1)], 43_200_000)
        answer = acknowledge(state, "g", [Receipt(0, token, start, start + 100)])
        assert answer.settled == 100
        for event in answer.events:
            state.apply(event, sequence + 1, 1)
        assert heap_sizes(state.groups["g"]) < 200
    assert state.groups["g"].taken.encode() == (1_000_000, [], [])
    assert not state.groups["g"].leases
    assert not state.groups["g"].leased_count


def test_extending_one_lease_for_ever_does_not_grow_the_heap() -> None:
    state = PartitionState()
    state.extend_to(10)
    token = _lease(state, 0, [(0, 10, 1)], 1000)
    for sequence in range(1, 5000):
        answer = extend(state, "g", [Receipt(0, token, 0, 10)], 1000 + sequence)
        state.apply(answer.events[0], sequence, 1)
    assert heap_sizes(state.groups["g"]) < 200
    assert state.groups["g"].next_timer_ms() is not None


def test_messages_nacked_again_and_again_do_not_grow_the_heaps() -> None:
    for ordering in Ordering:
        pair = Pair(orderings={"g": ordering})
        pair.publish([Message(1, key=7), Message(1), Message(1, key=8)])
        for _ in range(300):
            token = pair.receive("g", 3, 10**9)
            assert token is not None
            for offset in range(3):
                pair.settle("nack", "g", [Receipt(0, token, offset, offset + 1)], 0)
            assert heap_sizes(pair.real.groups["g"]) < 200


def test_nacks_that_nobody_comes_for_do_not_grow_the_heaps() -> None:
    state = PartitionState()
    state.extend_to(1)
    for sequence in range(0, 4000, 2):
        token = _lease(state, sequence, [(0, 1, 1)], 1000)
        state.apply(Nacked("g", token, [(0, 1, 1)], 5 + sequence), sequence + 1, 1)
        state.advance_retries("g", 10_000)
        assert heap_sizes(state.groups["g"]) < 200


def test_what_is_known_of_messages_is_forgotten_when_they_are_done() -> None:
    settings = TopicSettings(tenant_in_flight_max=5)
    pair = Pair(settings, {"g": Ordering.KEY})
    for _ in range(20):
        pair.publish([Message(n % 3, "xyz"[n % 3], key=n % 4) for n in range(20)])
        while (token := pair.receive("g", 7, 1000)) is not None:
            held = [o for o, s in pair.twin.outstanding("g", "leased").items() if s[4] == token]
            pair.settle("ack", "g", [Receipt(0, token, o, o + 1) for o in held])
    group = pair.real.groups["g"]
    assert (group.attributes, group.in_flight, group.locks.held_count) == ({}, {}, 0)
    assert group.taken.encode() == (400, [], [])
