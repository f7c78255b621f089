"""What a rewritten segment is made of: which empty frames become one, and which stay, and why."""

from __future__ import annotations

from itertools import pairwise

import pytest

from goq import limits
from goq.errors import CorruptData
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import FrameHeader, parse_header
from goq.frame.view import FrameView
from goq.storage.compaction import segment_rewriter
from goq.storage.compaction.cleaner import OffsetMap, build_offset_map
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    SegmentWriter,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.scanner import ScannedFrame, Scanner
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of, read_all

PATH = DIRECTORY / "new.log"


def header_of(base: int, count: int, *, time_us: int = 0, epoch: int = 1) -> FrameHeader:
    header = parse_header(frame_of([b""] * count))
    return header._replace(base_offset=base, append_time_us=time_us, leader_epoch=epoch)


def written(disk: SimulatedDisk, writer: SegmentWriter) -> list[FrameHeader]:
    """Finish a segment; return the headers of its frames."""
    writer.finish(writer.offset)
    scanner = Scanner(disk, PATH, writer.position, chunk_bytes=limits.MIB)
    places = list(scanner.frames(0, 0))
    assert all(isinstance(place, ScannedFrame) for place in places)
    return [place.view.header for place in places if isinstance(place, ScannedFrame)]


def writer_on(disk: SimulatedDisk) -> SegmentWriter:
    disk.make_dir(DIRECTORY)
    return SegmentWriter(disk.open(PATH), 0, 0)


def test_empty_frames_become_one_until_it_counts_as_many_messages_as_a_frame_may() -> None:
    disk = SimulatedDisk()
    writer, most = writer_on(disk), limits.FRAME_MESSAGES_MAX
    counts = [most - 5, 3, 2, 1, most - 1, 1, 2]
    base = 0
    for count in counts:
        writer.add_empty(header_of(base, count))
        base += count
    found = written(disk, writer)
    assert [(h.base_offset, h.message_count) for h in found] == [
        (0, most),
        (most, most),
        (2 * most, 3),
    ]


def test_an_empty_frame_has_the_latest_time_of_those_in_it_and_the_epoch_of_all() -> None:
    disk = SimulatedDisk()
    writer = writer_on(disk)
    given = [(50, 1), (70, 1), (60, 1), (65, 2), (10, 2), (5, 3)]
    for base, (time_us, epoch) in enumerate(given):
        writer.add_empty(header_of(base, 1, time_us=time_us, epoch=epoch))
    found = written(disk, writer)
    assert [(h.base_offset, h.append_time_us, h.leader_epoch) for h in found] == [
        (0, 70, 1),
        (3, 65, 2),
        (5, 5, 3),
    ]
    assert writer.index.last().time_us == 70


def test_a_frame_that_stays_parts_the_empty_ones_around_it() -> None:
    disk = SimulatedDisk()
    writer = writer_on(disk)
    stays = header_of(2, 1)
    frame = stays.pack() + FrameView.parse(frame_of([b""])).body
    for base in (0, 1):
        writer.add_empty(header_of(base, 1))
    writer.add(stays, frame)
    for base in (3, 4):
        writer.add_empty(header_of(base, 1))
    assert [(h.base_offset, h.message_count) for h in written(disk, writer)] == [
        (0, 2),
        (2, 1),
        (3, 2),
    ]


def test_a_plan_that_leaves_out_an_offset_is_refused() -> None:
    disk = SimulatedDisk()
    writer = writer_on(disk)
    frame = frame_of([b"x"])
    writer.add(header_of(0, 1), frame)
    for base in (0, 2):
        with pytest.raises(CorruptData, match="1 expected"):
            writer.add(header_of(base, 1), frame)


def test_what_is_written_in_pieces_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_rewriter, "_WRITE_BYTES", 300)
    disk = SimulatedDisk()
    writer = writer_on(disk)
    sizes = []
    for base in range(20):
        header = header_of(base, 1)
        frame = header.pack() + FrameView.parse(frame_of([b""])).body
        writer.add(header, frame)
        sizes.append(disk.size(PATH))
        assert writer.position - sizes[-1] < 300, "no more than a piece waits in memory"
    assert any(after == before for before, after in pairwise(sizes)), "pieces, not frames"
    assert [h.base_offset for h in written(disk, writer)] == list(range(20))


