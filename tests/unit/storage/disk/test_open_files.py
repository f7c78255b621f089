"""The LRU of descriptors: its bound, files that are opened again, and syncs that failed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goq.errors import ResourcesExhausted
from goq.storage.disk import RealDisk, is_temporary
from goq.storage.disk.open_files import OpenFiles, connections_max, open_files_max
from goq.storage.log.log import Log
from tests.support.storage.logs import append, frame_of, read_all

FRAME = frame_of([b"a message"] * 3)


def descriptors_of(folder: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except FileNotFoundError:
            continue
    return found


def test_many_logs_share_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    disk = RealDisk(OpenFiles(8))
    logs = [Log.open(tmp_path / str(number), disk) for number in range(30)]
    for _ in range(3):
        for log in logs:
            append(log, [FRAME])
            assert descriptors_of(tmp_path) <= 8
    for log in logs:
        assert len(read_all(log).frames) == 3
        log.close()
    again = [Log.open(tmp_path / str(number), disk) for number in range(30)]
    assert [log.end_offset for log in again] == [9] * 30
    assert [log.truncated_bytes for log in again] == [0] * 30
    for log in again:
        log.close()
    assert descriptors_of(tmp_path) == 0 or len(disk.files) <= 8


def test_an_evicted_file_is_not_mistaken_for_another_of_its_name(tmp_path: Path) -> None:
    disk = RealDisk(OpenFiles(1))
    file = disk.open(tmp_path / "file")
    file.append([b"stored"])
    file.sync()
    disk.open(tmp_path / "other")  # takes the only place
    (tmp_path / "file").unlink()
    (tmp_path / "keeps the inode").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"stored")
    with pytest.raises(OSError, match="another file has its name"):
        file.append([b"lost"])
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        file.append([b"lost"])
    assert not (tmp_path / "file").exists()


def test_unsynced_writes_are_synced_before_their_descriptor_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(OpenFiles(2))
    synced: list[str] = []
    fdatasync = os.fdatasync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    files = [disk.open(tmp_path / name) for name in ("a", "b", "c", "d")]
    for file in files:
        file.append([b"not synced"])
    assert synced == ["a", "b"]
    clean = disk.open(tmp_path / "e")
    clean.write_at(b"may be lost", 0, must_last=False)
    assert synced == ["a", "b", "c"]
    assert len(disk.files) <= 2


def test_what_is_written_during_a_sync_is_synced_before_its_descriptor_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(OpenFiles(1))
    file, real_sync = disk.open(tmp_path / "file"), os.fdatasync
    synced: list[str] = []

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real_sync(fd)
        if len(synced) == 1:
            file.append([b"meanwhile"])

    file.append([b"before"])
    monkeypatch.setattr(os, "fdatasync", sync)
    file.sync()
    disk.open(tmp_path / "other").close()
    assert synced == [str(tmp_path / "file")] * 2
    file.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_before_an_eviction_fails_the_files_next_sync_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk = RealDisk(OpenFiles(1))
    file = disk.open(tmp_path / "file")
    file.append([b"not synced"])

    def fail(_fd: int) -> None:
        raise OSError(code, "the device is gone")

    monkeypatch.setattr(os, "fdatasync", fail)
    disk.open(tmp_path / "other")
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(OSError, match="the device is gone") as caught:
            file.sync()
        assert not is_temporary(caught.value)
    file.close()
    disk.open(tmp_path / "file").sync()  # opened anew: recovery writes its bytes again


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Leave this process so many free descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare + 64, hard))  # threads open some
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_at_the_systems_limit_idle_descriptors_give_way(tmp_path: Path) -> None:
    disk = RealDisk(OpenFiles(100))
    with few_descriptors(spare=6):
        for number in range(30):
            disk.replace(tmp_path / str(number), b"content")
            assert bytes(disk.read(tmp_path / str(number), 0, 9)) == b"content"
        assert disk.files.is_short
        assert "limit of open files" in disk.files.shortages()[0]


def test_a_log_refuses_without_descriptors_and_goes_on_with_them(tmp_path: Path) -> None:
    disk = RealDisk(OpenFiles(4))
    log = Log.open(tmp_path / "log", disk)
    append(log, [FRAME])
    files = [disk.open(tmp_path / f"other-{number}") for number in range(4)]
    for file in files:
        file.append([b"x"])  # unsynced, so they keep their descriptors
    with few_descriptors(spare=0), pytest.raises(ResourcesExhausted, match="open files"):
        append(log, [FRAME])
    assert log.failed is None
    append(log, [FRAME])
    assert len(read_all(log).frames) == 2
    log.close()


def test_the_bounds_follow_from_what_the_process_may_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        bounds = []
        for limit in (64, 1_024, 20_000):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            bounds.append((open_files_max(), connections_max()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bounds == [(16, 16), (256, 256), (1_024, 18_464)]


def open_names(folder: Path) -> set[str]:
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    targets = [Path(os.readlink(path)) for path in paths if os.path.lexists(path)]
    return {target.name for target in targets if target.parent == folder}


def test_the_file_that_was_used_least_recently_gives_way(tmp_path: Path) -> None:
    disk = RealDisk(OpenFiles(2))
    for name in "abcd":
        (tmp_path / name).write_bytes(b"data")
    disk.read(tmp_path / "a", 0, 4)
    written = disk.open(tmp_path / "b")
    written.append([b"more"])
    written.sync()
    assert open_names(tmp_path) == {"a", "b"}
    disk.read(tmp_path / "a", 0, 4)
    disk.read(tmp_path / "c", 0, 4)
    assert open_names(tmp_path) == {"a", "c"}
    written.append([b"more"])
    written.sync()
    assert open_names(tmp_path) == {"b", "c"}
    disk.read(tmp_path / "c", 0, 4)
    written.sync()
    disk.read(tmp_path / "d", 0, 4)
    assert open_names(tmp_path) == {"b", "d"}


@pytest.mark.parametrize("faster", ["reads", "writes"])
@pytest.mark.parametrize("slower", ["reads", "writes"])
def test_two_threads_that_open_a_file_at_once_use_one_descriptor_that_serves_both(
    faster: str, slower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    status = path.stat()
    files = OpenFiles(8)
    open_fd = files.open_fd
    opened = []

    def use(how: str) -> None:
        if how == "reads":
            opened.append(files.reader(str(path)))
        else:
            opened.append(files.use(str(path), (status.st_dev, status.st_ino), writes=True))

    def open_slowly(path: Path, flags: int) -> int:
        fd = open_fd(path, flags)
        monkeypatch.setattr(files, "open_fd", open_fd)
        if not opened:
            use(faster)  # between the open of the other and its entry
        return fd

    monkeypatch.setattr(files, "open_fd", open_slowly)
    use(slower)
    first, second = opened
    assert second.is_writable >= (slower == "writes")
    assert (first is second) is (faster == "writes" or slower == "reads")
    assert files.reader(str(path)) is second
    assert len(files) == 1
