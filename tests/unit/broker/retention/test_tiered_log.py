"""The archive and the live log as one: which segments it has, what is gone, where a read ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition_context import PartitionId
from goq.broker.retention.tiered_log import TieredLogReader, TieredLogs, _after_last_gap
from goq.errors import ArchiveUnreachable
from goq.storage.log.segment import Segment

IDENTITY = PartitionId("t", 3)


def segment(start: int, end: int) -> Segment:
    made = Segment(Path("/log"), start)
    made.end_offset = end
    return made


class Archive:
    """An archive of some ranges; the live log has others. Other nodes may have ``elsewhere``."""

    disk: Any = None

    def __init__(self, archived: Sequence[tuple[int, int]], *live: tuple[int, int]) -> None:
        self.live: Any = SimpleNamespace(segments=[segment(*each) for each in live], damage=[])
        self.archived = [
            SimpleNamespace(base_offset=start, end_offset=end, archived_at_us=100 * number)
            for number, (start, end) in enumerate(archived, 1)
        ]
        self.elsewhere: list[tuple[int, int]] = []
        self.segments = self
        self.made = 0

    def rows(self, identity: PartitionId, log: str) -> Sequence[Any]:
        assert (identity, log) == (IDENTITY, "messages")
        return self.archived

    def segment(self, row: Any, *, has_columns: bool) -> Segment:
        assert has_columns
        self.made += 1
        return segment(row.base_offset, row.end_offset)

    def damage(self, _identity: PartitionId, _log: str) -> list[Any]:
        return []

    def why_absent(self, _identity: PartitionId, _log: str, start: int, end: int) -> str:
        is_there = any(first < end and start < last for first, last in self.elsewhere)
        return "b has archived them" if is_there else ""

    def reader(self, *, is_unbroken: bool = False) -> TieredLogReader:
        given: Any = self
        return TieredLogReader(
            given, IDENTITY, "messages", self.live, has_columns=True, is_unbroken=is_unbroken
        )


def ranges_of(reader: TieredLogReader) -> list[tuple[int, int]]:
    return [(each.base_offset, each.end_offset) for each in reader.segments]


def test_each_offset_is_in_one_segment_and_a_live_one_counts() -> None:
    archive = Archive([(0, 10), (10, 20), (20, 30)], (20, 30), (30, 40))
    reader = archive.reader()
    assert ranges_of(reader) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert reader.segments[2] is archive.live.segments[0]
    assert reader.start_offset == 0
    assert archive.made == 2, "segments are made once, as long as nothing changes"
    archive.live.segments = archive.live.segments[1:]
    assert ranges_of(reader) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    archive.archived = archive.archived[1:]
    assert ranges_of(reader) == [(10, 20), (20, 30), (30, 40)]


def test_an_unbroken_log_begins_behind_its_last_gap() -> None:
    archive = Archive([(0, 10), (15, 20), (20, 30)], (30, 40))
    assert ranges_of(archive.reader(is_unbroken=True)) == [(15, 20), (20, 30), (30, 40)]
    assert ranges_of(archive.reader())[0] == (0, 10)
    for archived, kept in (
        ([], []),
        ([(0, 10)], []),
        ([(0, 30)], [(0, 30)]),
        ([(0, 10), (10, 30)], [(0, 10), (10, 30)]),
    ):
        found = _after_last_gap([segment(*each) for each in archived], 30)
        assert [(each.base_offset, each.end_offset) for each in found] == kept


@pytest.mark.parametrize(
    ("start", "end", "gaps"),
    [
        (0, 60, [(10, 20), (30, 40)]),
        (10, 20, [(10, 20)]),
        (15, 35, [(15, 20), (30, 35)]),
        (20, 30, []),
        (0, 10, []),
        (0, 11, [(10, 11)]),
        (19, 30, [(19, 20)]),
        (40, 60, []),
    ],
)
def test_what_lies_between_segments_is_gone(
    start: int, end: int, gaps: list[tuple[int, int]]
) -> None:
    archive = Archive([(0, 10), (20, 30)], (40, 50), (50, 60))
    assert archive.reader().gaps(start, end) == gaps


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (5, 60, 40),  # stops before what another node may have
        (5, 40, 40),
        (5, 30, 30),
        (20, 35, 35),
        (50, 60, 60),
        (44, 60, None),
        (40, 41, 41),
        (0, 60, None),  # the log begins at 5, and another node may have what is before
        (0, 3, None),
    ],
)
def test_a_read_ends_before_what_another_node_may_have_and_passes_over_what_is_gone(
    start: int, end: int, expected: int | None
) -> None:
    archive = Archive([(5, 10), (20, 30), (30, 40)], (50, 60))
    archive.elsewhere = [(0, 5), (42, 50)]
    reader = archive.reader()
    if expected is not None:
        assert reader.read_end(start, end) == expected
        return
    with pytest.raises(ArchiveUnreachable, match="b has archived them; try again") as refused:
        reader.read_end(start, end)
    assert refused.value.retry_after_ms == 1000
    archive.elsewhere = []
    assert reader.read_end(start, end) == end


def test_the_first_offset_that_was_archived_after_a_time_or_else_the_first_live_one() -> None:
    reader = Archive([(0, 10), (10, 20), (20, 30)], (20, 30), (30, 40)).reader()
    found = [reader.first_archived_after(time_us) for time_us in (0, 99, 100, 199, 200, 300)]
    assert found == [0, 0, 10, 10, 20, 20]


@pytest.mark.parametrize(("in_events", "expected"), [(7, 7), (0, 0), (None, 20)])
def test_where_events_are_lost_the_time_of_archiving_says_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch, in_events: int | None, expected: int
) -> None:
    monkeypatch.setattr(
        "goq.broker.retention.tiered_log._start_in_events", lambda _events, _time_us: in_events
    )
    reader = Archive([(0, 10), (10, 20), (20, 30)], (20, 30), (30, 40)).reader()
    assert TieredLogs(reader, reader).start_offset_at(200) == expected
