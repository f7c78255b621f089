"""What moves to the store and leaves it, and when a move that failed is tried again."""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from goq.broker.retention import archive_uploader
from goq.broker.retention.archive_uploader import (
    DELETED_DIR,
    SIDECARS,
    ArchiveUploader,
    Interrupted,
)
from goq.errors import CorruptData, Unavailable
from goq.storage.archive.file import Footer, write_archive
from goq.storage.archive.manifest import archive_row
from goq.storage.archive.object_store import StoreDisk, StoreError
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import entry_path, read_entry
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

ROOT = Path("/data/archive")


class Trying(ArchiveUploader):
    """Its tries end as the test says: with an error, or None for a success."""

    def __init__(self, outcomes: list[Exception | None]) -> None:
        disk = SimulatedDisk()
        cache = StoreCache(disk, ROOT.with_name("cache"), 1000)
        super().__init__(ROOT, TieredDisk(disk, cache), "s3://bucket", ThreadPoolExecutor(1))
        self._outcomes = iter(outcomes)

    async def run_once(self) -> None:
        outcome = next(self._outcomes)
        self._woken.set()  # there is more to do
        if outcome is not None:
            raise outcome


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that it makes; each is over at once."""
    found: list[float] = []

    async def sleep(pause_s: float) -> None:
        found.append(pause_s)

    monkeypatch.setattr(archive_uploader.asyncio, "sleep", sleep)
    return found


def run(uploader: Trying) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):  # the test has no more outcomes
        asyncio.run(uploader.run())


def test_pauses_double_up_to_a_minute_and_begin_anew_after_a_success(
    pauses_s: list[float],
) -> None:
    away = Unavailable("the store does not answer")
    run(Trying([away] * 8 + [None] + [away] * 2))
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]


def test_a_failure_is_counted_each_time_and_logged_once_until_it_is_over(
    pauses_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "goq.broker")
    away, full = Unavailable("the store does not answer"), OSError("the disk is full")
    uploader = Trying([away, full, full])
    assert (uploader.failures, uploader.failure) == (0, "")
    run(uploader)
    assert (uploader.failures, uploader.failure) == (3, "the disk is full")
    told = [
        "the archive's store does not do what is asked, and is asked again; what it has not taken"
        " stays on this disk: the store does not answer"
    ]
    assert caplog.messages == told
    uploader._outcomes = iter([None, None, away])
    run(uploader)
    assert uploader.failures == len(pauses_s) == 4
    assert caplog.messages == [*told, "the archive's store answers again", *told]


def test_a_segment_that_expires_waits_for_no_move_any_more() -> None:
    uploader = Trying([])
    for base, size_bytes in ((0, 100), (10, 30)):
        row = ArchiveRow("t", 0, "messages", base, base + 10, 1000, size_bytes, 1, 1, 9, 4)
        uploader.add(row, uploader._root / f"{base}.log.zst")
    assert uploader.waiting_bytes == 130
    uploader.expire(row, uploader._root / "10.log.zst")
    assert uploader.waiting_bytes == 100


URL, FOLDER = "s3://bucket/below", "t~1"


class Move:
    """An archive of one topic, and its uploader to a store in memory."""

    def __init__(self, url: str | None = URL) -> None:
        self.disk = SimulatedDisk()
        cache = StoreCache(self.disk, ROOT.with_name("cache"), 10_000)
        self.tiered = TieredDisk(self.disk, cache)
        self.directory = ROOT / FOLDER / "0" / "messages"
        self.disk.make_dir(self.directory)
        self.uploader = ArchiveUploader(ROOT, self.tiered, url, InlineExecutor())

    def path_of(self, base: int) -> Path:
        return self.directory / f"{base:020d}.log.zst"

    def archive(self, base: int, data: bytes, *suffixes: str) -> Path:
        """Have a segment, with files beside it, wait for its move."""
        path, source = self.path_of(base), Path("/source")
        self.disk.put(source, data)
        footer = Footer(base, base + 1, len(data), 0, 1, 1, 1, [])
        footer = write_archive(self.disk, source, path, footer, lambda: None)
        for suffix in suffixes:
            self.disk.put(path.with_name(f"{base:020d}{suffix}"), suffix.encode())
        self.uploader.add(archive_row((FOLDER, 0), "messages", footer, 1), path)
        return path

    def run_once(self) -> None:
        asyncio.run(self.uploader.run_once())

    @property
    def names(self) -> list[str]:
        return self.disk.names(self.directory)

    def objects(self, folder: str = FOLDER) -> list[str]:
        """Return the objects of the topic, without the digests in their names."""
        found = self.uploader._stores[URL].names(Path("below", folder, "0", "messages"))
        return [name.partition(".")[0].lstrip("0") + "." + name.split(".", 2)[2] for name in found]


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    obstore = pytest.importorskip("obstore.store")
    memory = obstore.MemoryStore()
    monkeypatch.setattr(obstore, "S3Store", lambda *_, **__: memory)
    return Move()


def test_a_segment_and_what_lies_beside_it_move_and_its_entry_says_where(move: Move) -> None:
    path = move.archive(7, b"first" * 100, *SIDECARS)
    before = move.disk.read_all(path)
    move.run_once()
    assert move.names == [entry_path(path).name]
    assert sorted(move.objects()) == sorted(["7.log.zst", *(f"7{each}" for each in SIDECARS)])
    assert bytes(move.tiered.read(path, 0, len(before))) == before
    assert move.uploader.waiting_bytes == 0
    move.run_once()
    assert len(move.objects()) == 1 + len(SIDECARS)


def test_nothing_waits_for_a_move_where_there_is_no_store() -> None:
    move = Move(None)
    path = move.archive(7, b"first")
    assert move.uploader.waiting_bytes == 0
    move.run_once()
    assert path.name in move.names


def test_a_segment_that_is_archived_anew_is_moved_anew_and_the_same_one_is_not(
    move: Move,
) -> None:
    path = move.archive(7, b"first" * 100)
    same = move.disk.read_all(path)
    move.run_once()
    first = read_entry(move.disk, entry_path(path))
    assert move.tiered.entry(entry_path(path)) == first
    move.disk.put(path, same)
    move.uploader._waiting[path] = None
    move.run_once()
    assert (move.names, len(move.objects())) == ([entry_path(path).name], 1)
    other = move.archive(7, b"second" * 100)
    data = move.disk.read_all(other)
    move.run_once()
    assert read_entry(move.disk, entry_path(path)) != first
    assert move.tiered.entry(entry_path(path)) != first
    assert bytes(move.tiered.read(path, 0, len(data))) == data


def test_what_fails_comes_last_the_next_time_and_keeps_no_other_here(move: Move) -> None:
    one, two, three = (move.archive(base, b"%d" % base * 50) for base in (1, 2, 3))
    whole = move.disk.read_all(one)
    move.disk.put(one, whole[:-1])
    with pytest.raises(CorruptData):
        move.run_once()
    assert sorted(move.objects()) == ["2.log.zst", "3.log.zst"]
    assert list(move.uploader._waiting) == [one]
    assert not {two.name, three.name} & set(move.names)
    move.disk.put(one, whole)
    move.run_once()
    assert sorted(move.objects()) == ["1.log.zst", "2.log.zst", "3.log.zst"]


def test_a_segment_whose_file_is_gone_is_not_moved(move: Move) -> None:
    path = move.archive(1, b"gone")
    move.disk.remove(path)
    move.run_once()
    assert move.names == []
    assert move.uploader._waiting == {}


def test_an_expired_segment_goes_here_and_in_the_store_before_its_name_is_used_again(
    move: Move,
) -> None:
    stored = move.archive(1, b"1" * 50, *SIDECARS)
    move.run_once()
    here = move.archive(2, b"2" * 50, *SIDECARS)
    row: Any = None
    for path in (stored, here):
        move.uploader.expire(row, path)
        with pytest.raises(Unavailable):
            move.uploader.check_settled(path)
    assert move.uploader.waiting_bytes == 0
    move.run_once()
    assert (move.names, move.objects()) == ([], [])
    for path in (stored, here):
        move.uploader.check_settled(path)


def test_a_store_that_fails_is_asked_once_a_round(move: Move) -> None:
    for base in (1, 2):
        move.archive(base, b"v" * 50)
    asked: list[int] = []

    def create(_store: StoreDisk, _key: Path) -> Any:
        asked.append(1)
        raise StoreError(errno.EIO, "it is down", "key")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreDisk, "create", create)
        for round_number in (1, 2):
            with pytest.raises(StoreError):
                move.run_once()
            assert len(asked) == round_number
    move.run_once()
    assert sorted(move.objects()) == ["1.log.zst", "2.log.zst"]


def test_bytes_that_the_store_gives_back_changed_are_not_removed_here(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = move.archive(1, b"v" * 50)
    monkeypatch.setattr(archive_uploader, "read_object", lambda *_: iter([memoryview(b"other")]))
    with pytest.raises(CorruptData, match="does not hold the bytes that were sent"):
        move.run_once()
    assert move.names == [path.name]


def test_the_objects_of_a_deleted_topic_go_and_those_of_others_stay(move: Move) -> None:
    path = move.archive(1, b"v" * 50)
    move.run_once()
    other = ROOT / "u~2" / "0" / "messages"
    move.disk.make_dir(other)
    move.uploader.begin_deletion(FOLDER)
    deleted = ROOT.with_name(DELETED_DIR)
    assert move.disk.names(deleted) == [FOLDER]
    waiting, elsewhere = move.archive(2, b"w"), other / path.name
    row: Any = None
    for known in (move.uploader._waiting, move.uploader._expired):
        known[elsewhere] = row
    move.uploader.expire(row, path)
    move.uploader.forget(FOLDER)
    assert list(move.uploader._waiting) == list(move.uploader._expired) == [elsewhere]
    assert waiting not in move.uploader._waiting
    move.uploader._waiting.clear()
    move.uploader._expired.clear()
    move.run_once()
    assert move.objects() == []
    assert move.disk.names(deleted) == []
    assert path.with_name(entry_path(path).name).name in move.names, "its files are not its own"


def test_a_topic_that_never_had_a_store_leaves_nothing_to_delete_there() -> None:
    move = Move(None)
    move.uploader.begin_deletion(FOLDER)
    assert move.disk.names(ROOT.with_name(DELETED_DIR)) == []


def test_a_move_ends_when_the_node_stops(move: Move) -> None:
    path = move.archive(1, b"v" * 50)
    move.uploader.close()
    with pytest.raises(Interrupted):
        move.run_once()
    assert move.names == [path.name]
    asyncio.run(move.uploader.run())
