"""What the real disk writes and syncs, in which order, and what is left where that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from goq.storage.disk import RealDisk, is_full, is_temporary
from goq.storage.disk.open_files import OpenFiles


class Recorder:
    """The syncs and renames of the process below a folder, by name, in their order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.steps: list[str] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))
        rename = Path.rename

        def noting(path: Path, target: Path) -> Path:
            self.steps.append(f"rename {self.name(path)}")
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", noting)

    def name(self, path: Path) -> str:
        return "." if path == self.folder else str(path.relative_to(self.folder))

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def noting(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_relative_to(self.folder):
                self.steps.append(f"sync {self.name(path)}")
            sync(fd)

        return noting

    def of(self, work: Callable[[], object]) -> list[str]:
        """Return the steps of some work."""
        self.steps.clear()
        work()
        return list(self.steps)


def test_every_change_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, recorder = RealDisk(), Recorder(tmp_path, monkeypatch)
    path, other = tmp_path / "a" / "file", tmp_path / "b" / "file"
    assert recorder.of(lambda: disk.make_dir(other.parent)) == ["sync ."]
    nested = tmp_path / "a" / "x" / "y"
    assert recorder.of(lambda: disk.make_dir(nested)) == ["sync .", "sync a", "sync a/x"]
    disk.remove_dir(tmp_path / "a" / "x")
    assert recorder.of(lambda: disk.open(path)) == ["sync a"]
    file = disk.open(path)
    assert recorder.of(lambda: file.append([b"abc"])) == []
    assert recorder.of(file.sync) == ["sync a/file"]
    assert recorder.of(lambda: disk.open(path)) == []  # not new
    assert recorder.of(lambda: file.truncate(1)) == ["sync a/file"]
    assert recorder.of(lambda: disk.make_dir(path.parent)) == []  # it is in use
    assert recorder.of(lambda: disk.create(path.with_name("new"))) == []
    assert recorder.of(lambda: disk.sync_names(path.parent)) == ["sync a"]
    replaced = recorder.of(lambda: disk.replace(path, b"content"))
    assert replaced == ["sync a/file.new", "rename a/file.new", "sync a"]
    assert recorder.of(lambda: disk.rename(path, other)) == ["rename a/file", "sync b"]
    assert recorder.of(lambda: disk.set_name(other, path)) == ["rename b/file"]
    assert recorder.of(lambda: disk.remove(path)) == ["sync a"]
    moved = recorder.of(lambda: disk.move_dir(tmp_path / "a", tmp_path / "b" / "a"))
    assert moved == ["rename a", "sync b", "sync ."]
    assert recorder.of(lambda: disk.remove_dir(tmp_path / "b")) == ["sync b", "sync ."]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files_max", [1, 2, 100])
@pytest.mark.parametrize("seed", range(4))
def test_files_hold_what_was_written_however_few_may_be_open(
    tmp_path: Path, seed: int, files_max: int
) -> None:
    chance, disk = Random(seed), RealDisk(OpenFiles(files_max))
    paths = [tmp_path / str(number) for number in range(4)]
    files = [disk.open(path) for path in paths]
    contents = [bytearray() for _ in paths]
    for _ in range(120):
        number = chance.randrange(4)
        file, content = files[number], contents[number]
        data = chance.randbytes(chance.randrange(1, 20))
        action = chance.randrange(7)
        if action < 3:
            file.append([data[:3], memoryview(data)[3:]])
            content += data
        elif action == 3:
            position = chance.randrange(len(content) + 5)
            file.write_at(data, position, must_last=chance.random() < 0.5)
            content.extend(bytes(max(0, position - len(content))))
            content[position : position + len(data)] = data
        elif action == 4:
            size = chance.randrange(len(content) + 1)
            file.truncate(size)
            del content[size:]
        elif action == 5:
            file.sync()
        else:
            file.start_writeback()
        assert file.size_bytes == disk.size(paths[number]) == len(content)
        start, count = chance.randrange(len(content) + 3), chance.randrange(40)
        expected = bytes(content[start : start + count])
        assert bytes(disk.read(paths[number], start, count)) == expected
        assert len(disk.files) <= files_max
    for file in files:
        file.close()
    assert len(disk.files) == 0


def test_a_write_that_the_system_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, pwrite, write = os.pwritev, os.pwrite, os.write

    def some_of_them(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return pwritev(fd, [b"".join(buffers)[:5]], offset)

    monkeypatch.setattr(os, "pwritev", some_of_them)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:2]))
    disk, path = RealDisk(), tmp_path / "file"
    file = disk.open(path)
    file.append([b"one", b"two", b"three"])
    file.append([b"four"])
    assert path.read_bytes() == b"onetwothreefour"
    assert file.size_bytes == 15
    disk.replace(path, b"new content")
    assert path.read_bytes() == b"new content"
    file = disk.open(path)
    with pytest.raises(OSError, match="short write"):
        file.write_at(b"more than three", 0)


