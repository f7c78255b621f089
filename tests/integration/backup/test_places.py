"""Places that are full, read-only, of something else, or used by a later goq."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goq.backup.backup import back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.errors import Conflict, CorruptData, NotFound, UnsupportedFormat, UsageError
from goq.storage.disk import RealDisk
from tests.support.cli.command import Run
from tests.support.node.small_disk import needed_disk
from tests.support.storage.backup_source import stopped_source, view_of

LATER = "20990101T000000.000000Z"
NEWEST = RestoreOrder()


def now_us() -> int:
    return time.time_ns() // 1000


@pytest.fixture
def place(tmp_path: Path) -> BackupPlace:
    """Return a place with one backup of the folder ``data``."""
    stopped_source(tmp_path / "data")
    back_up_folder(RealDisk(), tmp_path / "data", tmp_path / "place", now_us())
    return BackupPlace(RealDisk(), tmp_path / "place")


def add_manifest_of_later_goq(place: BackupPlace) -> None:
    (written,) = place.manifests.iterdir()
    later = written.read_bytes().replace(b"goq-backup 2 ", b"goq-backup 3 ", 1)
    (place.manifests / f"{LATER}.backup").write_bytes(later)


def test_a_manifest_of_a_later_goq_is_told_and_never_removed(
    goq: Run, place: BackupPlace, tmp_path: Path
) -> None:
    add_manifest_of_later_goq(place)
    listed = goq("backup", "list", str(place.folder), code=7).stdout.decode()
    assert "format 3, of a later goq" in listed
    pruned = goq("backup", "prune", str(place.folder), "--keep", "0s", code=7).stderr.decode()
    assert "format 3, of a later goq" in pruned
    assert "remove it" not in pruned
    with pytest.raises(UnsupportedFormat):
        prune_place(place, now_us())
    assert len(place.names()) == 2
    (told,) = verify_place(place).problems
    assert "of a later goq" in told
    back_up_folder(RealDisk(), tmp_path / "data", place.folder, now_us())


@pytest.mark.parametrize("is_later", [True, False])
def test_a_newest_backup_that_cannot_be_read_is_not_passed_over(
    place: BackupPlace, tmp_path: Path, is_later: bool
) -> None:
    (sound,) = place.names()
    if is_later:
        add_manifest_of_later_goq(place)
    else:
        (place.manifests / f"{LATER}.backup").mkdir()
    with pytest.raises(CorruptData, match=f"--backup {sound}"):
        restore(place, tmp_path / "new", NEWEST, now_us())
    assert not (tmp_path / "new").exists()
    restore(place, tmp_path / "new", RestoreOrder(sound), now_us())


def test_a_prune_leaves_files_that_are_not_of_a_backup(place: BackupPlace) -> None:
    (place.objects / "README").write_text("where these come from")
    (place.objects / "folder").mkdir()
    (place.manifests / "notes.new").write_text("whose they are")
    left_by_a_kill = [place.objects / ("0" * 64), place.objects / "object.new",
                      place.manifests / f"{LATER}.backup.new"]  # fmt: skip
    for path in left_by_a_kill:
        path.write_bytes(b"half")
    assert prune_place(place, now_us()).objects == 2
    assert not [path for path in left_by_a_kill if path.exists()]
    assert (place.objects / "README").exists()
    assert (place.objects / "folder").is_dir()
    assert (place.manifests / "notes.new").exists()


def test_a_folder_of_something_else_is_not_changed(place: BackupPlace, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(NotFound):
        restore(BackupPlace(RealDisk(), tmp_path / "other"), tmp_path / "new", NEWEST, now_us())
    assert list((tmp_path / "other").iterdir()) == []
    restore(place, tmp_path / "new", NEWEST, now_us())
    before = sorted((tmp_path / "new").iterdir())
    with pytest.raises(UsageError, match="data folder of a node"):
        back_up_folder(RealDisk(), tmp_path / "data", tmp_path / "new", now_us())
    assert sorted((tmp_path / "new").iterdir()) == before
    with pytest.raises(UsageError, match="contain each other"):
        restore(place, place.folder / "new", NEWEST, now_us())


def test_a_backup_heals_an_object_that_it_copies_again(place: BackupPlace, tmp_path: Path) -> None:
    for path in place.objects.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert verify_place(place).problems
    for path in (tmp_path / "data").glob("topics/*/*/*/*.log"):
        path.touch()
    back_up_folder(RealDisk(), tmp_path / "data", place.folder, now_us())
    assert verify_place(BackupPlace(RealDisk(), place.folder)).problems == []


def test_a_damaged_object_that_was_removed_is_copied_again(
    place: BackupPlace, tmp_path: Path
) -> None:
    damaged = max(place.objects.iterdir(), key=lambda path: path.stat().st_size)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    back_up_folder(RealDisk(), tmp_path / "data", place.folder, now_us())
    assert verify_place(place).problems, "no backup copies what the place has"
    damaged.unlink()
    back_up_folder(RealDisk(), tmp_path / "data", place.folder, now_us())
    assert verify_place(BackupPlace(RealDisk(), place.folder)).problems == []


def test_a_place_that_is_a_file_is_told_in_a_sentence(
    goq: Run, place: BackupPlace, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for words in (
        ["backup", "--data-dir", "data", "--to", "file"],
        ["restore", str(place.folder), "--data-dir", "file"],
    ):
        told = goq(*words, code=7).stderr.decode()
        assert (told.count("\n"), "File exists" in told) == (1, True)
    goq("restore", "file", "--data-dir", "new", code=3)


def test_a_full_place_is_told_and_serves_when_there_is_room(
    goq: Run, place: BackupPlace, tmp_path: Path
) -> None:
    before = view_of(tmp_path / "data")
    with needed_disk(tmp_path / "small", 4) as disk:
        disk.fill()
        for words in (
            ["backup", "--data-dir", "data", "--to", "small/place"],
            ["restore", str(place.folder), "--data-dir", "small/new"],
        ):
            told = goq(*words, code=5).stderr.decode()
            assert (told.count("\n"), "no room" in told) == (1, True)
        disk.give_back()
        goq("backup", "--data-dir", "data", "--to", "small/place")
        assert json.loads(goq("backup", "verify", "small/place", "--json").stdout)["sound"]
        goq("restore", "small/place", "--data-dir", "new")
    assert view_of(tmp_path / "new") == before


def test_a_place_has_one_writer_or_any_number_of_readers(
    place: BackupPlace, tmp_path: Path
) -> None:
    def back_up() -> None:
        back_up_folder(RealDisk(), tmp_path / "data", place.folder, now_us())

    def work_of(number: int) -> list[Callable[[], object]]:
        readers: list[Callable[[], object]] = [
            lambda: verify_place(place),
            lambda: restore(place, tmp_path / f"new{number}", NEWEST, now_us()),
        ]
        return readers if number else [*readers, back_up, lambda: prune_place(place, now_us())]

    other = BackupPlace(RealDisk(), place.folder)
    with other.locked(exclusive=True):
        for work in work_of(0):
            with pytest.raises(Conflict, match="in use by another"):
                work()
    with other.locked(exclusive=False):
        for work in work_of(1):
            work()
        with pytest.raises(Conflict, match="in use by another"):
            back_up()
    assert not (tmp_path / "new0").exists()
    assert len(place.names()) == 1