@pytest.mark.parametrize(("dedup_after_us", "keeps_ids"), [(99, True), (100, False), (101, False)])
def test_a_frame_stays_for_its_dedup_ids_while_these_are_younger_than_the_window(
    dedup_after_us: int, keeps_ids: bool
) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True))
    ids = [bytes([number]) * 16 for number in (1, 2)]
    append(log, [encode_frame(Columns([b"a", b"b"], [b"k", b"l"], dedup_ids=ids))], time_us=100)
    append(log, [encode_frame(Columns([b"c", b"d"], [b"k", b"l"]))], time_us=200)
    log.roll()
    compact(disk, log, dedup_after_us=dedup_after_us)
    first = FrameView.parse(read_all(log).frames[0])
    found = first.columns(0, 2).dedup_ids
    assert (list(found or []) == ids) is keeps_ids
    assert list(first.kept(0, 2)) == [False, False]


def test_dedup_ids_of_a_frame_that_stays_for_its_producer_go_with_the_window() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True))
    columns = Columns([b"a"], [b"k"], dedup_ids=[bytes([1]) * 16])
    append(log, [encode_frame(columns, producer=ProducerMark(7, 1, 0))], time_us=100)
    append(log, [encode_frame(Columns([b"b"], [b"k"]))], time_us=200)
    log.roll()
    for dedup_after_us, has_ids in ((99, True), (99, True), (100, False), (100, False)):
        compact(disk, log, dedup_after_us=dedup_after_us)
        first = FrameView.parse(read_all(log).frames[0])
        assert first.header.producer_id == 7
        assert (first.columns(0, 1).dedup_ids is not None) is has_ids


def compact(disk: SimulatedDisk, log: Log, *, dedup_after_us: int = 0) -> None:
    """Rewrite the first segment, whatever it loses."""
    segment = log.segments[0]
    newest = OffsetMap(0, secret=b"any", keys_max=1000)
    build_offset_map(log.reader, newest, log.end_offset, lambda: None)
    terms = CleanerParameters(newest, 0, dedup_after_us, lambda: None)
    plan = plan_rewrite(disk, segment, terms)
    time_before_us = log.reader.max_time_us_before(segment)
    new = rewrite_segment(disk, segment, plan, terms, time_before_us=time_before_us)
    install_generation(disk, new)
    assert log.replace_segments([segment], new)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["sound", "damaged"])
def test_the_index_of_a_rewritten_segment_is_that_which_its_file_gives(is_damaged: bool) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True))
    for number in range(60):
        columns = Columns([bytes(1000)], [b"%d" % (number % 50)])
        append(log, [encode_frame(columns)], time_us=100 + number)
    log.roll()
    if is_damaged:
        size_bytes = log.segments[0].size_bytes
        for place in (size_bytes // 2, size_bytes - 1):
            disk.flip(log.segments[0].path, place, 1)
    compact(disk, log)
    made = log.segments[0].load_index(disk)
    assert len(made) > 5
    rebuilt = log.segments[0]._rebuilt_index(disk, 0)
    assert made.pack(made.last(), 0) == rebuilt.pack(rebuilt.last(), 0)
    assert made.has_bad_region is rebuilt.has_bad_region is is_damaged


def test_the_oldest_tombstone_that_stays_says_when_the_next_pass_is_due() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for number, time_us in enumerate((300, 100, 200)):
        append(log, [encode_frame(Columns([None], [b"%d" % number]))], time_us=time_us)
    log.roll()
    newest = OffsetMap(0, secret=b"any", keys_max=10)
    build_offset_map(log.reader, newest, log.end_offset, lambda: None)

    def oldest(until_us: int) -> int:
        terms = CleanerParameters(newest, until_us, 0, lambda: None)
        return plan_rewrite(disk, log.segments[0], terms).tombstone_us

    assert [oldest(until_us) for until_us in (99, 100, 199, 200, 300)] == [100, 200, 200, 300, 0]