def test_many_buffers_are_written_whole_and_in_order(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "file")
    buffers = [b"%d," % number for number in range(2_500)]
    file.append(buffers)
    file.append([])
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


class Reserve:
    """The room of a folder; with a reserve that a full disk gives up once."""

    lacks_files_now = False

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> bool:
        had, self.is_given_up = not self.is_given_up, True
        return had


def test_only_vital_writes_use_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve()
    disk = RealDisk(space=reserve)
    plain, vital = disk.open(tmp_path / "plain"), disk.vital().open(tmp_path / "vital")
    pwritev, left = os.pwritev, [0]

    def write(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        if not reserve.is_given_up or not left[0]:
            raise OSError(errno.ENOSPC, "full")
        left[0] -= 1
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", write)
    with pytest.raises(OSError, match="full"):
        plain.append([b"abc"])
    assert not reserve.is_given_up
    left[0] = 1
    vital.append([b"abc"])
    assert reserve.is_given_up
    left[0] = 9
    with pytest.raises(OSError, match="the disk is full") as caught:
        plain.append([b"abc"])
    assert is_full(caught.value)
    assert (tmp_path / "plain").read_bytes() == b""
    assert (tmp_path / "vital").read_bytes() == b"abc"
    left[0] = 0
    with pytest.raises(OSError, match="full"):
        vital.append([b"d"])
    assert vital.size_bytes == 3


def test_small_files_are_replaced_with_the_reserve_and_large_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, write = Reserve(), os.write
    disk = RealDisk(space=reserve)

    def full(fd: int, data: bytes) -> int:
        if not reserve.is_given_up:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    large = bytes(1 << 22)
    with pytest.raises(OSError, match="full"):
        disk.replace(tmp_path / "large", large)
    assert not reserve.is_given_up
    disk.replace(tmp_path / "small", b"abc")
    assert reserve.is_given_up
    with pytest.raises(OSError, match="the disk is full"):
        disk.replace(tmp_path / "large", large)
    disk.vital().replace(tmp_path / "large", large)
    assert sorted(disk.names(tmp_path)) == ["large", "small"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_at_the_limit_of_open_files_idle_ones_are_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    files, real_open, failures = OpenFiles(100), os.open, [0]
    disk = RealDisk(files)
    for number in range(5):
        disk.replace(tmp_path / str(number), b"abc")
        disk.read(tmp_path / str(number), 0, 3)
    assert (len(files), files.is_short, files.shortages()) == (5, False, [])

    def scarce(path: Path, flags: int, mode: int = 0o777) -> int:
        if failures[0]:
            failures[0] -= 1
            raise OSError(code, "too many open files")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    failures[0] = 1
    assert disk.open(tmp_path / "new").size_bytes == 0
    assert len(files) == 1
    assert files.is_short
    assert files.shortages()
    failures[0] = 7
    disk.read(tmp_path / "0", 0, 3)
    failures[0] = 8
    with pytest.raises(OSError, match="too many") as caught:
        disk.read(tmp_path / "1", 0, 3)
    assert is_temporary(caught.value)
    assert not is_full(caught.value)


def test_errors_of_the_disk_are_told_from_those_that_pass() -> None:
    for code, full, temporary in (
        (errno.ENOSPC, True, True),
        (errno.EDQUOT, True, True),
        (errno.ENOMEM, False, True),
        (errno.EAGAIN, False, True),
        (errno.EIO, False, False),
    ):
        error = OSError(code, "")
        assert (is_full(error), is_temporary(error)) == (full, temporary)


def test_no_operation_leaves_a_descriptor_open(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "a" / "file"

    def work() -> None:
        disk.make_dir(path.parent)
        disk.replace(path, b"abc")
        disk.rename(path, path.with_name("other"))
        disk.remove(path.with_name("other"))
        file = disk.open(path)
        file.append([b"abc"])
        file.sync()
        file.close()
        disk.sync_names(path.parent)
        disk.remove_dir(tmp_path / "a")

    work()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        work()
    assert len(os.listdir("/proc/self/fd")) == len(before)
