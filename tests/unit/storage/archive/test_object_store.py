"""Objects of a store, in a store in memory: what is there under which key."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.errors import UsageError
from goq.storage.archive.object_store import StoreDisk, StoreError, store_errors_told

obstore = pytest.importorskip("obstore.store")
FOLDER = Path("backups/a")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> StoreDisk:
    memory = obstore.MemoryStore()
    monkeypatch.setattr(obstore, "S3Store", lambda *_, **__: memory)
    return StoreDisk("s3://bucket/backups/")


def put(disk: StoreDisk, name: str, *parts: bytes) -> Path:
    path = FOLDER / name
    file = disk.create(path)
    for part in parts:
        file.append([part[:2], memoryview(part)[2:]])
    file.start_writeback()
    assert file.size_bytes == sum(map(len, parts))
    file.sync()
    return path


def test_a_url_names_a_bucket_and_a_prefix(disk: StoreDisk) -> None:
    assert (disk.url, disk.bucket, disk.prefix) == ("s3://bucket/backups", "bucket", "backups")
    assert disk.told(FOLDER / "x") == "s3://bucket/backups/a/x"
    assert (StoreDisk("s3://bucket").bucket, StoreDisk("s3://bucket").prefix) == ("bucket", "")
    for url in ("s3://", "http://bucket/x", "bucket"):
        with pytest.raises(UsageError):
            StoreDisk(url)


def test_a_store_that_cannot_be_set_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ValueError("no such region")

    monkeypatch.setattr(obstore, "S3Store", refused)
    with pytest.raises(UsageError, match="s3://bucket/x cannot be used: no such region"):
        StoreDisk("s3://bucket/x")


def test_an_object_is_what_was_written_once_it_is_synced(disk: StoreDisk) -> None:
    path = put(disk, "one", b"first", b"second")
    assert disk.size(path) == 11
    assert bytes(disk.read(path, 0, 11)) == b"firstsecond"
    assert bytes(disk.read(path, 3, 4)) == b"stse"
    disk.replace(path, b"other")
    assert bytes(disk.read(path, 0, 5)) == b"other"


def test_an_upload_that_is_given_up_leaves_no_object(disk: StoreDisk) -> None:
    file = disk.create(FOLDER / "gone")
    file.append([b"abc"])
    file.close()
    assert disk.names(FOLDER) == []


def test_objects_are_renamed_removed_and_listed_by_folder(disk: StoreDisk) -> None:
    disk.make_dir(FOLDER)
    one, two = put(disk, "one", b"1"), put(disk, "two", b"22")
    put(disk, "below/three", b"333")
    assert disk.names(FOLDER) == ["one", "two"]
    changes = disk.changes(FOLDER)
    assert {name: size for name, (size, _) in changes.items()} == {"one": 1, "two": 2}
    assert all(time > 1_700_000_000 for _, time in changes.values())
    disk.set_name(one, FOLDER / "four")
    disk.sync_names(FOLDER)
    assert disk.names(FOLDER) == ["four", "two"]
    assert bytes(disk.read(FOLDER / "four", 0, 1)) == b"1"
    disk.remove(two)
    disk.remove(two)
    assert disk.names(FOLDER) == ["four"]
    disk.remove_all(FOLDER)
    assert disk.names(FOLDER) == disk.names(FOLDER / "below") == []
    disk.remove_all(FOLDER)


def test_an_object_that_is_not_there_is_said_to_be_missing(disk: StoreDisk) -> None:
    for work in (
        lambda: disk.size(FOLDER / "x"),
        lambda: disk.read(FOLDER / "x", 0, 1),
        lambda: disk.set_name(FOLDER / "x", FOLDER / "y"),
    ):
        with pytest.raises(FileNotFoundError):
            work()


def test_errors_of_a_store_are_told_apart_from_objects_that_are_missing() -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    for error, kind in (
        (exceptions.NotFoundError("NoSuchKey"), FileNotFoundError),
        (FileNotFoundError("NoSuchKey"), FileNotFoundError),
        (exceptions.NotFoundError("<Code>NoSuchBucket</Code>"), StoreError),
        (exceptions.BaseError("it is <b>down</b>\n\nDebug source: x"), StoreError),
        (TimeoutError("it is down"), StoreError),
    ):
        with (
            pytest.raises(OSError, match=r"object|down|NoSuchBucket") as told,
            store_errors_told("s3://bucket/key"),
        ):
            raise error
        assert type(told.value) is kind
        assert told.value.filename == "s3://bucket/key"
        assert "<" not in str(told.value)
        assert "Debug source" not in str(told.value)
    with pytest.raises(KeyError), store_errors_told("s3://bucket/key"):
        raise KeyError("a bug")
