"""The reserve makes room for what must be written, and for nothing else."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import namedtuple
from pathlib import Path

import pytest

from goq import limits
from goq.errors import StorageFailed, StorageFull
from goq.storage.catalog.sqlite_errors import refused_access
from goq.storage.disk import RealDisk
from goq.storage.disk_space import FILE_NAME, DiskSpace, SpaceState

TOTAL_BYTES = 200 * limits.MIB
BLOCK_BYTES = 4096
TOTAL_FILES = 1000
_Stat = namedtuple("_Stat", "f_bavail f_frsize f_blocks f_favail f_files")


class Filesystem:
    """What ``statvfs`` says: ``used_bytes`` are those of others, the rest is the reserve's."""

    def __init__(self, folder: Path) -> None:
        self.used_bytes = 0
        self.used_files = 0
        self._reserve = folder / FILE_NAME

    @property
    def reserve_bytes(self) -> int:
        return self._reserve.stat().st_size if self._reserve.exists() else 0

    def statvfs(self, _path: object) -> _Stat:
        free_bytes = TOTAL_BYTES - self.used_bytes - self.reserve_bytes
        free_files = TOTAL_FILES - self.used_files - self._reserve.exists()
        return _Stat(
            max(0, free_bytes) // BLOCK_BYTES,
            BLOCK_BYTES,
            TOTAL_BYTES // BLOCK_BYTES,
            max(0, free_files),
            TOTAL_FILES,
        )


@pytest.fixture
def filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filesystem:
    found = Filesystem(tmp_path)
    monkeypatch.setattr(os, "statvfs", found.statvfs)
    return found


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, filesystem: Filesystem) -> list[int]:
    """Let the next writes fail, as many as the number in the list says."""
    failures = [0]
    real = os.pwritev

    def pwritev(*arguments: object) -> int:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "no space")
        return real(*arguments)

    monkeypatch.setattr(os, "pwritev", pwritev)
    return failures


def test_a_reserve_is_made_when_room_gets_scarce(filesystem: Filesystem, tmp_path: Path) -> None:
    space = DiskSpace(tmp_path)
    assert space.check() is SpaceState.OK
    assert filesystem.reserve_bytes == limits.DISK_RESERVE_BYTES


def test_a_disk_with_much_room_has_no_reserve(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_RESERVE_BELOW_BYTES", TOTAL_BYTES)
    monkeypatch.setattr(limits, "DISK_RESERVE_BELOW_FILES", TOTAL_FILES)
    assert DiskSpace(tmp_path).check() is SpaceState.OK
    assert filesystem.reserve_bytes == 0


def test_a_vital_write_uses_the_reserve_and_then_no_other_write_has_room(
    filesystem: Filesystem, tmp_path: Path, full: list[int]
) -> None:
    space = DiskSpace(tmp_path)
    space.check()
    vital = RealDisk(space=space).vital().open(tmp_path / "journal")
    disk = RealDisk(space=space)
    plain = disk.open(tmp_path / "segment")
    plain.append([b"before"])
    filesystem.used_bytes = TOTAL_BYTES - filesystem.reserve_bytes
    full[0] = 1
    with pytest.raises(OSError, match="no space"):
        plain.append([b"refused"])
    full[0] = 1
    vital.append([b"kept"])
    assert space.is_given_up
    assert 0 < filesystem.reserve_bytes < limits.DISK_RESERVE_BYTES
    with pytest.raises(OSError, match="full") as raised:
        plain.append([b"refused"])
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="full"):
        disk.replace(tmp_path / "snapshot", bytes(limits.SMALL_FILE_BYTES_MAX + 1))
    disk.replace(tmp_path / "settings", bytes(limits.SMALL_FILE_BYTES_MAX))
    assert space.check() is SpaceState.FULL
    filesystem.used_bytes = 0
    assert space.check() is SpaceState.OK
    assert filesystem.reserve_bytes == limits.DISK_RESERVE_BYTES
    plain.append([b"after"])
    plain.close()
    vital.close()
    assert (tmp_path / "segment").read_bytes() == b"beforeafter"
    assert (tmp_path / "journal").read_bytes() == b"kept"


