from __future__ import annotations

import random

import pytest

from goq import limits
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    ClockChanged,
    CopyQueued,
    Corrupted,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Named,
    Rescheduled,
    Reset,
    Skipped,
    SnapshotGroup,
    Trimmed,
    Truncated,
    decode_events,
    encode_events,
    token_of,
)
from goq.delivery.events.frame_codec import decode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, EncodedSnapshot, snapshot_of
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import parse_header
from tests.support.delivery.model import canonical
from tests.support.delivery.steps import run_history


def restored(state: PartitionState, over: PartitionState | None = None) -> PartitionState:
    fresh = over or PartitionState()
    fresh.extend_to(state.end_offset)
    for event in decode_events(encode_events(list(snapshot_of(state, state.end_offset)))):
        fresh.apply(event, 0, 0)
    return fresh


def test_a_snapshot_of_very_many_leases_with_long_names_fits_into_frames() -> None:
    state = PartitionState()
    state.extend_to(100_000)
    name = "\U0001f4e6" * limits.CONSUMER_NAME_CHARS_MAX
    for offset in range(20_000):
        session = f"{offset:0{limits.SESSION_ID_CHARS_MAX}}"
        state.apply(Leased("g", name, 1000, [(offset, offset + 1, 1)], session), offset, 1)
    frames = [frame for frame, _ in EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS).frames(0)]
    assert len(frames) > 1
    assert all(f.header.frame_bytes <= limits.FRAME_BYTES_MAX for f in frames)


def test_leases_are_restored_with_their_sessions() -> None:
    state = PartitionState()
    state.extend_to(10)
    for offset, session in enumerate(["", "a", "b"]):
        state.apply(Leased("g", "c", 1000, [(offset, offset + 1, 1)], session), offset, 1)
    leases = restored(state).group("g").leases.values()
    assert [lease.member for lease in leases] == ["c", "c/a", "c/b"]


def test_batches_of_producers_are_restored() -> None:
    state = PartitionState()
    frame = encode_frame(Columns([b"x"]), producer=ProducerMark(7, 2, 40))
    state.producers.add(parse_header(frame), 5, 1000)
    assert restored(state).producers.progress(7) == (2, 41)
    assert restored(state).producers.offset_of(7, 40) == 5


def test_names_of_producers_are_restored_in_the_order_in_which_they_were_given() -> None:
    state = PartitionState()
    for producer_id in (3, 1, 2, 3):
        state.apply(Named(producer_id, f"client-{producer_id}"), 0, 1)
    assert list(state.producer_names) == [1, 2, 3]
    assert list(restored(state).producer_names.items()) == list(state.producer_names.items())


def test_a_snapshot_replaces_what_a_state_had() -> None:
    before, state = PartitionState(), PartitionState()
    for each, name in ((before, "before"), (state, "after")):
        each.extend_to(10)
        for event in (
            Named(len(name), name),
            Leased(name, "c", 1000, [(0, 3, 1)]),
            Moved(len(name), 2),
            Rescheduled(len(name), 5),
            Cancelled([(len(name), len(name) + 1)]),
        ):
            each.apply(event, 1, 1)
    assert canonical(restored(state, over=before)) == canonical(restored(state))


def test_a_partition_knows_so_many_names_and_forgets_the_one_given_longest_ago() -> None:
    state = PartitionState()
    for producer_id in range(1, limits.PRODUCERS_PER_PARTITION_MAX + 1):
        state.apply(Named(producer_id, "n"), 0, 1)
    assert len(state.producer_names) == limits.PRODUCERS_PER_PARTITION_MAX
    state.apply(Named(1, "again"), 0, 1)
    assert len(state.producer_names) == limits.PRODUCERS_PER_PARTITION_MAX
    state.apply(Named(99_999, "new"), 0, 1)
    assert len(state.producer_names) == limits.PRODUCERS_PER_PARTITION_MAX
    assert (1 in state.producer_names, 2 in state.producer_names) == (True, False)


