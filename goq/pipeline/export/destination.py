"""Destination of an export: a folder, or any filesystem that pyarrow reaches.

Readers see whole files only: a file is written aside, within the destination, and gets its name
when it is complete and durable. Spark ignores names that begin with ``_``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from goq.errors import Conflict, InvalidInput
from goq.pipeline.export.errors import explained
from goq.pipeline.export.parquet import Staging, checksum
from goq.pipeline.export.remote_destination import RemoteDestination

_ASIDE = "_goq/tmp"
_LOCKS = "_goq/locks"


class Destination(Protocol):
    """A place for files; paths are relative to it, with ``/`` between names.

    Failures raise ``StorageFull``, ``NotAllowed``, ``Conflict`` or ``Unavailable``.
    """

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a small file's content, None if there is none."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any place in it."""
        ...

    def checksum(self, path: str) -> int | None:
        """Return the CRC-32C of a file, None where that would copy it over a network."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""
        ...

    def staging(self, *names: str) -> Staging:
        """Return the folder where files of this destination are written, one for each use."""
        ...

    def publish(self, made: str, path: str) -> None:
        """Move a finished file from staging to a free name, durably."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def uri(self, path: str) -> str:
        """Return the URI of a file."""
        ...

    def claimed(self, topics: Sequence[str]) -> AbstractContextManager[None]:
        """Claim these topics against other exports until the block ends.

        Raises ``Conflict`` if another export has claimed one.
        """
        ...


class LocalDestination:
    """A folder on this host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        with explained(self.root / path):
            try:
                return sorted(os.listdir(self.root / path))
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        with explained(self.root / path):
            return (self.root / path).is_file()

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        with explained(self.root / path):
            try:
                return (self.root / path).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any place in it."""
        with explained(self.root / path):
            return pa.OSFile(str(self.root / path))

    def checksum(self, path: str) -> int | None:
        """Return the CRC-32C of a file."""
        with explained(self.root / path):
            return checksum(fs.LocalFileSystem(), str(self.root / path))

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""
        place = self.root / path
        aside = place.with_name(place.name + ".new")
        with explained(place):
            _make_folder(place.parent)
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(place)
            _sync(place.parent)

    def staging(self, *names: str) -> Staging:
        """Return the folder where files of this destination are written, one for each use."""
        return Staging(fs.LocalFileSystem(), str(self.root.absolute().joinpath(_ASIDE, *names)))

    def publish(self, made: str, path: str) -> None:
        """Sync a finished file and rename it."""
        place = self.root / path
        with explained(place):
            _sync(Path(made))
            _make_folder(place.parent)
            os.replace(made, place)
            _sync(place.parent)

    def exchange(self, made: Path, path: str) -> None:
        """Give a finished folder the name of another, and the reverse, in one durable step."""
        place = self.root / path
        with explained(place):
            _sync(made)
            _exchange(made, place)
            _sync(place.parent)
            _sync(made.parent)

    def remove(self, path: str) -> None:
        """Remove a file."""
        with explained(self.root / path):
            (self.root / path).unlink(missing_ok=True)

    def uri(self, path: str) -> str:
        """Return the URI of a file."""
        return f"file://{self.root.absolute() / path}"

    @contextmanager
    def claimed(self, topics: Sequence[str]) -> Generator[None, None, None]:
        """Hold a file lock for each topic; the lock ends with the process."""
        with ExitStack() as held:
            for topic in sorted(set(topics)):
                place = self.root / _LOCKS / topic
                with explained(place):
                    _make_folder(place.parent)
                    file = held.enter_context(place.open("w"))
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise Conflict(
                            f"{topic} is being exported to {self.root} already; wait for that to"
                            " end, or use another folder"
                        ) from None
            yield


def open_target(to: str) -> Destination:
    """Return the destination of a path or URI; raise ``InvalidInput`` for an invalid one."""
    if "://" not in to:
        return LocalDestination(Path(to))
    if to.startswith("file://"):
        return LocalDestination(Path(to.removeprefix("file://")))
    try:
        filesystem, root = fs.FileSystem.from_uri(to)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{to!r} cannot be written to: {error}", field="to") from None
    parts = urlsplit(to)
    host = parts.netloc.rpartition("@")[2]  # without user and password
    return RemoteDestination(filesystem, root, f"{parts.scheme}://{host}{parts.path}")


def check_ours(target: Destination, to: str) -> None:
    """Raise ``Conflict`` for a folder that holds something other than an export."""
    names = [name for name in target.names("") if not name.startswith(".")]
    if names and "_goq" not in names:
        raise Conflict(
            f"{to} is not empty, and what is there is no export of goq ({', '.join(names[:3])}):"
            " give another folder",
            field="to",
        )


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, each durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders: ``renameat2`` of Linux, which Python has no call for."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if libc.renameat2(*names, _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, f"folders cannot be exchanged in one step: {os.strerror(code)}")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
