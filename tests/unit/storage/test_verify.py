"""A verification reads everything, changes nothing, and tells every kind of loss."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from goq.config.topic import Fsync
from goq.storage import verification
from goq.storage.catalog.rows import SegmentRow, TopicRow
from goq.storage.catalog.topic_catalog import topic_record
from goq.storage.catalog.topic_file import write_topic_file
from goq.storage.compaction.checkpoint import CleanerCheckpoint, write_checkpoint
from goq.storage.disk import RealDisk
from goq.storage.journal.journal import JOURNAL_DIR
from goq.storage.journal.piece import DAMAGED_SUFFIX, PieceHeader, ScannedPiece
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from goq.storage.node_db import NodeDb
from goq.storage.verification import DataDirReport, LogReport, verify_data_dir, verify_log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of, read_all
from tests.support.storage.memory import tracing

FRAME = frame_of([b"a message"] * 3)
SEGMENT = DIRECTORY / "00000000000000000000.log"


def offsets(report: LogReport) -> set[int]:
    return {o for d in report.damage for o in range(d.start_offset, d.end_offset)}


def small_log(disk: SimulatedDisk, *, segments: int = 4) -> Log:
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=2 * len(FRAME)))
    for _ in range(2 * segments):
        append(log, [FRAME])
    return log


def test_a_sound_log_is_counted_whole_and_left_alone() -> None:
    disk = SimulatedDisk()
    small_log(disk)
    before, operations = {p: disk.read_all(p) for p in disk.paths()}, disk.operations
    report = verify_log(disk, DIRECTORY)
    assert (report.frames, report.messages, report.bytes) == (8, 24, 8 * len(FRAME))
    assert report.damage == []
    assert {p: disk.read_all(p) for p in disk.paths()} == before
    assert disk.operations == operations


def test_a_log_that_is_not_there_is_empty() -> None:
    assert verify_log(SimulatedDisk(), DIRECTORY) == LogReport()


def test_what_is_not_durable_yet_is_no_damage() -> None:
    disk = SimulatedDisk()
    log = small_log(disk)
    disk.put(log.active.path, disk.read_all(log.active.path) + b"half a fra")
    report = verify_log(disk, DIRECTORY)
    assert (report.frames, report.damage) == (8, [])


def test_without_syncs_only_what_is_durable_is_verified() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(fsync=Fsync.NEVER))
    append(log, [FRAME])
    log.sync()
    append(log, [FRAME])
    assert verify_log(disk, DIRECTORY).frames == 1


def test_every_flipped_byte_is_found() -> None:
    disk = SimulatedDisk()
    log = small_log(disk)
    for segment in log.segments:
        data = disk.read_all(segment.path)
        for position in range(0, len(data), 5):
            changed = bytearray(data)
            changed[position] ^= 0x10
            disk.put(segment.path, bytes(changed))
            first = segment.base_offset + (0 if position < len(FRAME) else 3)
            report = verify_log(disk, DIRECTORY)
            assert offsets(report) == {first, first + 1, first + 2}
            assert report.frames == 7
        disk.put(segment.path, data)


def test_every_cut_is_found() -> None:
    disk = SimulatedDisk()
    log = small_log(disk)
    for segment in log.segments:
        data = disk.read_all(segment.path)
        for size in range(0, len(data), 9):
            disk.put(segment.path, data[:size])
            kept = size // len(FRAME)
            lost = range(segment.base_offset + 3 * kept, segment.end_offset)
            report = verify_log(disk, DIRECTORY)
            assert offsets(report) == set(lost)
            assert report.frames == 6 + kept
        disk.put(segment.path, data)


@pytest.mark.parametrize("number", range(1, 4))
def test_a_missing_segment_is_found(number: int) -> None:
    disk = SimulatedDisk()
    log = small_log(disk)
    segment = log.segments[number]
    disk.delete(segment.path)
    report = verify_log(disk, DIRECTORY)
    assert offsets(report) == set(range(segment.base_offset, segment.end_offset))


@pytest.mark.parametrize(("number", "missing"), [(1, range(6, 12)), (3, [18])])
def test_a_segment_that_goes_while_the_log_is_verified_is_missing(
    number: int, missing: Sequence[int]
) -> None:
    assert offsets(_verified_while_gone(number)) == set(missing)


def test_the_oldest_segment_may_go_while_the_log_is_verified() -> None:
    assert _verified_while_gone(0) == LogReport(frames=6, messages=18, bytes=6 * len(FRAME))


def _verified_while_gone(number: int) -> LogReport:
    """Verify a log without a watermark, one of whose segments is deleted once they are listed."""
    disk = SimulatedDisk()
    paths = [segment.path for segment in small_log(disk).segments]
    disk.delete(DIRECTORY / "watermark")
    size_of = disk.size

    def size(path: Path) -> int:
        found = size_of(path)
        if path == paths[-1] and paths[number] in disk.paths():
            disk.delete(paths[number])
        return found

    disk.size = size
    return verify_log(disk, DIRECTORY)


def test_a_log_without_any_of_its_segments_is_found() -> None:
    disk = SimulatedDisk()
    log = small_log(disk)
    for segment in log.segments:
        disk.delete(segment.path)
    assert offsets(verify_log(disk, DIRECTORY)) == set(range(18, 24))


def test_memory_is_bounded_by_the_chunk_not_by_the_log() -> None:
    import tracemalloc

    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk)
    for _ in range(100):
        append(log, [frame_of([bytes(100_000)])])
    with tracing():
        assert verify_log(disk, DIRECTORY).frames == 100
        assert tracemalloc.get_traced_memory()[1] < 5_000_000


# A whole data folder


class Folder:
    """A data folder with two topics, closed, as a node leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk()
        self.db = NodeDb(path)
        for topic, partitions in (("a", 2), ("b", 1)):
            row = TopicRow(topic, partitions, {})
            self.db.put_topic(row)
            for partition in range(partitions):
                self._fill(topic, partition, "messages")
                self._fill(topic, partition, "events")
            write_topic_file(self.disk, path / "topics", topic_record(row, {}))
        self.db.close()

    def directory(self, topic: str, partition: int, log: str) -> Path:
        return self.path / "topics" / topic / str(partition) / log

    def _fill(self, topic: str, partition: int, log_name: str) -> None:
        directory = self.directory(topic, partition, log_name)
        log = Log.open(directory, self.disk, LogConfig(segment_bytes=1))
        for _ in range(3):
            append(log, [FRAME])
        for s in log.segments[:-1]:
            self.db.put_segment(
                SegmentRow(topic, partition, log_name, s.base_offset, s.end_offset, s.size_bytes, 1)
            )
        log.close()

    def segment(self, base_offset: int) -> Path:
        return Segment(self.directory("a", 1, "messages"), base_offset).path

    def verify(self) -> DataDirReport:
        return verify_data_dir(self.disk, self.path)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.disk = RealDisk()  # the one that was used closes the files that it keeps open


