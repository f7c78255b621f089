"""The timer wheel against a heap, its bounds, and the numbers that its documentation works out."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from goq.delivery.delay import slot_level as level_module
from goq.delivery.delay import timer_wheel as wheel_module
from goq.delivery.delay.slot_level import Int64s
from goq.delivery.delay.timer_wheel import TimerEntries, TimerWheel, sorted_offsets
from tests.support.delivery.delay_model import HeapTwin
from tests.support.effort import first_of
from tests.support.paths import DOCS
from tests.support.storage.memory import memory_of

NOW_MS = 1_760_000_000_000
DOC = DOCS / "internals" / "timers.md"
_SMALL = (
    (wheel_module, "_CHECK_EVERY", 2),
    (wheel_module, "_REMOVED_MIN", 3),
    (level_module, "_SCANNED_AT_ONCE", 4),
    (level_module, "_RUNS_MAX", 2),
)
DISTANCES_MS = st.one_of(
    st.integers(-3, 3),
    st.integers(-600, 600),
    st.integers(-200_000, 200_000),
    st.integers(-40_000_000, 40_000_000),
    st.integers(-(10**11), 10**13),
)


def _listed(entries: TimerEntries) -> list[tuple[int, int, int]]:
    columns = (entries.due_ms, entries.offsets, entries.tags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _add_many(wheel: TimerWheel, due_ms: object, first_offset: int = 0) -> None:
    due = np.asarray(due_ms, np.int64)
    offsets = np.arange(first_offset, first_offset + len(due), dtype=np.int64)
    wheel.add_many(due, offsets, offsets % 5)


def _slot_count(wheel: TimerWheel) -> int:
    return sum(len(level.slots) for level in wheel._levels)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each placing put into slots."""
    counts: list[int] = []
    place = TimerWheel._place

    def counting(wheel: TimerWheel, rows: Int64s) -> None:
        counts.append(len(rows))
        place(wheel, rows)

    monkeypatch.setattr(TimerWheel, "_place", counting)
    return counts


