"""What a power cut may leave, and what not, for records of a few calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.storage.power.crash_states import (
    LOSSES,
    Everything,
    LostBytes,
    LostNames,
    Nothing,
    Torn,
    Zeros,
    crash_state,
)
from tests.support.storage.power.record import Entry
from tests.support.storage.power.volume import Tree, Volume

SEEDS = 200
FOLDER, FILE, OTHER = 101, 102, 103


class Calls:
    """A record that is written by hand."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._entries: list[Entry] = []

    def _add(self, kind: str, number: int = 0, position: int = 0, path: str = "", to: str = "",
             data: bytes = b"") -> Calls:  # fmt: skip
        name = str(self._root / path) if path else ""
        content = str(self._root / to).encode() if to else data
        index = len(self._entries)
        self._entries.append(Entry(kind, number, position, name, content, index, index + 1))
        return self

    def folder(self, path: str, number: int = FOLDER) -> Calls:
        return self._add("D", number, path=path)

    def file(self, path: str, number: int = FILE) -> Calls:
        return self._add("C", number, path=path)

    def write(self, data: bytes, position: int = 0, number: int = FILE) -> Calls:
        return self._add("W", number, position, data=data)

    def truncate(self, size_bytes: int) -> Calls:
        return self._add("T", FILE, size_bytes)

    def sync(self, number: int = FILE) -> Calls:
        return self._add("S", number or self._root.stat().st_ino)

    def rename(self, path: str, target: str) -> Calls:
        return self._add("R", path=path, to=target)

    def remove(self, path: str) -> Calls:
        return self._add("U", path=path)

    def send(self) -> Calls:
        return self._add("N", 1, 1)

    def volume(self, **options: bool) -> Volume:
        return Volume(self._entries, self._root, **options)

    def left_by(self, loss: type) -> Tree:
        volume = self.volume()
        return crash_state(volume, volume.size, loss, 1).tree

    def leaves(self) -> list[Tree]:
        """All that power cuts at the end leave, each once."""
        volume, found = self.volume(), []
        for seed in range(SEEDS):
            for loss in LOSSES:
                tree = crash_state(volume, volume.size, loss, seed).tree
                if tree not in found:
                    found.append(tree)
        return found


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def test_what_is_synced_with_its_name_is_always_there(calls: Calls) -> None:
    calls.file("f").write(b"bytes").sync().sync(0)
    assert calls.leaves() == [{"f": b"bytes"}]


def test_a_synced_file_loses_its_name_if_its_folder_was_not_synced(calls: Calls) -> None:
    calls.file("f").write(b"bytes").sync()
    assert calls.left_by(LostNames) == {}
    assert calls.left_by(Everything) == {"f": b"bytes"}


def test_a_synced_folder_loses_its_own_name(calls: Calls) -> None:
    calls.folder("d").file("d/f").sync().sync(FOLDER)
    assert calls.left_by(Nothing) == {}
    calls.sync(0)
    assert calls.left_by(Nothing) == {"d": None, "d/f": b""}


def test_a_name_that_is_synced_says_nothing_of_the_bytes(calls: Calls) -> None:
    calls.file("f").write(b"bytes").sync(0)
    assert calls.left_by(LostBytes) == {"f": b""}
    assert calls.left_by(Zeros) == {"f": bytes(5)}


def test_a_sync_says_nothing_of_later_writes(calls: Calls) -> None:
    calls.file("f").sync(0).write(b"old").sync().write(b"new")
    assert calls.left_by(Nothing) == {"f": b"old"}
    assert {tree["f"] for tree in calls.leaves()} == {b"old", b"new"}


def test_a_write_is_torn_between_sectors_only(calls: Calls) -> None:
    calls.file("f").sync(0).write(b"-" * 1536).sync().write(b"+" * 1536)
    volume = calls.volume()
    found = {crash_state(volume, volume.size, Torn, seed).tree["f"] for seed in range(SEEDS)}
    sectors = {content[at : at + 512] for content in found if content for at in (0, 512, 1024)}
    assert sectors == {b"-" * 512, b"+" * 512}
    assert len(found) == 8


def test_a_rename_happens_whole_or_not_at_all(calls: Calls) -> None:
    calls.file("new").write(b"2").sync().file("old", OTHER).write(b"1", number=OTHER)
    calls.sync(OTHER).sync(0).rename("new", "old")
    leaves = calls.leaves()
    assert {"new": b"2", "old": b"1"} in leaves
    assert {"old": b"2"} in leaves
    assert len(leaves) == 2


def test_changes_of_one_name_keep_their_order(calls: Calls) -> None:
    calls.file("f").write(b"1").sync().remove("f").file("f", OTHER)
    assert {str(tree) for tree in calls.leaves()} == {"{}", "{'f': b'1'}", "{'f': b''}"}


def test_changes_of_different_names_do_not(calls: Calls) -> None:
    calls.file("a").file("b", OTHER)
    assert {tuple(sorted(tree)) for tree in calls.leaves()} == {(), ("a",), ("b",), ("a", "b")}


def test_a_truncation_that_is_not_synced_may_be_lost(calls: Calls) -> None:
    calls.file("f").sync(0).write(b"bytes").sync().truncate(2)
    assert {tree["f"] for tree in calls.leaves()} == {b"bytes", b"by"}


def test_a_late_sync_comes_after_the_answer(calls: Calls) -> None:
    calls.file("f").sync(0).write(b"bytes").sync().send().send()
    late = calls.volume(late=True)
    after_answer = late.size - 1
    assert crash_state(late, after_answer, Nothing, 1).tree == {"f": b""}
    assert crash_state(late, late.size, Nothing, 1).tree == {"f": b"bytes"}
    assert crash_state(calls.volume(), after_answer, Nothing, 1).tree == {"f": b"bytes"}
