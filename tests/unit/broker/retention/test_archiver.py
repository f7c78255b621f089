"""The archive of a node: what is in it, what comes and goes, and what expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver, find_expired
from goq.broker.retention.tiered_log import TieredLogReader
from goq.clock import ManualClock
from goq.config.topic import TopicSettings
from goq.errors import ArchiveUnreachable, CorruptData, Unavailable
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from tests.support.broker.harness import MemoryMetadata, run
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.logs import START_US, append, frame_of

ROOT = Path("/data/archive")
ONE, TWO, OTHER = PartitionId("t", 0), PartitionId("t", 1), PartitionId("u", 0)
SETTINGS = TopicSettings()


def row(
    base: int,
    *,
    log: str = "messages",
    first_us: int = 1,
    last_us: int = 1,
    archived_us: int = 2**62,
) -> ArchiveRow:
    times_us = first_us, last_us, archived_us
    return ArchiveRow("t", 0, log, base, base + 10, 100, 50, *times_us, 4)


class Node:
    """An archive, and logs whose segments are archived in it."""

    def __init__(self, disk: SimulatedDisk | None = None, root: Path = ROOT) -> None:
        self.disk = disk or SimulatedDisk()
        self.metadata = MemoryMetadata()
        self.clock = ManualClock()
        self.root = root
        self.archive = self.started()
        self.logs: dict[tuple[PartitionId, str], Log] = {}

    def started(self) -> Archiver:
        return Archiver(
            self.root,
            self.disk,
            self.metadata,
            self.clock,
            executor=InlineExecutor(),
        )

    def segments(self, identity: PartitionId, log: str = "messages") -> list[Segment]:
        """Return the sealed segments of a log of 12 messages, three a segment."""
        path = Path("/data/topics") / identity.folder / str(identity.number) / log
        opened = Log.open(path, self.disk, LogConfig(segment_bytes=1))
        for number in range(5):
            append(opened, [frame_of([b"%d" % number] * 3)], time_us=START_US + number)
        self.logs[identity, log] = opened
        return list(opened.segments[:-1])

    async def archive_all(self, identity: PartitionId, log: str = "messages") -> list[ArchiveRow]:
        return [
            await self.archive.archive_segment(identity, log, segment)
            for segment in self.segments(identity, log)
        ]

    def content(self, found: ArchiveRow) -> bytes:
        segment = self.archive.segments.segment(found, has_columns=False)
        return bytes(self.archive.disk.read(segment.path, 0, found.size_bytes))


def on_node(test: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        node = Node()
        node.disk.make_dir(ROOT)
        await node.archive.open({"t", "u"})
        await test(node)
        node.archive.close()

    run(main())


def test_an_archived_segment_is_listed_found_and_read_as_it_was() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        assert [(r.base_offset, r.end_offset) for r in rows] == [(0, 3), (3, 6), (6, 9), (9, 12)]
        assert list(node.archive.segments.rows(ONE, "messages")) == rows
        assert (
            node.archive.segments.rows(ONE, "events")
            == node.archive.segments.rows(TWO, "messages")
            == ()
        )
        for offset in range(12):
            assert node.archive.segments.find(ONE, "messages", offset) == rows[offset // 3]
        assert node.archive.segments.find(ONE, "messages", 12) is None
        assert node.archive.segments.find(TWO, "messages", 0) is None
        assert node.metadata.archive == {each[:4]: each for each in rows}
        log = node.logs[ONE, "messages"]
        for segment, each in zip(log.segments[:-1], rows, strict=True):
            assert node.content(each) == node.disk.read_all(segment.path)
            assert (each.first_time_us, each.last_time_us) == (segment.time_us, segment.time_us)
            assert each.archived_at_us == node.clock.wall_us()
            assert each.archived_bytes == node.disk.size(node.archive.segments.file_of(each))

    on_node(test)


def test_a_segment_that_was_archived_before_is_taken_over_unless_it_is_another() -> None:
    async def test(node: Node) -> None:
        segment = node.segments(ONE)[0]
        first = await node.archive.archive_segment(ONE, "messages", segment)
        path = node.archive.segments.file_of(first)
        before = node.disk.read_all(path)
        node.clock.advance_ms(5)
        again = await node.archive.archive_segment(ONE, "messages", segment)
        assert again == first._replace(archived_at_us=node.clock.wall_us())
        assert node.disk.read_all(path) == before
        node.disk.flip(path, len(before) // 3, 1)
        await node.archive.archive_segment(ONE, "messages", segment)
        assert node.content(first) == node.disk.read_all(segment.path)

    on_node(test)


def test_a_start_knows_what_was_archived_and_finds_what_is_not_listed() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        others = await node.archive_all(OTHER)
        del node.metadata.archive[rows[1][:4]]
        part = node.archive.segments.file_of(rows[0]).with_name("x.part")
        node.disk.put(part, b"half")
        again = node.started()
        await again.open({"t", "u"})
        assert list(again.segments.rows(ONE, "messages")) == rows
        assert list(again.segments.rows(OTHER, "messages")) == others
        assert rows[1][:4] in node.metadata.archive
        assert part.name not in node.disk.names(part.parent)
        again.close()

    on_node(test)


def test_a_segment_that_is_archived_anew_is_read_as_it_is_now() -> None:
    async def test(node: Node) -> None:
        (first, *_) = await node.archive_all(ONE)
        before = node.content(first)
        log = node.logs[ONE, "messages"]
        log.close()
        for path in [path for path in node.disk.paths() if path.is_relative_to(log.directory)]:
            node.disk.remove(path)
        other = Log.open(log.directory, node.disk, LogConfig(segment_bytes=1))
        for _ in range(2):
            append(other, [frame_of([b"another", b"one", b"."])])
        again = await node.archive.archive_segment(ONE, "messages", other.segments[0])
        assert again.base_offset == first.base_offset
        data = bytes(node.disk.read_all(other.segments[0].path))
        assert node.content(again) == data != before
        other.close()

    on_node(test)


def test_the_archive_of_a_topic_that_came_later_is_taken_up() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        again = node.started()
        node.metadata.archive.clear()
        await again.open({"u"})
        assert again.segments.rows(ONE, "messages") == ()
        await again.take_up("t")
        assert list(again.segments.rows(ONE, "messages")) == rows
        assert node.metadata.archive.keys() == {each[:4] for each in rows}
        await again.take_up("t")
        assert list(again.segments.rows(ONE, "messages")) == rows
        again.close()

    on_node(test)


def test_a_deleted_topic_takes_its_archive_and_no_other() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        others = await node.archive_all(OTHER)
        await node.archive.delete_topic("t")
        assert node.archive.segments.rows(ONE, "messages") == ()
        assert "t" not in node.disk.names(ROOT)
        assert list(node.archive.segments.rows(OTHER, "messages")) == others
        assert node.content(others[0])
        with pytest.raises(FileNotFoundError):
            node.content(rows[0])

    on_node(test)


def test_a_copy_from_another_node_is_what_is_there_or_nothing() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        target = Node(root=Path("/other/archive"))
        target.disk.make_dir(target.root)
        await target.archive.open({"t"})
        each = rows[1]

        async def read(position: int) -> bytes:
            return await node.archive.read_chunk(each, position, 20)

        await target.archive.copy_segment(each, read)
        assert list(target.archive.segments.rows(ONE, "messages")) == [each]
        assert target.metadata.archive == {each[:4]: each}
        assert target.content(each) == node.content(each)
        other = rows[2]
        for wrong in (other, each._replace(end_offset=7), each._replace(crc32c=1)):
            target.archive.segments._rows.clear()
            with pytest.raises(CorruptData):
                await target.archive.copy_segment(wrong, read)
            assert target.archive.segments.rows(ONE, "messages") == ()
        await target.archive.copy_segment(each._replace(archived_at_us=1), read)
        assert len(target.archive.segments.rows(ONE, "messages")) == 1
        target.archive.close()

    on_node(test)


def test_what_was_read_of_a_segment_is_forgotten_when_a_copy_replaces_it_or_it_expires() -> None:
    async def test(node: Node) -> None:
        (each, *_) = await node.archive_all(ONE)
        target = Node(root=Path("/other/archive"))
        target.disk.make_dir(target.root)
        await target.archive.open({"t"})
        own = Log.open(Path("/other/log"), target.disk, LogConfig(segment_bytes=1))
        for _ in range(2):
            append(own, [frame_of([b"own", b"own", b"own"])])
        first = await target.archive.archive_segment(ONE, "messages", own.segments[0])
        assert target.content(first) != node.content(each)

        async def read(position: int) -> bytes:
            return await node.archive.read_chunk(each, position, 1000)

        await target.archive.copy_segment(each, read)
        assert target.content(each) == node.content(each)
        assert target.archive.disk.cached_bytes > 0
        await target.archive.expire("t", TopicSettings(total_bytes=0), 0, {})
        assert target.archive.disk.cached_bytes == 0
        own.close()
        target.archive.close()

    on_node(test)


def test_a_copy_that_finds_no_room_or_no_other_node_leaves_no_file() -> None:
    async def test(node: Node) -> None:
        each = (await node.archive_all(ONE))[1]
        target = Node(root=Path("/other/archive"))
        target.disk.make_dir(target.root)
        await target.archive.open({"t"})

        async def read(position: int) -> bytes:
            target.disk.capacity_bytes = target.disk.used_bytes if position else None
            return await node.archive.read_chunk(each, position, 20)

        async def read_of_none(position: int) -> bytes:
            if position:
                raise Unavailable("nobody answers")
            return await read(0)

        files = target.disk.paths()
        for reading, error in ((read, OSError), (read_of_none, Unavailable)):
            with pytest.raises(error):
                await target.archive.copy_segment(each, reading)
            assert target.disk.paths() == files
        target.archive.close()

    on_node(test)


def test_a_chunk_of_a_file_is_read_up_to_its_end() -> None:
    async def test(node: Node) -> None:
        each = (await node.archive_all(ONE))[0]
        whole = node.disk.read_all(node.archive.segments.file_of(each))
        assert await node.archive.read_chunk(each, 3, 10) == whole[3:13]
        assert await node.archive.read_chunk(each, len(whole), 10) == b""

    on_node(test)


def test_what_is_beyond_the_total_retention_goes_from_list_and_manifest() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        kept = await node.archive_all(TWO)
        settings = replace(SETTINGS, total_bytes=sum(r.size_bytes for r in rows) + 10)
        live_bytes = {0: rows[0].size_bytes + 11, 1: 10}
        assert await node.archive.expire("t", SETTINGS, START_US, live_bytes) == 0
        assert await node.archive.expire("unknown", settings, START_US, live_bytes) == 0
        for each in rows:
            node.archive.segments.segment(each, has_columns=False).load_index(node.archive.disk)
        loaded = node.archive.segments.indexes
        assert len(loaded) == 4
        assert await node.archive.expire("t", settings, START_US, live_bytes) == 2
        assert len(loaded) == 2
        assert list(node.archive.segments.rows(ONE, "messages")) == rows[2:]
        assert list(node.archive.segments.rows(TWO, "messages")) == kept
        assert node.metadata.archive.keys() == {each[:4] for each in [*rows[2:], *kept]}
        assert node.archive.segments.find(ONE, "messages", 0) is None

    on_node(test)


def test_a_segment_that_expires_gets_no_new_file_before_the_old_one_is_deleted() -> None:
    async def test(node: Node) -> None:
        segment = node.segments(ONE)[0]
        found = await node.archive.archive_segment(ONE, "messages", segment)
        data = node.disk.read_all(node.archive.segments.file_of(found))

        async def read(position: int) -> bytes:
            return data[position:]

        await node.archive.expire("t", replace(SETTINGS, total_bytes=0), START_US, {})
        with pytest.raises(Unavailable):
            await node.archive.archive_segment(ONE, "messages", segment)
        with pytest.raises(Unavailable):
            await node.archive.copy_segment(found, read)
        await node.archive.uploader.run_once()
        await node.archive.copy_segment(found, read)
        await node.archive.uploader.run_once()
        assert node.content(found) == node.disk.read_all(segment.path)

    on_node(test)


@pytest.mark.parametrize("seed", range(60))
def test_the_oldest_go_until_what_stays_is_young_and_small_enough(seed: int) -> None:
    chance = Random(seed)
    now_us = 100_000
    times_us = sorted(chance.randrange(1, 100_000) for _ in range(7))
    messages = [
        row(10 * n, first_us=early, last_us=late)
        for n, (early, late) in enumerate(pairwise(times_us))
    ][: chance.randrange(7)]
    events = [row(n, log="events", last_us=chance.randrange(1, 100_000)) for n in range(4)]
    events.sort(key=lambda each: each.last_time_us)
    age_ms = chance.choice([None, 20, 60, 99])
    bytes_max = chance.choice([None, 0, 250, 500])
    live_bytes = chance.choice([0, 60, 150])
    settings = replace(SETTINGS, total_age_ms=age_ms, total_bytes=bytes_max)
    found = find_expired(messages, events, settings, now_us, live_bytes)
    horizon_us = 0 if age_ms is None else now_us - 1000 * age_ms
    gone = 0
    while gone < len(messages) and (
        messages[gone].last_time_us < horizon_us
        or (bytes_max is not None and live_bytes + 100 * (len(messages) - gone) > bytes_max)
    ):
        gone += 1
    if gone < len(messages):
        horizon_us = messages[gone].first_time_us
    elif gone:
        horizon_us = max(horizon_us, messages[-1].last_time_us)
    old = [each for each in events if each.last_time_us < horizon_us]
    assert found == [*messages[:gone], *old]


def test_what_was_archived_while_a_clock_was_ahead_goes_when_the_next_is_old() -> None:
    ahead_us, settings = 10**12, replace(SETTINGS, total_age_ms=60)
    messages = [
        row(0, first_us=1_000, last_us=9_000),
        row(10, first_us=ahead_us, last_us=ahead_us),
        row(20, first_us=20_000, last_us=ahead_us),
        row(30, first_us=50_000, last_us=ahead_us),
        row(40, first_us=80_000, last_us=ahead_us),
    ]
    events = [row(n, log="events", last_us=10_000 * n) for n in range(1, 4)]
    assert find_expired(messages, events, settings, 70_000, 0) == [messages[0]]
    assert find_expired(messages, events, settings, 100_000, 0) == [*messages[:2], events[0]]
    assert find_expired(messages, events, settings, 120_000, 0) == [*messages[:3], *events]
    assert find_expired(messages, events, settings, 10**11, 0) == [*messages[:4], *events]


def test_what_was_archived_last_while_a_clock_was_ahead_is_as_old_as_its_file() -> None:
    ahead_us, settings = 10**12, replace(SETTINGS, total_age_ms=60)
    ahead = {"first_us": ahead_us, "last_us": ahead_us}
    messages = [row(0, **ahead), row(10, **ahead, archived_us=30_000)]
    events = [
        row(0, log="events", **ahead),
        row(1, log="events", **ahead),
        row(2, log="events", **ahead, archived_us=30_000),
    ]
    assert find_expired(messages, events, settings, 90_000, 0) == []
    assert find_expired(messages, events, settings, 90_001, 0) == [*messages, *events]
    about_them = [row(0, log="events", last_us=31_000)]
    assert find_expired(messages, about_them, settings, 90_000, 0) == []


def reader_of(node: Node, *, is_unbroken: bool = False) -> TieredLogReader:
    live = node.logs[ONE, "messages"].reader
    return TieredLogReader(
        node.archive, ONE, "messages", live, has_columns=False, is_unbroken=is_unbroken
    )


def values_of(reader: TieredLogReader, start: int, end: int) -> list[tuple[int, bytes | None]]:
    found, at = list[tuple[int, bytes | None]](), start
    while at < end:
        reading = reader.read(at, end)
        for view in reading.frames:
            base = view.header.base_offset
            found += [(base + row, value) for row, value in enumerate(view.values(0, 3))]
        at = reading.next_offset
    return found


def test_archived_and_live_segments_are_one_log_in_which_each_message_is_once() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        log, reader = node.logs[ONE, "messages"], reader_of(node)
        expected = [(offset, b"%d" % (offset // 3)) for offset in range(15)]
        for kept_from in (0, 3, 9, 12):
            log.remove(log.detach_before(kept_from))
            assert values_of(reader, 0, 15) == expected
            assert reader.start_offset == 0
            assert reader.gaps(0, 15) == []
            segments = reader.segments
            assert [each.base_offset for each in segments] == [0, 3, 6, 9, 12]
            assert reader.segments is segments
            live = [each for each in segments if each in log.segments]
            assert [each.base_offset for each in live] == list(range(kept_from, 15, 3))
        assert reader.first_archived_after(node.clock.wall_us()) == 12
        assert reader.first_archived_after(node.clock.wall_us() - 1) == rows[0].base_offset

    on_node(test)


def test_segments_that_were_deleted_without_an_archive_are_gaps() -> None:
    async def test(node: Node) -> None:
        segments = node.segments(ONE)
        for number in (0, 2):
            await node.archive.archive_segment(ONE, "messages", segments[number])
        log = node.logs[ONE, "messages"]
        log.remove(log.detach_before(9))
        reader = reader_of(node)
        assert reader.gaps(0, 15) == [(3, 6)]
        assert reader.gaps(4, 5) == [(4, 5)]
        assert reader.gaps(6, 15) == reader.gaps(0, 3) == []
        assert [offset for offset, _ in values_of(reader, 0, 15)] == [*range(3), *range(6, 15)]
        unbroken = reader_of(node, is_unbroken=True)
        assert unbroken.start_offset == 6
        assert [offset for offset, _ in values_of(unbroken, 0, 15)] == list(range(6, 15))

    on_node(test)


def test_a_read_ends_before_what_another_node_may_have_and_passes_over_what_is_gone() -> None:
    async def test(node: Node) -> None:
        segments = node.segments(ONE)
        await node.archive.archive_segment(ONE, "messages", segments[1])
        log = node.logs[ONE, "messages"]
        log.remove(log.detach_before(9))
        reader, elsewhere = reader_of(node), (0, 0)
        assert reader.read_end(0, 15) == 15

        def why(_identity: PartitionId, _log: str, start: int, end: int) -> str:
            return "n2 has them" if start < elsewhere[1] and elsewhere[0] < end else ""

        node.archive.why_absent = why
        elsewhere = (6, 9)
        assert reader.read_end(0, 15) == 6
        assert reader.read_end(9, 15) == 15
        for start in (6, 8):
            with pytest.raises(ArchiveUnreachable, match="n2 has them"):
                reader.read_end(start, 15)
        elsewhere = (0, 2)
        assert reader.read_end(2, 15) == 15
        with pytest.raises(ArchiveUnreachable, match="offsets 1 to 2"):
            reader.read_end(1, 15)

    on_node(test)


def test_damage_is_told_by_the_log_or_the_archive_that_has_it() -> None:
    async def test(node: Node) -> None:
        rows = await node.archive_all(ONE)
        log, reader = node.logs[ONE, "messages"], reader_of(node)
        log.remove(log.detach_before(6))
        node.disk.flip(node.archive.segments.file_of(rows[0]), 40, 1)
        node.disk.flip(log.segments[0].path, 70, 1)
        assert [offset for offset, _ in values_of(reader, 0, 15)] == [*range(3, 6), *range(9, 15)]
        archived = [(each.start_offset, each.end_offset) for each in reader.damage]
        assert archived == [(0, 3)]
        assert [(each.start_offset, each.end_offset) for each in log.damage] == [(6, 9)]
        ((identity, name, damage),) = node.archive.damaged()
        assert (identity, name, len(damage)) == (ONE, "messages", 1)
        settings = replace(SETTINGS, total_bytes=0)
        await node.archive.expire("t", settings, START_US, {})
        assert node.archive.damaged() == []

    on_node(test)