def test_a_snapshot_of_very_many_long_names_fits_into_frames() -> None:
    state = PartitionState()
    name = "\U0001f4e6" * limits.CLIENT_ID_CHARS_MAX
    for producer_id in range(2**63, 2**63 + limits.PRODUCERS_PER_PARTITION_MAX):
        state.apply(Named(producer_id, name), 0, 1)
    frames = [frame for frame, _ in EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS).frames(0)]
    assert all(f.header.frame_bytes <= limits.FRAME_BYTES_MAX // 2 for f in frames)
    assert restored(state).producer_names == state.producer_names


def test_a_state_that_takes_several_events_of_each_kind_is_restored_in_full() -> None:
    state = PartitionState()
    state.extend_to(20_000_000)
    sequence = 0
    for chunk in range(4500):
        start = chunk * 4096 + 7
        state.apply(Cancelled([(start, start + 1)]), sequence, 1)
        sequence += 1
    for offset in range(21_000):
        state.apply(Moved(offset, offset % 3), sequence, 1)
        state.apply(Rescheduled(offset, 5_000 + offset), sequence + 1, 1)
        sequence += 2
    for offset in range(0, 24_000, 2):
        state.apply(Leased("g", f"c{offset}", 1000, [(offset, offset + 1, 1)]), sequence, 1)
        token, reason = token_of(1, sequence), f"r{offset % 7}"
        if offset % 4:
            state.apply(
                Nacked("g", token, [(offset, offset + 1, 1)], 9, reason, 8), sequence + 1, 1
            )
        sequence += 2
    fresh = restored(state)
    fresh.extend_to(30_000)
    state.extend_to(30_000)
    assert canonical(fresh) == canonical(state)
    assert fresh.groups["g"].taken == state.groups["g"].taken
    assert fresh.cancelled == state.cancelled


@pytest.mark.parametrize(("count", "events"), [(64, 1), (65, 4)])
def test_a_group_of_few_ranges_is_one_event_with_everything_that_it_has(
    count: int, events: int
) -> None:
    state = PartitionState()
    state.extend_to(100_000)
    state.apply(Reset("g", 7, 90_000), 0, 1)
    for number in range(1, count + 1):
        spans = [(10 * number, 10 * number + 1, 1)]
        state.apply(Leased("g", "c", 1000, spans, "s" if number % 2 else ""), number, 1)
    for number in (2, 3):
        spans = [(10 * number, 10 * number + 1, 1)]
        state.apply(Nacked("g", token_of(1, number), spans, 5, "why", time_ms=4), 0, 1)
    found = [each for each in snapshot_of(state, 0) if isinstance(each, SnapshotGroup)]
    assert len(found) == events
    assert canonical(restored(state)) == canonical(state)


def frames_of(snapshot: EncodedSnapshot, state: PartitionState) -> list[bytes]:
    return [bytes(frame.buffer) for frame, _ in snapshot.frames(state.end_offset)]


def frames_now(state: PartitionState) -> list[bytes]:
    return frames_of(EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS), state)


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_encoded_ahead_is_the_one_of_its_moment(seed: int) -> None:
    pair, chance = run_history(seed, 60, checks_each=False), random.Random(seed)
    state = PartitionState()
    state.extend_to(pair.real.end_offset)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    for event, sequence, epoch in pair.history:
        state.apply(event, sequence, epoch)
        snapshot.on_event(event)
        if chance.random() < 0.5:
            snapshot.prepare(1)
        if chance.random() < 0.2:
            assert frames_of(snapshot, state) == frames_now(state)
            snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    assert frames_of(snapshot, state) == frames_now(state)


def many_groups(count: int) -> PartitionState:
    state = PartitionState()
    state.extend_to(3000)
    for number in range(count):
        state.apply(Leased(f"g{number}", "c", 1000, [(0, 3, 1)]), number, 1)
    return state


