"""Archived segments: their files, reading them as segments, and what damage does."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.errors import ArchiveUnreachable, CorruptData
from goq.frame.view import FrameView
from goq.storage.archive.disk import ArchiveDisk
from goq.storage.archive.file import (
    Footer,
    archive_path,
    check_archive,
    copy_file,
    read_footer,
    write_archive,
)
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.disk import NotCached, RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.node_db import NodeDb
from goq.storage.scanner import PAGE_BYTES
from goq.storage.verification import verify_data_dir
from tests.support.storage.bad_sectors import BadSectors
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of

ROOT = Path("/archive")
SOURCE = Path("/log")
NAME = f"{0:020}"


def never() -> None:
    return


def footer_of(segment: Segment, size_bytes: int | None = None) -> Footer:
    size_bytes = segment.size_bytes if size_bytes is None else size_bytes
    return Footer(segment.base_offset, segment.end_offset, size_bytes, 0, 1, 2, 3, [])


def filled(disk: SimulatedDisk, frames: int = 30) -> Segment:
    """A sealed segment of frames that each have bytes of their own."""
    log, chance = Log.open(SOURCE, disk, LogConfig()), Random(7)
    for _ in range(frames):
        append(log, [frame_of([chance.randbytes(500)] * 3)])
    log.roll()
    return log.segments[0]


def archived(disk: SimulatedDisk, segment: Segment) -> Path:
    disk.make_dir(ROOT)
    path = archive_path(ROOT, segment.path)
    write_archive(disk, segment.path, path, footer_of(segment), never)
    return path


def reader_of(disk: ArchiveDisk, like: Segment, root: Path = ROOT) -> LogReader:
    segment = Segment(root, like.base_offset)
    segment.size_bytes, segment.end_offset = like.size_bytes, like.end_offset
    return LogReader(disk, [segment], [])


def offsets(frames: list[FrameView]) -> list[int]:
    return [view.header.base_offset for view in frames]


def test_an_archive_holds_the_bytes_of_the_segment() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)
    path = archived(disk, segment)
    footer = check_archive(disk, path)
    assert (footer.base_offset, footer.end_offset) == (0, 90)
    assert disk.size(path) < segment.size_bytes
    reading = ArchiveDisk(disk, ROOT).read(ROOT / f"{NAME}.log", 0, segment.size_bytes + 1)
    assert bytes(reading) == disk.read_all(segment.path)


def test_zstd_itself_gives_the_segment_back(tmp_path: Path) -> None:
    disk, data = RealDisk(), Random(1).randbytes(3000) * 50
    (tmp_path / "source.log").write_bytes(data)
    path = tmp_path / f"{NAME}.log.zst"
    footer = Footer(0, 1, len(data), 0, 0, 0, 0, [])
    write_archive(disk, tmp_path / "source.log", path, footer, never)
    try:
        done = subprocess.run(["zstd", "-dc", "--long=27", path], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no zstd command")
    assert done.stdout == data


@pytest.mark.parametrize("size_bytes", [0, 1, 999, 1000, 1001, 2000, 5500])
def test_a_segment_larger_than_a_stretch_is_read_across_them(
    size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_CHUNK_BYTES", 1000)
    disk, data = SimulatedDisk(), Random(2).randbytes(size_bytes)
    disk.make_dir(ROOT)
    disk.make_dir(SOURCE)
    segment = Segment(SOURCE, 0)
    disk.put(segment.path, data)
    path = archive_path(ROOT, segment.path)
    footer = write_archive(disk, segment.path, path, footer_of(segment, size_bytes), never)
    assert len(footer.chunks) == -(-size_bytes // 1000)
    reading = ArchiveDisk(disk, ROOT, cache_bytes_max=2000)
    log = ROOT / f"{NAME}.log"
    assert reading.size(log) == size_bytes
    for position in (0, 1, 998, 999, 1000, 2500, size_bytes):
        for length in (0, 1, 2, 1000, 3000, 10_000):
            expected = data[position : position + length]
            assert bytes(reading.read(log, position, length)) == expected
            assert reading._cached_bytes <= 2000
            assert reading._cached_bytes == sum(map(len, reading._chunks.values()))


def test_what_is_in_memory_is_bounded_and_one_stretch_is_always_held() -> None:
    disk = SimulatedDisk()
    archived(disk, filled(disk))
    for bound in (50_000, 10):
        reading = ArchiveDisk(disk, ROOT, cache_bytes_max=bound)
        before = disk.bytes_read
        for position in range(0, 40_000, 1000):
            assert len(reading.read(ROOT / f"{NAME}.log", position, 1000)) == 1000
        assert disk.bytes_read - before < disk.size(ROOT / f"{NAME}.log.zst") + 5000


def test_the_stretch_that_was_read_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_CHUNK_BYTES", 1000)
    disk, data = SimulatedDisk(), Random(2).randbytes(5000)
    disk.make_dir(ROOT)
    disk.make_dir(SOURCE)
    segment = Segment(SOURCE, 0)
    disk.put(segment.path, data)
    path = archive_path(ROOT, segment.path)
    write_archive(disk, segment.path, path, footer_of(segment, len(data)), never)
    reading = ArchiveDisk(disk, ROOT, cache_bytes_max=2000)
    log = ROOT / f"{NAME}.log"
    for number, held in ((0, [0]), (1, [0, 1]), (0, [1, 0]), (2, [0, 2]), (1, [2, 1])):
        assert bytes(reading.read(log, 1000 * number, 1000)) == data[1000 * number :][:1000]
        assert [each for _, each in reading._chunks] == held


def test_what_files_say_of_themselves_is_remembered_of_so_many() -> None:
    disk = SimulatedDisk()
    data = disk.read_all(archived(disk, filled(disk)))
    reading = ArchiveDisk(disk, ROOT, footers_max=2)
    for number in range(4):
        disk.put(ROOT / f"{number:020}.log.zst", data)
        assert reading.size(ROOT / f"{number:020}.log") > 0
        assert len(reading._footers) == min(number + 1, 2)


def test_a_read_that_may_not_wait_is_told_so() -> None:
    disk = SimulatedDisk()
    archived(disk, filled(disk))
    reading, log = ArchiveDisk(disk, ROOT), ROOT / f"{NAME}.log"
    with pytest.raises(NotCached):
        reading.read(log, 0, 10, wait=False)
    reading.read(log, 0, 10)
    assert len(reading.read(log, 0, 10, wait=False)) == 10
    reading.invalidate(ROOT)
    with pytest.raises(NotCached):
        reading.read(log, 0, 10, wait=False)


def test_segments_cannot_be_changed_through_the_archive_and_what_lies_beside_them_can() -> None:
    disk = SimulatedDisk()
    archived(disk, filled(disk))
    reading, log = ArchiveDisk(disk, ROOT), ROOT / f"{NAME}.log"
    attempts: list[Callable[[], object]] = [
        lambda: reading.open(log),
        lambda: reading.replace(log, b""),
        lambda: reading.remove(log),
        lambda: reading.rename(log, ROOT / "x"),
        lambda: reading.rename(ROOT / "x", log),
        lambda: reading.remove_dir(ROOT),
        lambda: reading.move_dir(ROOT, ROOT.parent / "x"),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionError):
            attempt()
    index = log.with_suffix(".index")
    reading.replace(index, b"abc")
    assert bytes(reading.read(index, 0, 3)) == b"abc"
    assert reading.size(index) == 3
    reading.remove(index)
    assert reading.names(ROOT) == [f"{NAME}.log.zst"]


@pytest.mark.parametrize("seed", range(60))
def test_damage_anywhere_in_an_archive_is_reported_and_never_served(seed: int) -> None:
    chance, disk = Random(seed), SimulatedDisk()
    segment = filled(disk)
    sound = reader_of(ArchiveDisk(disk.copy(), ROOT), segment)
    path = archived(disk, segment)
    sound = reader_of(ArchiveDisk(disk.copy(), ROOT), segment)
    original = {v.header.base_offset: bytes(v.buffer) for v in sound.read(0, 90).frames}
    assert len(original) == 30
    data = bytearray(disk.read_all(path))
    kind = seed % 3
    if kind == 0:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    else:
        data[chance.randrange(len(data)) :] = chance.randbytes(100)
    disk.put(path, bytes(data))
    try:
        footer = check_archive(disk, path)
    except CorruptData:
        footer = None
    reading, lost = reader_of(ArchiveDisk(disk, ROOT), segment).read(0, 90), 0
    for view in reading.frames:
        assert bytes(view.buffer) == original[view.header.base_offset]
    for damage in reading.damage:
        lost += damage.end_offset - damage.start_offset
    assert lost + 3 * len(reading.frames) == 90
    assert footer is None or not lost
    if kind:
        assert footer is None


def test_an_archive_that_is_missing_is_damage() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)
    disk.delete(archived(disk, segment))
    reading = reader_of(ArchiveDisk(disk, ROOT), segment).read(0, 90)
    assert (offsets(reading.frames), reading.next_offset) == ([], 90)
    assert [(d.start_offset, d.end_offset) for d in reading.damage] == [(0, 90)]


def test_damaged_frames_are_archived_as_they_are() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)
    data = bytearray(disk.read_all(segment.path))
    data[5000] ^= 1
    disk.put(segment.path, bytes(data))
    archived(disk, segment)
    reading = ArchiveDisk(disk, ROOT)
    assert bytes(reading.read(ROOT / f"{NAME}.log", 0, len(data))) == bytes(data)
    assert len(reader_of(reading, segment).read(0, 90).damage) == 1


def test_a_disk_that_gives_back_other_bytes_is_found_out_before_anything_is_deleted() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)

    class Lying(SimulatedDisk):
        def read(
            self, path: Path, position: int, size_bytes: int, *, wait: bool = True
        ) -> memoryview:
            data = bytearray(super().read(path, position, size_bytes, wait=wait))
            if path.suffix == ".part" and len(data) > 100:
                data[50] ^= 1
            return memoryview(bytes(data))

    lying = Lying()
    lying._inodes, lying._dirs = disk._inodes, disk._dirs
    with pytest.raises(CorruptData):
        archived(lying, segment)
    assert disk.names(ROOT) == []


def test_a_segment_that_is_shorter_than_it_was_is_not_archived() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)
    disk.put(segment.path, disk.read_all(segment.path)[:-1])
    with pytest.raises(CorruptData, match="shorter"):
        archived(disk, segment)
    assert disk.names(ROOT) == []


def test_what_could_not_be_written_leaves_nothing_behind() -> None:
    disk = SimulatedDisk()
    segment = filled(disk)
    disk.make_dir(ROOT)
    disk.capacity_bytes = disk.used_bytes + 1000
    for attempt in (
        lambda: archived(disk, segment),
        lambda: copy_file(disk, segment.path, ROOT / "copy"),
    ):
        with pytest.raises(OSError, match="space") as raised:
            attempt()
        assert raised.value.errno == errno.ENOSPC
        assert disk.names(ROOT) == []


def test_a_footer_is_what_only_a_whole_file_has() -> None:
    disk = SimulatedDisk()
    path = archived(disk, filled(disk))
    data = disk.read_all(path)
    assert read_footer(disk, path).archived_at_us == 3
    for size_bytes in (0, 3, 15, 16, 24, len(data) // 2, len(data) - 1):
        disk.put(path, data[:size_bytes])
        with pytest.raises(CorruptData):
            read_footer(disk, path)
    disk.put(path, data + b"\0")
    with pytest.raises(CorruptData):
        read_footer(disk, path)


def row_of(topic: str, footer: Footer, archived_bytes: int) -> ArchiveRow:
    return ArchiveRow(
        topic,
        0,
        "messages",
        footer.base_offset,
        footer.end_offset,
        footer.size_bytes,
        archived_bytes,
        footer.first_time_us,
        footer.last_time_us,
        footer.archived_at_us,
        footer.crc32c,
    )


def test_the_manifest_keeps_its_rows_until_their_topic_goes(tmp_path: Path) -> None:
    rows = [row_of("t", Footer(n, n + 1, 2, 3, 4, 5, 6, []), 7) for n in range(3)]
    other = row_of("other", Footer(0, 1, 2, 2**32 - 1, 4, 5, 2**60, []), 7)
    db = NodeDb(tmp_path)
    db.put_archived([*rows, other])
    db.put_archived([rows[1]._replace(archived_at_us=9)])
    db.close()
    db = NodeDb(tmp_path)
    expected = [other, rows[0], rows[1]._replace(archived_at_us=9), rows[2]]
    assert db.archived() == expected
    db.delete_topic("t", 0)
    assert db.archived() == [other]
    db.close()
    assert NodeDb(tmp_path, read_only=True).archived() == [other]


def test_a_verification_finds_what_is_wrong_with_the_archive(tmp_path: Path) -> None:
    disk, data = RealDisk(), Random(1).randbytes(2000)
    folder = tmp_path / "archive/t/0/messages"
    folder.mkdir(parents=True)
    (tmp_path / "source.log").write_bytes(data)
    db = NodeDb(tmp_path)
    for number in range(3):
        path = folder / f"{number:020}.log.zst"
        footer = Footer(number, number + 1, len(data), 0, 0, 0, 0, [])
        footer = write_archive(disk, tmp_path / "source.log", path, footer, never)
        db.put_archived([row_of("t", footer, path.stat().st_size)])
    db.close()
    (tmp_path / "archive/a file").write_bytes(b"")
    assert verify_data_dir(disk, tmp_path).is_sound
    (folder / f"{0:020}.log.zst").unlink()
    damaged = folder / f"{1:020}.log.zst"
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" * 9)
    problems = verify_data_dir(disk, tmp_path).problems
    assert len(problems) == 2
    assert damaged.name in problems[0]
    assert "is missing" in problems[1]


def test_a_page_of_an_archive_that_the_disk_cannot_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, disk = Random(7), RealDisk()
    log = Log.open(tmp_path / "log", disk)
    for _ in range(30):
        append(log, [frame_of([chance.randbytes(500)] * 3)])
    log.roll()
    segment = log.segments[0]
    disk.make_dir(tmp_path / "archive")
    path = archive_path(tmp_path / "archive", segment.path)
    write_archive(disk, segment.path, path, footer_of(segment), never)
    bad = BadSectors(monkeypatch)
    bad.pages.add((path, 2))
    with pytest.raises(CorruptData):
        check_archive(disk, path)
    reader = reader_of(ArchiveDisk(disk, path.parent), segment, path.parent)
    assert reader.read(0, 90).damage
    bad.pages = {(path, path.stat().st_size // PAGE_BYTES)}
    with pytest.raises(CorruptData):
        read_footer(disk, path)


class ForbiddenArchive(SimulatedDisk):
    """A disk on which archived segments may not be read."""

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def size(self, path: Path) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_an_archive_that_may_not_be_read_is_told_and_is_no_damage() -> None:
    reading, log = ArchiveDisk(ForbiddenArchive(), ROOT), ROOT / f"{NAME}.log"
    attempts: list[Callable[[], object]] = [
        lambda: reading.read(log, 0, 10),
        lambda: reading.size(log),
        lambda: reading.read(log.with_suffix(".index"), 0, 10),
    ]
    for attempt in attempts:
        with pytest.raises(ArchiveUnreachable, match=r"Permission denied; give the user"):
            attempt()
