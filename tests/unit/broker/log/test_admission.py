"""Messages whose dedup ids are known or repeated, against a walk over all of them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from goq.broker.log.admission import Admission
from goq.broker.log.pending_appends import Appended
from goq.broker.runtime.metrics import TopicStats
from goq.clock import ManualClock
from goq.delivery.dedup.dedup_window import DedupWindow
from goq.delivery.dedup.producer_table import ProducerTable
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView

WINDOW_US = 1_000_000
NOW_US = 10**15


def id_of(number: int) -> bytes:
    """Return an id that shares a half with others; none for 0."""
    return (number % 4).to_bytes(8, "little") + (number // 4).to_bytes(8, "little")


def admission_of(window: DedupWindow, clock: ManualClock) -> Admission:
    return Admission(ProducerTable(), window, lambda _offset: None, TopicStats(), clock)


def now_us_of(admission: Admission) -> int:
    """Return the time for the next frame, as a queue reads it."""
    now_us, step_ms = admission.steps.read()
    admission.note_clock_set(step_ms)
    return now_us


@pytest.mark.parametrize("count", [5, 200])
@pytest.mark.parametrize("seed", range(8))
def test_a_frame_loses_its_repetitions_each_told_with_its_original(count: int, seed: int) -> None:
    chance = Random(seed)
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=(3, 5))
    clock = ManualClock(NOW_US)
    admission = admission_of(window, clock)
    known: dict[int, tuple[int, int]] = {}
    offset = 0
    for _ in range(6):
        clock.advance_ms(1)
        now_us = clock.now_us
        numbers = [chance.randrange(2 * count) for _ in range(count)]
        firsts: dict[int, tuple[int, int]] = {}
        expected: list[tuple[int, int, int]] = []
        for row, number in enumerate(numbers):
            original = known.get(number) or firsts.get(number)
            if number and original:
                expected.append((row, *original))
            elif number:
                firsts[number] = offset + row - len(expected), now_us
        columns = Columns([b"v"] * count, dedup_ids=[id_of(number) for number in numbers])
        admitted = admission.admit(FrameView.parse(encode_frame(columns)), offset, now_us)
        assert admitted is not None
        assert [tuple(each) for each in admitted.left_out] == expected
        if isinstance(admitted, Appended):
            continue
        assert admitted.header.message_count == count - len(expected)
        admission.stage(admitted, offset, now_us)
        admission.settle(stored=True)
        known |= firsts
        offset += admitted.header.message_count


def test_a_frame_of_one_id_many_times_keeps_the_first() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=(3, 5))
    admission = admission_of(window, ManualClock(NOW_US))
    columns = Columns([b"%d" % n for n in range(100)], dedup_ids=[id_of(9)] * 100)
    admitted = admission.admit(FrameView.parse(encode_frame(columns)), 7, NOW_US)
    assert isinstance(admitted, FrameView)
    assert admitted.header.message_count == 1
    rows = np.array(admitted.left_out)
    assert rows.tolist() == [[row, 7, NOW_US] for row in range(1, 100)]


def test_a_clock_that_is_set_while_an_id_is_written_counts_once_the_id_is_stored() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=(3, 5))
    clock = ManualClock(NOW_US)
    admission = admission_of(window, clock)
    first, other = (
        FrameView.parse(encode_frame(Columns([b"v"], dedup_ids=[id_of(number)])))
        for number in (1, 2)
    )
    assert admission.admit(first, 0, now_us_of(admission)) is not None
    admission.stage(first, 0, clock.now_us)
    clock.jump_ms(10 * WINDOW_US // 1000)
    assert admission.admit(other, 1, now_us_of(admission)) is None  # after the write
    admission.settle(stored=True)
    for _ in range(2):
        assert admission.admit(first, 1, now_us_of(admission)) == Appended(
            0, NOW_US, left_out=[(0, 0, NOW_US)]
        )
        clock.jump_ms(-10 * WINDOW_US // 1000)
    clock.advance_ms(WINDOW_US // 1000)
    assert isinstance(admission.admit(first, 1, now_us_of(admission)), FrameView)


def test_a_node_that_stands_still_while_it_admits_a_frame_forgets_no_id() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=(3, 5))
    clock = ManualClock(NOW_US)
    admission = admission_of(window, clock)
    frame = FrameView.parse(encode_frame(Columns([b"v"], dedup_ids=[id_of(1)])))
    assert admission.admit(frame, 0, now_us_of(admission)) is not None
    admission.stage(frame, 0, NOW_US)
    admission.settle(stored=True)
    now_us = now_us_of(admission)
    clock.advance_ms(2 * WINDOW_US // 1000)
    assert admission.admit(frame, 1, now_us) == Appended(0, NOW_US, left_out=[(0, 0, NOW_US)])
