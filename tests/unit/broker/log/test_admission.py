"""Messages whose dedup ids are known or repeated, against a walk over all of them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from goq.broker.log.admission import Admission
from goq.broker.log.pending_appends import Appended
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.dedup.dedup_window import DedupWindow
from goq.delivery.dedup.producer_table import ProducerTable
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView

WINDOW_US = 1_000_000
NOW_US = 10**15


def id_of(number: int) -> bytes:
    """Return an id that shares a half with others; none for 0."""
    return (number % 4).to_bytes(8, "little") + (number // 4).to_bytes(8, "little")


@pytest.mark.parametrize("count", [5, 200])
@pytest.mark.parametrize("seed", range(8))
def test_a_frame_loses_its_repetitions_each_told_with_its_original(count: int, seed: int) -> None:
    chance = Random(seed)
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=(3, 5))
    admission = Admission(ProducerTable(), window, lambda _offset: None, TopicStats())
    known: dict[int, tuple[int, int]] = {}
    offset, now_us = 0, NOW_US
    for _ in range(6):
        now_us += 1000
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
    admission = Admission(ProducerTable(), window, lambda _offset: None, TopicStats())
    columns = Columns([b"%d" % n for n in range(100)], dedup_ids=[id_of(9)] * 100)
    admitted = admission.admit(FrameView.parse(encode_frame(columns)), 7, NOW_US)
    assert isinstance(admitted, FrameView)
    assert admitted.header.message_count == 1
    rows = np.array(admitted.left_out)
    assert rows.tolist() == [[row, 7, NOW_US] for row in range(1, 100)]