def damage_of(report: DataDirReport) -> dict[tuple[str, int, str], set[int]]:
    return {
        (v.topic, v.partition, v.log): offsets(v.report) for v in report.logs if v.report.damage
    }


def test_a_sound_folder_has_every_log_verified(folder: Folder) -> None:
    report = folder.verify()
    assert report.is_sound
    assert [(v.topic, v.partition, v.log) for v in report.logs] == [
        ("a", 0, "messages"), ("a", 0, "events"), ("a", 1, "messages"), ("a", 1, "events"),
        ("b", 0, "messages"), ("b", 0, "events"),
    ]  # fmt: skip
    assert report.bytes == 18 * len(FRAME)


@pytest.mark.parametrize("base_offset", [0, 3])
def test_a_sealed_segment_that_only_the_database_knows_is_missing(
    folder: Folder, base_offset: int
) -> None:
    folder.segment(base_offset).unlink()
    report = folder.verify()
    assert damage_of(report) == {("a", 1, "messages"): set(range(base_offset, base_offset + 3))}


def test_a_sealed_segment_of_another_length_is_reported(folder: Folder) -> None:
    path = folder.segment(3)
    path.write_bytes(path.read_bytes()[:50])
    assert damage_of(folder.verify()) == {("a", 1, "messages"): {3, 4, 5}}


def test_a_flipped_bit_is_reported(folder: Folder) -> None:
    path = folder.segment(6)
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    assert damage_of(folder.verify()) == {("a", 1, "messages"): {6, 7, 8}}


