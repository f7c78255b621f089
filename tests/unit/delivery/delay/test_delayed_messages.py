"""A partition's schedule against a dictionary, with the clock set, readings that fail, restarts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from goq.delivery.delay.delayed_messages import DelayedMessages, LoadRequest
from goq.delivery.delay.maturity import Maturity
from goq.limits import DELAY_HORIZON_MS as HORIZON_MS
from tests.support.delivery.delay_model import SchedulePair
from tests.support.storage.memory import memory_of

NOW_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
DELAYS_MS = st.one_of(
    st.integers(1, 50),
    st.integers(1, HOUR_MS),
    st.integers(HOUR_MS - 3, HOUR_MS + 3),
    st.integers(HOUR_MS // 2, 5 * HOUR_MS),
    st.sampled_from([30 * 24 * HOUR_MS, 30 * 24 * HOUR_MS + 1]),
)


class Schedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = SchedulePair(NOW_MS)

    @rule(messages_max=st.sampled_from([None, 1, 2, 5]))
    def pop_in_slices(self, messages_max: int | None) -> None:
        self.pair.messages_max = messages_max

    @rule(delays_ms=st.lists(DELAYS_MS, min_size=1, max_size=12))
    def publish(self, delays_ms: list[int]) -> None:
        self.pair.publish(delays_ms)

    @precondition(lambda self: self.pair.waiting())
    @rule(which=st.integers(0, 10**6))
    def cancel(self, which: int) -> None:
        waiting = self.pair.waiting()
        self.pair.cancel(waiting[which % len(waiting)])

    @precondition(lambda self: self.pair.waiting())
    @rule(
        which=st.integers(0, 10**6),
        delay_ms=st.one_of(DELAYS_MS, st.integers(-HOUR_MS, 0)),
        back=st.booleans(),
    )
    def reschedule(self, which: int, delay_ms: int, back: bool) -> None:
        waiting = self.pair.waiting()
        message = waiting[which % len(waiting)]
        self.pair.reschedule(message, message.row[2] if back else self.pair.now_ms + delay_ms)

    @rule(step_ms=st.integers(0, HOUR_MS // 2))
    def wait(self, step_ms: int) -> None:
        self.pair.now_ms += step_ms

    @rule(step_ms=st.sampled_from([-HOUR_MS, HOUR_MS, -1, 3 * HOUR_MS, -3 * HOUR_MS]))
    def set_clock(self, step_ms: int) -> None:
        self.pair.now_ms += step_ms

    @rule()
    def wait_for_the_next_time(self) -> None:
        next_ms = self.pair.schedule.next_ms()
        if next_ms is not None:
            self.pair.now_ms = max(self.pair.now_ms, next_ms)

    @rule()
    def pop(self) -> None:
        self.pair.pop()

    @rule()
    def begin_load(self) -> None:
        if self.pair.load is None:
            self.pair.begin_load()

    @rule(slices=st.integers(1, 3), also_later_rows=st.booleans())
    def finish_load(self, slices: int, also_later_rows: bool) -> None:
        self.pair.finish_load(slices, also_later_rows=also_later_rows)

    @rule()
    def fail_load(self) -> None:
        self.pair.fail_load()

    @rule()
    def catch_up(self) -> None:
        self.pair.fail_load()
        self.pair.catch_up()

    @rule(chunk_size=st.integers(1, 20))
    def restart(self, chunk_size: int) -> None:
        self.pair.restart(chunk_size)

    @rule(count=st.integers(0, 4))
    def trim(self, count: int) -> None:
        self.pair.trim(min([*self.pair.messages, self.pair.next_offset]) + count)

    @invariant()
    def agree(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        """In the end everything matures, once."""
        self.pair.fail_load()
        for _ in range(5):
            self.pair.now_ms += 10 * 24 * HOUR_MS
            self.pair.catch_up()
            self.pair.check()
        assert not self.pair.waiting()
        assert self.pair.schedule.next_ms() is None


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_slice_after_which_only_cancelled_messages_are_left_is_the_last() -> None:
    pair = SchedulePair(NOW_MS, messages_max=1)
    pair.publish([1, 1])
    pair.cancel(pair.waiting()[1])
    pair.now_ms += HOUR_MS
    pair.catch_up()
    pair.check()
    assert not pair.waiting()
    assert pair.schedule.next_ms() is None


def test_what_is_due_before_the_horizon_is_in_memory_and_the_rest_is_counted() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    due = [NOW_MS + HORIZON_MS - 1, NOW_MS + HORIZON_MS, NOW_MS + HORIZON_MS + 1]
    schedule.add([0, 1, 2], [0, 0, 0], due, NOW_MS)
    assert len(schedule._wheel) == 1
    assert schedule.count == 3


def test_a_window_is_wanted_when_half_of_the_horizon_is_left() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    schedule.add([7], [0], [NOW_MS + 2 * HORIZON_MS], NOW_MS)
    then_ms = NOW_MS + HORIZON_MS // 2
    assert schedule.next_ms() == then_ms
    assert schedule.load_wanted(then_ms - 1) is None
    load = schedule.load_wanted(then_ms)
    assert load == LoadRequest(NOW_MS + HORIZON_MS, then_ms + HORIZON_MS, 8)
    assert schedule.load_wanted(then_ms) is None  # it is under way
    schedule.loaded(load.to_ms, [], [], [])
    assert schedule.load_wanted(then_ms) is None
    assert schedule.count == 1


def test_nothing_is_read_when_nothing_is_on_the_disk_only() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    late_ms = NOW_MS + 100 * HORIZON_MS
    assert schedule.load_wanted(late_ms) is None
    schedule.add([0], [0], [late_ms + 5], late_ms)
    assert schedule.next_ms() == late_ms + 5
    assert schedule.load_wanted(late_ms + 5) is None
    assert schedule.pop_due(late_ms + 5).offsets.tolist() == [0]


def test_a_jump_past_the_horizon_matures_nothing_beyond_it_before_it_was_read() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    far_ms = NOW_MS + 30 * 24 * HOUR_MS
    schedule.add([0, 1], [4, 5], [NOW_MS + 10, far_ms], NOW_MS)
    due = schedule.pop_due(far_ms + 1)
    assert due.offsets.tolist() == [0]
    assert due.up_to_ms == NOW_MS + HORIZON_MS - 1
    load = schedule.load_wanted(far_ms + 1)
    assert load is not None
    assert load.from_ms <= far_ms < load.to_ms
    schedule.loaded(load.to_ms, [1], [5], [far_ms])
    due = schedule.pop_due(far_ms + 1)
    assert (due.up_to_ms, due.offsets.tolist(), due.tags.tolist()) == (far_ms + 1, [1], [5])


@pytest.mark.parametrize("read_too", [False, True])
def test_what_is_published_into_a_window_that_is_being_read_comes_once(read_too: bool) -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    first_ms = NOW_MS + HORIZON_MS + 5
    schedule.add([0], [0], [first_ms], NOW_MS)
    then_ms = NOW_MS + HORIZON_MS // 2
    load = schedule.load_wanted(then_ms)
    assert load is not None
    schedule.add([1, 2], [0, 0], [first_ms, NOW_MS + 9 * HORIZON_MS], then_ms)
    rows = [0, 1] if read_too else [0]
    schedule.loaded(load.to_ms, rows, [0] * len(rows), [first_ms] * len(rows))
    assert schedule.count == 3
    assert schedule.pop_due(first_ms).offsets.tolist() == [0, 1]


@pytest.mark.parametrize("read_too", [False, True])
def test_a_reading_that_failed_is_asked_for_again_as_it_was(read_too: bool) -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    first_ms = NOW_MS + HORIZON_MS + 5
    schedule.add([0], [0], [first_ms], NOW_MS)
    then_ms = NOW_MS + HORIZON_MS // 2
    load = schedule.load_wanted(then_ms)
    assert load is not None
    schedule.add([1], [0], [first_ms], then_ms)
    schedule.load_failed()
    assert schedule.load_wanted(then_ms + 900) == load
    rows = [0, 1] if read_too else [0]
    schedule.loaded(load.to_ms, rows, [0] * len(rows), [first_ms] * len(rows))
    assert schedule.pop_due(first_ms).offsets.tolist() == [0, 1]


def test_the_horizon_stays_while_a_window_is_read_though_its_messages_were_cancelled() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    far_ms = NOW_MS + HORIZON_MS + 5
    schedule.add([0], [0], [far_ms], NOW_MS)
    load = schedule.load_wanted(NOW_MS + HORIZON_MS // 2)
    assert load is not None
    schedule.cancel(0, far_ms)
    schedule.add([1], [0], [load.to_ms + 5], load.to_ms)
    assert schedule.pop_due(load.to_ms + 5).up_to_ms == load.from_ms - 1
    schedule.loaded(load.to_ms, [0], [0], [far_ms])
    assert schedule.pop_due(load.to_ms + 5).up_to_ms == load.to_ms - 1
    schedule.cancel(1, load.to_ms + 5)
    assert schedule.count == 0
    assert schedule.pop_due(load.to_ms + HORIZON_MS).offsets.tolist() == []


def test_what_lies_in_a_window_that_is_being_read_wakes_nobody_in_vain() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    far_ms = NOW_MS + HORIZON_MS + 5
    schedule.add([0], [0], [far_ms], NOW_MS)
    assert schedule.load_wanted(NOW_MS + HORIZON_MS // 2) is not None
    schedule.add([1], [0], [far_ms], NOW_MS + HORIZON_MS // 2)
    assert schedule.pop_due(far_ms + 1).offsets.tolist() == []
    assert schedule.next_ms() is None


def test_what_was_not_asked_for_is_refused() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    with pytest.raises(ValueError, match="nothing is to be loaded"):
        schedule.loaded(NOW_MS + 2 * HORIZON_MS, [], [], [])
    schedule.add([0], [0], [NOW_MS + 3 * HORIZON_MS], NOW_MS)
    load = schedule.load_wanted(NOW_MS + HORIZON_MS)
    assert load is not None
    for to_ms in (load.from_ms, load.to_ms + 1):
        with pytest.raises(ValueError, match="nothing is to be loaded"):
            schedule.loaded(to_ms, [], [], [])
    schedule.load_failed()
    with pytest.raises(ValueError, match="nothing is to be loaded"):
        schedule.loaded(load.to_ms, [], [], [])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "moves",
    [
        [10],
        [3 * HOUR_MS],
        [10, 3 * HOUR_MS],
        [3 * HOUR_MS, 10],
        [10, 2 * HOUR_MS, 10],
        [-5],
        [5 * HOUR_MS, 3 * HOUR_MS, 2 * HOUR_MS],
    ],
)
@pytest.mark.parametrize("delay_ms", [10, 2 * HOUR_MS])
def test_a_message_with_another_time_comes_then_and_once(
    delay_ms: int, moves: list[int], restarted: bool
) -> None:
    pair = SchedulePair(NOW_MS)
    pair.publish([delay_ms, 2 * HOUR_MS])
    for move_ms in moves:
        pair.reschedule(pair.messages[0], NOW_MS + move_ms)
    if restarted:
        pair.restart()
    for _ in range(20):
        pair.catch_up()
        pair.check()
        pair.now_ms += HOUR_MS // 3
    assert not pair.waiting()


def test_messages_that_wait_far_off_cost_no_memory() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    offsets = np.arange(10_000, dtype=np.int64)
    schedule.add(offsets, offsets, NOW_MS + 2 * HORIZON_MS + offsets, NOW_MS)
    with memory_of("goq/delivery") as held_bytes:
        for _ in range(50):
            offsets += 10_000
            schedule.add(offsets, offsets, NOW_MS + 2 * HORIZON_MS + offsets, NOW_MS)
        for _ in range(50):
            offsets += 10_000
            schedule.restore(offsets, offsets, NOW_MS + 2 * HORIZON_MS + offsets)
        grown_bytes = held_bytes()
    assert schedule.count == 1_010_000
    assert grown_bytes < 100_000  # a tenth of a byte each


def test_cancelling_a_far_message_twice_counts_once() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    due_ms = NOW_MS + 5 * HORIZON_MS
    schedule.add([0, 1], [0, 0], [due_ms, due_ms], NOW_MS)
    schedule.cancel(0, due_ms)
    schedule.cancel(0, due_ms)
    assert schedule.count == 1


def test_offsets_that_were_remembered_for_a_window_are_forgotten_with_it() -> None:
    schedule = DelayedMessages(NOW_MS, Maturity())
    due_ms = NOW_MS + HORIZON_MS + 5
    offsets = list(range(100))
    schedule.add(offsets, offsets, [due_ms] * 100, NOW_MS)
    for offset in offsets[:60]:
        schedule.cancel(offset, due_ms)
    for offset in offsets[60:99]:
        schedule.reschedule(offset, offset, due_ms, NOW_MS + 5)
    load = schedule.load_wanted(NOW_MS + HORIZON_MS)
    assert load is not None
    schedule.loaded(load.to_ms, offsets, offsets, [due_ms] * 100)
    assert not schedule._void_on_disk
    assert schedule.pop_due(NOW_MS + 5).offsets.tolist() == offsets[60:99]
    assert schedule.pop_due(due_ms).offsets.tolist() == [99]
    assert schedule.count == 0


def test_rows_that_matured_while_the_clock_was_ahead_do_not_come_again() -> None:
    ahead_ms = NOW_MS + 40 * HOUR_MS
    schedule = DelayedMessages(NOW_MS, Maturity([(ahead_ms, 2)]))
    rows = [NOW_MS + 5, ahead_ms, ahead_ms + 1, NOW_MS + 5]
    schedule.restore([0, 1, 2, 3], [0, 0, 0, 0], [rows[0], rows[1], rows[2], rows[3]])
    assert schedule.count == 2
    assert schedule.pop_due(NOW_MS + 5).offsets.tolist() == [3]
    load = schedule.load_wanted(ahead_ms + 1)
    assert load is not None
    schedule.loaded(load.to_ms, [1, 2], [0, 0], [ahead_ms, ahead_ms + 1])
    assert schedule.pop_due(ahead_ms + 1).offsets.tolist() == [2]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_very_many_messages_due_at_one_millisecond_mature_in_parts(is_sorted: bool) -> None:
    pair = SchedulePair(NOW_MS, messages_max=100)
    pair.publish([HOUR_MS // 2] * 900)
    if not is_sorted:  # those that are published later are in a narrower slot first
        pair.now_ms += HOUR_MS // 2 - 1000
        pair.publish([1000] * 900)
    pair.now_ms = NOW_MS + HOUR_MS // 2
    parts = []
    while pair.schedule.has_due(pair.now_ms):
        due = pair._pop()
        assert len(due.offsets) <= 100
        assert len(due.offsets) == 0 or pair.maturity.has_matured(int(due.offsets[-1]), pair.now_ms)
        parts.append(due)
    assert sum(len(due.offsets) for due in parts) == len(pair.messages)
    assert len(pair.maturity.pairs) == 1


def test_a_restart_between_two_parts_matures_the_rest_and_no_message_twice() -> None:
    pair = SchedulePair(NOW_MS, messages_max=100)
    pair.publish([5000] * 900 + [4000] * 50 + [5001] * 50)
    pair.now_ms = NOW_MS + 6000
    while pair.schedule.has_due(pair.now_ms):
        if len(pair._pop().offsets):  # else it has only cascaded
            pair.restart(chunk_size=100)
    assert all(message.matured for message in pair.messages.values())


def test_a_far_message_that_was_cancelled_stays_so_when_the_log_begins_with_it() -> None:
    pair = SchedulePair(NOW_MS)
    pair.publish([5 * HORIZON_MS] * 3)
    pair.cancel(pair.waiting()[1])
    pair.trim(1)
    for _ in range(12):
        pair.now_ms += HORIZON_MS // 2
        pair.catch_up()
        pair.check()
    assert not pair.waiting()
