"""The move of archived segments to a store, against a real one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.broker.retention import archive_uploader
from goq.broker.retention.archive_uploader import DELETED_DIR, ArchiveUploader
from goq.errors import CorruptData
from goq.storage.archive.file import Footer, write_archive
from goq.storage.archive.manifest import archive_row
from goq.storage.archive.object_store import StoreError
from goq.storage.archive.store_cache import StoreCache, read_object
from goq.storage.archive.stored_entry import entry_path, read_entry, write_entry
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.disk import RealDisk
from tests.support.storage.store_proxy import StoreProxy

FOLDER = "t~1"


def row(base_offset: int) -> ArchiveRow:
    footer = Footer(base_offset, base_offset + 1, 1, 0, 1, 1, 1, [])
    return archive_row((FOLDER, 0), "messages", footer, 1)


class Move:
    """An archive in a folder, and its uploader."""

    def __init__(self, folder: Path, url: str) -> None:
        self.local = RealDisk()
        self.root = folder / "archive"
        self.directory = self.root / FOLDER / "0" / "messages"
        self.path = self.path_of(0)
        cache = StoreCache(self.local, folder / "archive.cache", 64 * limits.MIB)
        self.disk = TieredDisk(self.local, cache)
        self._executor = ThreadPoolExecutor(1)
        self.local.make_dir(self.directory)

    def path_of(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.log.zst"

    def archive(self, data: bytes, base_offset: int = 0) -> bytes:
        """Write an archived segment; return the bytes of its file."""
        source = self.root.with_name("source")
        source.write_bytes(data)
        footer = Footer(base_offset, base_offset + 1, len(data), 0, 1, 1, 1, [])
        path = self.path_of(base_offset)
        write_archive(self.local, source, path, footer, lambda: None)
        return path.read_bytes()

    def uploader(self, url: str, *base_offsets: int) -> ArchiveUploader:
        """Return an uploader with segments to move."""
        uploader = ArchiveUploader(self.root, self.disk, url, self._executor)
        for base in base_offsets:
            uploader.add(row(base), self.path_of(base))
        return uploader

    def run(self, url: str, *base_offsets: int) -> None:
        """Move segments, as a start of the node would."""

        async def work() -> None:
            await self.uploader(url, *(base_offsets or (0,))).run_once()

        asyncio.run(work())

    def stored(self) -> bytes:
        """Return the bytes of the archived segment, wherever it is."""
        return bytes(self.disk.read(self.path, 0, 1 << 20))


@pytest.fixture
def move(tmp_path: Path, url: str, proxy: StoreProxy) -> Move:
    return Move(tmp_path, url)


def test_a_segment_that_is_archived_anew_replaces_the_one_in_the_store(
    move: Move, url: str
) -> None:
    for data in (b"first" * 100, b"second" * 100):
        file = move.archive(data)
        move.run(url)
        assert not move.path.exists()
        assert move.stored() == file


def test_a_file_that_a_kill_left_beside_its_entry_is_removed(
    move: Move, url: str, proxy: StoreProxy
) -> None:
    file = move.archive(b"first" * 100)
    move.run(url)
    move.path.write_bytes(file)
    proxy.go()  # what is there needs no store
    move.run(url)
    assert not move.path.exists()


def test_a_damaged_entry_is_written_anew_from_the_file(move: Move, url: str) -> None:
    file = move.archive(b"first" * 100)
    move.run(url)
    entry = entry_path(move.path)
    entry.write_bytes(entry.read_bytes()[:-3])
    move.path.write_bytes(file)
    move.disk.forget(move.directory)
    move.run(url)
    assert not move.path.exists()
    assert move.stored() == file


def test_a_damaged_segment_stays_and_the_others_are_moved(move: Move, url: str) -> None:
    move.archive(b"first" * 100)
    move.path.write_bytes(damaged := move.path.read_bytes()[:-7])
    sound = move.archive(b"second" * 100, 1)

    async def work() -> None:
        uploader = move.uploader(url, 0, 1)
        for _ in range(2):
            with pytest.raises(CorruptData):
                await uploader.run_once()
            assert uploader.waiting_bytes == 1, "the damaged one is tried again, and no other"

    asyncio.run(work())
    assert move.path.read_bytes() == damaged
    assert not move.path_of(1).exists()
    assert bytes(move.disk.read(move.path_of(1), 0, 1 << 20)) == sound


def test_a_segment_stays_whose_bytes_the_store_gives_back_changed(
    move: Move, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = move.archive(b"first" * 100)

    def changed(*arguments: Any) -> Iterator[bytes]:
        for data in read_object(*arguments):
            yield bytes([data[0] ^ 1]) + bytes(data[1:])

    with monkeypatch.context() as patch:
        patch.setattr(archive_uploader, "read_object", changed)
        with pytest.raises(CorruptData, match="does not hold the bytes that were sent"):
            move.run(url)
    assert move.path.read_bytes() == file
    assert not entry_path(move.path).exists()
    move.run(url)
    assert move.stored() == file


def test_a_move_ends_where_the_node_stops_and_the_next_start_does_it(move: Move, url: str) -> None:
    file = move.archive(b"first" * 100)

    async def stopped() -> None:
        uploader = move.uploader(url, 0)
        uploader.close()
        await uploader.run()  # ends by itself

    asyncio.run(stopped())
    assert move.path.read_bytes() == file
    move.run(url)
    assert not move.path.exists()


def test_a_segment_whose_file_goes_while_it_is_moved_is_missed_unless_its_topic_goes(
    move: Move, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(*, goes: bool) -> None:
        uploader = move.uploader(url, 0)

        def gone(*_: Any) -> Footer:
            if goes:
                uploader.forget(FOLDER)
            raise FileNotFoundError(move.path)

        monkeypatch.setattr(archive_uploader, "read_footer", gone)
        await uploader.run_once()
        assert not uploader.waiting_bytes

    move.archive(b"first" * 100)
    asyncio.run(work(goes=True))
    with pytest.raises(FileNotFoundError):
        asyncio.run(work(goes=False))


def test_a_store_that_is_gone_for_good_keeps_nothing_from_going_to_another(
    move: Move, url: str
) -> None:
    """It has an expired segment and a deleted topic; each try costs one request of it a round."""
    gone = "s3://no-such-bucket/a"
    for base in (0, 1):
        move.archive(b"first" * 100, base)
        move.run(url, base)
        entry = read_entry(move.local, entry_path(move.path_of(base)))
        write_entry(move.local, entry_path(move.path_of(base)), replace(entry, url=gone))
    move.disk.forget(move.directory)
    deleted = move.root.with_name(DELETED_DIR)
    move.local.make_dir(deleted)
    for folder, place in (("a~2", gone), ("b~3", url)):
        move.local.replace(deleted / folder, place.encode())
    file = move.archive(b"second" * 100, 2)

    async def work() -> None:
        uploader = move.uploader(url, 2)
        for base in (0, 1):
            uploader.expire(row(base), move.path_of(base))
        with pytest.raises(StoreError, match="no-such-bucket"):
            await uploader.run_once()

    asyncio.run(work())
    assert not move.path_of(2).exists()
    assert bytes(move.disk.read(move.path_of(2), 0, 1 << 20)) == file
    assert [path.name for path in deleted.iterdir()] == ["a~2"]


def test_a_segment_that_cannot_be_read_keeps_no_other_here(
    move: Move, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in range(3):
        move.archive(b"data" * 100, base)
    read = move.local.read

    def fail(path: Path, position: int, size_bytes: int, **named: Any) -> memoryview:
        if path == move.path_of(0) and position == 0:
            raise OSError(errno.EIO, "a bad sector", str(path))
        return read(path, position, size_bytes, **named)

    monkeypatch.setattr(move.local, "read", fail)
    with pytest.raises(OSError, match="a bad sector"):
        move.run(url, 0, 1, 2)
    assert [move.path_of(base).exists() for base in range(3)] == [True, False, False]
