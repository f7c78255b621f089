"""Cached frames against a list of them, and the fetch of a receive against what was stored."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq.broker.log.frame_cache import (
    REDRIVE_GROUP_HEADER,
    CachedFrame,
    FrameCache,
    FrameFetch,
    PartitionFrames,
    UncachedMessages,
)
from goq.delivery.selection.redelivery import AttributeColumns
from goq.errors import InvalidFrame
from goq.frame.encoder import Columns, encode_frame
from goq.frame.hashes import key_hash
from goq.frame.header import Attribute, FrameHeader
from goq.frame.view import FrameView
from goq.storage.disk import NotCached
from goq.storage.log.reader import ReadResult
from goq.storage.scanner import Damage
from tests.support.frame.cases import stamped

MANY_BYTES = 1 << 30


def view_of(offset: int, columns: Columns, removed: list[int] | None = None) -> FrameView:
    frame = encode_frame(columns, removed=removed)
    return FrameView.parse(stamped(frame, offset, 1, 1))


OF_OTHERS = [("x", b"1"), (REDRIVE_GROUP_HEADER, b"h")]


def redriven(offset: int, columns: Columns) -> FrameView:
    """Return a frame of letters that are for one group each, by their headers."""
    view = view_of(offset, columns)
    header = view.header._replace(attributes=view.header.attributes | Attribute.COPY)
    return FrameView.parse(header.pack() + bytes(view.body))


def plain(offset: int, count: int, value_bytes: int = 10) -> FrameView:
    return view_of(offset, Columns([bytes(value_bytes)] * count))


class StoredFrames:
    """Frames as a log reads them: whole ones, at least one, and damage where a frame lacks."""

    def __init__(self, *views: FrameView, end: int | None = None) -> None:
        self.views = views
        self.end = views[-1].header.end_offset if end is None else end
        self.reads: list[tuple[int, int]] = []
        self.is_cold = False

    def read(self, start: int, end: int, bytes_max: int) -> ReadResult:
        if self.is_cold:
            raise NotCached
        self.reads.append((start, end))
        found = ReadResult(next_offset=start)
        while found.next_offset < min(end, self.end):
            at = found.next_offset
            view = next((v for v in self.views if in_frame(v.header, at)), None)
            if view is None:
                later = [v.header.base_offset for v in self.views if v.header.base_offset > at]
                found.next_offset = min([*later, self.end])
                found.damage.append(Damage(Path("0.log"), 0, 1, at, found.next_offset, "bad"))
                continue
            bytes_max -= view.header.frame_bytes
            if found.frames and bytes_max < 0:
                break
            found.frames.append(view)
            found.next_offset = view.header.end_offset
        return found

    def fetch(
        self, bytes_max: int = MANY_BYTES, cached: PartitionFrames | None = None
    ) -> FetchUnderTest:
        return FetchUnderTest(self, bytes_max, cached or FrameCache().of_partition())


class FetchUnderTest:
    def __init__(self, stored: StoredFrames, bytes_max: int, cached: PartitionFrames) -> None:
        self.damage: list[Damage] = []
        self.cached = cached
        self.fetch = FrameFetch(
            cached, stored.read, self.damage.append, group="g", bytes_max=bytes_max
        )

    @property
    def bases(self) -> list[int]:
        return [view.header.base_offset for view in self.fetch.frames]

    def taken(self, start: int, end: int) -> list[int]:
        """Return the offsets that a receive gets that asks for more until it is full."""
        found = list[int]()
        while start < end:
            facts = self.fetch.facts(start, end)
            if facts is None:
                break
            if facts.is_readable and not facts.is_gone:
                found += range(start, facts.end)
            start = facts.end
        return found


def in_frame(header: FrameHeader, offset: int) -> bool:
    return header.base_offset <= offset < header.end_offset


@pytest.mark.parametrize("seed", range(12))
def test_the_frames_that_were_used_last_stay_within_the_bytes(seed: int) -> None:
    chance = Random(seed)
    bytes_max = chance.choice((1, 2_000, 6_000))
    cache = FrameCache(bytes_max)
    parts = [cache.of_partition() for _ in range(3)]
    expected: list[tuple[int, FrameView]] = []  # the least recently used first
    views = [plain(offset, 4, chance.choice((1, 300, 900))) for offset in range(0, 60, 5)]
    for _ in range(200):
        number = chance.randrange(3)
        part, view = parts[number], chance.choice(views)
        place = (number, view)
        action = chance.random()
        if action < 0.5:
            part.add([CachedFrame(view)])
            if place not in expected:
                expected.append(place)
            while sum(v.header.frame_bytes for _, v in expected) > bytes_max and len(expected) > 1:
                expected.pop(0)
        elif action < 0.95:
            frame = part.at(view.header.base_offset + chance.randrange(4))
            assert (frame is not None) == (place in expected)
            if frame is not None:
                part.use(frame)
                expected.remove(place)
                expected.append(place)
        else:
            part.clear()
            expected = [each for each in expected if each[0] != number]
        assert cache.size_bytes == sum(v.header.frame_bytes for _, v in expected)
        for at in range(62):
            cached = parts[number].at(at)
            found = [v for n, v in expected if n == number and in_frame(v.header, at)]
            assert ([] if cached is None else [cached.view]) == found


def test_a_frame_that_is_gone_from_the_cache_may_still_be_used() -> None:
    cache = FrameCache(1)
    part = cache.of_partition()
    part.add([CachedFrame(plain(0, 2))])
    frame = part.at(0)
    assert frame is not None
    part.add([CachedFrame(plain(2, 2))])
    part.use(frame)
    assert part.at(0) is None
    assert part.at(2) is not None


def test_names_of_tenants_and_rows_of_compacted_frames_count_as_memory() -> None:
    def counted(view: FrameView) -> int:
        cache = FrameCache()
        cache.of_partition().add([CachedFrame(view)])
        return cache.size_bytes - view.header.frame_bytes

    def of_tenants(count: int) -> FrameView:
        return view_of(0, Columns([b"v"] * 8, tenants=[f"t{n % count}" for n in range(8)]))

    assert counted(plain(0, 8)) == 0
    assert 0 < 2 * counted(of_tenants(2)) == counted(of_tenants(4))
    compacted = view_of(0, Columns([b"v"] * 8), [1])
    longer = view_of(0, Columns([b"v"] * 16), [1])
    assert 0 < 2 * counted(compacted) == counted(longer)


def test_a_receive_reads_the_attributes_of_its_messages() -> None:
    keys = [b"a", None, b"b"]
    headers = [[], [("x", b"1"), (REDRIVE_GROUP_HEADER, b"group")], []]
    stored = StoredFrames(
        redriven(5, Columns([b"v"] * 3, keys, headers, expires_at_ms=[7, 0, 9])), plain(8, 2)
    )
    test = stored.fetch()
    hashes = [key_hash(b"a"), 0, key_hash(b"b")]
    assert test.fetch.facts(5, 7) == AttributeColumns(7, True, hashes[:2], [7, 0], [None, "group"])
    assert test.fetch.facts(7, 100) == AttributeColumns(8, True, hashes[2:], [9], [None])
    assert test.fetch.facts(8, 100) == AttributeColumns(10)
    assert test.bases == [5, 8]
    whole_bytes = sum(v.header.frame_bytes for v in stored.views)
    assert whole_bytes - 3 <= test.fetch.used_bytes <= whole_bytes  # each share is rounded


def test_one_message_is_read_as_many_are() -> None:
    stored = StoredFrames(
        view_of(4, Columns([b"v"] * 3, [b"a", None, b"b"], expires_at_ms=[7, 0, 9])),
        plain(7, 2),
        redriven(9, Columns([b"v"] * 3, None, [[(REDRIVE_GROUP_HEADER, b"g")], [], OF_OTHERS])),
        view_of(12, Columns([b"v"] * 2), [0]),
    )
    test = stored.fetch()
    assert test.fetch.single(4) is None  # not in memory
    test.cached.add([CachedFrame(view) for view in stored.views])
    assert [test.fetch.single(offset) for offset in range(4, 14)] == [
        (key_hash(b"a"), 7),
        (0, 0),
        (key_hash(b"b"), 9),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        None,  # for another group
        None,
        None,
    ]
    assert test.bases == [4, 7, 9]
    assert stored.reads == []
    shares = [v.header.frame_bytes // v.header.message_count for v in stored.views[:3]]
    assert test.fetch.used_bytes == 3 * shares[0] + 2 * shares[1] + 2 * shares[2]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_receive_ends_at_its_bytes_and_gets_one_message_at_least(one_by_one: bool) -> None:
    views = [plain(offset, 4, 100) for offset in (0, 4, 8)]
    share_bytes = views[0].header.frame_bytes // 4
    shares = (1, share_bytes - 1, share_bytes, share_bytes * 3 // 2, 6 * share_bytes)
    for bytes_max in shares:
        test = StoredFrames(*views).fetch(bytes_max)
        test.cached.add([CachedFrame(view) for view in views])
        got = list[int]()
        for offset in range(12):
            if one_by_one and test.fetch.single(offset) is not None:
                got.append(offset)
            elif not test.taken(offset, offset + 1):
                break
            else:
                got.append(offset)
        assert got == list(range(max(1, bytes_max // share_bytes)))
        assert test.fetch.facts(len(got), 12) is None
        assert test.fetch.single(len(got)) is None
        assert test.fetch.used_bytes == len(got) * share_bytes


def test_of_a_frame_with_more_bytes_a_receive_gets_what_fits() -> None:
    view = plain(0, 20, 1_000)
    share_bytes = view.header.frame_bytes // 20
    for bytes_max, count in ((1, 1), (3 * share_bytes + 60, 3), (30 * share_bytes, 20)):
        test = StoredFrames(view).fetch(bytes_max)
        assert test.taken(0, 20) == list(range(count))


def test_a_frame_that_was_used_stays_longer() -> None:
    views = [plain(offset, 2, 100) for offset in (0, 2, 4)]
    size_bytes = views[0].header.frame_bytes
    for uses_single in (True, False):
        cache = FrameCache(2 * size_bytes)
        test = StoredFrames(*views).fetch(cached=cache.of_partition())
        test.cached.add([CachedFrame(view) for view in views[:2]])
        assert (test.fetch.single(0) if uses_single else test.fetch.facts(0, 1)) is not None
        test.cached.add([CachedFrame(view) for view in views[2:]])
        assert test.cached.at(0) is not None
        assert test.cached.at(2) is None


def test_what_must_come_from_the_disk_is_told_and_ends_the_receive() -> None:
    views = [plain(0, 2), plain(2, 3)]
    stored = StoredFrames(*views)
    stored.is_cold = True
    test = stored.fetch()
    test.cached.add([CachedFrame(view) for view in views[:1]])
    assert test.taken(0, 5) == [0, 1]
    assert test.fetch.missing == UncachedMessages(2, 3)
    empty = stored.fetch()
    assert empty.fetch.facts(3, 3) is None
    assert empty.fetch.missing == UncachedMessages(3, 1)


def test_damage_is_told_and_passed_over() -> None:
    stored = StoredFrames(plain(0, 2), plain(6, 1), plain(7, 1), end=12)
    test = stored.fetch()
    assert test.fetch.facts(2, 4) == AttributeColumns(4, is_readable=False)
    assert test.fetch.facts(3, 12) == AttributeColumns(6, is_readable=False)
    assert test.taken(0, 12) == [0, 1, 6, 7]
    assert test.bases == [0, 6, 7]
    assert {(each.start_offset, each.end_offset) for each in test.damage} == {
        (2, 6),
        (3, 6),
        (8, 12),
    }


def test_an_offset_that_a_log_neither_has_nor_calls_damaged_is_an_error() -> None:
    test = StoredFrames(plain(0, 2)).fetch()
    with pytest.raises(InvalidFrame, match="offset 2 "):
        test.fetch.facts(2, 4)


def test_no_read_from_the_disk_is_made_twice() -> None:
    stored = StoredFrames(plain(0, 2), plain(2, 2))
    test = stored.fetch()
    for offset in (0, 1, 2, 3):
        assert test.taken(offset, 4)
    assert [start for start, _ in stored.reads] == [0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_compacted_messages_are_gone_and_the_others_are_delivered(bitmaps: list[int]) -> None:
    views, kept = [], []
    for number, bits in enumerate(bitmaps):
        removed = [row for row in range(5) if bits >> row & 1]
        views.append(view_of(5 * number, Columns([b"v"] * 5), removed))
        kept += [5 * number + row for row in range(5) if row not in removed]
    test = StoredFrames(*views).fetch()
    assert test.taken(0, 5 * len(views)) == kept
    assert test.bases == sorted({5 * (offset // 5) for offset in kept})


@pytest.mark.parametrize(("tenths", "expected"), [(5.5, [3]), (9.5, [3, 7]), (20, [3, 7, 9])])
def test_passing_over_compacted_messages_uses_the_bytes_too(
    tenths: float, expected: list[int]
) -> None:
    view = view_of(0, Columns([bytes(1000)] * 10), [0, 1, 2, 4, 5, 6, 8])
    test = StoredFrames(view).fetch(int(tenths * view.header.frame_bytes / 10))
    assert test.taken(0, 10) == expected


def test_a_receive_passes_over_a_bounded_number_of_empty_frames() -> None:
    views = [view_of(n, Columns([b"v"]), [0]) for n in range(1_000)]
    test = StoredFrames(*views, plain(1_000, 1)).fetch(8 << 20)
    at = 0
    while (facts := test.fetch.facts(at, at + 1)) is not None:
        assert facts.is_gone
        at = facts.end
    assert 50 < at < 500
    assert test.cached.at(0) is None  # nothing of it is needed again