def test_the_reserve_is_given_up_in_pieces_until_there_is_none(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    space = DiskSpace(tmp_path)
    space.check()
    filesystem.used_bytes = TOTAL_BYTES
    assert [space.give_up() for _ in range(5)] == [True, True, True, True, False]
    assert filesystem.reserve_bytes == 0


def test_a_disk_without_free_files_is_full_and_says_so(
    filesystem: Filesystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = DiskSpace(tmp_path)
    assert space.check() is SpaceState.OK
    filesystem.used_files = TOTAL_FILES - 1
    assert space.check() is SpaceState.FULL
    assert space.is_full
    assert space.is_full_now
    assert "is full: 192.0 MiB, 0 files left" in caplog.text
    assert space.give_up()
    assert not (tmp_path / FILE_NAME).exists(), "the reserve is a file, and there is room for one"
    assert space.check() is SpaceState.FULL
    disk = RealDisk(space=space)
    (tmp_path / "settings").touch()
    disk.replace(tmp_path / "settings", b"changed")
    with pytest.raises(OSError, match="full"):
        disk.replace(tmp_path / "00000000000000000000.index", b"")
    with pytest.raises(OSError, match="no more files"):
        disk.open(tmp_path / "00000000000000000000.keys")
    filesystem.used_files = 0
    assert space.check() is SpaceState.OK
    assert filesystem.reserve_bytes == limits.DISK_RESERVE_BYTES


def test_a_disk_with_much_room_but_few_free_files_has_a_reserve(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_RESERVE_BELOW_BYTES", 0)
    assert DiskSpace(tmp_path).check() is SpaceState.OK
    assert filesystem.reserve_bytes == limits.DISK_RESERVE_BYTES


def test_a_start_on_a_full_disk_makes_room_and_closes_it_again(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    DiskSpace(tmp_path).check()
    filesystem.used_bytes = TOTAL_BYTES - limits.DISK_RESERVE_BYTES
    space = DiskSpace(tmp_path)
    space.begin_start()
    assert filesystem.reserve_bytes < limits.DISK_RESERVE_BYTES
    assert not space.is_given_up
    assert space.check() is SpaceState.FULL
    assert space.is_given_up


@pytest.mark.parametrize("has_reserve", [True, False])
@pytest.mark.parametrize("used_bytes", [0, TOTAL_BYTES])
def test_a_start_deletes_caches_on_a_full_disk_without_a_reserve_and_nothing_else(
    filesystem: Filesystem, tmp_path: Path, has_reserve: bool, used_bytes: int
) -> None:
    if has_reserve:
        DiskSpace(tmp_path).check()
    caches = {tmp_path / "topics" / "t" / f"{number}.keys" for number in range(3)}
    for path in (*caches, tmp_path / "topics" / "t" / "0.log"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    filesystem.used_bytes = used_bytes
    DiskSpace(tmp_path, ["none/*", "topics/*/*.keys"]).begin_start()
    is_needed = used_bytes and not has_reserve
    assert set(tmp_path.glob("topics/t/*.keys")) == (set() if is_needed else caches)
    assert (tmp_path / "topics" / "t" / "0.log").exists()


def test_the_states_are_logged_once_each(
    filesystem: Filesystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = DiskSpace(tmp_path)
    for left_bytes in (limits.DISK_FULL_BYTES + 1, limits.DISK_FULL_BYTES - 1, TOTAL_BYTES // 2):
        space.check()
        filesystem.used_bytes = TOTAL_BYTES - limits.DISK_RESERVE_BYTES - left_bytes
        space.check()
        space.check()
    said = [record.getMessage().partition(f"{tmp_path} ")[2] for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == [
        "is nearly full",
        "is full",
        "has room again",
    ]


@pytest.mark.parametrize("failing", ["open", "posix_fallocate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_a_reserve_that_cannot_be_made_leaves_nothing_and_counts_as_given_up(
    filesystem: Filesystem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: str,
    number: int,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, "not now")

    space = DiskSpace(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        assert space.check() is SpaceState.FULL
    assert space.is_given_up
    assert not (tmp_path / FILE_NAME).exists()
    assert ("cannot be made" in caplog.text) is (number == errno.EMFILE)
    assert space.check() is SpaceState.OK
    assert filesystem.reserve_bytes == limits.DISK_RESERVE_BYTES


def test_an_error_of_sqlite_on_a_full_disk_says_that_the_disk_is_full(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    refused = refused_access(tmp_path / "node.db", error)
    assert refused is not None
    assert "check the disk" in refused.detail
    assert refused.exit_code == StorageFailed.exit_code
    filesystem.used_bytes = TOTAL_BYTES
    refused = refused_access(tmp_path / "node.db", error)
    assert refused is not None
    assert "its disk is full: disk I/O error; free some space" in refused.detail
    assert isinstance(refused, StorageFull)
