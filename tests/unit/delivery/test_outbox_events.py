from __future__ import annotations

import msgspec

from goq.delivery.events.event import Cause, CopyQueued, CopyStored, token_of
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import snapshot_of


def departing(*spans: tuple[int, int, int], partition: int = 0, group: str = "g") -> CopyQueued:
    return CopyQueued(group, 0, list(spans), Cause.TTL, "", 5, "t.dlq", partition, 77)


def state_with(*events: CopyQueued) -> PartitionState:
    state = PartitionState()
    state.extend_to(100)
    for sequence, event in enumerate(events):
        state.apply(event, sequence, 1)
    return state


def test_copies_are_numbered_without_gaps_for_each_target() -> None:
    state = state_with(
        departing((0, 2, 0), (5, 6, 0)),
        departing((6, 7, 0), partition=1),
        departing((7, 9, 0)),
        departing((9, 10, 0)),
    )
    numbers = [d.first_sequence for d in state.outbox.entries.values()]
    assert numbers == [0, 0, 3, 5]
    assert sorted(state.outbox.sequences()) == [("t.dlq", 0, 6), ("t.dlq", 1, 1)]


def test_the_first_producer_stays_that_of_the_partition() -> None:
    state = state_with(
        departing((0, 1, 0)), msgspec.structs.replace(departing((1, 2, 0)), producer_id=8)
    )
    assert state.outbox.producer_id == 77


def test_what_arrived_is_gone_and_its_numbers_are_not_given_again() -> None:
    state = state_with(departing((0, 2, 0)))
    state.apply(CopyStored(token_of(1, 0), 40), 1, 1)
    state.apply(CopyStored(token_of(1, 0), 40), 2, 1)
    assert not state.outbox.entries
    state.apply(departing((2, 3, 0)), 3, 1)
    assert [d.first_sequence for d in state.outbox.entries.values()] == [2]


def test_a_snapshot_keeps_what_is_under_way_and_the_numbers() -> None:
    state = state_with(departing((0, 2, 0)), departing((2, 3, 0)))
    state.apply(CopyStored(token_of(1, 0), 40), 2, 1)
    fresh = PartitionState()
    for event in snapshot_of(state, 0):
        fresh.apply(event, 0, 0)
    assert fresh.outbox.entries == state.outbox.entries
    assert fresh.outbox.sequences() == state.outbox.sequences()
    assert fresh.outbox.producer_id == 77


def test_what_a_group_gave_up_is_counted_for_it_and_stays_so_in_a_snapshot() -> None:
    state = state_with(
        departing((0, 2, 0), (5, 6, 0)), departing((7, 9, 0)), departing((0, 1, 0), group="h")
    )
    fresh = PartitionState()
    for event in snapshot_of(state, 0):
        fresh.apply(event, 0, 0)
    for each in (state, fresh):
        assert {name: group.dead_count for name, group in each.groups.items()} == {"g": 5, "h": 1}


def test_dead_letters_that_are_put_back_are_done_for_every_group_here() -> None:
    state = state_with(departing((0, 2, 0), group=""))
    assert state.cancelled.count(0, 100) == 2
    assert state.group("any").taken.count(0, 100) == 2
