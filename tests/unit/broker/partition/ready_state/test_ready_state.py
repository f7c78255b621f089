"""The ready state of a log, built from the disk, against what each message asks for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from goq.broker.partition.loader import open_logs
from goq.broker.partition.ready_state import ready_state
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.config.topic import TopicSettings
from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState
from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.column_index.rows import rows_of
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import START_US, append

START_MS = START_US // 1000
DEFAULT_LANE = TopicSettings().default_lane
LATEST_MS = START_MS + 1000


class Asked(NamedTuple):
    """What one message asks for; lane, tenant and due time may be missing."""

    lane: int | None = None
    tenant: str | None = None
    due_ms: int = 0


Place = tuple[int, str | None]
Places = dict[Place, list[int]]
"""The offsets in each ready queue, by lane and tenant."""


def frame_of(asked: list[Asked]) -> bytes:
    """Return a frame with the columns that some of its messages need."""
    lanes, tenants = [each.lane for each in asked], [each.tenant for each in asked]
    due_ms = [each.due_ms for each in asked]
    columns = Columns(
        [b"v"] * len(asked),
        lanes=None if lanes[0] is None else [lane or 0 for lane in lanes],
        tenants=tenants if any(tenants) else None,
        deliver_at_ms=due_ms if any(due_ms) else None,
    )
    return encode_frame(columns)


def random_frame(chance: Random) -> list[Asked]:
    """Return messages of one frame: plain ones, or with any of the columns."""
    count = chance.randrange(1, 5)
    has_lanes, has_tenants, has_delays = (chance.random() < 0.4 for _ in range(3))
    return [
        Asked(
            chance.randrange(3) if has_lanes else None,
            chance.choice(["x", "y", "z", None]) if has_tenants else None,
            chance.choice([0, START_MS + chance.randrange(1, 1000)]) if has_delays else 0,
        )
        for _ in range(count)
    ]


def places_of(built: ReadyState) -> Places:
    """Return the ready queues as they are."""
    found: Places = {}
    for queue in built.ready:
        offsets = [
            offset
            for run in queue.runs
            for offset in range(run >> COUNT_BITS, (run >> COUNT_BITS) + (run & COUNT_MAX))
        ]
        if offsets:
            found[queue.lane, built.tenants.name(queue.tenant) or None] = sorted(offsets)
    return found


def written(frames: list[list[Asked]]) -> Log:
    log = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings()).messages
    for number, asked in enumerate(frames):
        if number % 5 == 4:
            log.roll()
        append(log, [frame_of(asked)])
    return log


@pytest.mark.parametrize("seed", range(24))
def test_each_message_stands_once_in_the_queue_that_it_asks_for_or_was_moved_to(seed: int) -> None:
    chance = Random(seed)
    frames = [random_frame(chance) for _ in range(chance.randrange(1, 12))]
    messages = [each for frame in frames for each in frame]
    log, state = written(frames), PartitionState()
    state.extend_to(len(messages))
    state.moved = {
        offset: chance.randrange(4) for offset in range(len(messages)) if chance.random() < 0.2
    }
    up_to_ms = START_MS + chance.choice([0, 300, 1000])
    state.maturity.mature(up_to_ms, len(messages))
    for offset, each in enumerate(messages):
        if each.due_ms > up_to_ms and chance.random() < 0.3:
            due_ms = START_MS + chance.randrange(1, 1000)
            state.maturity.reschedule(offset, due_ms)
            state.rescheduled[offset] = due_ms
    start = chance.randrange(len(messages) + 1)
    ready, delayed = Places(), Places()
    for offset, each in enumerate(messages):
        lane = DEFAULT_LANE if each.lane is None else each.lane
        place = (state.moved.get(offset, lane), each.tenant)
        due_ms = state.rescheduled.get(offset, each.due_ms)
        if each.due_ms and not state.maturity.has_matured(offset, due_ms):
            delayed.setdefault(place, []).append(offset)
        elif offset >= start:
            ready.setdefault(place, []).append(offset)

    built = ReadyState.build(log, state, TopicSettings(), START_MS, start=start, end=len(messages))
    assert places_of(built) == ready
    assert built.schedule.count == sum(map(len, delayed.values()))
    assert built.ready.complete_from == start
    while (load := built.schedule.load_wanted(LATEST_MS)) is not None:
        built.loaded(load, built.load(log, load))
    while built.mature(LATEST_MS):
        pass
    for place, offsets in delayed.items():
        ready[place] = sorted(ready.get(place, []) + offsets)
    assert places_of(built) == ready
    assert built.schedule.count == 0


def waiting_at(built: ReadyState, group: Group, queues_max: int = 100) -> Counter[Place] | None:
    """Return how many messages wait by lane and tenant, without empty queues."""
    waiting = built.waiting(group, queues_max)
    if waiting is None:
        return None
    counts = {(lane, built.tenants.name(number) or None): n for lane, number, n in waiting}
    assert all(counts.values())
    return Counter(counts)


@pytest.mark.parametrize("seed", range(24))
def test_a_group_without_consumers_waits_for_what_it_has_not_taken(seed: int) -> None:
    chance = Random(seed)
    frames = [random_frame(chance) for _ in range(chance.randrange(1, 12))]
    messages = [each for frame in frames for each in frame]
    log, state = written(frames), PartitionState()
    state.extend_to(len(messages))
    group = state.ensure_group("g")
    group.skip(0, chance.randrange(len(messages) + 1))
    if chance.random() < 0.5:
        for _ in range(3):
            group.skip(at := chance.randrange(len(messages)), at + 2)
    if chance.random() < 0.3:
        group.taken.ceiling = chance.randrange(len(messages) + 1)
    built = ReadyState.build(log, state, TopicSettings(), START_MS, start=0, end=len(messages))
    expected = Counter(
        (DEFAULT_LANE if each.lane is None else each.lane, each.tenant)
        for offset, each in enumerate(messages)
        if not each.due_ms and offset not in group.taken
    )
    assert waiting_at(built, group) == expected
    assert waiting_at(built, group, queues_max=0) is None
    built.scheduler_of(group).catch_up(100)
    assert built.waiting(group, 100) is not None


def test_what_the_queues_do_not_tell_of_a_group_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, state = written([[Asked(1)], [Asked(2)], [Asked(1)]]), PartitionState()
    state.extend_to(3)
    group = state.ensure_group("g")
    built = ReadyState.build(log, state, TopicSettings(), START_MS, start=0, end=3)
    assert waiting_at(built, group) == {(1, None): 2, (2, None): 1}
    with monkeypatch.context() as patched:
        patched.setattr(ready_state, "_RUNS_SUMMED_MAX", 2)
        assert waiting_at(built, group) is None
    group.skip(1, 2)
    assert waiting_at(built, group) == {(1, None): 2}
    with monkeypatch.context() as patched:
        patched.setattr(ready_state, "_RUNS_COUNTED_MAX", 2)
        assert waiting_at(built, group) is None
    state.moved = {0: 2}  # it stands in both lanes
    assert waiting_at(built, group) is None
    state.moved = {}
    built.release()  # nobody reads
    assert waiting_at(built, group) is None


def test_many_runs_of_a_queue_are_counted_from_the_first_that_a_group_needs() -> None:
    log, state = written([[Asked(lane)] for lane in [1, 2] * 40]), PartitionState()
    state.extend_to(80)
    group = state.ensure_group("g")
    built = ReadyState.build(log, state, TopicSettings(), START_MS, start=0, end=80)
    for floor in (0, 1, 17, 79):
        group.skip(0, floor)
        expected = Counter((1 + offset % 2, None) for offset in range(floor, 80))
        assert waiting_at(built, group) == expected


@pytest.mark.parametrize("seed", range(8))
def test_what_is_published_stands_where_a_build_would_put_it(seed: int) -> None:
    chance = Random(seed)
    frames = [random_frame(chance) for _ in range(chance.randrange(1, 12))]
    log, state = written(frames), PartitionState()
    live = ReadyState(state, TopicSettings(), START_MS)
    for view in log.reader.read(0, log.end_offset, bytes_max=2**20).frames:
        header = view.header
        live.published(header.base_offset, header.end_offset, rows_of(view), START_MS)
    state.extend_to(log.end_offset)
    built = ReadyState.build(log, state, TopicSettings(), START_MS, start=0, end=log.end_offset)
    assert places_of(live) == places_of(built)
    assert live.schedule.count == built.schedule.count


def test_few_rows_of_a_frame_with_many_tenants_have_the_tenants_that_all_have() -> None:
    names = [f"tenant{number}" for number in range(20)]
    frame = encode_frame(Columns([b"v"] * 21, tenants=[*names, None]))
    rows = rows_of(FrameView.parse(frame))
    assert rows is not None
    ready = ReadyState(PartitionState(), TopicSettings(), START_MS)
    few = ready.places(rows.select(slice(3, 5)))[1].tolist()
    assert [ready.tenants.name(number) for number in few] == names[3:5]
    last = ready.places(rows.select(slice(19, 21)))[1].tolist()
    assert [ready.tenants.name(number) or None for number in last] == ["tenant19", None]
    every = ready.places(rows)[1].tolist()
    assert [ready.tenants.name(number) or None for number in every] == [*names, None]
    assert every[3:5] == few
