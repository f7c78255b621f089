"""The files of an archive, of which some are in a store: entries are kept, a bounded number."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from goq.errors import CorruptData
from goq.storage.archive import tiered_disk
from goq.storage.archive.file import Footer
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import StoredEntry, StoredObject, entry_path, write_entry
from goq.storage.archive.tiered_disk import TieredDisk
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/archive/0/messages")
SUFFIX = ".log.zst"


def file_of(number: int) -> Path:
    return FOLDER / f"{number:020d}{SUFFIX}"


class CountingDisk(SimulatedDisk):
    def __init__(self) -> None:
        super().__init__()
        self.entries_read: list[str] = []

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        if path.name.endswith(".stored"):
            self.entries_read.append(path.name.lstrip("0").partition(".")[0])
        return super().read(path, position, size_bytes, wait=wait)


@pytest.fixture
def disk() -> CountingDisk:
    made = CountingDisk()
    for number in range(1, 4):
        footer = Footer(number, number + 1, 10 * number, 0, 1, 1, 1, [])
        objects = (StoredObject(SUFFIX, f"k{number}", 100 + number, "0" * 64),)
        write_entry(
            made, entry_path(file_of(number)), StoredEntry("s3://bucket/prefix", footer, objects)
        )
    made.entries_read.clear()
    return made


def test_a_file_of_the_store_has_the_size_that_its_entry_says(disk: CountingDisk) -> None:
    tiered = TieredDisk(disk, StoreCache(disk, Path("/cache"), 0))
    assert [tiered.size(file_of(number)) for number in (1, 2, 3)] == [101, 102, 103]
    with pytest.raises(FileNotFoundError):
        tiered.size(file_of(4))


def test_entries_are_read_once_as_long_as_few_are_asked_for(
    disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered_disk, "_ENTRIES_MAX", 2)
    tiered = TieredDisk(disk, StoreCache(disk, Path("/cache"), 0))
    for number in (1, 2, 1, 2, 3, 2, 1):
        tiered.size(file_of(number))
    assert disk.entries_read == ["1", "2", "3", "1"]


def test_what_was_forgotten_is_read_again(disk: CountingDisk) -> None:
    tiered = TieredDisk(disk, StoreCache(disk, Path("/cache"), 0))
    for folder in (FOLDER / "other", FOLDER.parent):
        tiered.size(file_of(1))
        tiered.forget(folder)
    tiered.size(file_of(1))
    assert disk.entries_read == ["1", "1"]


def test_a_damaged_entry_is_told_and_kept_by_nobody(disk: CountingDisk) -> None:
    path = entry_path(file_of(1))
    data = disk.read_all(path)
    disk.put(path, data.replace(b"k1", b"k2"))
    tiered = TieredDisk(disk, StoreCache(disk, Path("/cache"), 0))
    with pytest.raises(CorruptData, match="do not match its checksum"):
        tiered.size(file_of(1))
    disk.put(path, data)
    assert tiered.size(file_of(1)) == 101


class OneObjectStore:
    """A store in which every key has the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.reads = 0
        self._data = data

    def read(self, _key: Path, position: int, size_bytes: int) -> memoryview:
        self.reads += 1
        return memoryview(self._data)[position : position + size_bytes]


def test_a_cached_object_whose_file_is_gone_is_fetched_again(disk: CountingDisk) -> None:
    data = bytes(range(100))
    store: Any = OneObjectStore(data)
    stored = StoredObject(SUFFIX, "k1", len(data), sha256(data).hexdigest())
    entry = StoredEntry("s3://bucket/prefix", Footer(1, 2, 10, 0, 1, 1, 1, []), (stored,))
    write_entry(disk, entry_path(file_of(1)), entry)
    cache = StoreCache(disk, Path("/cache"), 1000, stores=lambda _url: store)
    tiered = TieredDisk(disk, cache)
    for reads in (1, 2):
        for _ in range(2):
            assert tiered.read(file_of(1), 5, 10) == data[5:15]
        assert (store.reads, cache.size_bytes) == (reads, len(data))
        disk.remove(Path("/cache") / stored.sha256)
