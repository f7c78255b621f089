"""The cache of objects: its bound, its checks, and a store that does not answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from msgspec import structs

from goq.errors import ArchiveUnreachable, StorageFull
from goq.storage.archive import store_cache
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import StoredObject
from goq.storage.disk import RealDisk

URL = "s3://bucket/prefix"
SIZE_BYTES = 1000


class MemoryStore:
    url = URL

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0
        self.is_down = False

    def read(self, path: Path, position: int, size_bytes: int) -> memoryview:
        self.reads += 1
        if self.is_down:
            raise OSError(5, "no answer", str(path))
        if str(path) not in self.objects:
            raise FileNotFoundError(2, "none", str(path))
        return memoryview(self.objects[str(path)][position : position + size_bytes])

    def size(self, path: Path) -> int:
        if self.is_down:
            raise OSError(5, "no answer", str(path))
        return len(self.objects[str(path)])

    def told(self, path: str) -> str:
        return f"s3://bucket/{path}"

    def put(self, number: int) -> StoredObject:
        data = bytes([number]) * SIZE_BYTES
        self.objects[f"k{number}"] = data
        return StoredObject(".log.zst", f"k{number}", SIZE_BYTES, sha256(data).hexdigest())


def opened(store: MemoryStore) -> Callable[[str], Any]:
    return lambda _url: store


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def cache_in(folder: Path, store: MemoryStore, objects: int = 3) -> StoreCache:
    return StoreCache(RealDisk(), folder / "cache", objects * SIZE_BYTES, stores=opened(store))


def test_the_files_never_exceed_the_bound_and_the_least_lately_read_goes(
    tmp_path: Path, store: MemoryStore
) -> None:
    cache, stored = cache_in(tmp_path, store), [store.put(number) for number in range(6)]
    for number in (0, 1, 2, 0, 3):
        path = cache.fetch(URL, stored[number])
        assert path.read_bytes() == bytes([number]) * SIZE_BYTES
    held = [number for number in range(6) if cache.has(stored[number])]
    assert (held, cache.size_bytes, store.reads) == ([0, 2, 3], 3 * SIZE_BYTES, 4)
    for number in range(6):
        cache.fetch(URL, stored[number])
        files = list((tmp_path / "cache").iterdir())
        assert sum(file.stat().st_size for file in files) <= 3 * SIZE_BYTES


def test_a_start_empties_the_cache(tmp_path: Path, store: MemoryStore) -> None:
    cache_in(tmp_path, store).fetch(URL, store.put(1))
    cache = cache_in(tmp_path, store)
    cache.open()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_store_that_does_not_answer_is_not_asked_by_each_reader(
    tmp_path: Path, store: MemoryStore
) -> None:
    cache, stored, other = cache_in(tmp_path, store), store.put(1), store.put(2)
    store.is_down = True
    for each in (stored, other, stored):
        with pytest.raises(ArchiveUnreachable, match="no answer"):
            cache.fetch(URL, each)
    assert (store.reads, cache.failures, cache.size_bytes) == (1, 1, 0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_object_is_never_fetched_twice_at_the_same_time(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read finds the object damaged, so the next reader fetches it again at once."""
    monkeypatch.setattr(store_cache, "_DAMAGED_S", 0.0)
    stored = store.put(1)
    store.objects["k1"] = bytes(SIZE_BYTES)
    both, overlaps = Barrier(2), list[bool]()
    read = store.read

    def read_for_long(path: Path, position: int, size_bytes: int) -> memoryview:
        try:
            both.wait(0.02)
            overlaps.append(True)
        except BrokenBarrierError:
            both.reset()
        return read(path, position, size_bytes)

    monkeypatch.setattr(store, "read", read_for_long)
    cache = cache_in(tmp_path, store)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: cache.fetch(URL, stored), range(12)))
    assert overlaps == []
    assert cache.size_bytes == SIZE_BYTES
    assert len(cache._fetching) == 0


def test_a_full_disk_is_told_as_such_and_not_as_a_store_that_does_not_answer(
    tmp_path: Path, store: MemoryStore
) -> None:
    class FullDisk(RealDisk):
        is_full = True

        def make_dir(self, path: Path) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super().make_dir(path)

    disk, stored = FullDisk(), store.put(1)
    cache = StoreCache(disk, tmp_path / "cache", SIZE_BYTES, stores=opened(store))
    with pytest.raises(StorageFull, match="no room to read k1 of s3://bucket/prefix"):
        cache.fetch(URL, stored)
    assert (cache.failures, cache.size_bytes) == (0, 0)
    disk.is_full = False
    assert cache.fetch(URL, stored).read_bytes() == bytes([1]) * SIZE_BYTES


@pytest.mark.parametrize("bad", [b"\x01" * (SIZE_BYTES - 1) + b"\x02", b"\x01" * 10, b""])
def test_wrong_bytes_are_fetched_once_more_then_told_and_kept_as_they_are(
    bad: bytes, tmp_path: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    cache, stored = cache_in(tmp_path, store), store.put(1)
    store.objects["k1"] = bad
    assert cache.fetch(URL, stored).read_bytes() == bad
    assert (cache.damaged, store.reads) == (1, 2)
    assert "s3://bucket/k1 is damaged" in caplog.text


def test_wrong_bytes_are_fetched_again_after_a_minute(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, stored, now_s = cache_in(tmp_path, store), store.put(1), [1000.0]
    monkeypatch.setattr(store_cache.time, "monotonic", lambda: now_s[0])
    good, store.objects["k1"] = store.objects["k1"], b"an error page"
    for later_s, reads in ((0.0, 2), (59.0, 2), (1.0, 4), (59.0, 4)):
        now_s[0] += later_s
        assert cache.fetch(URL, stored).read_bytes() == b"an error page"
        assert (cache.is_damaged(stored), store.reads) == (True, reads)
        assert cache.size_bytes == SIZE_BYTES
    store.objects["k1"] = good
    now_s[0] += 1.0
    for _ in range(2):
        assert cache.fetch(URL, stored).read_bytes() == good
    assert (cache.is_damaged(stored), cache.size_bytes, store.reads) == (False, SIZE_BYTES, 5)


def test_a_missing_object_is_missing_and_takes_no_room(tmp_path: Path, store: MemoryStore) -> None:
    cache, stored = cache_in(tmp_path, store), store.put(1)
    del store.objects["k1"]
    with pytest.raises(FileNotFoundError):
        cache.fetch(URL, stored)
    assert cache.size_bytes == 0


def test_a_bucket_that_is_not_there_is_no_damage(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the answer to a read tells a missing bucket from a missing object."""
    cache, stored = cache_in(tmp_path, store), store.put(1)

    def missing(path: Path) -> int:
        raise FileNotFoundError(2, "none", str(path))

    store.is_down = True
    monkeypatch.setattr(store, "size", missing)
    with pytest.raises(ArchiveUnreachable, match="no answer"):
        cache.fetch(URL, stored)


@pytest.mark.parametrize(
    ("stored_bytes", "pieces"), [(250, [100, 100, 50]), (200, [100, 100]), (130, [100, 30])]
)
def test_an_object_is_read_in_pieces_as_far_as_it_goes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, stored_bytes: int, pieces: list[int]
) -> None:
    monkeypatch.setattr(store_cache, "PIECE_BYTES", 100)
    told = structs.replace(store.put(1), size_bytes=250)
    store.objects["k1"] = store.objects["k1"][:stored_bytes]
    found = list(store_cache.read_object(store, told))
    assert [len(piece) for piece in found if piece] == pieces
    assert b"".join(found) == store.objects["k1"]
