"""The dedup window against a dict: what is a repetition at each moment, whatever the clock does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq.delivery.dedup.dedup_window import DedupWindow, Original, Originals, StoredDedupIds
from goq.delivery.dedup.id_table import IdTable, Mixer, filter_bits_of

WINDOW_US = 1_000
FACTORS = (0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F)
SMALL_TABLES = (8, 100)


def ids_of(*numbers: int) -> Any:
    """Ids that share halves with each other, for a table to tell apart."""
    return np.array([[n % 3 + 1, n // 3] for n in numbers], np.uint64).reshape(-1, 2)


def originals(found: Originals) -> dict[int, Original]:
    """Return the messages by the place of their ids."""
    pairs = zip(*(column.tolist() for column in found), strict=True)
    return {row: Original(*message) for row, *message in pairs}


class Pair:
    """The window and its twin, which remembers everything that was ever appended."""

    def __init__(self) -> None:
        self.now_us = 10**15
        self.offset = 7
        self.log: list[tuple[int, int, int]] = []  # id, offset, time
        self.gone: set[int] = set()  # offsets that were past the window at some look
        self.has_gone_back = False
        self.times_us: dict[int, int] = {}  # by offset, by the clock as it is set now
        self.window = self.fresh()

    def fresh(self) -> DedupWindow:
        times = {offset: time_us for _, offset, time_us in self.log}
        return DedupWindow(WINDOW_US, time_of=times.get, factors=FACTORS, table_ids=SMALL_TABLES)

    def publish(self, numbers: list[int]) -> None:
        found = originals(self.window.find(ids_of(*numbers), self.now_us))
        latest = {number: Original(offset, time_us) for number, offset, time_us in self.log}
        self.gone |= {o for o, time_us in self.times_us.items() if not self.is_within(time_us)}
        new: list[int] = []
        for row, number in enumerate(numbers):
            known = latest.get(number)
            if known is None or not self.is_within(self.times_us[known.offset]):
                assert row not in found
            elif known.offset not in self.gone:
                assert self.is_same(found[row], known)
            else:
                assert self.is_same(found.get(row, known), known)
            if row not in found and number not in new:
                new.append(number)
        offsets = np.arange(self.offset, self.offset + len(new))
        self.window.add(ids_of(*new), offsets, self.now_us)
        self.log += [(n, int(o), self.now_us) for n, o in zip(new, offsets, strict=True)]
        self.times_us |= dict.fromkeys(offsets.tolist(), self.now_us)
        self.offset += len(new)

    def is_same(self, found: Original, known: Original) -> bool:
        """Compare messages; after unnoticed steps back, which overlap others, without times."""
        return found == known or (found.offset == known.offset and self.has_gone_back)

    def is_within(self, time_us: int) -> bool:
        return self.now_us - time_us < WINDOW_US

    def set_clock(self, step_us: int) -> None:
        """Set the clock ahead, or back."""
        self.now_us += step_us
        self.window.note_clock_set(self.now_us, step_us)
        later_us = step_us - 1  # times before and after it are told apart
        self.times_us = {o: time_us + later_us for o, time_us in self.times_us.items()}

    def restart(self, pieces: int) -> None:
        """Rebuild the window from the log, in so many pieces, the newest first."""
        self.window = self.fresh()
        self.times_us = {offset: time_us for _, offset, time_us in self.log}
        rows = [
            StoredDedupIds(
                np.array([o for _, o, _ in some], np.int64), ids_of(*(n for n, _, _ in some))
            )
            for some in (self.log[i::1][:size] for i, size in _cuts(len(self.log), pieces))
        ]
        newest_us = max([self.now_us, *(t for _, _, t in self.log)])
        self.window.restore(reversed(rows), newest_us)


def _cuts(total: int, pieces: int) -> list[tuple[int, int]]:
    size = max(1, -(-total // pieces))
    return [(start, min(size, total - start)) for start in range(0, total, size)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 40), min_size=1, max_size=6)),
        st.tuples(st.just("publish"), st.lists(st.integers(0, 900), min_size=70, max_size=90)),
        st.tuples(st.just("clock"), st.sampled_from([1, 499, 500, 999, 1000, -1, -700, 5000])),
        st.tuples(st.just("set"), st.sampled_from([300, -300, 10**6, -(10**6), 2**37])),
        st.tuples(st.just("jump"), st.sampled_from([2**28 - 5, 2**28, 2**30])),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(STEPS)
def test_the_window_answers_as_a_dict_would(steps: list[tuple[str, Any]]) -> None:
    pair = Pair()
    for what, value in steps:
        if what == "publish":
            pair.publish(value)
        elif what == "clock":
            pair.now_us += value
            pair.has_gone_back |= value < 0
        elif what == "set":
            pair.set_clock(value)
        elif what == "jump":  # messages without ids in between
            pair.offset += value
        else:
            pair.restart(value)


def test_an_id_is_a_repetition_up_to_the_last_microsecond_of_the_window() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=FACTORS)
    window.add(ids_of(1), np.array([5]), 10**15)
    assert originals(window.find(ids_of(1), 10**15 + WINDOW_US - 1)) == {0: Original(5, 10**15)}
    assert originals(window.find(ids_of(1), 10**15 + WINDOW_US)) == {}
    assert len(window) == 0  # nothing else was in the table: it is gone whole


@pytest.mark.parametrize(
    ("offsets_apart", "us_apart", "share_a_table"),
    [
        (2**28 - 2, 1, True),
        (2**28 - 1, 1, False),
        (2**29, 1, False),
        (1, 2**36 - 60_000_001, True),
        (1, 2**36 - 60_000_000, False),
        (1, 2**37, False),
        (1, -59_999_999, True),
        (1, -60_000_000, False),
        (1, -60_000_001, False),
    ],
)
def test_an_id_keeps_its_offset_and_time_however_far_they_are_from_those_before(
    offsets_apart: int, us_apart: int, share_a_table: bool
) -> None:
    window_us = 2**39
    window = DedupWindow(window_us, time_of=lambda _offset: None, factors=FACTORS)
    first, second = Original(7, 10**15), Original(7 + offsets_apart, 10**15 + us_apart)
    for number, each in enumerate((first, second)):
        window.add(ids_of(number), np.array([each.offset]), each.time_us)
    both = ids_of(0, 1)
    assert originals(window.find(both, 10**15)) == {0: first, 1: second}
    row, last = max(enumerate((first, second)), key=lambda each: each[1].time_us)
    end_us = min(first.time_us, second.time_us) + window_us
    assert originals(window.find(both, end_us)) == {row: last}
    assert len(window) == 1 + share_a_table  # a table goes with its last id


@pytest.mark.parametrize("others", [0, 100], ids=["few ids", "many ids"])
def test_the_newest_message_of_an_id_counts_whatever_the_clock_says(others: int) -> None:
    window = DedupWindow(2**39, time_of=lambda _offset: None, factors=FACTORS)
    newer = Original(8, 10**15 - 60_000_001)  # so far back that it is in a table of its own
    window.add(ids_of(1), np.array([7]), 10**15)
    window.add(ids_of(1), np.array([newer.offset]), newer.time_us)
    asked = ids_of(1, *range(10, 10 + others))
    assert originals(window.find(asked, 10**15)) == {0: newer}


def test_no_window_keeps_nothing() -> None:
    window = DedupWindow(None, time_of=lambda _offset: None, factors=FACTORS)
    window.add(ids_of(1), np.array([5]), 10**15)
    window.restore([StoredDedupIds(np.array([5]), ids_of(1))], 10**15)
    assert originals(window.find(ids_of(1), 10**15)) == {}
    assert len(window) == 0
    window.configure(WINDOW_US)
    window.add(ids_of(1), np.array([5]), 10**15)
    assert originals(window.find(ids_of(1), 10**15)) == {0: Original(5, 10**15)}
    window.configure(None)
    assert len(window) == 0


def test_an_original_that_is_gone_from_the_log_makes_no_repetition() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: None, factors=FACTORS)
    window.restore([StoredDedupIds(np.array([5]), ids_of(1))], 10**15)
    assert originals(window.find(ids_of(1), 10**15)) == {}


def test_rows_without_an_id_are_not_restored() -> None:
    window = DedupWindow(WINDOW_US, time_of=lambda _offset: 10**15, factors=FACTORS)
    ids = np.array([[0, 0], [0, 1], [1, 0]], np.uint64)
    window.restore([StoredDedupIds(np.array([5, 6, 7]), ids)], 10**15)
    assert len(window) == 2
    assert originals(window.find(ids[1:], 10**15)) == {
        0: Original(6, 10**15),
        1: Original(7, 10**15),
    }


@pytest.mark.parametrize("at_once", [1, 40, 300])
def test_a_table_finds_what_it_holds_and_nothing_else_when_it_is_full(at_once: int) -> None:
    rng = np.random.default_rng(7)
    table, mixer = IdTable(1000), Mixer(FACTORS)
    ids = rng.integers(0, 2**64, (table.capacity, 2), dtype=np.uint64)
    numbers = np.arange(1, len(ids) + 1, dtype=np.uint64)
    for start in range(0, len(ids), at_once):
        some = slice(start, start + at_once)
        table.add(ids[some], mixer.mix(ids[some]), numbers[some])
    assert table.find(ids, mixer.mix(ids)).tolist() == numbers.tolist()
    others = rng.integers(0, 2**64, (2000, 2), dtype=np.uint64)
    assert not table.find(others, mixer.mix(others)).any()
    for row in (0, len(ids) - 1):
        first, second = ids[row].tolist()
        assert table.find_one(first, second, mixer.mix_one(first, second)) == row + 1


@pytest.mark.parametrize("at_once", [1, 300])
def test_the_filter_of_a_full_table_passes_what_it_holds_and_little_else(at_once: int) -> None:
    rng = np.random.default_rng(8)
    table, mixer = IdTable(5000), Mixer(FACTORS)
    mixed = mixer.mix(rng.integers(0, 2**64, (table.capacity, 2), dtype=np.uint64))
    for start in range(0, len(mixed), at_once):
        some = mixed[start : start + at_once]
        table.add(np.zeros((len(some), 2), np.uint64), some, np.ones(len(some), np.uint64))
    assert len(table.possible_rows(mixed, filter_bits_of(mixed))) == table.capacity
    others = mixer.mix(rng.integers(0, 2**64, (20_000, 2), dtype=np.uint64))
    assert len(table.possible_rows(others, filter_bits_of(others))) < 20


def test_ids_that_all_fall_into_one_bucket_are_still_told_apart() -> None:
    table = IdTable(500)
    ids = np.array([[n, 1] for n in range(1, 401)], np.uint64)
    alike = np.full(len(ids), 2**64 - 1, np.uint64)  # the last bucket, and on from the first
    table.add(ids, alike, np.arange(1, 401, dtype=np.uint64))
    assert table.find(ids, alike).tolist() == list(range(1, 401))
    assert table.find_one(0, 1, 2**64 - 1) == 0


@pytest.mark.parametrize("capacity", [1, 13, 14, 19, 26, 27, 1000])
def test_a_table_has_room_for_as_many_as_were_asked_for(capacity: int) -> None:
    assert IdTable(capacity).capacity >= capacity


@pytest.mark.parametrize("half", [0, 1])
def test_ids_that_differ_in_one_half_are_told_apart(half: int) -> None:
    mixer, table = Mixer(FACTORS), IdTable(4_000)
    ids = np.full((4_000, 2), 7, np.uint64)
    ids[:, half] = np.arange(1, 4_001)
    stored, strange = ids[:2_000], ids[2_000:]
    table.add(stored, mixer.mix(stored), np.arange(1, 2_001, dtype=np.uint64))
    assert table.find(stored, mixer.mix(stored)).tolist() == list(range(1, 2_001))
    assert not table.find(strange, mixer.mix(strange)).any()


def test_the_highest_number_of_an_id_counts_in_whichever_bucket_it_is() -> None:
    mixer, table = Mixer(FACTORS), IdTable(2_000)
    ids = ids_of(*range(1, 65))
    for number in range(12, 0, -1):  # more than a bucket holds, the highest first
        table.add(ids, mixer.mix(ids), np.full(64, number, np.uint64))
    assert table.find(ids, mixer.mix(ids)).tolist() == [12] * 64
    for first, second in ids.tolist():
        assert table.find_one(first, second, mixer.mix_one(first, second)) == 12