class Wheels(RuleBasedStateMachine):
    """A wheel and a heap; the sizes at which slots are cleaned, scanned and sorted are small."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [(module, name, getattr(module, name)) for module, name, _ in _SMALL]
        for module, name, size in _SMALL:
            setattr(module, name, size)
        self.now_ms = NOW_MS
        self.wheel, self.twin = TimerWheel(NOW_MS), HeapTwin()
        self.offset = 0
        self.removed: list[tuple[int, int, int]] = []

    @rule(distance_ms=DISTANCES_MS, tag=st.integers(0, 2**63 - 1))
    def add(self, distance_ms: int, tag: int) -> None:
        self.wheel.add(self.now_ms + distance_ms, self.offset, tag)
        self.twin.add(self.now_ms + distance_ms, self.offset, tag)
        self.offset += 1

    @rule(
        distances_ms=st.lists(DISTANCES_MS, max_size=8), spread_ms=st.sampled_from([0, 1, 70, 9999])
    )
    def add_many(self, distances_ms: list[int], spread_ms: int) -> None:
        due = [self.now_ms + d + i * spread_ms for d in distances_ms for i in range(3)]
        _add_many(self.wheel, due, self.offset)
        for due_ms in due:
            self.twin.add(due_ms, self.offset, self.offset % 5)
            self.offset += 1

    @precondition(lambda self: self.twin.heap)
    @rule(which=st.lists(st.integers(0, 10**6), min_size=1, max_size=10))
    def remove(self, which: list[int]) -> None:
        for number in which:
            if self.twin.heap:
                entry = self.twin.heap[number % len(self.twin.heap)]
                self.twin.remove(entry)
                self.wheel.remove(entry[0], entry[1])
                self.removed.append(entry)

    @precondition(lambda self: self.removed)
    @rule(tag=st.integers(0, 9))
    def add_again(self, tag: int) -> None:
        due_ms, offset, _ = self.removed.pop()
        self.wheel.add(due_ms, offset, tag)
        self.twin.add(due_ms, offset, tag)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.wheel.trim(int(self.offset * share / 2))
        self.twin.trim(int(self.offset * share / 2))

    @rule(
        step_ms=st.one_of(
            st.integers(0, 300),
            st.sampled_from([-3_600_000, 3_600_000, -1, 65_536, 10**11]),
            st.integers(-(10**6), 10**6),
        )
    )
    def move_clock(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.pop()

    @rule()
    def go_to_the_next_time(self) -> None:
        next_ms = self.wheel.next_ms()
        if next_ms is not None:
            self.now_ms = max(self.now_ms, next_ms)
            self.pop()

    @rule(
        step_ms=st.integers(0, 300_000),
        entries_max=st.integers(1, 4),
        slices=st.sampled_from([1, 2, 5, 10_000]),
    )
    def pop_in_slices(self, step_ms: int, entries_max: int, slices: int) -> None:
        self.now_ms += step_ms
        popped: list[tuple[int, int, int]] = []
        has_more = True
        while has_more and slices:
            part = self.wheel.pop_slice(self.now_ms, entries_max)
            assert len(part.entries.offsets) <= entries_max
            popped += _listed(part.entries)
            has_more = part.up_to_ms < self.now_ms or part.end_offset is not None
            slices -= 1
        if has_more:
            assert popped == [heapq.heappop(self.twin.heap) for _ in popped]
            return
        assert popped == self.twin.pop_due(self.now_ms)
        next_ms = self.wheel.next_ms()
        assert next_ms is None or next_ms > self.now_ms

    def pop(self) -> None:
        assert _listed(self.wheel.pop_due(self.now_ms)) == self.twin.pop_due(self.now_ms)
        next_ms = self.wheel.next_ms()
        assert next_ms is None or next_ms > self.now_ms

    @invariant()
    def agree(self) -> None:
        assert len(self.wheel) == len(self.twin.heap)
        next_ms = self.wheel.next_ms()
        if self.twin.heap:
            assert next_ms is not None
            assert next_ms <= self.twin.heap[0][0]
        rows = sum(level.row_count(each) for level in self.wheel._levels for each in level.slots)
        assert rows == self.wheel._count
        assert rows <= 2 * len(self.twin.heap) + 8
        assert all(group for group in self.wheel._amended.values())
        for level in self.wheel._levels:
            assert sorted(level.order) == sorted(level.slots)
            assert all(map(level.row_count, level.slots))
            assert set(level._taken) | set(level._merges) <= set(level.slots)

    def teardown(self) -> None:
        self.now_ms += 10**14
        self.pop()
        assert len(self.wheel) == self.wheel._removed_count == _slot_count(self.wheel) == 0
        for module, name, size in self.sizes:
            setattr(module, name, size)


TestWheels = Wheels.TestCase
TestWheels.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_large_slot_cascades_in_the_order_of_its_offsets() -> None:
    wheel = TimerWheel(NOW_MS)
    _add_many(wheel, [NOW_MS + 900_000] * 1_000)
    found: list[int] = []
    while len(wheel):
        part = wheel.pop_slice(NOW_MS + 900_000, 70)
        found += part.entries.offsets.tolist()
        for number in wheel._levels[0].slots:
            offsets = wheel._levels[0].rows(number)[:, 1].tolist()
            assert offsets == sorted(offsets)
    assert found == list(range(1_000))


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_many_due_at_one_millisecond_are_never_sorted_at_once(
    is_shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_counts: list[int] = []
    argsort: Callable[..., Int64s] = np.argsort

    def counting(values: Int64s, **how: Any) -> Int64s:
        sorted_counts.append(len(values))
        return argsort(values, **how)

    due_ms = NOW_MS + 8 * 3_600_000
    wheel = TimerWheel(NOW_MS)
    rng = np.random.default_rng(1)
    for number in range(40):
        wheel.position_ms = NOW_MS + number * 12 * 60_000
        offsets = np.arange(number * 10_000, (number + 1) * 10_000)
        if is_shuffled:
            rng.shuffle(offsets)
        wheel.add_many(np.full(10_000, due_ms), offsets, offsets)
    monkeypatch.setattr(np, "argsort", counting)
    found: list[int] = []
    while len(wheel):
        found += wheel.pop_slice(due_ms, 1_000).entries.offsets.tolist()
    assert found == list(range(400_000))
    assert max(sorted_counts) <= level_module._SCANNED_AT_ONCE


@pytest.mark.parametrize("due_ms", [0, 1, NOW_MS - 1, NOW_MS, NOW_MS + 1, 2**62, 2**63 - 1])
def test_an_entry_comes_at_its_millisecond_and_not_before(due_ms: int) -> None:
    for batch in (False, True):
        wheel = TimerWheel(NOW_MS)
        if batch:
            wheel.add_many(*(np.array([v], np.int64) for v in (due_ms, 3, 2**63 - 1)))
        else:
            wheel.add(due_ms, 3, 2**63 - 1)
        assert _listed(wheel.pop_due(due_ms - 1)) == []
        assert len(wheel) == 1
        assert _listed(wheel.pop_due(due_ms)) == [(due_ms, 3, 2**63 - 1)]
        assert wheel.next_ms() is None
        assert not wheel


def test_an_entry_costs_at_most_a_pop_a_level_to_wait_for() -> None:
    for distance_ms in (0, 1, 255, 256, 65_535, 65_536, 3_600_000, 10**9, 10**12, 2**62):
        wheel = TimerWheel(NOW_MS)
        wheel.add(NOW_MS + distance_ms, 1, 1)
        pops = 0
        while (next_ms := wheel.next_ms()) is not None:
            wheel.pop_due(next_ms)
            pops += 1
        assert pops <= 8


def test_a_stopped_process_pays_for_what_is_due_and_not_for_the_time_that_passed(
    placed: list[int],
) -> None:
    wheel = TimerWheel(0)
    _add_many(wheel, [5, 10**12, 2**62])
    placed.clear()
    assert len(wheel.pop_due(2**61).offsets) == 2
    assert sum(placed) <= 8


def test_a_clock_set_back_loses_and_repeats_nothing() -> None:
    wheel = TimerWheel(NOW_MS)
    _add_many(wheel, [NOW_MS + 10, NOW_MS + 5000])
    assert wheel.pop_due(NOW_MS + 20).offsets.tolist() == [0]
    back_ms = NOW_MS - 3_600_000
    assert wheel.pop_due(back_ms).offsets.tolist() == []
    _add_many(wheel, [back_ms + 7, back_ms - 1], 2)
    assert wheel.pop_due(back_ms).offsets.tolist() == [3]
    assert wheel.pop_due(back_ms + 6).offsets.tolist() == []
    assert wheel.pop_due(back_ms + 7).offsets.tolist() == [2]
    assert wheel.pop_due(NOW_MS + 4999).offsets.tolist() == []
    assert wheel.pop_due(NOW_MS + 5000).offsets.tolist() == [1]


def test_slots_of_one_number_on_two_levels_are_two() -> None:
    wheel = TimerWheel(0)
    _add_many(wheel, [1, 256])
    assert _listed(wheel.pop_due(255)) == [(1, 0, 0)]
    assert _listed(wheel.pop_due(256)) == [(256, 1, 1)]


def test_an_entry_that_was_removed_and_added_again_comes_once_and_with_its_new_tag() -> None:
    wheel = TimerWheel(NOW_MS)
    wheel.add(NOW_MS + 50, 1, 7)
    wheel.remove(NOW_MS + 50, 1)
    wheel.add(NOW_MS + 90, 1, 7)
    wheel.remove(NOW_MS + 90, 1)
    wheel.add(NOW_MS + 50, 1, 8)
    assert len(wheel) == 1
    assert _listed(wheel.pop_due(NOW_MS + 1000)) == [(NOW_MS + 50, 1, 8)]


@pytest.mark.parametrize("span_ms", first_of([3_600_000, 60_000, 7 * 86_400_000], quick=1))
def test_a_pending_entry_costs_less_than_26_bytes(span_ms: int) -> None:
    rng = np.random.default_rng(1)
    wheel = TimerWheel(NOW_MS)
    with memory_of("goq/delivery") as held_bytes:
        for batch in range(200):
            _add_many(wheel, NOW_MS + rng.integers(0, span_ms, 1000), batch * 1000)
        used_bytes = held_bytes()
    assert 24 * len(wheel) <= used_bytes < 26 * len(wheel) + 256 * 3 * 200


def test_removing_nearly_everything_gives_the_memory_back() -> None:
    for span_ms in (1, 60_000, 3_600_000, 10**10):
        wheel = TimerWheel(NOW_MS)
        due = NOW_MS + np.random.default_rng(1).integers(0, span_ms, 40_000)
        _add_many(wheel, due)
        order = list(enumerate(due.tolist()))[:-10]
        random.Random(1).shuffle(order)
        for offset, due_ms in order:
            wheel.remove(due_ms, offset)
            assert wheel._count <= 2 * len(wheel) + 2 * wheel_module._REMOVED_MIN
        assert len(wheel) == 10
        assert wheel._removed_count == sum(map(len, wheel._amended.values()))
        assert wheel.pop_due(NOW_MS + span_ms).offsets.tolist() == sorted(
            range(39_990, 40_000), key=lambda offset: (due[offset], offset)
        )


def test_cleaning_many_slots_sorts_what_was_removed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_counts = []

    def counting(offsets: Iterable[int]) -> Int64s:
        found = sorted_offsets(offsets)
        sorted_counts.append(len(found))
        return found

    monkeypatch.setattr(wheel_module, "sorted_offsets", counting)
    wheel = TimerWheel(NOW_MS)
    due = NOW_MS + np.random.default_rng(1).integers(0, 60_000, 200_000)
    _add_many(wheel, due)
    for offset, due_ms in enumerate(due[:20_000].tolist()):
        wheel.remove(due_ms, offset)
    assert 0 < sum(sorted_counts) < 3 * 20_000


def test_a_minute_of_100_000_entries_comes_in_small_pieces(placed: list[int]) -> None:
    wheel = TimerWheel(NOW_MS)
    _add_many(wheel, NOW_MS + np.random.default_rng(1).integers(0, 60_000, 100_000))
    popped = 0
    for now_ms in range(NOW_MS, NOW_MS + 60_000, 4):
        placed.clear()
        due_count = len(wheel.pop_due(now_ms).offsets)
        popped += due_count
        assert due_count < 50
        assert sum(placed) < 9000
    assert popped + len(wheel) == 100_000


def _table(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the documentation, without its head."""
    section = DOC.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def _number(text: str) -> int:
    return int(re.sub(r"[ ,]|ms", "", text))


