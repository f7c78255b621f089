"""The move of archived segments to a store, against a real one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq import limits
from goq.broker.retention.archive_uploader import ArchiveUploader
from goq.storage.archive.file import Footer, write_archive
from goq.storage.archive.manifest import archive_row
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import entry_path
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.disk import RealDisk
from tests.support.storage.store_proxy import StoreProxy

FOLDER = "t~1"


class Move:
    """An archive in a folder, and its uploader."""

    def __init__(self, folder: Path, url: str) -> None:
        self.local = RealDisk()
        self.root = folder / "archive"
        self.directory = self.root / FOLDER / "0" / "messages"
        self.path = self.directory / f"{0:020d}.log.zst"
        cache = StoreCache(self.local, folder / "archive.cache", 64 * limits.MIB)
        self.disk = TieredDisk(self.local, cache)
        self._executor = ThreadPoolExecutor(1)
        self.local.make_dir(self.directory)

    def archive(self, data: bytes) -> bytes:
        """Write an archived segment; return the bytes of its file."""
        source = self.root.with_name("source")
        source.write_bytes(data)
        footer = Footer(0, 1, len(data), 0, 1, 1, 1, [])
        write_archive(self.local, source, self.path, footer, lambda: None)
        return self.path.read_bytes()

    def run(self, url: str) -> None:
        """Move the segment, as a start of the node would."""

        async def work() -> None:
            uploader = ArchiveUploader(self.root, self.disk, url, self._executor)
            footer = Footer(0, 1, 1, 0, 1, 1, 1, [])
            uploader.add(archive_row((FOLDER, 0), "messages", footer, 1), self.path)
            await uploader.run_once()

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