class ForbiddenFile(RealDisk):
    """A disk with a file that its user may not read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._forbidden = path

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        if path == self._forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().read(path, position, size_bytes, wait=wait)


@pytest.mark.parametrize(
    "name",
    [
        "topics/a/1/messages/00000000000000000003.log",
        "topics/a/1/events/watermark",
        "journal/0000.journal",
        "archive/a/0/messages/00000000000000000000.log.zst",
    ],
)
def test_a_file_that_may_not_be_read_is_told_and_the_others_are_verified(
    folder: Folder, name: str
) -> None:
    path = folder.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    folder.disk = ForbiddenFile(path)
    report = folder.verify()
    (problem,) = (text for text in report.problems if "node.db lists" not in text)
    assert problem == f"{path}: Permission denied; give the user that goq runs as access to it"
    hidden = 3 if path.parts[-5] == "topics" else 0
    assert sum(each.report.frames for each in report.logs) == 18 - hidden
    assert damage_of(report) == {}


def test_damage_within_the_journal_and_between_its_pieces_is_reported(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [
        ScannedPiece(Path("1.journal"), PieceHeader(False, 1, 1, 2), [], "a record is damaged"),
        ScannedPiece(Path("2.journal"), PieceHeader(False, 1, 4, 2), [], None),
    ]
    monkeypatch.setattr(verification, "scan_pieces", lambda _disk, _directory: pieces)
    assert folder.verify().problems == [
        "1.journal: a record is damaged",
        "1.journal: records 1 to 3 are missing",
    ]


def test_damage_of_the_journal_that_an_earlier_start_told_is_reported(folder: Folder) -> None:
    (folder.path / JOURNAL_DIR).mkdir()
    (folder.path / JOURNAL_DIR / f"0007{DAMAGED_SUFFIX}").write_text("record 7 is damaged")
    report = folder.verify()
    assert report.problems == ["record 7 is damaged"]
    assert not report.is_sound


def test_a_partition_without_its_folder_is_reported(folder: Folder) -> None:
    folder.disk.remove_dir(folder.path / "topics" / "b")
    report = folder.verify()
    assert damage_of(report)["b", 0, "messages"] == set(range(6))
    assert report.problems == ["partition 0 of b has no folder"]


def test_a_topic_being_deleted_is_not_missed(folder: Folder) -> None:
    db = NodeDb(folder.path)
    db.put_topic(TopicRow("b", 1, {}, deleting=True))
    db.close()
    folder.disk.remove_dir(folder.path / "topics" / "b")
    assert folder.verify().is_sound


@pytest.mark.parametrize("content", [b"garbage" * 2000, None], ids=["garbage", "absent"])
def test_logs_are_verified_without_a_database(folder: Folder, content: bytes | None) -> None:
    for path in folder.path.glob("node.db*"):
        path.unlink()
    if content is not None:
        (folder.path / "node.db").write_bytes(content)
    report = folder.verify()
    assert len(report.logs) == 6
    assert report.bytes == 18 * len(FRAME)
    assert any("node.db" in problem for problem in report.problems)


def test_files_that_say_what_a_topic_is_are_missed(folder: Folder) -> None:
    path = folder.path / "topics" / "a" / "topic.meta"
    path.unlink()
    assert folder.verify().problems == [
        f"{path} is missing: only node.db has the settings of this topic"
    ]


@pytest.mark.parametrize("size_bytes", [0, 7, 20])
def test_a_damaged_checkpoint_of_compaction_is_reported(folder: Folder, size_bytes: int) -> None:
    directory = folder.directory("a", 0, "messages")
    write_checkpoint(folder.disk, directory, CleanerCheckpoint(3, 0))
    assert folder.verify().is_sound
    path = directory / "compacted"
    path.write_bytes(b"\1" * size_bytes)
    assert folder.verify().problems == [
        f"{path} is damaged: the next pass of compaction reads the whole log"
    ]


def test_a_folder_in_use_is_verified_beside_its_node(folder: Folder) -> None:
    db = NodeDb(folder.path)
    db.put_topic(TopicRow("c", 0, {}))
    log = Log.open(folder.directory("a", 1, "messages"), folder.disk, LogConfig(segment_bytes=1))
    append(log, [FRAME])
    report = folder.verify()
    assert report.is_sound
    assert report.bytes == 19 * len(FRAME)
    log.close()
    db.close()


def test_verifying_leaves_every_file_as_it_was(folder: Folder) -> None:
    def contents() -> dict[str, bytes]:
        return {
            str(p.relative_to(folder.path)): p.read_bytes()
            for p in folder.path.rglob("*")
            if p.is_file() and not p.name.startswith("node.db-")
        }

    before = contents()
    folder.verify()
    assert contents() == before


def test_what_was_verified_is_what_is_read(folder: Folder) -> None:
    log = Log.open(folder.directory("a", 0, "messages"), folder.disk)
    assert len(read_all(log).frames) == 3
    log.close()