CHANGES = [
    Acked("g0", token_of(1, 0), [(0, 1)]),
    GroupDeleted("g1"),
    Reset("g0", 2, 900),
    Skipped("g0", [(5, 9)], Cause.TTL),
    CopyQueued("g0", token_of(1, 0), [(0, 1, 1)], Cause.REJECTED, "", 5, "t.dlq", 0, 7),
    CopyQueued("", 0, [(0, 1, 1)], Cause.REDRIVEN, "", 5, "t", 0, 7),
    Leased("new", "c", 1000, [(0, 1, 1)]),
    Cancelled([(0, 999)]),
    ClockChanged("n2", 500, 500),
    Corrupted(5, 6, "bit rot"),
    Moved(1, 2),
    Trimmed(2),
    Truncated(2),
    Rescheduled(700, 5),
    Matured(5, 1000),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_what_an_event_changes_is_encoded_again(change: AnyEvent) -> None:
    state = many_groups(10)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    while snapshot.prepare(1):
        pass
    before = frames_of(snapshot, state)
    state.apply(change, 10, 1)
    snapshot.on_event(change)
    assert before != frames_of(snapshot, state) == frames_now(state)


def test_groups_that_change_all_the_time_do_not_put_a_snapshot_off_for_ever() -> None:
    state = many_groups(10)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    steps = 0
    while steps < 100 and snapshot.prepare(1):
        steps += 1
        moved = Moved(1, steps % 3)
        state.apply(moved, 10, 1)
        snapshot.on_event(moved)
    assert steps == 30
    assert frames_of(snapshot, state) == frames_now(state)


@pytest.mark.parametrize(("groups", "steps"), [(4, 0), (5, 1), (8, 1), (9, 2), (0, 0)])
def test_as_many_groups_as_one_step_takes_are_left_to_the_moment(groups: int, steps: int) -> None:
    snapshot = EncodedSnapshot(many_groups(groups), DEFAULT_SNAPSHOT_LIMITS)
    assert [snapshot.prepare(4) for _ in range(steps + 1)] == [True] * steps + [False]


def test_groups_that_have_changed_are_encoded_ahead_again() -> None:
    state = many_groups(6)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    assert [snapshot.prepare(2) for _ in range(3)] == [True, True, False]
    for name in ("g0", "g1", "g0"):
        snapshot.on_event(Acked(name, 0, []))
    assert [snapshot.prepare(2) for _ in range(2)] == [True, False]


def test_a_group_with_many_ranges_is_encoded_at_the_moment_and_whole() -> None:
    state = many_groups(5)
    for number in range(200):
        leased = Leased("g0", "c", 1000, [(10 * number + 10, 10 * number + 11, 1)])
        state.apply(leased, 10 + number, 1)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    while snapshot.prepare(1):
        pass
    assert frames_of(snapshot, state) == frames_now(state)
    assert canonical(restored(state)) == canonical(state)


MANY = 2_000


def many_leases() -> PartitionState:
    """Return a state of a group with leases of every kind: offsets 10 n of the token n."""
    state = PartitionState()
    state.extend_to(100_000)
    for number in range(MANY):
        first = 10 * number
        spans = [(first, first + 1, 1)]
        if number % 7 == 0:
            spans = [(first, first + 2, 1), (first + 5, first + 6, 2)]
        session = f"s{number}" if number % 3 == 0 else ""
        state.apply(Leased("g", f"c{number % 5}", 1000, spans, session), number, 1)
        if number % 11 == 0:
            token = token_of(1, number)
            state.apply(Nacked("g", token, spans, 5, f"why {number % 2}", time_ms=4), number, 2)
            state.apply(Leased("g", "again", 1000, spans, session), number, 1)
    return state


def restored_from(snapshot: EncodedSnapshot, state: PartitionState) -> PartitionState:
    fresh = PartitionState()
    fresh.extend_to(state.end_offset)
    for frame, _ in snapshot.frames(state.end_offset):
        for stored in decode_event_frame(frame):
            fresh.apply(stored.event, 0, 0)
    return fresh


def test_leases_that_are_encoded_ahead_are_those_of_the_moment() -> None:
    state, chance, sequence = many_leases(), random.Random(5), MANY
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)

    def change(event: AnyEvent) -> None:
        nonlocal sequence
        state.apply(event, sequence, 1)
        snapshot.on_event(event)
        sequence += 1

    steps = 0
    while snapshot.prepare(16):
        steps += 1
        for _ in range(5):
            number = chance.choice(sorted(state.groups["g"].leases)[:MANY]) - token_of(1, 0)
            token, first = token_of(1, number), 10 * number
            part = (first, first + 1)
            if not state.groups["g"].leases[token].parts.contains(*part):
                continue
            change(
                chance.choice(
                    [
                        Acked("g", token, [part]),
                        Extended("g", token, [part], 9_000 + number),
                        Nacked("g", token, [(*part, 1)], 5, "why", time_ms=4),
                    ]
                )
            )
        change(Leased("g", "new", 1000, [(50_000 + steps, 50_001 + steps, 1)]))
    assert steps == -(-MANY // 64)
    retried = [(part.start, part.end, 2) for part in state.groups["g"].retries]
    change(Leased("g", "again", 2000, retried))
    assert canonical(restored_from(snapshot, state)) == canonical(state)
    change(ClockChanged("n2", 500, 500))
    assert canonical(restored_from(snapshot, state)) == canonical(state)
    change(Reset("g", 3))
    assert canonical(restored_from(snapshot, state)) == canonical(state)


@pytest.mark.parametrize(("count", "steps"), [(1_000, 0), (1_001, 16), (1_024, 16), (1_025, 17)])
def test_the_leases_of_a_group_with_very_many_are_encoded_a_few_at_a_time(
    count: int, steps: int
) -> None:
    state = PartitionState()
    state.extend_to(count)
    for number in range(count):
        state.apply(Leased("g", "c", 1000, [(number, number + 1, 1)], "s"), number, 1)
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    assert [snapshot.prepare(16) for _ in range(steps + 1)] == [True] * steps + [False]
    assert frames_of(snapshot, state) == frames_now(state)
