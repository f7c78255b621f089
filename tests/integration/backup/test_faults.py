"""A backup, a prune or a restore is killed at any step; bytes of a backup go bad."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree, rmtree
from typing import NamedTuple

import pytest

import goq
from goq.backup.backup import back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.errors import CorruptData, UnsupportedFormat
from goq.storage.data_dir_lock import check_format
from goq.storage.disk import File, RealDisk
from goq.storage.verification import verify_data_dir

NEWEST = RestoreOrder()


class KilledHere(BaseException):
    """The process ended."""


class KillingFile:
    """A file of a disk that ends the process at a step."""

    def __init__(self, file: File, step: Callable[[], bool]) -> None:
        self._file = file
        self._step = step

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, buffers: Sequence[bytes | memoryview], *, is_vital: bool = False) -> None:
        data = b"".join(buffers)
        if self._step():
            self._file.append([data[: len(data) // 2]])
            raise KilledHere
        self._file.append([data])

    def start_writeback(self) -> None:
        self._file.start_writeback()

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        if self._step():
            raise KilledHere
        self._file.write_at(data, position, must_last=must_last)

    def sync(self) -> None:
        if self._step():
            raise KilledHere
        self._file.sync()

    def truncate(self, size_bytes: int) -> None:
        if self._step():
            raise KilledHere
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()


class KillingDisk(RealDisk):
    """A disk that ends the process at the step ``kill_at``: no later one has any effect."""

    def __init__(self, kill_at: int) -> None:
        super().__init__()
        self.steps = 0
        self._kill_at = kill_at

    def _step(self) -> bool:
        self.steps += 1
        return self.steps >= self._kill_at

    def _check(self) -> None:
        if self._step():
            raise KilledHere

    def open(self, path: Path) -> File:
        self._check()
        return KillingFile(super().open(path), self._step)

    def create(self, path: Path) -> File:
        self._check()
        return KillingFile(super().create(path), self._step)

    def replace(self, path: Path, data: bytes) -> None:
        if self._step():
            path.with_name(path.name + ".new").write_bytes(data[: len(data) // 2])
            raise KilledHere
        super().replace(path, data)

    def set_name(self, path: Path, target: Path) -> None:
        self._check()
        super().set_name(path, target)

    def sync_names(self, directory: Path) -> None:
        self._check()
        super().sync_names(directory)

    def remove(self, path: Path) -> None:
        self._check()
        super().remove(path)

    def make_dir(self, directory: Path) -> None:
        self._check()
        super().make_dir(directory)


class Source(NamedTuple):
    """A folder of a stopped node, a place with a backup of before, and the last values."""

    data_dir: Path
    folder: Path
    values: list[bytes]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Return a source whose last message no backup has."""
    root = tmp_path_factory.mktemp("backup")
    found = Source(root / "data", root / "place", [])
    for number in range(2):
        with goq.Node(found.data_dir) as node, node.client() as q:
            if not number:
                q.create_topic("orders", partitions=1)
            found.values.append(b"%d" % number)
            q.publish("orders", found.values[-1])
            q.receive("orders", "g")[0].ack()
        if not number:
            back_up(RealDisk(), found.data_dir, found.folder)
    return found


