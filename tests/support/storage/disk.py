"""A disk in memory that promises exactly what ``goq.storage.disk`` asks for, and no more.

Bytes that were written and not synced are lost, kept, or kept in part when the power goes; a
killed process loses nothing that it wrote. Any operation can be the last one, half done. A sync
that fails leaves bytes that a later sync takes for written, as Linux does. Names are durable when
the operation that makes them returns, and either way when it is cut short.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from random import Random
from typing import Any

from goq.storage.disk import NotCached

SECTOR_BYTES = 512
FILE_COST_BYTES = 64


class InlineExecutor(Executor):
    """Threads that do their work at once, where it is handed to them."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class SimulatedCrash(Exception):
    """The process ended here; what it had open is gone."""


class _Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)  # as any process sees it
        self.stable = bytearray(data)  # as it would be without power
        self.dirty: set[int] = set()  # sectors that the next sync writes
        self.forgotten: set[int] = set()  # sectors that no sync writes, after one that failed

    def write(self, data: bytes, position: int) -> None:
        if not data:
            return
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        sectors = range(position // SECTOR_BYTES, (position + len(data) - 1) // SECTOR_BYTES + 1)
        self.dirty.update(sectors)
        self.forgotten.difference_update(sectors)

    def sync(self) -> None:
        lost = {n: self._stable_sector(n) for n in self.forgotten}
        self.stable = bytearray(self.data)
        for number, old in lost.items():
            self.stable[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES] = old
        self.dirty.clear()

    def _stable_sector(self, number: int) -> bytes:
        start = number * SECTOR_BYTES
        size = min(SECTOR_BYTES, len(self.data) - start)
        return bytes(self.stable[start : start + size]).ljust(size, b"\0")

    def lose_power(self, random: Random) -> None:
        unwritten = sorted(self.dirty | self.forgotten)
        kept = random.choice(
            [[], unwritten, unwritten[: random.randint(0, len(unwritten))],
             [n for n in unwritten if random.random() < 0.5]]
        )  # fmt: skip
        for number in kept:
            start = number * SECTOR_BYTES
            sector = self.data[start : start + SECTOR_BYTES]
            self.stable.extend(bytes(max(0, start - len(self.stable))))
            self.stable[start : start + len(sector)] = sector
        if random.random() < 0.3:  # the length was written, the bytes were not
            self.stable.extend(bytes(max(0, len(self.data) - len(self.stable))))
        self.data = bytearray(self.stable)
        self.dirty.clear()
        self.forgotten.clear()


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self.size_bytes = len(inode.data)

    def append(self, buffers: Sequence[bytes | memoryview], *, is_vital: bool = False) -> None:
        data, position = b"".join(buffers), self.size_bytes
        if self._begin("append"):
            part = data[: self._disk.random.randint(0, len(data))]
            self._inode.write(part, position)
            raise SimulatedCrash
        self._disk.take_room(len(data))
        self._inode.write(data, position)
        self.size_bytes += len(data)

    def start_writeback(self) -> None:
        pass

    def write_at(self, data: bytes, position: int, *, must_last: bool = True) -> None:
        if self._begin("write_at") and self._disk.random.random() < 0.5:
            raise SimulatedCrash
        self._disk.take_room(max(0, position + len(data) - self.size_bytes))
        self._inode.write(data, position)
        self.size_bytes = max(self.size_bytes, position + len(data))
        self._disk.end()

    def sync(self) -> None:
        try:
            cut_short = self._begin("sync")
        except OSError:
            if self._disk.reverts_failed_syncs:
                self._inode.data = bytearray(self._inode.stable)
            else:
                self._inode.forgotten |= self._inode.dirty
            self._inode.dirty.clear()
            raise
        if cut_short and self._disk.random.random() < 0.5:
            raise SimulatedCrash
        self._inode.sync()
        self._disk.end()

    def truncate(self, size_bytes: int) -> None:
        if self._begin("truncate") and self._disk.random.random() < 0.5:
            raise SimulatedCrash
        inode = self._inode
        del inode.data[size_bytes:]
        inode.dirty = {n for n in inode.dirty if n * SECTOR_BYTES < size_bytes}
        inode.forgotten = {n for n in inode.forgotten if n * SECTOR_BYTES < size_bytes}
        inode.sync()
        self.size_bytes = size_bytes
        self._disk.end()

    def close(self) -> None:
        return

    def _begin(self, operation: str) -> bool:
        if self._life != self._disk.life:
            raise SimulatedCrash
        return self._disk.begin(operation, self._path)


class SimulatedDisk:
    """See the module; ``random`` decides everything that a real disk leaves to chance.

    ``crash_at`` is the number of the operation that is cut short, ``fault`` may name the error
    that an operation fails with, ``capacity_bytes`` bounds what fits, and ``in_memory`` says
    whether reads need not wait. With ``reverts_failed_syncs`` readers see the old bytes after a
    sync that failed, as on Btrfs, or once the page cache has dropped the new ones.
    """

    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random(0)
        self.life = 0
        self.operations = 0
        self.bytes_read = 0
        self.crash_at: int | None = None
        self.capacity_bytes: int | None = None
        self.in_memory = True
        self.reverts_failed_syncs = False
        self.fault: Callable[[str, Path], int | None] = lambda _operation, _path: None
        self._crashing = False
        self._inodes: dict[str, _Inode] = {}
        self._dirs: set[str] = set()

    # What tests do to it

    def crash(self, *, power: bool) -> None:
        """End the process, or the power with it; the disk is there again afterwards."""
        self.life += 1
        self.crash_at = None
        self._crashing = False
        if power:
            for inode in self._inodes.values():
                inode.lose_power(self.random)

    def read_all(self, path: Path) -> bytes:
        return bytes(self._inode(path).data)

    def put(self, path: Path, data: bytes) -> None:
        """Let a file be there with these bytes, durably, whatever was there before."""
        self._inodes[str(path)] = _Inode(data)

    def flip(self, path: Path, position: int, bits: int) -> None:
        """Let bits of a byte be others than were written, as any reader sees it."""
        inode = self._inode(path)
        for data in (inode.data, inode.stable):
            if position < len(data):
                data[position] ^= bits

    def delete(self, path: Path) -> None:
        """Let a file not be there."""
        del self._inodes[str(path)]

    def copy(self) -> SimulatedDisk:
        """Return a disk with the same files, all durable."""
        other = SimulatedDisk(Random(self.random.random()))
        other._dirs = set(self._dirs)
        other._inodes = {path: _Inode(inode.data) for path, inode in self._inodes.items()}
        return other

    def paths(self) -> list[Path]:
        return sorted(map(Path, self._inodes))

    @property
    def used_bytes(self) -> int:
        return sum(len(i.data) + FILE_COST_BYTES for i in self._inodes.values())

    @property
    def is_crashing(self) -> bool:
        return self._crashing

    # The Disk protocol

    def open(self, path: Path) -> _SimulatedFile:
        cut_short = self.begin("open", path)
        name = str(path)
        if name.rpartition("/")[0] not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        if name not in self._inodes:
            if cut_short and self.random.random() < 0.5:
                raise SimulatedCrash
            self.take_room(FILE_COST_BYTES)
            self._inodes[name] = _Inode()
        self.end()
        return _SimulatedFile(self, path, self._inodes[name])

    def read(self, path: Path, position: int, size_bytes: int, *, wait: bool = True) -> memoryview:
        data = self._inode(path).data
        if not wait and not self.in_memory:
            raise NotCached
        part = bytes(data[position : position + max(0, size_bytes)])
        self.bytes_read += len(part)
        return memoryview(part)

    def size(self, path: Path) -> int:
        return len(self._inode(path).data)

    def replace(self, path: Path, data: bytes) -> None:
        aside = f"{path}.new"
        if self.begin("replace", path) and self.random.random() < 0.5:
            self._inodes[aside] = _Inode(data[: self.random.randint(0, len(data))])
            raise SimulatedCrash
        self.take_room(len(data) + FILE_COST_BYTES)
        self._inodes.pop(aside, None)
        self._inodes[str(path)] = _Inode(data)
        self.end()

    def rename(self, path: Path, target: Path) -> None:
        inode = self._inode(path)
        if self.begin("rename", path) and self.random.random() < 0.5:
            raise SimulatedCrash
        del self._inodes[str(path)]
        self._inodes[str(target)] = inode
        self.end()

    def remove(self, path: Path) -> None:
        if self.begin("remove", path) and self.random.random() < 0.5:
            raise SimulatedCrash
        self._inodes.pop(str(path), None)
        self.end()

    def names(self, directory: Path) -> list[str]:
        prefix = f"{directory}/"
        inside = (path[len(prefix) :] for path in self._below(prefix))
        return sorted({name for name in inside if "/" not in name})

    def make_dir(self, directory: Path) -> None:
        if self.begin("make_dir", directory) and self.random.random() < 0.5:
            raise SimulatedCrash
        self._dirs.update(map(str, (directory, *directory.parents)))
        self.end()

    def remove_dir(self, directory: Path) -> None:
        self.begin("remove_dir", directory)
        for path in self._below(f"{directory}/"):
            self._inodes.pop(path, None)
            self._dirs.discard(path)
        self._dirs.discard(str(directory))
        self.end()

    def move_dir(self, directory: Path, target: Path) -> None:
        if self.begin("move_dir", directory) and self.random.random() < 0.5:
            raise SimulatedCrash
        if str(directory) not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(directory))
        for path in (str(directory), *self._below(f"{directory}/")):
            new_path = f"{target}{path[len(str(directory)) :]}"
            if path in self._inodes:
                self._inodes[new_path] = self._inodes.pop(path)
            else:
                self._dirs.remove(path)
                self._dirs.add(new_path)
        self.end()

    def _below(self, prefix: str) -> list[str]:
        """Return all paths that begin so."""
        return [path for path in (*self._inodes, *self._dirs) if path.startswith(prefix)]

    # Under the operations

    def begin(self, operation: str, path: Path) -> bool:
        """Count an operation; whether it is the one that is cut short."""
        if self._crashing:
            raise SimulatedCrash
        self.operations += 1
        failing = self.fault(operation, path)
        if failing is not None:
            raise OSError(failing, os.strerror(failing), str(path))
        self._crashing = self.operations == self.crash_at
        return self._crashing

    def end(self) -> None:
        """End an operation that was done whole, the last one if it is so."""
        if self._crashing:
            raise SimulatedCrash

    def take_room(self, size_bytes: int) -> None:
        if self.capacity_bytes is not None and self.used_bytes + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _inode(self, path: Path) -> _Inode:
        try:
            return self._inodes[str(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None
