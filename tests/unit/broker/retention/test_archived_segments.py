"""The archived segments of a node: how they are listed, found, shared and removed."""

from __future__ import annotations

from pathlib import Path

from goq.broker.partition_context import PartitionId
from goq.broker.retention.archived_segments import ArchivedSegments, ArchiveTotals
from goq.storage.archive.disk import ArchiveDisk
from goq.storage.catalog.rows import ArchiveRow
from tests.support.storage.disk import SimulatedDisk

ROOT = Path("/data/archive")
ONE, TWO, OTHER = PartitionId("t", 0), PartitionId("t", 1), PartitionId("u", 0)


def row(identity: PartitionId, base: int, *, log: str = "messages", time_us: int = 5) -> ArchiveRow:
    partition = identity.folder, identity.number
    return ArchiveRow(*partition, log, base, base + 3, 100, 50, time_us, time_us + 2, 9, 4)


def listed(*rows: ArchiveRow) -> ArchivedSegments:
    segments = ArchivedSegments(ROOT, ArchiveDisk(SimulatedDisk(), ROOT))
    for each in rows:
        segments.add(each)
    return segments


def test_a_segment_between_others_is_listed_in_its_place_and_once() -> None:
    first, second, third = (row(ONE, base) for base in (0, 3, 6))
    again = first._replace(archived_at_us=10)
    segments = listed(third, first, second, again)
    assert segments.rows(ONE, "messages") == [again, second, third]
    assert segments.rows(ONE, "events") == segments.rows(TWO, "messages") == ()
    assert segments.find(ONE, "messages", 5) is second
    assert segments.find(ONE, "messages", 9) is segments.find(TWO, "messages", 0) is None


def test_a_list_stays_as_it_was_for_the_reader_that_has_it() -> None:
    first, second = row(ONE, 0), row(ONE, 3)
    segments = listed(first, second)
    held = segments.rows(ONE, "messages")
    assert segments.expired_to(ONE, "messages") == 0
    segments.expire("t", [first])
    segments.add(row(ONE, 6))
    assert held == [first, second]
    assert segments.expired_to(ONE, "messages") == first.end_offset
    assert segments.rows(ONE, "messages") == [second, row(ONE, 6)]


def test_readers_share_a_segment_which_knows_its_times_until_it_is_deleted() -> None:
    each = row(ONE, 3)
    segments = listed(each)
    segment = segments.segment(each, has_columns=False)
    assert segments.segment(each, has_columns=False) is segment
    assert (segment.base_offset, segment.end_offset) == (3, 6)
    assert (segment.size_bytes, segment.time_us) == (each.size_bytes, each.last_time_us)
    assert segment.first_time_us == each.first_time_us
    unknown = segments.segment(each._replace(first_time_us=0), has_columns=False)
    assert unknown.first_time_us is None
    segments.release(each)
    assert segments.segment(each, has_columns=False) is not segment


def test_totals_are_those_of_the_messages_and_the_bytes_of_all_files() -> None:
    assert listed().topic_totals("t") is None
    segments = listed(
        *(row(ONE, base, time_us=7) for base in (0, 3)),
        row(TWO, 0),
        row(ONE, 0, log="events", time_us=1),
        row(OTHER, 0),
    )
    assert segments.topic_totals("t") == ArchiveTotals(3, 9, 200, 5)
    assert segments.topic_totals("t", {0}) == ArchiveTotals(2, 6, 150, 7)
    assert segments.topic_totals("t", {7}) is None


def test_a_deleted_topic_takes_its_rows_and_segments_and_no_other() -> None:
    own, other = row(ONE, 0), row(OTHER, 0)
    segments = listed(own, other)
    before = [segments.segment(each, has_columns=False) for each in (own, other)]
    segments.remove_topic("t")
    assert segments.rows(ONE, "messages") == ()
    assert segments.rows(OTHER, "messages") == [other]
    assert segments.segment(own, has_columns=False) is not before[0]
    assert segments.segment(other, has_columns=False) is before[1]