def test_the_documented_levels_are_the_wheels() -> None:
    levels = TimerWheel(0)._levels
    table = _table("The levels")
    assert len(table) == len(levels)
    for (number, width, reach, _), level in zip(table, levels, strict=True):
        assert level is levels[int(number)]
        assert _number(width) == 1 << level.shift
        if number != "7":
            assert _number(reach) == 256 << level.shift
            assert wheel_module._SPANS[int(number)] == 256 << level.shift


def test_the_documented_entries_lie_where_it_says() -> None:
    position_ms = 1_000_000
    for due, distance, number, slot, first, last in _table("Where entries go"):
        assert _number(due) - position_ms == _number(distance)
        wheel = TimerWheel(position_ms)
        wheel.add(_number(due), 1, 1)
        level = wheel._levels[int(number)]
        assert list(level.slots) == [_number(slot)]
        assert _number(slot) << level.shift == _number(first)
        assert ((_number(slot) + 1) << level.shift) - 1 == _number(last)


def test_the_documented_wait_goes_as_it_says() -> None:
    wheel = TimerWheel(1_000_000)
    wheel.add(4_600_000, 1, 1)
    for asked, returned, number, slot in _table("One entry, an hour ahead"):
        assert wheel.next_ms() == _number(asked)
        popped = _listed(wheel.pop_due(_number(asked)))
        assert len(popped) == int(returned)
        places = [(n, s) for n, level in enumerate(wheel._levels) for s in level.slots]
        assert places == ([(int(number), _number(slot))] if slot != "—" else [])
    assert not wheel
