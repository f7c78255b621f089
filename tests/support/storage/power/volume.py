"""A model of a filesystem that loses power: which folders a record may leave behind.

The model is the weakest that databases are written for: POSIX with nothing that a particular
filesystem gives beyond it, as in ALICE (OSDI 2014).

- A sync of a file (fsync, fdatasync) makes all earlier changes of its bytes and size durable, and
  not its name.
- A sync of a folder makes all earlier changes of names in it durable, and not its own name.
- A rename is atomic: both of its names change or none. It is durable with either folder.
- Any change that is not durable may have happened or not, in any order, but two changes of one name
  keep theirs. A sector (512 or 4096 bytes) is written whole or not at all.
- A file may have grown without its bytes: they are zeros, or what the disk held there before.

Bytes that were durable stay: sectors near a write are not damaged, and no bit rots.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support.storage.power.record import Entry

NEVER = 2**62
Tree = dict[str, bytes | None]
"""The content of files by path below the root; None is a folder."""
Name = tuple[int, str]
"""A folder's number and a name in it."""
_ROOT = 0


@dataclass(slots=True)
class NameChange:
    """Names that change together; ``durable_at`` is the entry from which on that is durable."""

    index: int
    names: dict[Name, int | None]
    durable_at: int = NEVER


@dataclass(slots=True)
class DataChange:
    """Bytes written to a file; without ``data`` its new size: at least so much, or exactly."""

    index: int
    file: int
    position: int
    data: bytes | None
    is_exact: bool = False
    durable_at: int = NEVER


class Sent(NamedTuple):
    """Bytes for a client."""

    index: int
    port: int
    size_bytes: int


Kept = Callable[[NameChange], bool]
Written = Callable[[DataChange, bytearray], None]