def back_up(disk: RealDisk, data_dir: Path, folder: Path) -> str:
    return back_up_folder(disk, data_dir, folder, time.time_ns() // 1000).name


def steps_of(work: Callable[[KillingDisk], object]) -> int:
    """Return how many steps work has, all of them done."""
    disk = KillingDisk(2**62)
    work(disk)
    return disk.steps


def killed(work: Callable[[KillingDisk], object], step: int) -> None:
    with pytest.raises(KilledHere):
        work(KillingDisk(step))


def test_a_backup_that_is_killed_at_any_step_leaves_the_earlier_ones_whole(
    source: Source, tmp_path: Path
) -> None:
    copytree(source.folder, tmp_path / "all")
    steps = steps_of(lambda disk: back_up(disk, source.data_dir, tmp_path / "all"))
    assert steps > 8
    for step in range(1, steps + 1):
        folder = tmp_path / f"place-{step}"
        copytree(source.folder, folder)
        place = BackupPlace(RealDisk(), folder)
        killed(lambda disk, to=folder: back_up(disk, source.data_dir, to), step)
        assert len(place.names()) == 1
        assert verify_place(place).problems == []
        back_up(RealDisk(), source.data_dir, folder)
        assert len(place.names()) == 2
        prune_place(place, 0)
        assert verify_place(place).problems == []
        assert not [path for path in folder.rglob("*.new") if path.exists()]
        rmtree(folder)


class NamesDisk(RealDisk):
    """A disk that knows which names a power cut would take; ``at_manifest`` are those then."""

    def __init__(self) -> None:
        super().__init__()
        self.named = 0
        self.at_manifest: set[Path] | None = None
        self._unsynced = set[Path]()

    def set_name(self, path: Path, target: Path) -> None:
        super().set_name(path, target)
        self.named += 1
        self._unsynced.add(target)

    def sync_names(self, directory: Path) -> None:
        super().sync_names(directory)
        self._unsynced = {path for path in self._unsynced if path.parent != directory}

    def replace(self, path: Path, data: bytes) -> None:
        self.at_manifest = set(self._unsynced)
        super().replace(path, data)


def test_the_names_of_all_objects_are_durable_before_the_manifest(
    source: Source, tmp_path: Path
) -> None:
    disk = NamesDisk()
    back_up(disk, source.data_dir, tmp_path / "place")
    assert disk.named > 1
    assert disk.at_manifest == set()


def test_a_prune_that_is_killed_at_any_step_leaves_whole_backups(
    source: Source, tmp_path: Path
) -> None:
    copytree(source.folder, tmp_path / "two")
    back_up(RealDisk(), source.data_dir, tmp_path / "two")
    copytree(tmp_path / "two", tmp_path / "all")
    far_us = 2**62
    steps = steps_of(lambda disk: prune_place(BackupPlace(disk, tmp_path / "all"), far_us))
    assert steps > 2
    for step in range(1, steps + 1):
        folder = tmp_path / f"place-{step}"
        copytree(tmp_path / "two", folder)
        killed(lambda disk, at=folder: prune_place(BackupPlace(disk, at), far_us), step)
        place = BackupPlace(RealDisk(), folder)
        assert verify_place(place).problems == []
        assert len(place.names()) == (2 if step == 1 else 1)
        prune_place(place, far_us)
        assert sorted(RealDisk().names(place.objects)) == sorted(
            RealDisk().names(tmp_path / "all" / "objects")
        )
        rmtree(folder)


def test_a_restore_that_is_killed_at_any_step_leaves_no_folder_that_a_node_would_start_on(
    source: Source, tmp_path: Path
) -> None:
    def run(disk: KillingDisk, data_dir: Path) -> None:
        restore(BackupPlace(disk, source.folder), data_dir, NEWEST, time.time_ns() // 1000)

    steps = steps_of(lambda disk: run(disk, tmp_path / "all"))
    assert steps > 20
    assert verify_data_dir(RealDisk(), tmp_path / "all").is_sound
    for step in range(1, steps + 1):
        data_dir = tmp_path / f"data-{step}"
        killed(lambda disk, to=data_dir: run(disk, to), step)
        if (data_dir / "FORMAT").exists():
            with pytest.raises(UnsupportedFormat, match="was not finished"):
                check_format(data_dir)
        else:
            assert not data_dir.exists() or set(RealDisk().names(data_dir)) <= {"FORMAT.new"}
        rmtree(data_dir, ignore_errors=True)


def test_every_flipped_byte_of_an_object_is_named(source: Source) -> None:
    objects = sorted((source.folder / "objects").iterdir())
    assert len(objects) == 2
    for path in objects:
        sound = path.read_bytes()
        for position in range(0, len(sound), 7):
            path.write_bytes(flipped(sound, position))
            (problem,) = verify_place(BackupPlace(RealDisk(), source.folder)).problems
            assert path.name in problem
            assert "orders:0" in problem
        path.unlink()
        (problem,) = verify_place(BackupPlace(RealDisk(), source.folder)).problems
        assert f"{path.name} is missing" in problem
        path.write_bytes(sound)


def test_every_flipped_byte_of_a_manifest_is_named(source: Source) -> None:
    place = BackupPlace(RealDisk(), source.folder)
    (path,) = (source.folder / "manifests").iterdir()
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(flipped(sound, position))
        (problem,) = verify_place(place).problems
        assert str(path) in problem
    with pytest.raises(CorruptData, match="damaged"):
        prune_place(place, 2**62)
    path.write_bytes(sound)


def test_a_damaged_object_is_not_restored(source: Source, tmp_path: Path) -> None:
    copytree(source.folder, tmp_path / "place")
    for path in (tmp_path / "place" / "objects").iterdir():
        path.write_bytes(flipped(path.read_bytes(), 50))
    place, now_us = BackupPlace(RealDisk(), tmp_path / "place"), time.time_ns() // 1000
    with pytest.raises(CorruptData, match="damaged"):
        restore(place, tmp_path / "new", NEWEST, now_us)
    with pytest.raises(UnsupportedFormat):
        check_format(tmp_path / "new")


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
