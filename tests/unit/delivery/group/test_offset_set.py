from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from goq.delivery.group.attempt_ranges import AttemptRange, gaps
from goq.delivery.group.offset_set import OffsetSet

LAST = 20_000
# Around the edges of chunks of 4096, where mistakes are.
OFFSETS = st.one_of(
    st.integers(0, LAST),
    st.sampled_from([0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 12288, LAST]),
    st.integers(4090, 4102),
)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), OFFSETS, OFFSETS), max_size=30)


def changed(floor: int, steps: list[tuple[str, int, int]]) -> tuple[OffsetSet, set[int]]:
    offsets, plain = OffsetSet(floor), set(range(floor))
    for what, a, b in steps:
        start, end = min(a, b), max(a, b)
        getattr(offsets, what)(start, end)
        plain = plain | set(range(start, end)) if what == "add" else plain - set(range(start, end))
    return offsets, plain


@settings(deadline=None)
@given(OFFSETS, STEPS, OFFSETS, OFFSETS)
def test_it_is_the_set_that_a_plain_set_would_be(
    floor: int, steps: list[tuple[str, int, int]], a: int, b: int
) -> None:
    offsets, plain = changed(floor, steps)
    start, end = min(a, b), max(a, b)
    missing = [o for run in offsets.missing(start, end) for o in range(*run)]
    assert missing == [o for o in range(start, end) if o not in plain]
    assert offsets.count(start, end) == len([o for o in plain if start <= o < end])
    assert all((o in offsets) == (o in plain) for o in {a, b, floor, 0, 4095, 4096, LAST})
    assert offsets.floor == next(o for o in range(LAST + 2) if o not in plain) or not steps
    above = {o for run in offsets.runs() for o in range(*run)}
    assert above == {o for o in plain if o >= offsets.floor}
    assert not plain or max(plain) < offsets.top()
    present = [o for run in offsets.present(start, end) for o in range(*run)]
    assert present == [o for o in range(start, end) if o in plain]
    assert {o for run in offsets.all() for o in range(*run)} == plain


@settings(deadline=None)
@given(OFFSETS, STEPS, OFFSETS, OFFSETS, OFFSETS)
def test_from_a_ceiling_on_everything_is_in(
    floor: int, steps: list[tuple[str, int, int]], ceiling: int, a: int, b: int
) -> None:
    offsets, plain = changed(floor, steps)
    offsets.ceiling = ceiling
    plain |= set(range(ceiling, LAST + 5000))
    start, end = min(a, b), max(a, b)
    missing = [o for run in offsets.missing(start, end) for o in range(*run)]
    assert missing == [o for o in range(start, end) if o not in plain]
    assert offsets.count(start, end) == len([o for o in plain if start <= o < end])
    assert all((o in offsets) == (o in plain) for o in {a, b, ceiling, 0, 4095, 4096, LAST})
    assert offsets.first_missing(end) == next((o for o in range(end) if o not in plain), end)
    present = [o for run in offsets.present(start, end) for o in range(*run)]
    assert present == [o for o in range(start, end) if o in plain]
    assert offsets.top() >= ceiling
    copied = offsets.copy()
    assert copied == offsets
    copied.ceiling += 1
    assert copied != offsets


@settings(deadline=None)
@given(OFFSETS, STEPS)
def test_what_is_encoded_is_restored(floor: int, steps: list[tuple[str, int, int]]) -> None:
    offsets, plain = changed(floor, steps)
    encoded = offsets.encode()
    restored = OffsetSet(encoded[0])
    restored.restore(*encoded[1:])
    assert restored == offsets
    assert restored.floor == offsets.floor
    assert restored.count(0, LAST + 1) == len(plain)


def test_a_set_whose_floor_is_higher_has_no_hole_there_once_the_rest_is_restored() -> None:
    for end in (200, 9000):
        offsets = OffsetSet(100)
        offsets.add(120, end)
        restored = OffsetSet(150)
        restored.restore(*offsets.encode()[1:])
        assert (restored.floor, list(restored.missing(0, end + 1))) == (end, [(end, end + 1)])


def test_a_set_without_holes_keeps_nothing() -> None:
    offsets = OffsetSet()
    for start in range(0, 10_000_000, 1000):
        offsets.add(start, start + 1000)
    assert offsets.encode() == (10_000_000, [], [])
    assert list(offsets.missing(0, 50_000_000)) == [(10_000_000, 50_000_000)]


def test_full_chunks_above_the_floor_are_written_as_a_run() -> None:
    offsets = OffsetSet()
    offsets.add(1, 4096 * 1000)
    floor, full, partial = offsets.encode()
    assert (floor, full, [number for number, _ in partial]) == (0, [(1, 1000)], [0])
    offsets.add(0, 1)
    assert offsets.encode() == (4096 * 1000, [], [])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=6), OFFSETS, OFFSETS)
def test_gaps_are_what_no_part_covers_and_never_empty(
    runs: list[tuple[int, int]], a: int, b: int
) -> None:
    covered: set[int] = set()
    parts = []
    for start, count in runs:
        if not covered & set(range(start, start + count)):
            covered |= set(range(start, start + count))
            parts.append(AttemptRange(start, start + count, 1, 0))
    start, end = min(a, b) % 50, max(a, b) % 50
    found = list(gaps(start, end, parts))
    assert all(first < last for first, last in found)
    offsets = [o for run in found for o in range(*run)]
    assert offsets == [o for o in range(start, end) if o not in covered]


def test_a_copy_goes_its_own_way() -> None:
    offsets = OffsetSet(5)
    offsets.add(10, 20)
    copied = offsets.copy()
    assert copied == offsets
    offsets.add(30, 40)
    offsets.remove(12, 14)
    assert list(copied.runs()) == [(10, 20)]
    copied.add(0, 10)
    assert offsets.floor == 5


@settings(deadline=None)
@given(
    OFFSETS,
    STEPS,
    st.lists(st.tuples(OFFSETS, st.integers(1, 3)), max_size=20),
    st.one_of(st.none(), OFFSETS),
)
def test_ranges_are_added_together_if_all_are_new(
    floor: int, steps: list[tuple[str, int, int]], runs: list[tuple[int, int]], ceiling: int | None
) -> None:
    offsets, plain = changed(floor, steps)
    added = set(plain)
    if ceiling is not None:
        offsets.ceiling = ceiling
        plain |= set(range(ceiling, LAST + 5000))
    ranges, named = [], set[int]()
    for start, count in runs:
        if named.isdisjoint(range(start, start + count)):
            ranges.append((start, start + count, 1))
            named.update(range(start, start + count))
    before = offsets.copy()
    assert offsets.add_new(ranges) == named.isdisjoint(plain)
    if named & plain:
        assert offsets == before
        return
    plain |= named
    assert {o for run in offsets.present(0, LAST + 5000) for o in range(*run)} == plain
    added |= named  # the ceiling moves no floor
    assert offsets.floor == next(o for o in range(LAST + 5001) if o not in added) or not ranges