class Volume:
    """All that a record did to a folder that held the durable ``base`` before.

    A sync for which ``drops`` returns True, given the path below the root, counts for nothing.
    With ``late`` syncs of files come right after the next bytes for a client.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        root: Path,
        base: Tree | None = None,
        base_inodes: Mapping[int, str] | None = None,
        *,
        drops: Callable[[str, bool], bool] = lambda _path, _is_folder: False,
        late: bool = False,
    ) -> None:
        self.entries = entries
        self.sent: list[Sent] = []
        self.names: list[NameChange] = []
        self.data: dict[int, list[DataChange]] = defaultdict(list)
        self._root = root
        self._drops = drops
        self._late = late
        self._delayed: list[int] = []
        self._unsynced: dict[int, list[NameChange | DataChange]] = defaultdict(list)
        self._paths: dict[int, str] = {_ROOT: "."}
        self._numbers = {root.stat().st_ino: _ROOT}
        self._folders = {_ROOT}
        self._now: dict[Name, int] = {}
        self._base: dict[int, bytes] = {}
        inode_of = {path: inode for inode, path in (base_inodes or {}).items()}
        for path, content in sorted((base or {}).items()):
            number = self._new(inode_of[path], path, is_folder=content is None)
            self._base[number] = content or b""
            self._now[self._name(path)] = number
        self._first = dict(self._now)
        for index, entry in enumerate(entries):
            self._take(index, entry)

    @property
    def size(self) -> int:
        """How many entries there are; a crash may come before or after each."""
        return len(self.entries)

    def index_of_byte(self, position: int) -> int:
        """Return the first entry that begins at ``position`` of the record or later."""
        return bisect_left(self.entries, position, key=lambda entry: entry.begin)

    def whole(self) -> Tree:
        """Return what the running system shows: everything, durable or not."""
        return self.tree(self.size, lambda _: True, _write_all)

    def unsynced(self, point: int) -> Iterator[NameChange | DataChange]:
        """Yield what was done before ``point`` and is not durable there."""
        for name_change in self.names:
            if name_change.index < point <= name_change.durable_at:
                yield name_change
        for changes in self.data.values():
            for data_change in changes:
                if data_change.index < point <= data_change.durable_at:
                    yield data_change

    def tree(self, point: int, keeps: Kept, writes: Written) -> Tree:
        """Return what a crash before entry ``point`` leaves.

        ``keeps`` decides on changes of names that are not durable, ``writes`` carries out changes
        of bytes that are not, wholly, in part, or not at all.
        """
        found: Tree = {}
        children: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for (folder, name), number in self._names_at(point, keeps).items():
            children[folder].append((name, number))
        todo = [(_ROOT, "")]
        while todo:
            folder, prefix = todo.pop()
            for name, number in children[folder]:
                path = prefix + name
                if number in self._folders:
                    found[path] = None
                    todo.append((number, path + "/"))
                else:
                    found[path] = self._content(number, point, writes)
        return found

    def _names_at(self, point: int, keeps: Kept) -> dict[Name, int]:
        changes = [change for change in self.names if change.index < point]
        needed: set[Name] = set()
        kept: list[NameChange] = []
        for change in reversed(changes):  # a kept change needs the earlier ones of its names
            is_needed = not needed.isdisjoint(change.names)
            if change.durable_at < point or is_needed or keeps(change):
                needed.update(change.names)
                kept.append(change)
        found = dict(self._first)
        for change in reversed(kept):
            for name, number in change.names.items():
                if number is None:
                    found.pop(name, None)
                else:
                    found[name] = number
        return found

    def _content(self, number: int, point: int, writes: Written) -> bytes:
        content = bytearray(self._base.get(number, b""))
        for change in self.data.get(number, ()):
            if change.index >= point:
                break
            (_write_all if change.durable_at < point else writes)(change, content)
        return bytes(content)

    # Reading the record

    def _take(self, index: int, entry: Entry) -> None:
        if self._delayed and self.sent and self.sent[-1].index == index - 1:
            for number in self._delayed:
                self._settle(index, number)
            self._delayed.clear()
        match entry.kind:
            case "C" | "D":
                path = self._below(entry.path)
                number = self._new(entry.number, path, is_folder=entry.kind == "D")
                self._rename(index, {self._name(path): number})
            case "W":
                self._write(DataChange(index, self._number(entry), entry.position, entry.data))
            case "T" | "A":
                exact = entry.kind == "T"
                self._write(DataChange(index, self._number(entry), entry.position, None, exact))
            case "S":
                self._sync(index, self._number(entry))
            case "R" | "L":
                path, target = self._below(entry.path), self._below(os.fsdecode(entry.data))
                number = self._now[self._name(path)]
                gone: dict[Name, int | None] = {self._name(path): None}
                names = gone if entry.kind == "R" else {}
                self._rename(index, names | {self._name(target): number})
                self._paths[number] = target
            case "U":
                self._rename(index, {self._name(self._below(entry.path)): None})
            case "N":
                self.sent.append(Sent(index, entry.number, entry.position))

    def _new(self, inode: int, path: str, *, is_folder: bool) -> int:
        number = len(self._paths)
        self._numbers[inode] = number
        self._paths[number] = path
        if is_folder:
            self._folders.add(number)
        return number

    def _number(self, entry: Entry) -> int:
        return self._numbers[entry.number]

    def _below(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def _name(self, path: str) -> Name:
        folder = _ROOT
        *parents, last = path.split("/")
        for part in parents:
            folder = self._now[folder, part]
        return folder, last

    def _rename(self, index: int, names: dict[Name, int | None]) -> None:
        change = NameChange(index, names)
        self.names.append(change)
        for name, number in names.items():
            self._unsynced[name[0]].append(change)
            if number is None:
                self._now.pop(name, None)
            else:
                self._now[name] = number

    def _write(self, change: DataChange) -> None:
        self.data[change.file].append(change)
        self._unsynced[change.file].append(change)

    def _sync(self, index: int, number: int) -> None:
        is_folder = number in self._folders
        if self._drops(self._paths[number], is_folder):
            return
        if self._late and not is_folder:
            self._delayed.append(number)
        else:
            self._settle(index, number)

    def _settle(self, index: int, number: int) -> None:
        for change in self._unsynced.pop(number, ()):
            change.durable_at = min(change.durable_at, index)


def _write_all(change: DataChange, content: bytearray) -> None:
    write(change, content)


def write(change: DataChange, content: bytearray) -> None:
    """Carry out a change of a file's bytes or size."""
    if change.data is None:
        if change.is_exact:
            del content[change.position :]
        grow(content, change.position)
    else:
        grow(content, change.position)
        content[change.position : change.position + len(change.data)] = change.data


def grow(content: bytearray, size_bytes: int) -> None:
    """Make a file at least so long, with zeros."""
    content.extend(bytes(max(0, size_bytes - len(content))))


def inodes(folder: Path) -> dict[int, str]:
    """Return the paths of all that is below a folder, by inode."""
    return {path.lstat().st_ino: os.path.relpath(path, folder) for path in folder.rglob("*")}


def read_tree(folder: Path) -> Tree:
    """Return all that is below a folder."""
    return {
        os.path.relpath(path, folder): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def write_tree(tree: Tree, folder: Path) -> None:
    """Create a folder with this content."""
    folder.mkdir(parents=True)
    for path in sorted(tree):
        content = tree[path]
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
