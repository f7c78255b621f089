"""The record of a process: what it did below a folder, in one order, and what it sent.

``recorder.c`` writes it, preloaded into the process. ``Recorder`` builds that library and names
the files; :func:`read_record` returns the entries.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("recorder.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
_HEAD = struct.Struct("<IcQQI")
_LENGTH_BYTES = 4


class Entry(NamedTuple):
    """One call of the process.

    ``kind`` is C reate, D irectory made, W rite, T runcate, A llocate, S ync, R ename, L ink,
    U nlink (a folder too), N etwork. ``number`` is the inode, or the port of a client.
    ``position`` is that of a write, a new size, or the length of what was sent. ``begin`` and
    ``end`` are the entry's place in the file.
    """

    kind: str
    number: int
    position: int
    path: str
    data: bytes
    begin: int
    end: int


class Recorder:
    """A library that records a process below ``root`` into the file ``record``."""

    def __init__(self, library: Path, root: Path, record: Path) -> None:
        self._library = library
        self.root = root
        self.record = record

    @property
    def environment(self) -> dict[str, str]:
        """What a process must find in its environment to be recorded."""
        return {
            "LD_PRELOAD": str(self._library),
            "POWER_ROOT": str(self.root),
            "POWER_RECORD": str(self.record),
        }

    @property
    def size_bytes(self) -> int:
        """The length of the record: what comes later begins there or behind."""
        return self.record.stat().st_size if self.record.exists() else 0

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Keep the process between two calls: one that is killed here has a whole record."""
        with self.record.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def build(folder: Path) -> Path:
    """Compile the library into a folder and return it."""
    assert COMPILER is not None
    library = folder / "recorder.so"
    options = ["-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([COMPILER, *options, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


def read_record(path: Path) -> list[Entry]:
    """Return all entries; raise ``AssertionError`` where the process did what is not followed."""
    data = path.read_bytes()
    found: list[Entry] = []
    at = 0
    while at < len(data):
        length, kind, number, position, path_length = _HEAD.unpack_from(data, at)
        begin, end = at + _HEAD.size, at + _LENGTH_BYTES + length
        name = data[begin : begin + path_length]
        content = data[begin + path_length : end]
        assert kind != b"!", f"not followed: {content.decode()} on {name.decode() or number}"
        if kind == b"n":  # the socket took less
            assert found[-1].kind == "N"
            found[-1] = found[-1]._replace(position=found[-1].position - position, end=end)
        else:
            entry = Entry(kind.decode(), number, position, os.fsdecode(name), content, at, end)
            found.append(entry)
        at = end
    return found
