"""ReadyQueues queues: what is kept, in which order, since when, and what is forgotten."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.delivery.queues import ready_queues
from goq.delivery.queues.policy import TenantNumbers
from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX, IN_ORDER, ReadyQueue, ReadyTimes
from goq.delivery.queues.ready_queues import ReadyQueues

Rows = list[tuple[int, int, int]]


class Progress:
    """A reader that has passed what it says."""

    def __init__(self, ready: ReadyQueues) -> None:
        self.ready = ready
        self.passed_runs: dict[int, int] = {}
        ready.add_reader(self)

    def pass_all(self) -> None:
        for queue in self.ready:
            self.passed_runs[queue.slot] = queue.end

    def first_needed_run(self, slot: int) -> int:
        queue = self.ready.slots[slot]
        assert queue is not None
        return self.passed_runs.get(slot, queue.first)

    def on_queue_removed(self, slot: int) -> None:
        self.passed_runs.pop(slot, None)


def offsets_of(queue: ReadyQueue) -> list[int]:
    runs = [(run >> COUNT_BITS, run & COUNT_MAX) for run in queue.runs]
    return [offset for start, count in runs for offset in range(start, start + count)]


def contents(ready: ReadyQueues) -> dict[tuple[int, int], list[int]]:
    return {(queue.lane, queue.tenant): offsets_of(queue) for queue in ready}


def add_rows(ready: ReadyQueues, rows: Rows, ready_ms: int = 0) -> None:
    offsets, lanes, tenants = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    ready.add_rows(offsets, lanes.astype(np.uint8), tenants.astype(np.uint32), ready_ms)


def ready_ms(ready: ReadyQueues, queue: ReadyQueue, index: int) -> int:
    late_ms = queue.late_ms(queue.first + index)
    return ready.times.at(queue.runs[index] >> COUNT_BITS) if late_ms == IN_ORDER else late_ms


def sweep(ready: ReadyQueues) -> None:
    for _ in range(10 * (len(ready.slots) + 1)):
        ready.release()


def test_messages_that_follow_one_another_are_one_entry() -> None:
    ready = ReadyQueues()
    for start in range(0, 5000, 10):
        ready.add(1, 0, start, start + 10, start)
    assert ready.entry_count == 1
    assert contents(ready) == {(1, 0): list(range(5000))}


@pytest.mark.parametrize("count", [COUNT_MAX - 1, COUNT_MAX, COUNT_MAX + 1, 3 * COUNT_MAX + 7])
def test_a_run_that_is_too_long_for_one_entry_becomes_several(count: int) -> None:
    ready = ReadyQueues()
    ready.add(0, 0, 5, 5 + count, 0)
    ready.add(0, 0, 5 + count, 7 + count, 0)
    assert contents(ready) == {(0, 0): list(range(5, 7 + count))}
    assert ready.entry_count == -(-(count + 2) // COUNT_MAX)


def test_a_message_on_its_own_is_eight_bytes() -> None:
    ready = ReadyQueues()
    add_rows(ready, [(offset, 0, 1 + offset % 2) for offset in range(1000)])
    queue = next(iter(ready))
    assert ready.entry_count == 1000
    assert queue.runs.itemsize == 8


def test_the_largest_offsets_are_kept() -> None:
    ready = ReadyQueues()
    top = 2**48 - 1
    add_rows(ready, [(top - 2, 255, 7), (top, 255, 7)])
    assert contents(ready) == {(255, 7): [top - 2, top]}


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(0, 3)), max_size=12),
        max_size=6,
    )
)
def test_rows_come_to_the_same_as_messages_added_one_by_one(frames: list[Rows]) -> None:
    by_rows, one_by_one, naive = ReadyQueues(), ReadyQueues(), dict[tuple[int, int], list[int]]()
    for number, rows in enumerate(frames):
        add_rows(by_rows, rows, number)
        for offset, lane, tenant in rows:
            one_by_one.add(lane, tenant, offset, offset + 1, number)
            naive.setdefault((lane, tenant), []).append(offset)
    assert contents(by_rows) == contents(one_by_one) == naive
    assert by_rows.entry_count == sum(len(queue.runs) for queue in by_rows)


def test_nothing_is_added_by_nothing() -> None:
    ready = ReadyQueues()
    add_rows(ready, [])
    ready.add(0, 0, 5, 5, 0)
    assert len(ready) == 0


def test_ready_times_of_messages_in_order_cost_nothing_by_queue() -> None:
    ready = ReadyQueues()
    for frame in range(20):
        add_rows(ready, [(10 * frame + n, 0, 1 + n) for n in range(10)], 1000 * frame)
    for queue in ready:
        assert [ready_ms(ready, queue, i) for i in range(20)] == list(range(0, 20_000, 1000))
    assert len(ready.times) == 20


def test_a_matured_message_is_ready_since_it_matured() -> None:
    ready = ReadyQueues()
    ready.add(0, 0, 0, 3, 1000)
    ready.add(0, 0, 4, 6, 2000)
    ready.add(0, 0, 3, 4, 9000)
    ready.add(0, 0, 6, 7, 9500)
    (queue,) = ready
    assert offsets_of(queue) == [0, 1, 2, 4, 5, 3, 6]
    assert [ready_ms(ready, queue, i) for i in range(4)] == [1000, 2000, 9000, 9500]


def test_a_matured_message_does_not_make_its_neighbours_younger_or_older() -> None:
    ready = ReadyQueues()
    ready.add(0, 0, 0, 3, 1000)
    ready.add(1, 0, 5, 6, 1000)
    ready.add(0, 0, 3, 5, 9000)
    for start in range(6, 16, 2):
        ready.add(0, 0, start, start + 2, 9500)
    queue = next(iter(ready))
    assert [run >> COUNT_BITS for run in queue.runs] == [0, 3, 6]
    assert [ready_ms(ready, queue, i) for i in range(3)] == [1000, 9000, 9500]


def test_many_that_mature_at_once_are_one_run() -> None:
    ready = ReadyQueues()
    ready.add(0, 0, 1000, 1001, 0)
    add_rows(ready, [(offset, 0, 0) for offset in range(500)], 70_000)
    ready.add(0, 0, 500, 600, 70_000)
    assert ready.entry_count == 2


def test_a_clock_that_was_set_back_is_told_as_it_was() -> None:
    ready = ReadyQueues()
    for offset, now_ms in enumerate([5000, 9000, 2000, 2010, 3000]):
        ready.add(offset % 2, 0, offset, offset + 1, now_ms)
    times = [ready.times.at(offset) for offset in range(5)]
    assert times == [5000, 9000, 2000, 2000, 3000]


def test_ready_times_are_never_late_and_nearly_right_and_few() -> None:
    times, rng, now_ms = ReadyTimes(), random.Random(1), 0
    truth = []
    for offset in range(60_000):
        now_ms += rng.choice([0, 20, 150, 2000])
        truth.append(now_ms)
        times.add(offset, now_ms)
    assert len(times) <= limits.READY_TIMES_MAX
    for offset, true_ms in enumerate(truth):
        error_ms = true_ms - times.at(offset)
        assert 0 <= error_ms <= limits.READY_TIME_STEP_MS + (now_ms - true_ms) / 30
        assert offset < times.same_until(offset)


def test_ready_times_of_deleted_messages_are_forgotten() -> None:
    ready = ReadyQueues()
    for offset in range(100):
        ready.add(0, 0, offset, offset + 1, 1000 * offset)
    ready.trim(90)
    assert len(ready.times) == 10
    assert [ready.times.at(offset) for offset in (90, 99)] == [90_000, 99_000]


def test_trimming_forgets_the_runs_wholly_before() -> None:
    ready = ReadyQueues()
    add_rows(ready, [(offset, 0, offset % 3) for offset in range(300)])
    ready.trim(150)
    assert contents(ready) == {(0, t): [o for o in range(150, 300) if o % 3 == t] for t in range(3)}
    assert ready.entry_count == 150
    ready.trim(1000)
    assert ready.entry_count == 0
    ready.add(0, 1, 1000, 1001, 0)
    ready.trim(1001)
    assert ready.entry_count == 0


def test_a_long_beginning_is_trimmed_as_a_short_one_is() -> None:
    ready = ReadyQueues()
    for offset in range(0, 40_000, 2):
        ready.add(0, 0, offset, offset + 1, 0)
    ready.trim(30_001)
    assert contents(ready) == {(0, 0): list(range(30_002, 40_000, 2))}


def test_what_one_reader_still_needs_is_kept() -> None:
    ready = ReadyQueues()
    fast, slow = Progress(ready), Progress(ready)
    add_rows(ready, [(offset, 0, 1 + offset % 2) for offset in range(20)])
    fast.pass_all()
    sweep(ready)
    assert ready.entry_count == 20
    slow.passed_runs = {queue.slot: 4 for queue in ready}
    sweep(ready)
    assert contents(ready) == {(0, 1): list(range(8, 20, 2)), (0, 2): list(range(9, 20, 2))}
    assert ready.complete_from == 8
    slow.pass_all()
    sweep(ready)
    assert len(ready) == ready.entry_count == 0
    assert ready.complete_from == 20


def test_a_reader_that_leaves_holds_nothing_back() -> None:
    ready = ReadyQueues()
    fast, slow = Progress(ready), Progress(ready)
    add_rows(ready, [(offset, 0, 1 + offset % 2) for offset in range(20)])
    fast.pass_all()
    ready.remove_reader(slow)
    sweep(ready)
    assert ready.entry_count == 0


def test_memory_stays_flat_while_readers_keep_up() -> None:
    ready, rng = ReadyQueues(), random.Random(1)
    reader = Progress(ready)
    counts = []
    for frame in range(300):
        rows = [(100 * frame + n, 0, rng.randint(1, 500)) for n in range(100)]
        add_rows(ready, rows)
        reader.pass_all()
        ready.release()
        counts.append(ready.entry_count)
        assert len(ready.arrivals) <= 3000
    assert max(counts[150:]) < 10 * 500


def test_the_slot_of_a_forgotten_queue_is_used_again() -> None:
    ready = ReadyQueues()
    reader = Progress(ready)
    for tenant in range(1, 50):
        ready.add(0, tenant, 2 * tenant, 2 * tenant + 1, 0)
        reader.pass_all()
        sweep(ready)
    assert len(ready.slots) == 1
    assert len(ready) == 0


def test_a_plain_topic_stays_complete_though_all_is_passed() -> None:
    ready = ReadyQueues()
    reader = Progress(ready)
    for start in range(0, 1000, 10):
        ready.add(0, 0, start, start + 10, 0)
        reader.pass_all()
        sweep(ready)
    assert (ready.complete_from, ready.entry_count) == (0, 1)


def test_without_readers_everything_is_forgotten() -> None:
    ready = ReadyQueues()
    add_rows(ready, [(offset, offset % 3, offset % 5) for offset in range(100)], 5)
    ready.release()
    assert (len(ready), ready.entry_count, ready.complete_from) == (0, 0, 100)
    ready.add(1, 2, 100, 101, 7)
    assert contents(ready) == {(1, 2): [100]}


def test_a_forgotten_message_from_beyond_the_others_is_not_taken_for_kept() -> None:
    ready = ReadyQueues()
    ready.add(0, 0, 0, 10, 0)
    add_rows(ready, [(30, 0, 0), (26, 0, 0)], 5)
    ready.release()
    assert ready.complete_from == 31


def test_arrivals_do_not_grow_while_nobody_reads_them() -> None:
    ready = ReadyQueues()
    Progress(ready)
    for frame in range(50):
        add_rows(ready, [(100 * frame + n, 0, n) for n in range(100)])
    assert len(ready.arrivals) == 100


def test_tenants_have_one_number_each_and_none_is_zero() -> None:
    tenants = TenantNumbers()
    numbers = [tenants.number(f"tenant-{n}") for n in range(100_000)]
    assert numbers == list(range(1, 100_001))
    assert [tenants.number(""), tenants.number("tenant-7")] == [0, 8]
    assert (tenants.name(8), tenants.name(0), len(tenants)) == ("tenant-7", "", 100_000)


def test_names_beyond_the_bound_share_numbers() -> None:
    tenants = TenantNumbers(names_max=10)
    numbers = {tenants.number(f"tenant-{n}") for n in range(1000)}
    assert numbers == set(range(1, 11))
    assert tenants.number("tenant-3") == 4
    assert tenants.number("tenant-700") == tenants.number("tenant-700")
    assert len(tenants) == 10


def test_few_rows_enter_as_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(4)

    def entered(few_rows: int, batches: list[tuple[list[int], list[int], list[int]]]) -> object:
        monkeypatch.setattr(ready_queues, "_FEW_ROWS", few_rows)
        ready = ReadyQueues()
        for number, columns in enumerate(batches):
            ready.add_rows(*(np.array(column, np.int64) for column in columns), 100 * number)
        queues = [(q.lane, q.tenant, q.slot, list(q.runs), q.late_ms(0)) for q in ready]
        return queues, ready.entry_count, list(ready.arrivals.since(0) or ())

    for _ in range(50):
        batches = []
        for start in range(0, 300, 10):
            offsets = draw.sample(range(start, start + 10), draw.randrange(1, 10))
            if draw.random() < 0.5:
                offsets.sort()
            lanes, tenants = ([draw.randrange(3) for _ in offsets] for _ in range(2))
            batches.append((offsets, lanes, tenants))
        assert entered(0, batches) == entered(16, batches)
